"""Sanitization-aware pretraining: a masked language model reads sanitized public text and predicts the original."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from server.accelerator import lent
from server.masked_lm import ALIGNED, inputs_of, layout, logits_at, read
from server.text_batches import pieces_of, seeded
from server.training.finetune import HEAD_LR
from server.training.loop import save, train

#: Share of words to predict, and shares of what replaces them in the input (Devlin et al. 2019).
MASKED = 0.15
AS_MASK, AS_OTHER = 0.8, 0.1
#: Learning rates of the encoder: with a given prediction head, and without one, where it has far to go.
LR, BARE_LR = 5e-5, 2e-4
#: Share of batches with the whole text in front, if `paired`.
PAIRED = 0.7

Sanitizer = Callable[[Sequence[str]], Sequence[str]]
Word = tuple[int, ...]


def pretrain(
    checkpoint: str | Path,
    texts: Sequence[str],
    folder: str | Path,
    *,
    sanitizer: Sanitizer | None = None,
    steps: int = 500,
    lr: float | None = None,
    batch_size: int = 32,
    max_length: int = 96,
    seed: int,
) -> Path:
    """Train a masked language model on sanitized *public* texts to predict the original words.

    15 % of the words, at least one of a text, are masked (80 %), replaced by chance (10 %) or left as the sanitizer
    wrote them (10 %). A masked word has as many masks as the original has pieces. In 7 of 10 batches, each text has its
    whole sanitized copy in front of it: the input of DP-MLM (Meisenbacher et al. 2024, Algorithm 1). Texts are cut so
    that two of them fit into max_length pieces.

    The checkpoint may lack a prediction head. A head is then made, with output embeddings tied to the input ones, and a
    BERT's second text gets the positions of the first (`server.masked_lm.layout`). The model soon finds words that face
    each other, while it hardly learns copies at any distance from little text. The embeddings of words are frozen, so
    that words outside the public texts keep their places.

    It uses AdamW with linear warm-up and decay, a rate of 1e-3 for the head, and gradients clipped to norm 1. The same
    arguments and thread count give the same weights, and global generators stay unchanged. It runs on a GPU where there
    is one (`server.accelerator`).

    Args:
        checkpoint: Checkpoint that training starts from.
        texts: Words with spaces between.
        folder: Folder for the result, with its head.
        sanitizer: Function from texts to texts with the same number of words, in the same places. None trains on the
            texts themselves.
        steps: Number of batches, over as many epochs as they take.
        lr: Learning rate of the encoder. None takes 5e-5, or 2e-4 for an encoder that never had a head.
        batch_size: Texts of a batch.
        max_length: Pieces of an input, at most.
        seed: Seed of all random choices.

    Returns:
        The folder, which is a checkpoint for `export_masked_lm`.

    Raises:
        ValueError: The arguments do not fit, or the checkpoint cannot be read. The message is one line.

    Source: Yue et al. 2021, section 4.4.
    """
    if steps < 1 or batch_size < 1:
        raise ValueError(f"pretraining: steps and batch-size must be at least 1, got {steps} and {batch_size}")
    with seeded(seed):
        model, tokenizer, complete = read(checkpoint)
        if not complete and model.config.model_type == "bert":
            setattr(model.config, ALIGNED, True)
        about = layout(model, tokenizer)
        rows = aligned(tokenizer, about, texts, sanitizer, max_length)
        rng = np.random.default_rng([seed, 0])

        def loss(at: np.ndarray) -> torch.Tensor:
            paired = bool(rng.random() < PAIRED)  # whole batches: neither kind waits for the other's length
            logits, targets = predictions(model, about, [rows[i] for i in at], rng, paired=paired)
            return torch.nn.functional.cross_entropy(logits, targets)

        with lent(model):
            train(
                model,
                _optimizer(model, lr if lr is not None else LR if complete else BARE_LR),
                loss,
                [len(row) for row in rows],
                steps=steps,
                batch_size=batch_size,
                rng=rng,
                name="pretraining",
            )
    return save(model, tokenizer, folder)


def _optimizer(model: Any, lr: float) -> torch.optim.Optimizer:
    """Return an optimizer of the head, and of the encoder at `lr`; freeze the embeddings of words."""
    model.get_input_embeddings().weight.requires_grad_(False)
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    head = [p for name, p in trainable if not name.startswith(model.base_model_prefix)]
    body = [p for name, p in trainable if name.startswith(model.base_model_prefix)]
    return torch.optim.AdamW([{"params": body, "lr": lr}, {"params": head, "lr": HEAD_LR}], fused=True)


def aligned(
    tokenizer: Any, about: dict[str, Any], texts: Sequence[str], sanitizer: Sanitizer | None, max_length: int
) -> list[list[tuple[Word, Word]]]:
    """Return (original pieces, sanitized pieces) of each word, cut so that two such texts fit."""
    room = (max_length - sum(len(about[name]) for name in ("before", "between", "after"))) // 2
    sanitized = texts if sanitizer is None else sanitizer(texts)
    if len(sanitized) != len(texts):
        raise ValueError(f"pretraining: the sanitizer gave {len(sanitized)} texts for {len(texts)}")
    words = [text.split() for text in texts]
    others = [text.split() for text in sanitized]
    for i, (a, b) in enumerate(zip(words, others, strict=True)):
        if len(a) != len(b):
            raise ValueError(f"pretraining: text {i} has {len(a)} words, and {len(b)} after the sanitizer")
    distinct = sorted({word for text in (*words, *others) for word in text})
    read = pieces_of(tokenizer, [" " + word for word in distinct])
    pieces = {word: tuple(ids) for word, ids in zip(distinct, read, strict=True)}
    rows = []
    for a, b in zip(words, others, strict=True):
        pairs = [(pieces[x], pieces[y]) for x, y in zip(a, b, strict=True) if pieces[x] and pieces[y]]
        fits = np.cumsum([max(len(x), len(y)) for x, y in pairs]) <= room
        if fits.any():
            rows.append(pairs[: int(fits.sum())])
    if not rows:
        raise ValueError("pretraining: public texts with at least one word are needed")
    return rows


def predictions(
    model: Any,
    about: dict[str, Any],
    rows: list[list[tuple[Word, Word]]],
    rng: np.random.Generator,
    *,
    paired: bool,
    shares: tuple[float, float] = (AS_MASK, AS_OTHER),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits (p, pieces) at the pieces of chosen words, and the original pieces (p,), on the model's device.

    shares: of chosen words that are masked, and that are replaced by chance.
    """
    pairs: list[tuple[Sequence[int] | None, Sequence[int]]] = []
    places: list[tuple[int, int]] = []
    targets: list[int] = []
    for i, row in enumerate(rows):
        chosen = rng.random(len(row)) < MASKED
        chosen[rng.integers(len(row))] |= not chosen.any()
        kind = np.searchsorted(np.cumsum(shares), rng.random(len(row)), side="right")
        shown: list[int] = []
        for (original, sanitized), hidden, what in zip(row, chosen, kind, strict=True):
            if hidden:
                places += [(i, len(shown) + j) for j in range(len(original))]
                targets += original
            if not hidden or (what == 2 and len(sanitized) == len(original)):
                shown += sanitized
            elif what == 1:
                shown += rng.integers(model.config.vocab_size, size=len(original)).tolist()
            else:
                shown += [about["mask"]] * len(original)
        pairs.append(([p for _, sanitized in row for p in sanitized] if paired else None, shown))
    inputs, starts = inputs_of(about, pairs)
    row_of = torch.tensor([i for i, _ in places])
    column = torch.tensor([starts[i] + j for i, j in places])
    logits = logits_at(model, inputs, row_of, column)
    return logits, torch.tensor(targets, device=logits.device)

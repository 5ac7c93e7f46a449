"""Fine-tuning of a generative model to paraphrase: DP-Paraphrase draws from the result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from server.accelerator import beside, lent
from server.generation import PARAPHRASE, inputs_of, known, layout, read_generator
from server.text_batches import seeded
from server.training.loop import save, train


def finetune_paraphraser(
    checkpoint: str | Path,
    pairs: Sequence[tuple[str, str]],
    folder: str | Path,
    *,
    epochs: int = 3,
    batch_size: int = 16,
    lr: float = 5e-5,
    seed: int,
) -> Path:
    """Train a causal or sequence-to-sequence checkpoint on *public* pairs (text, paraphrase).

    Each text stands in the prompt of `dp-paraphrase`, as `export_generator` builds it. The model learns every token of
    the paraphrase and its end token, if it has one. A text is cut if the prompt has no room, a paraphrase if the model
    has no positions. A pair whose paraphrase has no tokens is left out.

    It uses AdamW with linear warm-up and decay, and gradients clipped to norm 1. The same arguments and thread count
    give the same weights, and global generators stay unchanged. It runs on a GPU where there is one
    (`server.accelerator`).

    Args:
        checkpoint: Checkpoint that training starts from.
        pairs: Public texts with their paraphrases.
        folder: Folder for the result.
        epochs: Number of epochs.
        batch_size: Pairs of a batch.
        lr: Learning rate.
        seed: Seed of dropout and the order of pairs.

    Returns:
        The folder, which is a checkpoint for `server.generation.export_generator`.

    Raises:
        ValueError: The arguments do not fit, the checkpoint cannot be read, no pair is left, or the trained weights are
            not finite (and not saved). The message is one line.

    Source: Mattern et al. 2022, section 4, train GPT-2 so.
    """
    if epochs < 1 or batch_size < 1:
        raise ValueError(f"paraphraser: epochs and batch-size must be at least 1, got {epochs} and {batch_size}")
    if not 0 < lr <= 1:  # also rejects NaN
        raise ValueError(f"paraphraser: lr must be above 0 and at most 1, got {lr:g}")
    model, tokenizer = read_generator(checkpoint)
    about = layout(model, tokenizer, PARAPHRASE, None)
    rows = [row for row in (_row(tokenizer, about, *pair) for pair in pairs) if row[1]]
    if not rows:
        raise ValueError("paraphraser: no pair has a paraphrase; give public texts and their paraphrases")
    with lent(model), seeded(seed):
        train(
            model,
            torch.optim.AdamW(model.parameters(), lr=lr, fused=True),
            lambda at: _loss(model, about, [rows[i] for i in at]),
            [len(prompt) + len(target) for prompt, target in rows],
            epochs=epochs,
            batch_size=batch_size,
            rng=np.random.default_rng([seed, 0]),
            name="paraphraser",
        )
    if not all(bool(torch.isfinite(weights).all()) for weights in model.parameters()):
        raise ValueError(f"paraphraser: training ended in weights that are no numbers; take a smaller lr than {lr:g}")
    return save(model, tokenizer, folder)


def _row(tokenizer: Any, about: dict[str, Any], text: str, paraphrase: str) -> tuple[list[int], list[int]]:
    """Return the prompt with a text, and the tokens that follow it."""
    room = about["max_length"] - len(about["before"]) - len(about["after"])
    written = known(tokenizer, about, paraphrase)
    target = [*written, *([about["end"]] if written and about["end"] is not None else [])]
    return [*about["before"], *known(tokenizer, about, text)[:room], *about["after"]], target[: about["history"]]


def _loss(model: Any, about: dict[str, Any], rows: Sequence[tuple[list[int], list[int]]]) -> torch.Tensor:
    """Return the mean cross-entropy of each following token, given the tokens before it."""
    prompts, targets = [prompt for prompt, _ in rows], [target for _, target in rows]
    inputs = beside(model, inputs_of(about, prompts, [target[:-1] for target in targets]))
    logits = model(**inputs, use_cache=False).logits
    first = [0 if about["start"] is not None else len(prompt) - 1 for prompt in prompts]
    target_logits = [row[at : at + len(target)] for row, at, target in zip(logits, first, targets, strict=True)]
    target_ids = torch.tensor([i for target in targets for i in target], device=logits.device)
    return torch.nn.functional.cross_entropy(torch.cat(target_logits), target_ids)

"""Batches of texts of similar length, and torch randomness that leaves global generators unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from mechanisms.pieces import Text, encoded, opened, read_as_text
from server import accelerator

#: Schedules of the learning rate after the warm-up.
SCHEDULES = ("linear", "constant")

#: Batches in a sorted pool. A pool keeps padding small and still mixes rows anew every epoch.
POOL = 50


def tokenize(tokenizer: Any, texts: Sequence[Text], max_length: int) -> list[dict[str, list[int]]]:
    """Return unpadded inputs of the model for texts or (first, second) pairs.

    Names of special tokens in a text are characters.

    Args:
        tokenizer: Tokenizer of the model.
        texts: Texts or pairs, not both.
        max_length: Tokens of an input, at most.

    Raises:
        ValueError: Texts and pairs are mixed.
    """
    if not len(texts):
        return []
    backend = tokenizer.backend_tokenizer
    if special := read_as_text(backend, tokenizer.all_special_ids):
        texts = [opened(backend, text, special) for text in texts]
    first = [t if isinstance(t, str) else t[0] for t in texts]
    pairs = [not isinstance(t, str) for t in texts]
    if any(pairs) and not all(pairs):
        raise ValueError("training: single texts and sentence pairs cannot be mixed")
    second = [t[1] for t in texts] if any(pairs) else None
    read = tokenizer(first, second, truncation=True, max_length=max_length, padding=False)
    return [{name: read[name][i] for name in read} for i in range(len(first))]


def pieces_of(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts, without those that a checkpoint's tokenizer puts around a text; read as `tokenize` does."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    special = read_as_text(backend, tokenizer.all_special_ids)
    return [encoding.ids for encoding in encoded(backend, texts, special, around=False)]


def collate(tokenizer: Any, rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Return rows padded to the longest, int64 (n, length) each."""
    return dict(tokenizer.pad(rows, return_tensors="pt"))


def padded(rows: Sequence[Sequence[int]], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of token ids padded to the longest, and their attention mask, int64 (n, length) each."""
    masks = [torch.ones(len(row), dtype=torch.int64) for row in rows]
    ids = [torch.tensor(row, dtype=torch.int64) for row in rows]
    return pad_sequence(ids, batch_first=True, padding_value=padding), pad_sequence(masks, batch_first=True)


def epoch(lengths: Sequence[int], batch_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the row indices of one epoch's batches.

    Each row occurs once. Rows of a batch have similar lengths, and batches are in random order.

    Args:
        lengths: Length of each row.
        batch_size: Rows of a batch.
        rng: Generator of the order.
    """
    order = rng.permutation(len(lengths))
    length_of = np.asarray(lengths)
    batches: list[np.ndarray] = []
    for start in range(0, len(order), POOL * batch_size):
        pool = order[start : start + POOL * batch_size]
        pool = pool[np.argsort(length_of[pool], kind="stable")]
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return (batches[i] for i in rng.permutation(len(batches)))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's dropout and initialization inside the context, on a GPU too.

    The global generators are unchanged afterwards.

    Raises:
        ValueError: `accelerator.device` raises it.
    """
    where = accelerator.device()
    with torch.random.fork_rng(devices=[] if where.type == "cpu" else [where], device_type="cuda"):
        torch.random.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        if where.type != "cpu":
            torch.cuda.set_rng_state(torch.Generator(where).manual_seed(seed).get_state(), where)
        yield


def warmed(
    optimizer: torch.optim.Optimizer, steps: int, *, warm_up: float = 0.1, schedule: str = "linear"
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a learning-rate schedule with a linear warm-up.

    Args:
        optimizer: Optimizer that the schedule controls.
        steps: Number of steps.
        warm_up: Share of the steps with rising rates.
        schedule: "linear" falls to 0 after the warm-up; "constant" stays.

    Raises:
        ValueError: The schedule is unknown, or the share is outside [0, 1).
    """
    if schedule not in SCHEDULES or not 0 <= warm_up < 1:
        raise ValueError(f"training: no schedule {schedule!r} with a warm-up of {warm_up:g} is known")
    rise = int(steps * warm_up + 1e-9) if warm_up == 0 else max(1, int(steps * warm_up + 1e-9))

    def rate(i: int) -> float:
        if i < rise:
            return (i + 1) / rise
        return 1.0 if schedule == "constant" else max(0.0, (steps - i) / max(1, steps - rise))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def checked(texts: Sequence[Text], labels: Any, classes: int, epochs: int, batch_size: int) -> torch.Tensor:
    """Return labels for a training, after a check of its arguments.

    Args:
        texts: Texts of the training.
        labels: Labels (n,), or probabilities of classes (n, K).
        classes: K.
        epochs: Number of epochs.
        batch_size: Texts of a batch.

    Returns:
        Labels (n,) as int64, or probabilities (n, K) as float32.

    Raises:
        ValueError: The arguments do not fit. The message is one line.
    """
    y = np.asarray(labels)
    if epochs < 1 or batch_size < 1:
        raise ValueError(f"training: epochs and batch-size must be at least 1, got {epochs} and {batch_size}")
    if y.ndim == 2:
        if not len(texts) or y.shape != (len(texts), classes) or not (y >= 0).all() or not np.allclose(y.sum(1), 1):
            raise ValueError(f"training: {len(texts)} texts need as many distributions over {classes} classes")
        return torch.from_numpy(y.astype(np.float32))
    if not len(texts) or y.shape != (len(texts),):
        raise ValueError(f"training: {len(texts)} texts need as many labels, at least one; got {y.shape}")
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(f"training: labels must be 0 to {classes - 1}, got {y.min()} to {y.max()}")
    return torch.from_numpy(y.astype(np.int64))


def clip_bounds(owner: str, logits: Iterable[torch.Tensor]) -> tuple[float, float]:
    """Return (mean, mean + 4 standard deviations) of a model's logits on *public* texts.

    Args:
        owner: First word of error messages.
        logits: Logits of each batch.

    Raises:
        ValueError: There are no logits, or all are equal.

    Source: Meisenbacher et al. 2024, section 5.1.1.
    """
    count, total, squares = 0, 0.0, 0.0
    for values in logits:
        values = values.double()
        count, total, squares = count + values.numel(), total + float(values.sum()), squares + float((values**2).sum())
    if not count:
        raise ValueError(f"{owner}: public texts are needed, to say where logits are clipped")
    mean = total / count
    deviation = max(squares / count - mean**2, 0.0) ** 0.5
    if not deviation > 0:
        raise ValueError(f"{owner}: all logits are equal; this model has learned nothing")
    return mean, mean + 4 * deviation


def chosen(texts: Sequence[str], most: int, seed: int) -> tuple[list[str], np.random.Generator]:
    """Return at most so many of the texts, in their order, and the generator that chose them."""
    rng = np.random.default_rng([seed, 0])
    return [texts[i] for i in np.sort(rng.permutation(len(texts))[:most])], rng

"""Loop of all trainings of encoders and language models: batches, and one step down a loss for each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from server.text_batches import epoch, warmed

log = logging.getLogger(__name__)

#: Least batches between two lines of progress, most lines, and batches before the first estimate of the remaining time.
REPORT, LINES, FIRST = 50, 20, 5


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[np.ndarray], torch.Tensor],
    lengths: Sequence[int],
    *,
    epochs: int = 1,
    steps: int | None = None,
    batch_size: int,
    rng: np.random.Generator,
    name: str,
    after_epoch: Callable[[int], None] = lambda done: None,
    **rates: Any,
) -> None:
    """Minimize a loss over batches, in place. Gradients are clipped to norm 1.

    Args:
        model: Model to train; it ends in evaluation mode.
        optimizer: Optimizer of its parameters.
        loss: Function of the row indices of a batch.
        lengths: Length of each row.
        epochs: Number of epochs.
        steps: Number of batches, over as many epochs as they take; None for that of `epochs`.
        batch_size: Rows of a batch.
        rng: Generator of the order of rows.
        name: Name of the training in lines of progress.
        after_epoch: Function that receives the number of epochs done.
        **rates: Arguments of `text_batches.warmed`, which raises ValueError.
    """
    of_epoch = -(-len(lengths) // batch_size)
    total = epochs * of_epoch if steps is None else steps
    schedule = warmed(optimizer, total, **rates)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    start, losses = time.monotonic(), list[float]()
    batches = chain.from_iterable(epoch(lengths, batch_size, rng) for _ in count())
    model.train()
    for done, at in enumerate(islice(batches, total), 1):
        value = loss(at)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(value.detach()))
        if done in (FIRST, total) or len(losses) == max(REPORT, total // LINES):
            left = _duration((time.monotonic() - start) / done * (total - done))
            log.info(f"{name}, batch {done} of {total}: loss {sum(losses) / len(losses):.3f}, {left} left")
            losses = []
        if done % of_epoch == 0:
            model.eval()
            after_epoch(done // of_epoch)
            model.train()
    model.eval()


def _duration(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {seconds:.0f} s"


def save(model: Any, tokenizer: Any, folder: str | Path) -> Path:
    """Write a trained model and its tokenizer as a checkpoint, and return the folder."""
    model.eval().save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    return Path(folder)

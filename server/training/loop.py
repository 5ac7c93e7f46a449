"""Loop of all trainings of models: epochs of batches, and one step down a loss."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from server.text_batches import epoch, warmed

log = logging.getLogger(__name__)


def stepper(
    optimizer: torch.optim.Optimizer, steps: int, *, warm_up: float = 0.1, schedule: str = "linear"
) -> Callable[[torch.Tensor], float]:
    """Return a function that takes one step down a loss and returns the loss.

    Gradients are clipped to norm 1. The rates are those of `text_batches.warmed`, which raises ValueError.

    Args:
        optimizer: Optimizer, whose parameters are trained.
        steps: Number of steps.
        warm_up: Share of the steps with rising rates.
        schedule: As in `text_batches.warmed`.
    """
    rates = warmed(optimizer, steps, warm_up=warm_up, schedule=schedule)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def step(loss: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        rates.step()
        return float(loss.detach())

    return step


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[np.ndarray], torch.Tensor],
    lengths: Sequence[int],
    *,
    epochs: int,
    batch_size: int,
    rng: np.random.Generator,
    name: str,
    after_epoch: Callable[[int], None] = lambda done: None,
    **rates: Any,
) -> float:
    """Minimize a loss over epochs of batches, in place, and return the mean loss of the last epoch.

    Args:
        model: Model to train; it ends in evaluation mode.
        optimizer: Optimizer of its parameters.
        loss: Function of the row indices of a batch.
        lengths: Length of each row.
        epochs: Number of epochs.
        batch_size: Rows of a batch.
        rng: Generator of the order of rows.
        name: Name of the training in lines of progress.
        after_epoch: Function that receives the number of epochs done.
        **rates: Arguments of `stepper`.
    """
    step, mean = stepper(optimizer, epochs * -(-len(lengths) // batch_size), **rates), 0.0
    for done in range(1, epochs + 1):
        model.train()
        mean = sum(step(loss(at)) * len(at) for at in epoch(lengths, batch_size, rng)) / len(lengths)
        log.info(f"{name}, epoch {done} of {epochs}: loss {mean:.3f}")
        model.eval()
        after_epoch(done)
    return mean


def save(model: Any, tokenizer: Any, folder: str | Path) -> Path:
    """Write a trained model and its tokenizer as a checkpoint, and return the folder."""
    model.eval().save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    return Path(folder)

"""The published procedure (Du et al. 2023, Section 3.3): fresh noise in every forward pass, trained end to
end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from server.model import Pipeline
from server.text_batches import Text, checked
from server.training.end_to_end import fit, started
from server.training.noise import Noise

SENTENCE = (
    "A trusted simulation of the published procedure, not private: its gradients depend on raw text, and "
    "every epoch draws each embedding anew."
)


def train_paper(
    checkpoint: str | Path,
    texts: Sequence[Text],
    labels: Any,
    *,
    mechanism: Any,
    dim: int,
    classes: int,
    epochs: int = 3,
    batch_size: int = 32,
    encoder_lr: float = 5e-5,
    maps_lr: float = 1e-3,
    warm_up: float = 0.1,
    schedule: str = "linear",
    weight_decay: float = 0.01,
    seed: int,
    acknowledged: bool,
    pooling: str = "mean",
    max_length: int = 128,
    progress: Callable[[str], None] | None = None,
    after_epoch: Callable[[int, Pipeline], None] | None = None,
) -> Pipeline:
    """Encoder, maps and head trained together on texts and labels (released ones, if labels are sanitized
    too).

    M1, M2 and the head start at random. AdamW, warm-up and decay as `end_to_end.fit` has them, gradients clipped to
    norm 1. after_epoch(epochs done, pipeline) may evaluate. Same arguments and thread count, same weights; global
    generators stay untouched.

    Raises ValueError unless acknowledged, where arguments do not fit, and where `checkpoint.load` does.
    """
    if acknowledged is not True:
        raise ValueError(f"training: way paper must be acknowledged in the experiment file. {SENTENCE}")
    y = checked(texts, labels, classes, epochs, batch_size)
    rng = np.random.default_rng([seed, 0])
    pipeline = started(
        checkpoint, texts, dim=dim, classes=classes, rng=rng, pooling=pooling, max_length=max_length
    )
    noise = Noise(mechanism, seed=seed, stage="paper")
    return fit(
        pipeline, texts, lambda logits, at: torch.nn.functional.cross_entropy(logits, y[at].to(logits.device)),
        epochs=epochs, batch_size=batch_size, encoder_lr=encoder_lr, maps_lr=maps_lr, seed=seed, rng=rng, noise=noise,
        warm_up=warm_up, schedule=schedule, weight_decay=weight_decay, said="trusted simulation", progress=progress,
        after_epoch=after_epoch,
    )  # fmt: skip

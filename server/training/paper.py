"""Published procedure of Du et al. 2023, Section 3.3: end-to-end training with fresh noise in every forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechanisms.pieces import Text
from server.model import Pipeline
from server.text_batches import checked
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
    after_epoch: Callable[[int, Pipeline], None] | None = None,
) -> Pipeline:
    """Return encoder, maps and head trained together on texts and labels.

    M1, M2 and the head start at random. AdamW, warm-up and decay are those of `end_to_end.fit`, with gradients clipped
    to norm 1. The same arguments and thread count give the same weights, and global generators stay unchanged.

    Args:
        checkpoint: Checkpoint that training starts from.
        texts: n texts or pairs.
        labels: Labels (n,); released ones if labels are sanitized too.
        mechanism: Mechanism of the noise.
        dim: m'.
        classes: K.
        epochs: Number of epochs.
        batch_size: Texts of a batch.
        encoder_lr: Learning rate of the encoder.
        maps_lr: Learning rate of maps and head.
        warm_up: Share of the steps with rising rates.
        schedule: As in `text_batches.warmed`.
        weight_decay: Weight decay of the encoder.
        seed: Seed of all random choices.
        acknowledged: True to confirm that the procedure is not private.
        pooling: Pooling of the encoder.
        max_length: Tokens of a text, at most.
        after_epoch: Function that receives the number of epochs done and the pipeline; it may evaluate.

    Raises:
        ValueError: `acknowledged` is not True, the arguments do not fit, or `checkpoint.load` raises it.
    """
    if acknowledged is not True:
        raise ValueError(f"training: way paper must be acknowledged in the experiment file. {SENTENCE}")
    y = checked(texts, labels, classes, epochs, batch_size)
    rng = np.random.default_rng([seed, 0])
    pipeline = started(checkpoint, texts, dim=dim, classes=classes, rng=rng, pooling=pooling, max_length=max_length)
    noise = Noise(mechanism, seed=seed, stage="paper")
    return fit(
        pipeline,
        texts,
        lambda logits, at: torch.nn.functional.cross_entropy(logits, y[at].to(logits.device)),
        epochs=epochs,
        batch_size=batch_size,
        encoder_lr=encoder_lr,
        maps_lr=maps_lr,
        seed=seed,
        rng=rng,
        noise=noise,
        warm_up=warm_up,
        schedule=schedule,
        weight_decay=weight_decay,
        said="trusted simulation",
        after_epoch=after_epoch,
    )

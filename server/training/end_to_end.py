"""Joint training of encoder, maps and head on texts: the common part of all protocols that train an encoder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mechanisms.pieces import Text
from server.accelerator import lent
from server.checkpoint import load, positions
from server.maps import Maps
from server.model import Pipeline
from server.text_batches import collate, epoch, seeded, tokenize, warmed

log = logging.getLogger(__name__)

#: Number of texts whose mean embedding is the maps' starting `mean`.
CENTRE = 512

Loss = Callable[[torch.Tensor, np.ndarray], torch.Tensor]


def check(checkpoint: str | Path, *, dim: int | None, max_length: int) -> None:
    """Check a checkpoint before users receive a request to train on.

    Args:
        checkpoint: Checkpoint that training starts from.
        dim: m'; None for the whole width.
        max_length: Tokens of a text, at most.

    Raises:
        ValueError: `checkpoint.load` raises it, dim is not from 2 to the encoder's width, or the encoder has no
            positions for max_length tokens. The message is one line.
    """
    encoder, _ = load(checkpoint)
    width, longest = int(encoder.config.hidden_size), positions(encoder) or max_length
    if dim is not None and not 2 <= dim <= width:
        raise ValueError(f"training.bottleneck: must be from 2 to the encoder's width {width}, got {dim}")
    if not 3 <= max_length <= longest:
        raise ValueError(f"encoder.max-length: must be from 3 to the encoder's {longest} places, got {max_length}")


def started(
    checkpoint: str | Path,
    texts: Sequence[Text],
    *,
    dim: int | None,
    classes: int,
    rng: np.random.Generator,
    pooling: str,
    max_length: int,
) -> Pipeline:
    """Return the checkpoint as a pipeline with random maps and head.

    The starting `mean` is that of the first texts' embeddings.

    Args:
        checkpoint: Checkpoint that training starts from.
        texts: Texts of the training.
        dim: m'; None for maps of the encoder's whole width, which change nothing at first.
        classes: K.
        rng: Generator of the random maps.
        pooling: Pooling of the encoder.
        max_length: Tokens of a text, at most.

    Raises:
        ValueError: `checkpoint.load` raises it, or dim is above the encoder's width.
    """
    encoder, tokenizer = load(checkpoint)
    width = encoder.config.hidden_size
    maps = _random_maps(width, dim or width, classes, rng)
    if dim is None:
        same: NDArray[Any] = np.eye(width)
        maps = replace(maps, m1=same, m2=same)
    pipeline = Pipeline(encoder, tokenizer, maps, pooling=pooling, max_length=max_length)
    with torch.no_grad():
        pipeline.mean.copy_(torch.from_numpy(pipeline.embed(texts[:CENTRE]).mean(axis=0)))
    return pipeline


def fit(
    pipeline: Pipeline,
    texts: Sequence[Text],
    loss: Loss,
    *,
    epochs: int,
    batch_size: int,
    encoder_lr: float,
    maps_lr: float,
    seed: int,
    rng: np.random.Generator,
    noise: Callable[[torch.Tensor], torch.Tensor] | None = None,
    warm_up: float = 0.1,
    schedule: str = "linear",
    weight_decay: float = 0.01,
    said: str,
    after_epoch: Callable[[int, Pipeline], None] | None = None,
) -> Pipeline:
    """Minimize loss(logits, rows) over all parameters, in place.

    It uses AdamW, a linear warm-up, then decay to 0 or none (`text_batches.warmed`), weight decay of the encoder alone,
    and gradients clipped to norm 1. The same arguments and thread count give the same weights, and global generators
    stay unchanged. It runs on a GPU where there is one (`server.accelerator`), which gives other weights than a CPU.
    The pipeline moves back afterwards, but only after the last `after_epoch`.

    Args:
        pipeline: Pipeline to train; it ends in evaluation mode.
        texts: Texts of the training.
        loss: Function of logits and row indices.
        epochs: Number of epochs.
        batch_size: Texts of a batch.
        encoder_lr: Learning rate of the encoder.
        maps_lr: Learning rate of maps and head.
        seed: Seed of dropout.
        rng: Generator of the order of rows.
        noise: Function on the output of M1; None for no noise.
        warm_up: Share of the steps with rising rates.
        schedule: As in `text_batches.warmed`.
        weight_decay: Weight decay of the encoder.
        said: Name of the training in lines of progress.
        after_epoch: Function that receives the number of epochs done and the pipeline.
    """
    rows = tokenize(pipeline.tokenizer, texts, pipeline.max_length)
    lengths = [len(r["input_ids"]) for r in rows]
    with lent(pipeline), seeded(seed):
        own = [pipeline.mean, pipeline.m1, pipeline.m2, pipeline.head_w, pipeline.head_b]
        optimizer = torch.optim.AdamW(
            [
                {"params": pipeline.encoder.parameters(), "lr": encoder_lr, "weight_decay": weight_decay},
                {"params": own, "lr": maps_lr, "weight_decay": 0.0},
            ],
            fused=True,  # without it, a step over all embeddings of a vocabulary takes a quarter of the time
        )
        rates = warmed(optimizer, epochs * -(-len(rows) // batch_size), warm_up=warm_up, schedule=schedule)
        for done in range(1, epochs + 1):
            pipeline.train()
            total = 0.0
            for at in epoch(lengths, batch_size, rng):
                step = loss(pipeline(collate(pipeline.tokenizer, [rows[i] for i in at]), noise), at)
                optimizer.zero_grad()
                step.backward()
                torch.nn.utils.clip_grad_norm_(pipeline.parameters(), 1.0)
                optimizer.step()
                rates.step()
                total += float(step.detach()) * len(at)
            log.info(f"{said}, epoch {done} of {epochs}, loss {total / len(rows):.3f}")
            pipeline.eval()
            if after_epoch is not None:
                after_epoch(done, pipeline)
    return pipeline


def _random_maps(width: int, dim: int, classes: int, rng: np.random.Generator) -> Maps:
    centre, bias = np.zeros(width, np.float32), np.zeros(classes, np.float32)
    m1: NDArray[Any] = rng.standard_normal((width, dim)) / np.sqrt(width)
    m2: NDArray[Any] = rng.standard_normal((dim, width)) / np.sqrt(dim)
    head: NDArray[Any] = rng.standard_normal((width, classes)) / np.sqrt(width)
    return Maps(centre, m1, m2, head, bias)

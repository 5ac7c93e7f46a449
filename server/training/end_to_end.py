"""Encoder, maps and head trained together on texts: what every way that trains BERT itself has in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from server.accelerator import lent
from server.checkpoint import load, positions
from server.maps import Maps
from server.model import Pipeline
from server.text_batches import Text, collate, epoch, seeded, tokenize, warmed

#: Texts whose mean embedding the maps start from.
CENTRE = 512

Loss = Callable[[torch.Tensor, np.ndarray], torch.Tensor]


def check(checkpoint: str | Path, *, dim: int | None, name: str, max_length: int) -> None:
    """What a training needs of a checkpoint, before anybody is asked for what it trains on: ValueError, one line, where
    `checkpoint.load` raises it, where m' = dim is not from 2 to the encoder's width, and where the encoder has no
    places for max_length tokens. name: of the setting that dim comes from; None for dim is the whole width.
    """
    encoder, _ = load(checkpoint)
    width, longest = int(encoder.config.hidden_size), positions(encoder) or max_length
    if dim is not None and not 2 <= dim <= width:
        raise ValueError(f"{name}: must be from 2 to the encoder's width {width}, got {dim}")
    if not 3 <= max_length <= longest:
        raise ValueError(f"encoder.max-length: must be from 3 to the encoder's {longest} places, got {max_length}")


def started(
    checkpoint: str | Path, texts: Sequence[Text], *, dim: int | None, classes: int, rng: np.random.Generator,
    pooling: str, max_length: int,
) -> Pipeline:  # fmt: skip
    """The checkpoint with random maps and head; `mean` is that of the first texts' embeddings. dim: m'; None for maps
    of the encoder's whole width, which change nothing at first. Raises what
    `checkpoint.load` does, and ValueError where `dim` is above the encoder's width."""
    encoder, tokenizer = load(checkpoint)
    width = encoder.config.hidden_size
    maps = _random_maps(width, dim or width, classes, rng)
    if dim is None:
        maps = replace(maps, m1=np.eye(width), m2=np.eye(width))
    pipeline = Pipeline(encoder, tokenizer, maps, pooling=pooling, max_length=max_length)
    with torch.no_grad():
        pipeline.mean.copy_(torch.from_numpy(pipeline.embed(texts[:CENTRE]).mean(axis=0)))
    return pipeline


def fit(
    pipeline: Pipeline, texts: Sequence[Text], loss: Loss, *, epochs: int, batch_size: int, encoder_lr: float,
    maps_lr: float, seed: int, rng: np.random.Generator, noise: Callable[[torch.Tensor], torch.Tensor] | None = None,
    warm_up: float = 0.1, schedule: str = "linear", weight_decay: float = 0.01, said: str,
    progress: Callable[[str], None] | None = None,
    after_epoch: Callable[[int, Pipeline], None] | None = None,
) -> Pipeline:  # fmt: skip
    """Minimise loss(logits, rows) over all parameters, in place; the pipeline ends in evaluation mode.

    AdamW, linear warm-up over a share of the steps, decay to 0 or none (`text_batches.warmed`), weight decay of the
    encoder alone, gradients clipped to norm 1. noise: acts on what
    M1 gives. rng: decides the order of rows. said: what `progress` calls this. Same arguments and thread count, same
    weights; global generators stay untouched. On a GPU where there is one (`server.accelerator`), which gives other
    weights than a CPU; the pipeline is back afterwards, though not yet when `after_epoch` sees it.
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
            fused=True,  # a step over all embeddings of a vocabulary is a quarter of the time otherwise
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
            if progress is not None:
                progress(f"{said}, epoch {done} of {epochs}, loss {total / len(rows):.3f}")
            pipeline.eval()
            if after_epoch is not None:
                after_epoch(done, pipeline)
    return pipeline


def _random_maps(width: int, dim: int, classes: int, rng: np.random.Generator) -> Maps:
    return Maps(
        np.zeros(width),
        rng.standard_normal((width, dim)) / np.sqrt(width),
        rng.standard_normal((dim, width)) / np.sqrt(dim),
        rng.standard_normal((width, classes)) / np.sqrt(width),
        np.zeros(classes),
    )

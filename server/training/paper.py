"""The published procedure (Du et al. 2023, Section 3.3): fresh noise in every forward pass, trained end to
end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from server.checkpoint import load
from server.maps import Maps
from server.model import Pipeline
from server.training.batches import Text, checked, collate, epoch, seeded, tokenize, warmed
from server.training.noise import Noise

SENTENCE = (
    "A trusted simulation of the published procedure, not private: its gradients depend on raw text, and "
    "every epoch draws each embedding anew."
)
#: Texts whose mean embedding the maps start from.
CENTRE = 512


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
    seed: int,
    acknowledged: bool,
    pooling: str = "mean",
    max_length: int = 128,
    progress: Callable[[str], None] | None = None,
    after_epoch: Callable[[int, Pipeline], None] | None = None,
) -> Pipeline:
    """Encoder, maps and head trained together on texts and labels (released ones, if labels are sanitized
    too).

    M1, M2 and the head start at random. AdamW, linear warm-up and decay, gradients clipped to norm 1.
    after_epoch(epochs done, pipeline) may evaluate. Same arguments and thread count, same weights; global
    generators stay untouched.

    Raises ValueError unless acknowledged, where arguments do not fit, and where `checkpoint.load` does.
    """
    if acknowledged is not True:
        raise ValueError(f"training: way paper must be acknowledged in the experiment file. {SENTENCE}")
    y = checked(texts, labels, classes, epochs, batch_size)
    encoder, tokenizer = load(checkpoint)
    rng = np.random.default_rng([seed, 0])
    pipeline = Pipeline(
        encoder, tokenizer, _random_maps(encoder.config.hidden_size, dim, classes, rng),
        pooling=pooling, max_length=max_length,
    )  # fmt: skip
    with torch.no_grad():
        pipeline.mean.copy_(torch.from_numpy(pipeline.embed(texts[:CENTRE]).mean(axis=0)))
    rows = tokenize(tokenizer, texts, max_length)
    lengths = [len(r["input_ids"]) for r in rows]
    noise = Noise(mechanism, seed=seed, stage="paper")
    own = [pipeline.mean, pipeline.m1, pipeline.m2, pipeline.head_w, pipeline.head_b]
    optimizer = torch.optim.AdamW(
        [
            {"params": encoder.parameters(), "lr": encoder_lr},
            {"params": own, "lr": maps_lr, "weight_decay": 0.0},
        ]
    )
    schedule = warmed(optimizer, epochs * -(-len(rows) // batch_size))
    with seeded(seed):
        for done in range(1, epochs + 1):
            pipeline.train()
            total = 0.0
            for at in epoch(lengths, batch_size, rng):
                logits = pipeline(collate(tokenizer, [rows[i] for i in at]), noise)
                loss = torch.nn.functional.cross_entropy(logits, y[at])
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(pipeline.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                total += float(loss.detach()) * len(at)
            if progress is not None:
                progress(f"trusted simulation, epoch {done} of {epochs}, loss {total / len(rows):.3f}")
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

"""The encoder, fine-tuned on public text and its labels: known ones, or what a model that users taught makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from server.accelerator import beside, lent
from server.checkpoint import load
from server.export import POOLINGS
from server.model import pool
from server.text_batches import Text, checked, collate, epoch, seeded, tokenize, warmed

#: The head starts from nothing and may move faster than the encoder.
HEAD_LR = 1e-3


def finetune(
    checkpoint: str | Path,
    texts: Sequence[Text],
    labels: Any,
    folder: str | Path,
    *,
    classes: int,
    epochs: int = 2,
    lr: float = 5e-5,
    batch_size: int = 32,
    seed: int,
    pooling: str = "mean",
    max_length: int = 128,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Train the checkpoint with a linear head on public texts (n) and labels, and save it (not the head) to `folder`.

    labels: (n,), or (n, K), how likely each class is of each text.

    AdamW, linear warm-up over a tenth of the steps and decay to 0, gradients clipped to norm 1. The folder is
    a checkpoint that `export_encoder` takes. Same arguments and thread count, same weights; global generators
    stay untouched. On a GPU where there is one (`server.accelerator`). Raises ValueError where arguments do
    not fit and where `checkpoint.load` does.
    """
    y = checked(texts, labels, classes, epochs, batch_size)
    if pooling not in POOLINGS:
        raise ValueError(f"encoder: pooling {pooling!r} is not one of {', '.join(POOLINGS)}")
    model, tokenizer = load(checkpoint)
    rows = tokenize(tokenizer, texts, max_length)
    lengths = [len(r["input_ids"]) for r in rows]
    rng = np.random.default_rng([seed, 0])
    with seeded(seed):
        head = torch.nn.Linear(model.config.hidden_size, classes)
        with lent(model, head):
            optimizer = torch.optim.AdamW(
                [{"params": model.parameters(), "lr": lr}, {"params": head.parameters(), "lr": HEAD_LR}]
            )
            schedule = warmed(optimizer, epochs * -(-len(rows) // batch_size))
            model.train()
            for done in range(1, epochs + 1):
                total = 0.0
                for at in epoch(lengths, batch_size, rng):
                    inputs = beside(model, collate(tokenizer, [rows[i] for i in at]))
                    embedding = pool(model(**inputs).last_hidden_state, inputs["attention_mask"], pooling)
                    loss = torch.nn.functional.cross_entropy(head(embedding), y[at].to(embedding.device))
                    optimizer.zero_grad()
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_([*model.parameters(), *head.parameters()], 1.0)
                    optimizer.step()
                    schedule.step()
                    total += float(loss.detach()) * len(at)
                if progress is not None:
                    progress(f"fine-tuning encoder, epoch {done} of {epochs}: loss {total / len(rows):.3f}")
    model.eval().save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    return Path(folder)

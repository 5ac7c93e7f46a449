"""Fine-tuning of the encoder on public text, with its known labels or with labels from a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechanisms.pieces import Text
from server.accelerator import beside, lent
from server.checkpoint import load
from server.checkpoint_files import POOLINGS
from server.model import pool
from server.text_batches import checked, collate, seeded, tokenize
from server.training.loop import save, train

#: The head starts untrained, so it may move faster than the encoder.
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
) -> Path:
    """Train the checkpoint with a linear head on public texts and labels, and save it without the head.

    It uses AdamW, a linear warm-up over a tenth of the steps, decay to 0, and gradients clipped to norm 1. The same
    arguments and thread count give the same weights, and global generators stay unchanged. It runs on a GPU where there
    is one (`server.accelerator`).

    Args:
        checkpoint: Checkpoint that training starts from.
        texts: n public texts.
        labels: Labels (n,), or probabilities of classes (n, K).
        folder: Folder for the result.
        classes: K.
        epochs: Number of epochs.
        lr: Learning rate of the encoder.
        batch_size: Texts of a batch.
        seed: Seed of the head, dropout, and the order of rows.
        pooling: Pooling of the encoder.
        max_length: Tokens of a text, at most.

    Returns:
        The folder, which is a checkpoint for `export_encoder`.

    Raises:
        ValueError: The arguments do not fit, or `checkpoint.load` raises it.
    """
    y = checked(texts, labels, classes, epochs, batch_size)
    if pooling not in POOLINGS:
        raise ValueError(f"encoder: pooling {pooling!r} is not one of {', '.join(POOLINGS)}")
    model, tokenizer = load(checkpoint)
    rows = tokenize(tokenizer, texts, max_length)

    def loss(at: np.ndarray) -> torch.Tensor:
        inputs = beside(model, collate(tokenizer, [rows[i] for i in at]))
        embedding = pool(model(**inputs).last_hidden_state, inputs["attention_mask"], pooling)
        return torch.nn.functional.cross_entropy(head(embedding), y[at].to(embedding.device))

    with seeded(seed):
        head = torch.nn.Linear(model.config.hidden_size, classes)
        with lent(model, head):
            train(
                model,
                torch.optim.AdamW(
                    [{"params": model.parameters(), "lr": lr}, {"params": head.parameters(), "lr": HEAD_LR}]
                ),
                loss,
                [len(row["input_ids"]) for row in rows],
                epochs=epochs,
                batch_size=batch_size,
                rng=np.random.default_rng([seed, 0]),
                name="fine-tuning encoder",
            )
    return save(model, tokenizer, folder)

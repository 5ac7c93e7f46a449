"""Training on texts that users sanitized and released, of all of a model or of its head. This is post-processing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mechanisms.pieces import Text
from server.model import Pipeline
from server.text_batches import checked
from server.training.end_to_end import fit, started
from server.training.head import log_likelihood, train_head
from server.training.rescale import factored

#: Strength of the pull of a frozen encoder's head towards 0, for features of variance 1.
HEAD_PULL = 100.0


def train_on_text(
    checkpoint: str | Path,
    texts: Sequence[Text],
    labels: Any,
    *,
    classes: int,
    dim: int | None,
    label_transition: NDArray[np.float64] | None = None,
    epochs: int = 3,
    batch_size: int = 32,
    encoder_lr: float = 5e-5,
    maps_lr: float = 1e-3,
    warm_up: float = 0.1,
    schedule: str = "linear",
    weight_decay: float = 0.01,
    seed: int,
    pooling: str = "mean",
    max_length: int = 128,
) -> Pipeline:
    """Return a pipeline trained on released texts and released labels.

    The loss is the likelihood of the released labels, with the true labels summed out (forward correction, Patrini et
    al. 2017), as in `head.train_head`. The texts need no such correction: users of the model sanitize their text by the
    same mechanism. A text with no words left is trained on as the empty text. The same arguments and thread count give
    the same weights.

    Args:
        checkpoint: Checkpoint that training starts from.
        texts: n texts or pairs, as words with spaces between. A pair is read as one input, with the separator between
            its texts and a segment number for each.
        labels: Released labels (n,).
        classes: K.
        dim: m', the coordinates between the encoder and the head; None for no bottleneck.
        label_transition: (n, K), for row i and class k the probability of the released labels[i] if k is the true
            class. None if the labels are true.
        epochs: Number of epochs.
        batch_size: Texts of a batch.
        encoder_lr: Learning rate of the encoder.
        maps_lr: Learning rate of maps and head.
        warm_up: Share of the steps with rising rates.
        schedule: As in `text_batches.warmed`.
        weight_decay: Weight decay of the encoder.
        seed: Seed of all random choices.
        pooling: Pooling of the encoder.
        max_length: Tokens of a text, at most.

    Raises:
        ValueError: The arguments do not fit, a label is impossible for every class, or `checkpoint.load` raises it.
    """
    y = checked(texts, labels, classes, epochs, batch_size)
    log: torch.Tensor | None = None
    if label_transition is not None:
        log = torch.from_numpy(log_likelihood(label_transition, len(y), classes).astype(np.float32))

    def loss(logits: torch.Tensor, at: np.ndarray) -> torch.Tensor:
        if log is None:
            return torch.nn.functional.cross_entropy(logits, y[at].to(logits.device))
        return -torch.logsumexp(torch.log_softmax(logits, dim=1) + log[at].to(logits.device), dim=1).mean()

    rng = np.random.default_rng([seed, 0])
    pipeline = started(checkpoint, texts, dim=dim, classes=classes, rng=rng, pooling=pooling, max_length=max_length)
    return fit(
        pipeline,
        texts,
        loss,
        epochs=epochs,
        batch_size=batch_size,
        encoder_lr=encoder_lr,
        maps_lr=maps_lr,
        warm_up=warm_up,
        schedule=schedule,
        weight_decay=weight_decay,
        seed=seed,
        rng=rng,
        said="training on sanitized text",
    )


def head_on_text(
    checkpoint: str | Path,
    texts: Sequence[Text],
    labels: Any,
    *,
    classes: int,
    label_transition: NDArray[np.float64],
    seed: int,
    pooling: str = "mean",
    max_length: int = 128,
) -> Pipeline:
    """Return the checkpoint as it is, with a linear head on its standardized embeddings of released texts.

    Each text is embedded once. Arguments and loss are those of `train_on_text`.

    Raises:
        ValueError: As `train_on_text`.
    """
    y = checked(texts, labels, classes, 1, 1).numpy()
    rng = np.random.default_rng([seed, 0])
    pipeline = started(checkpoint, texts, dim=None, classes=classes, rng=rng, pooling=pooling, max_length=max_length)
    embeddings = pipeline.embed(texts).astype(np.float64)
    width = embeddings.shape[1]
    unit = np.diag(1 / (embeddings.std(axis=0) + 1e-9))
    flat = factored(embeddings.mean(axis=0), unit, np.zeros((width, classes)), np.zeros(classes))
    # `project` gives rows of length 1, whose coordinates have a mean square of 1/width
    pull = HEAD_PULL / width
    maps = train_head(flat, flat.project(embeddings), y, label_transition=label_transition, pull=pull, seed=seed)
    return Pipeline(pipeline.encoder, pipeline.tokenizer, maps, pooling=pooling, max_length=max_length).eval()

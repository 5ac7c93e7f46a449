"""Training of a model, or of its head alone, on texts. On texts that users released, this is post-processing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechanisms.arrays import FloatArray
from mechanisms.pieces import Text
from server.accelerator import lent
from server.checkpoint import load, positions
from server.maps import Maps, factored
from server.model import Pipeline
from server.text_batches import checked, collate, seeded, tokenize
from server.training.head import log_likelihood, train_head
from server.training.loop import train
from server.training.noise import Noise

#: Number of texts whose mean embedding is the maps' starting `mean`.
CENTRE = 512
#: Strength of the pull of a frozen encoder's head towards 0, for features of variance 1.
HEAD_PULL = 100.0

NOT_PRIVATE = (
    "A trusted simulation of the published procedure, not private: its gradients depend on raw text, and "
    "every epoch draws each embedding anew."
)


def check(checkpoint: str | Path, *, dim: int | None, max_length: int) -> None:
    """Check a checkpoint before users receive a request to train on. Arguments are those of `train_on_text`.

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


def initial(
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

    The starting `mean` is that of the first texts' embeddings. Arguments are those of `train_on_text`. Without dim,
    maps have the encoder's whole width, and change nothing at first.

    Raises:
        ValueError: `checkpoint.load` raises it, or dim is above the encoder's width.
    """
    encoder, tokenizer = load(checkpoint)
    width = int(encoder.config.hidden_size)
    inner = dim or width
    m1: Any = rng.standard_normal((width, inner)) / np.sqrt(width)
    m2: Any = rng.standard_normal((inner, width)) / np.sqrt(inner)
    head: Any = rng.standard_normal((width, classes)) / np.sqrt(width)
    if dim is None:
        m1 = m2 = np.eye(width)
    maps = Maps(np.zeros(width, np.float32), m1, m2, head, np.zeros(classes, np.float32))
    pipeline = Pipeline(encoder, tokenizer, maps, pooling=pooling, max_length=max_length)
    with torch.no_grad():
        pipeline.mean.copy_(torch.from_numpy(pipeline.embed(texts[:CENTRE]).mean(axis=0)))
    return pipeline


def train_on_text(
    checkpoint: str | Path,
    texts: Sequence[Text],
    labels: Any,
    *,
    classes: int,
    dim: int | None,
    label_transition: FloatArray | None = None,
    noise: Callable[[torch.Tensor], torch.Tensor] | None = None,
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
    name: str = "training on sanitized text",
    after_epoch: Callable[[int, Pipeline], None] | None = None,
) -> Pipeline:
    """Return encoder, maps and head trained together on released texts and released labels.

    The loss is the likelihood of the released labels, with the true labels summed out (forward correction, Patrini et
    al. 2017), as in `head.train_head`. The texts need no such correction: users of the model sanitize their text by the
    same mechanism. A text with no words left is trained on as the empty text.

    It uses AdamW, a linear warm-up, then decay to 0 or none (`text_batches.warmed`), weight decay of the encoder alone,
    and gradients clipped to norm 1. The same arguments and thread count give the same weights, and global generators
    stay unchanged. It runs on a GPU where there is one (`server.accelerator`), which gives other weights than a CPU.
    The pipeline moves back afterwards, but only after the last `after_epoch`.

    Args:
        checkpoint: Checkpoint that training starts from.
        texts: n texts or pairs, as words with spaces between. A pair is read as one input, with the separator between
            its texts and a segment number for each.
        labels: Released labels (n,).
        classes: K.
        dim: m', the coordinates between the encoder and the head; None for no bottleneck.
        label_transition: (n, K), for row i and class k the probability of the released labels[i] if k is the true
            class. None if the labels are true.
        noise: Function on the output of M1; None for no noise.
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
        name: Name of the training in lines of progress.
        after_epoch: Function that receives the number of epochs done and the pipeline; it may evaluate.

    Raises:
        ValueError: The arguments do not fit, a label is impossible for every class, or `checkpoint.load` raises it.
    """
    y = checked(texts, labels, classes, epochs, batch_size)
    log: torch.Tensor | None = None
    if label_transition is not None:
        log = torch.from_numpy(log_likelihood(label_transition, len(y), classes).astype(np.float32))
    rng = np.random.default_rng([seed, 0])
    pipeline = initial(checkpoint, texts, dim=dim, classes=classes, rng=rng, pooling=pooling, max_length=max_length)
    rows = tokenize(pipeline.tokenizer, texts, max_length)

    def loss(at: np.ndarray) -> torch.Tensor:
        logits = pipeline(collate(pipeline.tokenizer, [rows[i] for i in at]), noise)
        if log is None:
            return torch.nn.functional.cross_entropy(logits, y[at].to(logits.device))
        return -torch.logsumexp(torch.log_softmax(logits, dim=1) + log[at].to(logits.device), dim=1).mean()

    with lent(pipeline), seeded(seed):
        own = [pipeline.mean, pipeline.m1, pipeline.m2, pipeline.head_w, pipeline.head_b]
        optimizer = torch.optim.AdamW(
            [
                {"params": own, "lr": maps_lr, "weight_decay": 0.0},
                {"params": pipeline.encoder.parameters(), "lr": encoder_lr, "weight_decay": weight_decay},
            ],
            fused=True,  # without it, a step over all embeddings of a vocabulary takes a quarter of the time
        )
        train(
            pipeline,
            optimizer,
            loss,
            [len(row["input_ids"]) for row in rows],
            epochs=epochs,
            batch_size=batch_size,
            rng=rng,
            name=name,
            after_epoch=lambda done: None if after_epoch is None else after_epoch(done, pipeline),
            warm_up=warm_up,
            schedule=schedule,
        )
    return pipeline


def head_on_text(
    checkpoint: str | Path,
    texts: Sequence[Text],
    labels: Any,
    *,
    classes: int,
    label_transition: FloatArray,
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
    pipeline = initial(checkpoint, texts, dim=None, classes=classes, rng=rng, pooling=pooling, max_length=max_length)
    embeddings = pipeline.embed(texts).astype(np.float64)
    width = embeddings.shape[1]
    unit = np.diag(1 / (embeddings.std(axis=0) + 1e-9))
    flat = factored(embeddings.mean(axis=0), unit, np.zeros((width, classes)), np.zeros(classes))
    # `project` gives rows of length 1, whose coordinates have a mean square of 1/width
    pull = HEAD_PULL / width
    maps = train_head(flat, flat.project(embeddings), y, label_transition=label_transition, pull=pull)
    return Pipeline(pipeline.encoder, pipeline.tokenizer, maps, pooling=pooling, max_length=max_length).eval()


def train_paper(
    checkpoint: str | Path,
    texts: Sequence[Text],
    labels: Any,
    *,
    mechanism: Any,
    seed: int,
    acknowledged: bool,
    **settings: Any,
) -> Pipeline:
    """Return encoder, maps and head trained as published, with fresh noise in every forward pass. It is not private.

    Args:
        checkpoint: Checkpoint that training starts from.
        texts: n texts or pairs.
        labels: Labels (n,); released ones if labels are sanitized too.
        mechanism: Mechanism of the noise.
        seed: Seed of all random choices.
        acknowledged: True to confirm that the procedure is not private; otherwise it raises ValueError.
        **settings: Further arguments of `train_on_text`.

    Source: Du et al. 2023, section 3.3.
    """
    if acknowledged is not True:
        raise ValueError(f"training: way paper must be acknowledged in the experiment file. {NOT_PRIVATE}")
    noise = Noise(mechanism, seed=seed, stage="paper")
    return train_on_text(checkpoint, texts, labels, noise=noise, seed=seed, name="trusted simulation", **settings)

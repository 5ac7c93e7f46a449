"""Protocol sanitized-text: users release a sanitized text and a label once.

A head on the frozen encoder is fitted to these releases, or encoder, maps and head are trained on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.channels import LABEL, TEXT
from mechanisms.identity import Identity
from mechanisms.messages.batch import Batch
from mechanisms.messages.questions import LabelQuestion, TextQuestion
from mechanisms.pieces import Text
from server.protocols.declaration import Alone, Option, TrainingProtocol
from server.protocols.models import TextModel
from server.protocols.protocol import Channels, Conversation, Public, Training
from server.training.head import log_transition

if TYPE_CHECKING:
    from server.model import Pipeline

TRAIN_ENCODER = Option(
    "train_encoder",
    False,
    "True if the encoder is trained on released texts as well; false fits a head on the frozen encoder, in seconds.",
)
#: Coordinates between encoder and head. Du et al. 2023, section 4.2, use 16 for all main results.
BOTTLENECK = Option(
    "bottleneck",
    16,
    'Number of coordinates between encoder and head if the encoder is trained on released texts, or "none".',
    least=2,
    optional=True,
)


def sanitized_text(public: Public, channels: Channels, training: Training, *, folder: Path) -> Conversation:
    """Train on the releases of one stage of all users.

    Args:
        public: Public data.
        channels: Releases of the arm's users.
        training: Settings of the training.
        folder: Unused; nothing is written into it.
    """
    del folder
    assert public.rewriter is not None
    dim, batch = BOTTLENECK.of(training.options), None
    checkpoint = _start_of(public, channels, training, dim=dim)
    if channels.teaching:
        batch = yield channels.texts(public.rewriter, stage="train", split="train", label=True)
    pipeline = _trained_on(batch, public, channels, training, checkpoint=checkpoint, dim=dim)
    return None if pipeline is None else TextModel(channels, public.rewriter, pipeline)


def _start_of(public: Public, channels: Channels, training: Training, *, dim: int | None) -> str | Path:
    """Return the checkpoint that training starts from, after a check.

    The check comes before any request: users would spend budget in vain on a training that cannot run.

    Args:
        public: Public data.
        channels: Releases of the arm's users.
        training: Settings of the training.
        dim: As in `end_to_end.check`.

    Returns:
        A checkpoint; "" if there will be nothing to train on.
    """
    if not channels.teaching and (public.labels is None or not len(public.texts)):
        return ""
    from server.training.end_to_end import check

    assert public.rewriter is not None
    checkpoint = public.rewriter.checkpoint(channels.text_of("train"), public.texts)
    check(checkpoint, dim=dim, max_length=training.max_length)
    return checkpoint


def _trained_on(
    batch: Batch | None,
    public: Public,
    channels: Channels,
    training: Training,
    *,
    checkpoint: str | Path,
    dim: int | None,
) -> Pipeline | None:
    """Return a pipeline trained on labelled public text and released texts with labels.

    Labelled public text is sanitized like users' text before it joins their releases. A model that reads sanitized
    texts learns nothing from clean texts that it could not learn from these.

    Args:
        batch: Released texts and labels, if any.
        public: Public data.
        channels: Releases of the arm's users.
        training: Settings of the training.
        checkpoint: Result of `_start_of`.
        dim: m'.

    Returns:
        A pipeline; None if there are neither labelled public texts nor releases.
    """
    from server.training.end_to_end import head_on_text, train_on_text

    assert public.rewriter is not None
    texts, labels, likelihood = _public(public, channels, training)
    if batch is not None:
        released = _released(batch, channels)
        texts += released[0]
        labels, likelihood = np.concatenate([labels, released[1]]), np.concatenate([likelihood, released[2]])
    if not texts:
        return None
    common: dict[str, Any] = {
        "classes": channels.classes,
        "label_transition": likelihood,
        "seed": training.seed,
        "pooling": training.pooling,
        "max_length": training.max_length,
    }
    if not TRAIN_ENCODER.of(training.options):
        return head_on_text(checkpoint, texts, labels, **common)
    common.update(training.descent, dim=dim, epochs=training.epochs, batch_size=training.batch_size)
    return train_on_text(checkpoint, texts, labels, **common)


Labelled = tuple[list[Text], NDArray[np.int64], NDArray[np.float64]]


def _public(public: Public, channels: Channels, training: Training) -> Labelled:
    """Return sanitized public texts, their labels and the likelihoods of these; nothing if they have no labels."""
    if public.labels is None or not len(public.texts):
        return [], np.zeros(0, np.int64), np.zeros((0, channels.classes))
    assert public.rewriter is not None
    lines = public.rewriter.sanitize(channels.text_of("train"), public.texts, seed=training.seed, stage="public-text")
    return lines, public.labels, np.eye(channels.classes)[public.labels]


def _released(batch: Batch, channels: Channels) -> Labelled:
    """Return training users' texts and labels, and the likelihood of each label under each class."""
    text, labels = batch.of(TextQuestion), batch.of(LabelQuestion)
    if text is None or labels is None:
        return [], np.zeros(0, np.int64), np.zeros((0, channels.classes))
    y = labels.values.astype(np.int64)
    if isinstance(channels.label, Identity):
        likelihood = np.eye(channels.classes)[y]
    else:
        likelihood = np.exp(log_transition(channels.label, y, classes=channels.classes))
    return channels.text_of("train").texts(text.values), y, likelihood


def _check(options: Mapping[str, Any]) -> None:
    if not TRAIN_ENCODER.of(options) and BOTTLENECK.of(options) != BOTTLENECK.default:
        raise ValueError("bottleneck: goes with train-encoder = true; set it, or remove this")


SANITIZED_TEXT = TrainingProtocol(
    "sanitized-text",
    "every user released a sanitized text and label once; the rest is post-processing",
    steps=sanitized_text,
    trains_on=frozenset({TEXT.name, LABEL.name}),
    queried=frozenset({TEXT.name}),
    checkpoint=True,
    alone=Alone.LABELLED,
    beside=True,
    deployable=True,
    options=(TRAIN_ENCODER, BOTTLENECK),
    check=_check,
)

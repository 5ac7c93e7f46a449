"""Protocol sanitized-text: users release a sanitized text and a label once.

A head on the frozen encoder is fitted to these releases, or encoder, maps and head are trained on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.channels import LABEL, TEXT
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.messages.questions import LabelQuestion, TextQuestion
from mechanisms.pieces import Text
from server.protocols.declaration import Alone, Option, TrainingProtocol
from server.protocols.models import TextModel
from server.protocols.protocol import Channels, Conversation, Public, Training
from server.training.head import log_transition

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
    """Train on labelled public text and on the releases of one stage of all users.

    Labelled public text is sanitized like users' text before it joins their releases. A model that reads sanitized
    texts learns nothing from clean texts that it could not learn from these.

    Args:
        public: Public data.
        channels: Releases of the arm's users.
        training: Settings of the training.
        folder: Unused; nothing is written into it.
    """
    del folder
    rewriter, mechanism, dim = public.rewriter, channels.text_of("train"), BOTTLENECK.of(training.options)
    assert rewriter is not None
    labelled = public.labels is not None and len(public.texts) > 0
    if not labelled and not channels.teaching:
        return None
    from server.training.end_to_end import check, head_on_text, train_on_text

    checkpoint = rewriter.checkpoint(mechanism, public.texts)
    check(
        checkpoint, dim=dim, max_length=training.max_length
    )  # before users spend budget on a training that cannot run
    batch = None
    if channels.teaching:
        batch = yield channels.texts(rewriter, stage="train", split="train", label=True)
    texts: list[Text] = []
    labels, likelihoods = [], []
    if public.labels is not None and labelled:
        texts += rewriter.sanitize(mechanism, public.texts, seed=training.seed, stage="public-text")
        labels, likelihoods = [public.labels], [np.eye(channels.classes)[public.labels]]
    if batch is not None and (text := batch.of(TextQuestion)) is not None:
        texts += mechanism.texts(text.values)
        labels.append(batch.of(LabelQuestion).values.astype(np.int64))
        likelihoods.append(_likelihood(channels.label, labels[-1], channels.classes))
    if not texts:
        return None
    common: dict[str, Any] = {
        "classes": channels.classes,
        "label_transition": np.concatenate(likelihoods),
        "seed": training.seed,
        "pooling": training.pooling,
        "max_length": training.max_length,
    }
    if TRAIN_ENCODER.of(training.options):
        common.update(training.descent, dim=dim, epochs=training.epochs, batch_size=training.batch_size)
        pipeline = train_on_text(checkpoint, texts, np.concatenate(labels), **common)
    else:
        pipeline = head_on_text(checkpoint, texts, np.concatenate(labels), **common)
    return TextModel(channels, rewriter, pipeline)


def _likelihood(label: Mechanism, y: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Return the likelihood of each released label under each class, (n, K)."""
    return np.eye(classes)[y] if isinstance(label, Identity) else np.exp(log_transition(label, y, classes=classes))


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
    options=(TRAIN_ENCODER, BOTTLENECK),
    check=_check,
)

"""Users release one vector each, of how features go with labels; the head is their mean's, in closed form.

With self-training, what a group of users has taught labels public text, on which the encoder is trained under which the
next group answers: each user once, and nothing of a user but the mean of a group ever enters.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.messages.batch import Batch
from mechanisms.messages.request import Request
from server.export import export_encoder
from server.maps import Maps
from server.protocols.decoding import statistic_mean
from server.protocols.models import EmbeddingModel
from server.protocols.protocol import Channels, Conversation, Encoding, Progress, Public, Publish, Training
from server.protocols.public_maps import dim_of
from server.training.finetune import finetune
from server.training.public_maps import pca_maps
from server.training.self_training import EPOCHS, RATE, pseudo_labels
from server.training.sharpen import factored, sharpened
from server.training.statistic_head import Evidence, best_features, linear_head, of_labels, of_users, simplex_codes

#: Users that a public-only arm's features are chosen for: it asks nobody.
NOBODY = 1_000


def statistics(
    public: Public, channels: Channels, training: Training, *, folder: Path, progress: Progress
) -> Conversation:
    """Groups of users, one after another, each user in one; the encoders that are trained go into `folder`."""
    assert public.encoder is not None and public.embeddings is not None
    encoder, embeddings = public.encoder, public.embeddings
    believed, maps, asked = public.labels, None, None
    for number in range(training.rounds):
        frame = _frame(embeddings, channels, training)
        users = yield from _asked(frame, encoder, channels, training, number, progress)
        if users is None and believed is None:
            return None
        asked = frame if channels.teaching else None
        maps = _head(frame, embeddings, believed, users)
        if not training.self_training:
            break
        last = number + 1 == training.rounds
        believed = pseudo_labels(maps, embeddings, public.labels)
        place = folder if last else folder / f"round-{number + 1}"
        student = finetune(
            public.checkpoint, public.texts, believed, place / "student", classes=channels.classes, epochs=EPOCHS,
            lr=RATE, batch_size=training.batch_size, seed=training.seed, pooling=training.pooling,
            max_length=training.max_length, progress=progress,
        )  # fmt: skip
        export_encoder(student, place / "client", **training.export)
        encoder = yield Publish(place / "client", splits=("test" if last else "train",))
        embeddings = encoder.embed(public.texts)
        if last:
            maps = _head(_frame(embeddings, channels, training), embeddings, believed, None)
    assert maps is not None
    mechanism = channels.embedding[0] if channels.asking else None
    if mechanism is not None:
        maps = sharpened(maps, public=embeddings, dim=dim_of(mechanism))
    return EmbeddingModel(channels, encoder, mechanism, maps, asked)


def _frame(embeddings: NDArray[np.float32], channels: Channels, training: Training) -> Maps:
    """What users map their embeddings by: as many principal components of public text as are expected to teach most."""
    features = channels.features
    if features is None:
        assert channels.statistic is not None
        codes, users = simplex_codes(channels.classes), max(channels.users // training.rounds, 1)
        features = best_features(
            embeddings, codes, channels.statistic, users=users if channels.teaching else NOBODY
        )
    if channels.asking:
        features = max(features, dim_of(channels.embedding[0]))
    return pca_maps(embeddings, dim=features, classes=channels.classes)


def _asked(
    frame: Maps, encoder: Encoding, channels: Channels, training: Training, number: int, progress: Progress
) -> Generator[Request, Batch, Evidence | None]:
    """What a group of users says; None where none is asked, or nothing comes of it."""
    if not channels.teaching:
        return None
    codes = simplex_codes(channels.classes)
    stage = "train" if training.rounds == 1 else f"train-{number + 1}"
    request = channels.statistics(encoder.identity, frame, codes, stage=stage, part=(number, training.rounds))
    progress(f"stage {stage}: {frame.dim} features, {request.statistic_dim} coordinates of a user")
    release = (yield request).channel("statistic")
    if release is None:
        return None
    mean, noise = statistic_mean(request.mechanism("statistic"), release)
    return None if np.isinf(noise) else of_users(mean, noise, users=len(release), codes=codes)


def _head(frame: Maps, embeddings: NDArray[Any], believed: NDArray[Any] | None, users: Evidence | None) -> Maps:
    """The frame with a head, from the users' mean and public labels, or what is believed of them."""
    features, codes = frame.project(embeddings), simplex_codes(frame.classes)
    labels = None if believed is None else of_labels(features, believed, codes)
    weight, bias = linear_head(features, codes, users=users, labels=labels)
    return factored(frame.mean, frame.m1, weight, bias)

"""Trial requests of an arm, made on maps of zeros before a run, so that refused requests are found early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechanisms.mechanism import Mechanism
from mechanisms.messages.questions import MAX_CLASSES, MAX_WIDTH
from mechanisms.messages.request import Request
from mechanisms.privunit import MAX_DIM
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.text import TextMechanism
from server.maps import Maps
from server.protocols.declaration import TrainingProtocol
from server.protocols.protocol import Channels
from server.protocols.public_maps import dim_of
from simulations.errors import UserError
from simulations.experiment.arm import (
    DEFAULT_DIM,
    Arm,
    answer_of,
    embeddings_of,
    label_of,
    released_text,
    trial_text_of,
)
from simulations.experiment.names import slug

#: Placeholder for the hash of an encoder or a language model.
_HASH = "0" * 64


def check_requests(
    arm: Arm,
    way: TrainingProtocol,
    *,
    classes: int,
    width: int | None,
    stages: int,
    least: int,
    statistic: Callable[[int], Mechanism] | None,
    shared: bool,
) -> None:
    """Check that no request of the arm would be refused.

    Args:
        arm: The arm.
        way: Its training protocol.
        classes: Number of classes.
        width: Width of the encoder; None if it is unknown: then as wide as the arm needs.
        stages: Number of stages of disjoint users.
        least: Minimum batch size.
        statistic: Function from D to the mechanism of user vectors; None if the arm releases none.
        shared: True if their codes share a coordinate.

    Raises:
        UserError: A request would be refused; the message names the arm.
    """
    dims = arm.dims or (() if arm.embedding is None else (DEFAULT_DIM if width is None else min(DEFAULT_DIM, width),))
    features = None if statistic is None else max(arm.features or 2, *dims, 2)
    widest = max((*dims, features or 0))
    if width is not None and widest > width:
        where = "vector.dim" if arm.features == widest else "embedding.dim"
        raise UserError(
            f'arm "{arm.name}": {where}: {widest} is above the encoder\'s width {width}; choose at most {width}'
        )
    if width is not None and width > MAX_WIDTH:
        raise UserError(
            f"encoder.layers: their states have {width:,} coordinates side by side, and a request takes {MAX_WIDTH:,} "
            "at most; name fewer layers"
        )
    if classes > MAX_CLASSES:
        raise UserError(f"data.levels: {classes:,} classes, and a request takes {MAX_CLASSES:,} at most; give fewer")
    if features is not None:
        from server.training.statistic_head import code_length

        size = code_length(classes, shared=shared) * (features + 1)
        if size > MAX_DIM:
            raise UserError(
                f'arm "{arm.name}": vector: {features} features of {classes:,} classes take {size:,} coordinates, '
                f"and a vector has {MAX_DIM:,} at most; choose fewer features or classes"
            )
    text = None if arm.text is None else trial_text_of(arm)
    channels = Channels(
        arm=slug(arm.name),
        classes=classes,
        label=label_of(arm, classes),
        embedding=tuple(embeddings_of(arm)),
        text=None if text is None else released_text(arm, text, "test"),
        taught=None if text is None else released_text(arm, text, "train"),
        statistic=statistic,
        answer=answer_of(arm, classes),
        features=features,
        minimum_users=least,
        teaching=not arm.public_only,
    )
    try:
        for _ in _requests(channels, width or max(widest, 2), stages, way, shared):
            pass
    except ValueError as error:
        raise UserError(f'arm "{arm.name}": {str(error).removeprefix("request: ")}; its users would refuse') from error


def _requests(channels: Channels, width: int, stages: int, way: TrainingProtocol, shared: bool) -> Iterator[Request]:
    """Yield the requests to the arm's users, at its last stage."""
    part = (stages - 1, stages)
    if channels.text is not None:
        words: Any = _Words(channels.text.vocabulary)
        if channels.teaching:
            yield channels.texts(words, stage="train", split="train", label=True, part=part)
        yield channels.texts(words, stage="test", split="test")
    for mechanism in channels.embedding:
        maps = _maps(width, dim_of(mechanism), channels.classes)
        prior = maps.folded() if getattr(channels.label, "needs_prior", False) and channels.teaching else None
        if channels.teaching and not way.releases_vector:
            yield channels.embeddings(
                _HASH, maps, mechanism, stage="train", split="train", label=True, part=part, prior=prior
            )
        if channels.answer is None:
            yield channels.embeddings(_HASH, maps, mechanism, stage="test", split="test")
    if channels.statistic is not None and channels.features is not None and channels.teaching:
        from server.training.statistic_head import shared_codes, simplex_codes

        codes = (shared_codes if shared else simplex_codes)(channels.classes)
        yield channels.statistics(
            _HASH, _maps(width, channels.features, channels.classes), codes, stage="train", part=part
        )
    if channels.answer is not None:
        yield channels.answers(_HASH, _maps(width, 2, channels.classes), stage="test", split="test")


def _maps(width: int, dim: int, classes: int) -> Maps:
    wide, head = np.zeros((width, dim), np.float32), np.zeros((width, classes), np.float32)
    return Maps(np.zeros(width, np.float32), wide, wide.T, head, np.zeros(classes, np.float32))


@dataclass(frozen=True)
class _Words:
    """Part of a `server.protocols.protocol.PublicRewriter` that a request for texts needs."""

    vocabulary: Vocabulary

    def identity(self, text: TextMechanism) -> str:
        """Return a hash where the mechanism reads a language model."""
        return _HASH if text.word.reads else ""

"""Sanitization of private texts: tokenized, drawn in pieces of bounded memory, each from its own random stream."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.reading import private_arguments
from client.models.tokens import padded_word_ids
from mechanisms.channels import TEXT
from mechanisms.pieces import Text
from mechanisms.streams import SecureStreams, SimulationStreams
from mechanisms.words.text import TextMechanism

#: Texts that are drawn at once, at most, and of those that a language model reads; uniforms, at most (64 MB). A large
#: block pays: tables that do not fit into memory are made once for each.
_TEXTS, _READ, _UNIFORMS = 2**14, 2**10, 2**23


def batch_size(mechanism: TextMechanism) -> int:
    """Return the number of texts to draw in one call, for bounded memory."""
    if mechanism.word.reads:
        return _READ
    return min(_TEXTS, max(1, _UNIFORMS // max(1, mechanism.uniforms)))


def draw(
    mechanism: TextMechanism,
    texts: Sequence[Text],
    users: NDArray[np.int64],
    records: NDArray[np.int64],
    *,
    streams: SimulationStreams | SecureStreams,
    stage: str,
    step: int = 0,
    masked_lm: Path | None = None,
) -> NDArray[np.int32]:
    """Return one draw for each of n texts: (n, positions) int32 word ids.

    No draw depends on the grouping of texts.

    Args:
        mechanism: The mechanism.
        texts: The texts, or pairs.
        users: (n,), the user of each text.
        records: (n,), the number of each text as a record of its user.
        streams: Source of randomness.
        stage: Stage of the request.
        step: Step of the streams.
        masked_lm: Folder of the model that some mechanisms read.
    """
    drawn = np.empty((len(texts), mechanism.positions), dtype=np.int32)
    size = batch_size(mechanism)
    for start in range(0, len(texts), size):
        piece = slice(start, start + size)
        x = padded_word_ids(texts[piece], mechanism)
        private: dict[str, Any] = {}
        if mechanism.word.reads:
            private = private_arguments(mechanism, texts[piece], x, masked_lm)
        rng = streams.rows(users[piece], records[piece], stage=stage, channel=TEXT.name, step=step)
        drawn[piece] = mechanism.sample(x, rng=rng, **private)
    return drawn

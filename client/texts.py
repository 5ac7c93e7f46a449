"""Private texts, sanitized: tokenized, drawn in pieces of bounded memory, each text from a stream of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.reading import private_arguments
from client.words import numbers
from mechanisms.streams import SecureStreams, SimulationStreams
from mechanisms.text import Text

#: Texts that are drawn at once, at most, and of those that a language model reads; uniforms, at most (64 MB). A large
#: block pays: tables that do not fit into memory are made once for each.
_TEXTS, _READ, _UNIFORMS = 2**14, 2**10, 2**23


def at_once(text: Text) -> int:
    """How many texts to draw in one call, for bounded memory."""
    return _READ if text.word.reads else min(_TEXTS, max(1, _UNIFORMS // max(1, text.uniforms)))


def draw(
    text: Text, lines: Sequence[str], users: NDArray[np.int64], records: NDArray[np.int64], *,
    streams: SimulationStreams | SecureStreams, stage: str, step: int = 0, masked_lm: Path | None = None,
) -> NDArray[np.int32]:  # fmt: skip
    """One draw for each of n texts, that of users[i] as their record records[i]: (n, L) int32 numbers of words.

    masked_lm: the folder of the model that some mechanisms read. No draw depends on how texts are grouped.
    """
    drawn = np.empty((len(lines), text.tokens), dtype=np.int32)
    size = at_once(text)
    for start in range(0, len(lines), size):
        piece = slice(start, start + size)
        x = numbers(lines[piece], text)
        private: dict[str, Any] = {}
        if text.word.reads:
            private = private_arguments(text, lines[piece], x, masked_lm)
        rng = streams.rows(users[piece], records[piece], stage=stage, channel="text", step=step)
        drawn[piece] = text.sample(x, rng=rng, **private)
    return drawn

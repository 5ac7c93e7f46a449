"""Deployed model behind HTTPS, which may be hostile.

Its messages are read up to a limit. Each is exactly as specified, or the result is a one-line error.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from client.device.https import Server, ServerError
from mechanisms.messages.questions import EmbeddingQuestion
from mechanisms.messages.request import Request
from mechanisms.messages.wire import MAX_DESCRIPTION, record_from_bytes, request_from_record

STAGE = "ask"
#: Releases of one message, at most; with many classes fewer, since an answer has no more numbers than these.
_RELEASES, _NUMBERS = 256, 2**18
#: Bytes of a request besides its arrays; of an answer besides its numbers; of a number, and a class's name, in JSON.
_FRAME, _ROOM, _NUMBER, _NAME = 2 * MAX_DESCRIPTION, 2**12, 32, 1024
#: Characters of a class's name.
_LETTERS = 128


class Model(Server):
    """Model at an address: see `Server`."""

    def question(self, *, encoder: str, width: int) -> Request:
        """Return the model's request: the embedding of a sentence, alone, by the encoder of that hash and width.

        The policy decides whether the request is allowed.

        Raises:
            ServerError: The server sends anything else.
        """
        data = self.get("/v1/question", limit=4 * width * (width + 1) + _FRAME)  # mean, and m1 at its largest
        try:
            request = request_from_record(record_from_bytes(data))
        except ValueError:
            raise ServerError(f"{self.address}: its question cannot be read") from None
        plain = (request.arm, request.stage, request.split, request.part, request.minimum_users)
        if plain != ("", STAGE, "test", (0, 1), 0) or [type(q) for q in request.questions] != [EmbeddingQuestion]:
            raise ServerError(f"{self.address}: asks for something else than the embedding of one sentence")
        if request.encoder != encoder:
            raise ServerError(
                f"{self.address}: asks for embeddings of the encoder {request.encoder[:16]}…, and this device has "
                f"{encoder[:16]}…; install the bundle of that model"
            )
        if request.question(EmbeddingQuestion).projection.width != width:
            raise ServerError(f"{self.address}: its maps do not fit the encoder")
        return request

    def answer(self, message: bytes, n: int, classes: int) -> tuple[tuple[str, ...], NDArray[np.float64]]:
        """Return names of the classes and probabilities (n, K) for a message with n releases.

        Raises:
            ServerError: There is no valid answer.
        """
        data = self.post("/v1/ask", message, limit=_ROOM + classes * (_NAME + _NUMBER * n))
        try:
            return _read(json.loads(data), n, classes)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise ServerError(f"{self.address}: its answer cannot be read") from None


def batch_size(classes: int) -> int:
    """Return the largest number of releases of a message."""
    return max(1, min(_RELEASES, _NUMBERS // classes))


def _read(answer: dict[str, object], n: int, classes: int) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    names, rows = answer["classes"], answer["probabilities"]
    if set(answer) != {"classes", "probabilities"} or not (isinstance(names, list) and isinstance(rows, list)):
        raise ValueError("answer: its keys")
    if len(names) != classes or not all(map(_printable, names)) or len(set(names)) != classes:
        raise ValueError("answer: its classes")
    if len(rows) != n or not all(isinstance(row, list) and len(row) == classes for row in rows):
        raise ValueError("answer: its rows")
    if not all(type(value) in (int, float) for row in rows for value in row):
        raise ValueError("answer: its numbers")
    values = np.array(rows, dtype=np.float64)
    if not ((values >= 0).all() and (np.abs(values.sum(axis=1) - 1) < 1e-6).all()):
        raise ValueError("answer: its probabilities")
    return tuple(names), values


def _printable(text: object) -> bool:
    """Return whether a name may be shown: a terminal interprets some characters."""
    return isinstance(text, str) and 0 < len(text) <= _LETTERS and text.isprintable()

"""Last step of sanitized inference: a trained model classifies users' releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from mechanisms.messages.questions import EmbeddingQuestion
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import sealed_bytes, unseal
from mechanisms.messages.wire import record_from_bytes, reply_from_record, sealed_from_record
from server.maps import Maps
from server.validation import validate

#: Largest number of releases in one message.
MOST = 1024
#: Bytes of a message beside its rows: two numbers, names, hashes, a guarantee.
_FRAME = 2**14


@dataclass(frozen=True, eq=False)
class Predictor:
    """Model that classifies releases. This is post-processing and costs users nothing.

    Args:
        request: Request that users answer, for an embedding alone.
        maps: Maps and head of the model.
        classes: K names.
        private_keys: Keys of 32 bytes each. With keys, releases must be sealed, and one of the keys must open a
            message. Without keys, releases come in clear.

    Raises:
        ValueError: The arguments do not fit each other.
    """

    request: Request
    maps: Maps
    classes: tuple[str, ...]
    private_keys: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        request, maps = self.request, self.maps
        alone = [type(question) for question in request.questions] == [EmbeddingQuestion]
        if not alone or len(self.classes) != maps.classes or request.classes != maps.classes:
            raise ValueError("predict: the question must be for an embedding, with the classes of the model")
        sent = self._question.projection
        if not (np.array_equal(sent.mean, maps.mean) and np.array_equal(sent.m1, maps.m1)):
            raise ValueError("predict: the question must be that of the model's own maps")

    @property
    def largest(self) -> int:
        """Return the largest size of a message, in bytes."""
        return _FRAME + MOST * (16 + sealed_bytes(self.request))

    def answer(self, body: bytes) -> dict[str, Any]:
        """Return {"classes": K names, "probabilities": n lists of K} for the n releases of a message, in its order.

        Args:
            body: Message of a user.

        Raises:
            ValueError: The message is not one to `MOST` releases of exactly the request. One bad row rejects the whole
                message: the caller could not tell an answer to some rows from an answer to all.
        """
        try:
            record = record_from_bytes(body)
            reply = reply_from_record(record) if not self.private_keys else self._unsealed(record)
            return {"classes": list(self.classes), "probabilities": self.probabilities(reply).tolist()}
        except Exception:  # a hostile message must not stop the service, and learns nothing about the error
            raise ValueError("predict: the message is not an answer to the question") from None

    def probabilities(self, reply: Reply) -> NDArray[np.float64]:
        """Return the probability of each class, (n, K), for n releases.

        The likeliest class is that of `Maps.predict`.

        Raises:
            ValueError: The reply holds something else than the requested releases.
        """
        valid, dropped = validate(reply, self.request, enrolled=range(1))
        if dropped or not 1 <= len(valid) <= MOST:
            raise ValueError("predict: not the releases that were asked for")
        shares: NDArray[np.float64] = softmax(self.maps.logits(self._question.decode(valid.releases[0].values)), axis=1)
        return shares

    def _unsealed(self, record: Any) -> Reply:
        sealed = sealed_from_record(record)
        if len(sealed) > MOST:
            raise ValueError("predict: too many releases")
        for key in self.private_keys:
            releases, opened = unseal(sealed.rows, self.request, key)
            if opened.all():
                return Reply(sealed.users, sealed.records, releases)
        raise ValueError("predict: a row does not open")

    @property
    def _question(self) -> EmbeddingQuestion:
        return self.request.question(EmbeddingQuestion)

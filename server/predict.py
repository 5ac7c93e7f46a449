"""The last step of inference for users who send a release in place of a sentence: what a trained model makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import sealed_bytes, unseal
from mechanisms.messages.wire import record_from_bytes, reply_from_record, sealed_from_record
from server.maps import Maps
from server.validation import validate

#: Releases that are answered at once, at most.
MOST = 1024
#: Of a message, beside its rows: two numbers, names, hashes, a guarantee.
_FRAME = 2**14


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model that answers releases. Whatever it makes of them is post-processing: it costs users nothing.

    request: what users are asked, an embedding alone. classes: names, K of them. private_keys: 32 bytes each,
    where releases come sealed, and then they come no other way: a message opens by one of them. None of them: in clear.
    Raises ValueError where these do not fit one another.
    """

    request: Request
    maps: Maps
    classes: tuple[str, ...]
    private_keys: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        request, maps = self.request, self.maps
        if request.channels != ("embedding",) or len(self.classes) != maps.classes or request.classes != maps.classes:
            raise ValueError("predict: the question must be for an embedding, with the classes of the model")
        assert request.mean is not None and request.m1 is not None
        if not (np.array_equal(request.mean, maps.mean) and np.array_equal(request.m1, maps.m1)):
            raise ValueError("predict: the question must be that of the model's own maps")

    @property
    def largest(self) -> int:
        """Bytes of a message, at most."""
        return _FRAME + MOST * (16 + max(sealed_bytes(self.request), self._row))

    def answer(self, body: bytes) -> dict[str, Any]:
        """{"classes": K names, "probabilities": n lists of K} for the n releases of a message, in its order.

        Raises ValueError for anything but one to `MOST` releases of exactly what was asked for; a row that is not
        spoils the others, since an answer to some of them could not be told from an answer to all.
        """
        try:
            record = record_from_bytes(body)
            reply = reply_from_record(record) if not self.private_keys else self._unsealed(record)
            return {"classes": list(self.classes), "probabilities": self.probabilities(reply).tolist()}
        except Exception:  # a hostile message must not stop the service, nor learn what it has provoked
            raise ValueError("predict: the message is not an answer to the question") from None

    def probabilities(self, reply: Reply) -> NDArray[np.float64]:
        """Of each class (n, K), for n releases; the likeliest is the one of `Maps.predict`. Raises ValueError."""
        valid, dropped = validate(reply, self.request, enrolled=range(1))
        if dropped or not 1 <= len(valid) <= MOST:
            raise ValueError("predict: not the releases that were asked for")
        codes, grid = valid.releases[0].payload["z"], self.request.mechanism("embedding").grid
        logits = self.maps.logits(codes.astype(np.float64) if grid is None else grid.decode(codes))
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
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
    def _row(self) -> int:
        _, dtype, shape = self.request.payload_form("embedding")
        return int(dtype.itemsize * np.prod(shape))

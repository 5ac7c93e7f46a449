"""Dummy releases, for users whose budget is spent: draws of the same mechanism from random inputs.

**Protection.** Without dummy releases, a user whose total is spent is missing from the next batch, which everybody can
see. A dummy release is a release of the mechanism like any other, for one more of its inputs. The mechanism's own
guarantee limits how well anybody can distinguish it from the user's true release. At a small ε nobody can. At a large ε
a text of random words is recognizable.

**Cost.** No data of the user is read, so no budget is spent. The release is kept on a ledger of its own, at ε = 0,
because the same request must be answered with the same bytes. The other users lose nothing: the amplification of a
crowd (the blanket of Balle, Bell, Gascón and Nissim 2019, Theorem 3.1) holds for any inputs of its members, and this is
a draw of the mechanism for one of them. The server pays: it learns from noise, and cannot tell which releases are
noise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from client.store.text_column import Text
from mechanisms.guarantee import Guarantee
from mechanisms.messages.request import Request
from mechanisms.streams import SecureStreams, SimulationStreams
from mechanisms.words.text import TextMechanism

#: It does not depend on the inputs of a user: the privacy loss between any two is 0.
NOTHING_OF_THE_USERS = Guarantee(0.0, "discrete", 1.0, "record")
#: Words of a text, at most: as many as a long sentence has.
_WORDS = 32
Streams = SimulationStreams | SecureStreams


def apart(streams: Streams, purpose: str) -> Streams:
    """Return streams that no release of the users' data ever draws from."""
    return replace(streams, purpose=purpose) if isinstance(streams, SimulationStreams) else streams


def values(
    request: Request, channel: str, users: NDArray[np.int64], records: NDArray[np.int64], *, streams: Streams,
    step: int,
) -> Any:  # fmt: skip
    """Return inputs of n draws, in the form of `client.draw.draw`, from public parameters and randomness alone.

    They are uniform directions, classes, or texts of words of the vocabulary, up to 32 on each side.
    """
    rng = apart(streams, "input of a stand-in").rows(users, records, stage=request.stage, channel=channel, step=step)
    n, mechanism = len(users), request.mechanism(channel)
    if channel == "label":
        return np.floor(rng.uniform(n, 1)[:, 0] * request.classes).astype(np.int64)
    if channel == "text":
        assert isinstance(mechanism, TextMechanism)
        return _texts(mechanism, rng.uniform(n, mechanism.sides * (1 + _WORDS)))
    assert request.mean is not None
    normal = ndtri(rng.uniform(n, request.statistic_dim if channel == "statistic" else len(request.mean)))
    unit = normal / np.sqrt(np.einsum("ij,ij->i", normal, normal))[:, None]
    return unit if channel == "statistic" else unit.astype(np.float32)


def _texts(mechanism: TextMechanism, uniforms: NDArray[np.float64]) -> list[Text]:
    words, most = mechanism.vocabulary.words, min(_WORDS, mechanism.tokens)
    sides = uniforms.reshape(len(uniforms), mechanism.sides, 1 + _WORDS)
    lengths = 1 + np.floor(sides[..., 0] * most).astype(np.int64)
    chosen = np.floor(sides[..., 1:] * len(words)).astype(np.int64)
    texts = [
        tuple(" ".join(words[i] for i in side[:length]) for side, length in zip(row, of_row, strict=True))
        for row, of_row in zip(chosen.tolist(), lengths.tolist(), strict=True)
    ]
    return [text[0] if mechanism.sides == 1 else (text[0], text[1]) for text in texts]

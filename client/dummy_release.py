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

from mechanisms.guarantee import Guarantee
from mechanisms.messages.questions import Question
from mechanisms.streams import SecureStreams, SimulationStreams

#: It does not depend on the inputs of a user: the privacy loss between any two is 0.
NOTHING_OF_THE_USERS = Guarantee(0.0, "discrete", 1.0, "record")
Streams = SimulationStreams | SecureStreams


def apart(streams: Streams, purpose: str) -> Streams:
    """Return streams that no release of the users' data ever draws from."""
    return replace(streams, purpose=purpose) if isinstance(streams, SimulationStreams) else streams


def values(
    question: Question, users: NDArray[np.int64], records: NDArray[np.int64], *, stage: str, streams: Streams, step: int
) -> Any:
    """Return inputs of n draws, in the form of `client.draw.draw`, from public parameters and randomness alone."""
    rng = apart(streams, "input of a stand-in").rows(users, records, stage=stage, channel=question.channel, step=step)
    return question.dummy(rng.uniform(len(users), question.uniforms_of_dummy))

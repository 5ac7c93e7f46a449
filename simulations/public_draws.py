"""Draws of a mechanism on public embeddings: to choose among maps and to score a simulation, never a user's release."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mechanisms.mechanism import Mechanism
from mechanisms.streams import SimulationStreams


def sanitize_public(mechanism: Mechanism, z: NDArray[np.float64], *, seed: int, stage: str) -> NDArray[np.float64]:
    """One draw for each unit row z (n, m'), rounded to the wire's grid as a client would, float64 (n, m')."""
    n = len(z)
    rows = SimulationStreams(seed).rows(np.arange(n), np.zeros(n, np.int64), stage=stage, channel="embedding")
    drawn = mechanism.sample(z, rng=rows)
    return drawn if mechanism.grid is None else mechanism.grid.decode(mechanism.grid.encode(drawn))

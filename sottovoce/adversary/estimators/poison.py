"""Messages of dishonest users, who want to change a model: what the wire allows, and what a test does not notice.

A liar knows the request, public data, the defence and even the honest users' mean, but not the honest draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting.liars import edge
from mechanisms.arrays import FloatArray
from mechanisms.privunit import PrivUnit
from mechanisms.streams import SeededUniforms

#: Coordinates of a user vector, in units of honest standard deviations, at which liars are tried.
STEPS = (1.2, 1.35, 1.5, 1.8, 2.2, 2.5, 3.0)


def points(mechanism: PrivUnit, direction: FloatArray, count: int, seed: int) -> NDArray[np.signedinteger]:
    """Return one chosen point of the sphere, a unit vector (D,), from every liar: the strongest and most visible."""
    return mechanism.grid.encode(np.tile(direction, (count, 1)))


def imitations(mechanism: PrivUnit, direction: FloatArray, count: int, seed: int) -> NDArray[np.signedinteger]:
    """Return draws of the mechanism itself: nothing tells these liars from honest users who hold the vector."""
    draws = mechanism.sample(np.tile(direction, (count, 1)), rng=SeededUniforms(seed))
    return mechanism.grid.encode(draws)


def leaning(
    mechanism: PrivUnit, direction: FloatArray, count: int, seed: int, *, step: float
) -> NDArray[np.signedinteger]:
    """Return random points with the coordinate `step` along the direction, and the least visible spread elsewhere."""
    y = np.random.default_rng(seed).normal(size=(count, len(direction)))
    y -= np.outer(y @ direction, direction)
    y *= np.sqrt(max(0.0, 1 - step**2)) / np.linalg.norm(y, axis=1, keepdims=True)
    return mechanism.grid.encode(y + min(step, 1.0) * direction)


def unseen(share: float, users: int, dim: int) -> float:
    """Return the largest coordinate of liars, in honest standard deviations, that the test does not expect to see.

    Their squares t² add a·(t² - 1) to the second moment, which may exceed its expectation by the factor `edge`. a is
    the share of liars among n users, above 0.
    """
    return float(np.sqrt(1 + (edge(users, dim) - 1) / share))


def strongest(
    mechanism: PrivUnit,
    direction: FloatArray,
    count: int,
    seed: int,
    *,
    honest: FloatArray,
    users: int,
    harm: Callable[[NDArray[np.signedinteger]], float],
) -> NDArray[np.signedinteger]:
    """Return the messages of liars who know the defence, and send what does most harm in spite of it.

    They try `imitations`, `points`, and `leaning` at the coordinate that the test does not see and at STEPS, along a
    unit vector (D,). Honest reports have the second moment (D, D); the n users include the liars. `harm` is a function
    from the liars' messages to what they gain: what moves the mean farthest need not harm most.
    """
    unit = float(np.sqrt(direction @ honest @ direction))
    steps = [*STEPS, unseen(count / users, users, mechanism.dim)]
    candidates = [make(mechanism, direction, count, seed) for make in (points, imitations)]
    candidates += [leaning(mechanism, direction, count, seed, step=min(step * unit, 1.0)) for step in steps]
    return max(candidates, key=harm)


def worst_direction(
    harm: Callable[[FloatArray], float], directions: Sequence[FloatArray], honest: FloatArray, reach: float
) -> FloatArray:
    """Return the unit vector (D,) along which liars do most harm, of several directions.

    A test of second moments (D, D) sees liars by how far they move the mean in honest standard deviations. So shifts of
    the mean by `reach` of these, before debiasing, are compared, all as visible as each other. `harm` is a function
    from a shift (D,) to the harm that it does.
    """
    shifts = [x / np.sqrt(x @ np.linalg.solve(honest, x)) for x in directions]
    worst: FloatArray = max(shifts, key=lambda shift: harm(reach * shift))
    return worst / np.linalg.norm(worst)

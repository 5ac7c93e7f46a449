"""Messages of dishonest users, who want to change a model: what the wire allows, and what a test does not notice.

A liar knows the request, public data, the defence and even the honest users' mean, but not the honest draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting.liars import edge
from mechanisms.privunit import PrivUnit
from mechanisms.streams import SeededUniforms

FloatArray = NDArray[np.float64]

#: Coordinates of a user vector, in units of honest standard deviations, at which liars are tried.
STEPS = (1.2, 1.35, 1.5, 1.8, 2.2, 2.5, 3.0)


def points(mechanism: PrivUnit, direction: FloatArray, count: int, seed: int) -> NDArray[np.signedinteger]:
    """Return one chosen point of the sphere from every liar: the strongest message, and the most visible.

    Args:
        mechanism: Mechanism of honest users.
        direction: Unit vector (D,) in which liars want to move the mean.
        count: Number of liars.
        seed: Seed of their draws.
    """
    return mechanism.grid.encode(np.tile(direction, (count, 1)))


def imitations(mechanism: PrivUnit, direction: FloatArray, count: int, seed: int) -> NDArray[np.signedinteger]:
    """Return draws of the mechanism itself: nothing tells these liars from honest users who hold the vector."""
    draws = mechanism.sample(np.tile(direction, (count, 1)), rng=SeededUniforms(seed))
    return mechanism.grid.encode(draws)


def leaning(
    mechanism: PrivUnit, direction: FloatArray, count: int, seed: int, *, step: float
) -> NDArray[np.signedinteger]:
    """Return random points with one coordinate along the direction, and so the least visible spread elsewhere.

    Args:
        mechanism: Mechanism of honest users.
        direction: Unit vector (D,).
        count: Number of liars.
        seed: Seed of their draws.
        step: Coordinate along the direction; 1 is the point itself.
    """
    y = np.random.default_rng(seed).normal(size=(count, len(direction)))
    y -= np.outer(y @ direction, direction)
    y *= np.sqrt(max(0.0, 1 - step**2)) / np.linalg.norm(y, axis=1, keepdims=True)
    return mechanism.grid.encode(y + min(step, 1.0) * direction)


def unseen(share: float, users: int, dim: int) -> float:
    """Return the largest coordinate of liars, in honest standard deviations, that the test does not expect to see.

    Their squares t² add a·(t² - 1) to the second moment, which may exceed its expectation by the factor `edge`.

    Args:
        share: a, liars among the users, above 0.
        users: n.
        dim: D.
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

    They try `imitations`, `points`, and `leaning` at the coordinate that the test does not see and at STEPS.

    Args:
        mechanism: Mechanism of honest users.
        direction: Unit vector (D,).
        count: Number of liars.
        seed: Seed of their draws.
        honest: Second moment (D, D) of honest reports.
        users: n, liars included.
        harm: Function from the liars' messages to what they gain. What moves the mean farthest need not harm most.
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

    A test of second moments sees liars by how far they move the mean in honest standard deviations. So shifts of the
    mean by `reach` of these are compared, all as visible as each other.

    Args:
        harm: Function from a shift (D,) of the mean to the harm that it does.
        directions: Vectors (D,).
        honest: Second moment (D, D) of honest reports.
        reach: Length of the shift, in standard deviations of honest reports before debiasing.
    """
    shifts = [x / np.sqrt(x @ np.linalg.solve(honest, x)) for x in directions]
    worst: FloatArray = max(shifts, key=lambda shift: harm(reach * shift))
    return worst / np.linalg.norm(worst)

"""Gap between one anonymous vector a user and a trusted curator, over shapes of the density and numbers of messages.

A mechanism of unit vectors that treats all directions alike has a density f of the cosine to x, relative to the uniform
law. With b = min f it is b plus a part that is drawn towards x. The mean of n draws over c = E cos has squared error at
most 1/(n·c²), so the best mechanism within a central (ε, δ) has the largest c. Its blanket is uniform with weight b.
For rising f the antipodal pair dominates (`mechanisms.losses.sphere_blanket`). Here f is constant on cells of the
cosine, so its blanket bound is as exact as `accounting.blanket`, and each shape has the least b that fits.

For many users shuffling gives a Gaussian, and the bound is 2·∫g² <= n·μ²·b with g = f - b. The largest ∫t·g at given ∫g
and ∫g² is a cap whose density rises linearly from its edge. The cap of PrivUnit is flat. m draws a user loosen the
bound to n·m·μ²·b over m² of the one of g, which is the gain of more anonymous messages. Their local guarantee is m
times that of one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import betaincinv, betaln, logsumexp

from mechanisms.accounting.blanket import blanket_delta
from mechanisms.accounting.planner import LEAST, Target, best_privunit, largest
from mechanisms.accounting.several_messages import messages_delta
from mechanisms.gaussian import Gaussian
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.privunit import MAX_EPSILON, PrivUnit

log = logging.getLogger(__name__)


FloatArray = NDArray[np.float64]
#: Density of a shape up to a factor, of (cosine, parameter), and the parameters to try for D.
Shape = tuple[Callable[[FloatArray, float], FloatArray], Callable[[int], FloatArray]]

#: Number of cells of half the sphere, and mass of the smallest.
_CELLS, _SMALLEST = 64, 1e-7
_TRIED = 14


@dataclass(frozen=True)
class Release:
    """Messages of one user: a shape or PrivUnit, with the least error that fits.

    Attributes:
        shape: Name of the shape.
        messages: Number of messages.
        local_epsilon: Pure ε of all messages together.
        scale: E cos of one message.
        error: Squared error of the mean of n unit vectors, over that of a trusted curator with Gaussian noise at the
            same (ε, δ).
    """

    shape: str
    messages: int
    local_epsilon: float
    scale: float
    error: float


class _Cells:
    """Cells of the sphere in R^dim, cut at cosines t and -t: masses and mean cosines of the upper half, (J,)."""

    def __init__(self, dim: int) -> None:
        half = (dim - 1) / 2
        beyond = np.concatenate([[0.0], np.geomspace(_SMALLEST, 0.5, _CELLS)])
        edges = 1.0 - 2.0 * betaincinv(half, half, beyond)
        with np.errstate(divide="ignore"):  # ∫_t^1 s dF(s), as in mechanisms.privunit
            logs = half * np.log1p(-(edges**2)) - math.log(dim - 1) - betaln(0.5, half)
        self.masses = np.diff(beyond)
        self.cosines = np.diff(np.exp(logs)) / self.masses

    def best(self, shape: Callable[[FloatArray], FloatArray], target: Target) -> tuple[float, float] | None:
        """Return (E cos, pure local ε) of b plus the shape, with the least b that fits; None if none does."""
        toward = np.concatenate([shape(self.cosines), shape(-self.cosines)])
        toward = toward / float(np.tile(self.masses, 2) @ toward)

        def density(base: float) -> FloatArray:
            return base + (1.0 - base) * toward

        def fits(odds: float) -> bool:
            u = density(1.0 / (1.0 + odds))
            v = np.concatenate([u[_CELLS:], u[:_CELLS]])
            log_w, log_u, log_v = np.log(np.tile(self.masses, 2)), np.log(u), np.log(v)
            cells = BlanketCells(float(log_u.min()), log_w, log_w + log_u, log_w + log_v, log_u, log_u, log_v, log_v)
            return blanket_delta(cells, target.users or 1, target.epsilon) <= target.delta

        odds = largest(fits, least=1e-4, most=1e5, tolerance=5e-3)
        if odds is None:
            return None
        u = density(1.0 / (1.0 + odds))
        scale = float(self.masses @ (self.cosines * (u[:_CELLS] - u[_CELLS:])))
        return scale, math.log(float(u.max() / u.min()))


def _cap(power: float) -> Shape:
    def density(t: FloatArray, edge: float) -> FloatArray:
        above = t > edge
        return np.where(above, np.where(above, t - edge, 1.0) ** power, 0.0)

    def edges(dim: int) -> FloatArray:
        half = (dim - 1) / 2
        return 1.0 - 2.0 * betaincinv(half, half, np.geomspace(1e-4, 0.5, _TRIED))

    return density, edges


def _von_mises_fisher(t: FloatArray, concentration: float) -> FloatArray:
    return np.exp(concentration * (t - 1.0))


def _gaussian_direction(t: FloatArray, sigma: float, dim: int) -> FloatArray:
    """Return the density of the direction of x + σ·N(0, I) in R^dim, ∫ r^(D-1)·exp(-r²/2 + r·t/σ) dr, unscaled."""
    r = np.linspace(0.0, 1.0 / sigma + math.sqrt(dim) + 8.0, 2001)[1:]
    logs = (dim - 1) * np.log(r) - 0.5 * r**2 + np.outer(t, r) / sigma
    found: FloatArray = np.exp(logsumexp(logs, axis=1) - 0.5 / sigma**2 - 0.5 * dim * math.log(dim))
    return found


def shapes(dim: int) -> dict[str, Shape]:
    """Return every shape beside PrivUnit, by name."""
    return {
        "cap, linear": _cap(1.0),
        "cap, square root": _cap(0.5),
        "cap, square": _cap(2.0),
        "uniform and von Mises-Fisher": (_von_mises_fisher, lambda d: np.geomspace(0.1, 10.0, _TRIED) * math.sqrt(d)),
        "uniform and Gaussian direction": (
            partial(_gaussian_direction, dim=dim),
            lambda d: np.geomspace(0.02, 3.0, _TRIED),
        ),
    }


def best_of_shape(shape: Shape, dim: int, target: Target) -> tuple[float, float] | None:
    """Return (E cos, pure local ε) of a shape's best parameter and base; None if nothing fits."""
    cells, (density, tried) = _Cells(dim), shape
    found: dict[float, tuple[float, float]] = {}

    def loss(parameter: float) -> float:
        answer = cells.best(lambda t: density(t, parameter), target)
        found[parameter] = answer or (0.0, 0.0)
        return -found[parameter][0]

    grid = [float(p) for p in tried(dim)]
    at = int(np.argmin([loss(p) for p in grid]))
    ends = sorted((grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]))
    minimize_scalar(loss, bounds=ends, method="bounded", options={"maxiter": 8})
    best = max(found.values())
    return best if best[0] > 0 else None


def best_messages(dim: int, target: Target, messages: int) -> PrivUnit | None:
    """Return the best PrivUnit if a user sends `messages` draws (`planner.best_privunit`); None if none fits."""
    if messages == 1:
        return best_privunit(dim, target)
    found: dict[float, PrivUnit | None] = {}

    def loss(probability: float) -> float:
        p = round(probability, 3)
        build = partial(PrivUnit, dim, cap_probability=p)

        def fits(epsilon: float) -> bool:
            return messages_delta(build(epsilon), messages, target.users or 1, target.epsilon) <= target.delta

        least = max(LEAST, math.log(p / (1 - p)) + 1e-9)
        epsilon = largest(fits, least=least, most=MAX_EPSILON, tolerance=5e-3)
        found[p] = None if epsilon is None else build(epsilon)
        log.info(f"{messages} messages, p = {p:.3f}")
        return 0.0 if epsilon is None else -build(epsilon).scale

    minimize_scalar(loss, bounds=(0.5, 0.95), method="bounded", options={"xatol": 2e-2})
    fitting = [mechanism for mechanism in found.values() if mechanism is not None]
    return max(fitting, key=lambda mechanism: mechanism.scale, default=None)


#: Numbers of anonymous messages of one user.
MESSAGES = (1, 2, 4, 8)


def search(*, users: int, dim: int, epsilon: float, delta: float) -> dict[str, Any]:
    """Return "users", "dim", "epsilon", "delta", "curator_noise" and "releases", each a Release as a dict, that fit.

    "curator_noise" is the root mean square length of a trusted curator's noise.

    Raises:
        ValueError: The target is invalid (`planner.Target`).
    """
    target = Target(epsilon, delta, users)
    curator = dim * (Gaussian.calibrated(epsilon, delta, dim).sigma / users) ** 2

    def priced(shape: str, count: int, local: float, scale: float) -> Release:
        return Release(shape, count, local * count, scale, 1.0 / (users * count * scale**2) / curator)

    releases = []
    for count in MESSAGES:
        best = best_messages(dim, target, count)
        if best is not None:
            releases.append(priced("cap, flat: PrivUnit", count, best.epsilon, best.scale))
    for name, shape in shapes(dim).items():
        log.info(name)
        answer = best_of_shape(shape, dim, target)
        if answer is not None:
            releases.append(priced(name, 1, answer[1], answer[0]))
    return {
        "users": users,
        "dim": dim,
        "epsilon": epsilon,
        "delta": delta,
        "curator_noise": math.sqrt(curator),
        "releases": [asdict(release) for release in releases],
    }

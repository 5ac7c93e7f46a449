"""How near one anonymous vector a user comes to a trusted curator: the shapes of its density, and more messages.

A mechanism of unit vectors that treats no direction better than another has a density f of the cosine to x, relative to
the uniform law. With b = min f it is b plus what is drawn towards x; the mean of n draws over c = E cos has squared
error at most 1/(n·c²), and of all that fit a central (ε, δ) the best has the largest c. Its blanket is uniform, of
weight b; for f that rises the antipodal pair dominates (`mechanisms.losses.sphere_blanket`). Here f is constant on
cells of the cosine, so that its blanket bound is exact as far as `accounting.blanket` is, and each shape has the least
b that fits.

Where shuffling makes a Gaussian of it (many users), the bound is 2·∫g² <= n·μ²·b of g = f - b; the largest ∫t·g at a
given ∫g and ∫g² is a cap whose density rises linearly from its edge. PrivUnit's cap is flat. m draws a user loosen the
bound to n·m·μ²·b over m² of g's, which is what more anonymous messages buy; their local guarantee is m times one's.
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
#: (cosine, a parameter) -> a shape's density, up to a factor; and the parameters that are tried, for D.
Shape = tuple[Callable[[FloatArray, float], FloatArray], Callable[[int], FloatArray]]

#: Cells of a half of the sphere, and the mass of the smallest.
_CELLS, _SMALLEST = 64, 1e-7
_TRIED = 14


@dataclass(frozen=True)
class Release:
    """What one user sends: a shape or PrivUnit, in so many messages, with the least error that fits.

    local_epsilon: pure, of all the messages; scale: E cos of one. error: squared, of the mean of n unit vectors, over
    a trusted curator's with Gaussian noise at the same (ε, δ).
    """

    shape: str
    messages: int
    local_epsilon: float
    scale: float
    error: float


class _Cells:
    """The sphere in R^dim cut at cosines t and -t: masses of the upper half's cells, (J,), and mean cosines there."""

    def __init__(self, dim: int) -> None:
        half = (dim - 1) / 2
        beyond = np.concatenate([[0.0], np.geomspace(_SMALLEST, 0.5, _CELLS)])
        edges = 1.0 - 2.0 * betaincinv(half, half, beyond)
        with np.errstate(divide="ignore"):  # ∫_t^1 s dF(s), as in mechanisms.privunit
            logs = half * np.log1p(-(edges**2)) - math.log(dim - 1) - betaln(0.5, half)
        self.masses = np.diff(beyond)
        self.cosines = np.diff(np.exp(logs)) / self.masses

    def best(self, shape: Callable[[FloatArray], FloatArray], target: Target) -> tuple[float, float] | None:
        """(E cos, pure local ε) of b plus the shape, with the least b that fits; None where none does."""
        toward = np.concatenate([shape(self.cosines), shape(-self.cosines)])
        toward = toward / float(np.tile(self.masses, 2) @ toward)

        def density(base: float) -> FloatArray:
            return base + (1.0 - base) * toward

        def fits(odds: float) -> bool:
            u = density(1.0 / (1.0 + odds))
            v = np.concatenate([u[_CELLS:], u[:_CELLS]])
            log_w, log_u, log_v = np.log(np.tile(self.masses, 2)), np.log(u), np.log(v)
            cells = BlanketCells(
                float(log_u.min()), log_w, log_w + log_u, log_w + log_v, log_u, log_u, log_v, log_v
            )
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
    """The direction of x + σ·N(0, I) in R^dim: ∫ r^(D-1)·exp(-r²/2 + r·t/σ) dr, up to a factor."""
    r = np.linspace(0.0, 1.0 / sigma + math.sqrt(dim) + 8.0, 2001)[1:]
    logs = (dim - 1) * np.log(r) - 0.5 * r**2 + np.outer(t, r) / sigma
    found: FloatArray = np.exp(logsumexp(logs, axis=1) - 0.5 / sigma**2 - 0.5 * dim * math.log(dim))
    return found


def shapes(dim: int) -> dict[str, Shape]:
    """Every shape that is tried beside PrivUnit, by its name."""
    return {
        "cap, linear": _cap(1.0),
        "cap, square root": _cap(0.5),
        "cap, square": _cap(2.0),
        "uniform and von Mises-Fisher": (
            _von_mises_fisher, lambda d: np.geomspace(0.1, 10.0, _TRIED) * math.sqrt(d)
        ),
        "uniform and Gaussian direction": (
            partial(_gaussian_direction, dim=dim), lambda d: np.geomspace(0.02, 3.0, _TRIED)
        ),
    }  # fmt: skip


def best_of_shape(shape: Shape, dim: int, target: Target) -> tuple[float, float] | None:
    """(E cos, pure local ε) of the shape's best parameter and base; None where nothing fits."""
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
    """As `planner.best_privunit`, of which a user sends so many draws; None where none fits."""
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


#: Anonymous messages of one user that are looked at.
MESSAGES = (1, 2, 4, 8)


def search(*, users: int, dim: int, epsilon: float, delta: float) -> dict[str, Any]:
    """{"users", "dim", "epsilon", "delta", "curator_noise", "releases": [Release as dicts]}; what does not fit is left
    out. curator_noise: root mean square length of a trusted curator's noise. ValueError as `planner.Target`."""
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
        "users": users, "dim": dim, "epsilon": epsilon, "delta": delta, "curator_noise": math.sqrt(curator),
        "releases": [asdict(release) for release in releases],
    }  # fmt: skip

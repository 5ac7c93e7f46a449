"""Error of a mean from one shuffled message a user: Gaussians mixed with a blanket, PrivUnit and a trusted curator.

    OMP_NUM_THREADS=1 python -m benchmarks.one_message

Each of n users has a unit vector x of D coordinates (`mechanisms.projection` makes them of shorter ones). After
arXiv 2604.28032, a mixed mechanism draws from ω with probability γ, whatever x is, else from a law around x:

- mixed Gaussian: ω = N(0, σ²I), else N(x, σ²I). γ = 0 is the plain Gaussian.
- mixed direction: ω uniform on the sphere, else von Mises-Fisher, density e^(κ·cos θ)/Z of the angle θ to x. It is the
  law of a Gaussian's direction at a known length, κ = length/σ².

**Prices (proved).** U = γ + (1 - γ)·U0 with U0 of the law around x (`losses.gaussian`, `losses.sphere`).
U has one law for all x, and rises in <w, x> as U0 does, so the antipodal pair dominates. γ·ω is a blanket, and the
truncated one holds as well. All prices use ideal samplers, but those of PrivUnit.

**Error.** The sum over coordinates of the squared error of the unbiased mean, times n: (Dσ² + γ(1 - γ))/(1 - γ)² of the
mixed Gaussian, 1/s² - 1 of directions with E<x, y> = s, and D·σ²/n of the curator's Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations, product

import numpy as np
from scipy.special import gammaln, ive

from mechanisms.accounting.blanket import blanket_delta
from mechanisms.accounting.planner import Target, best_privunit, largest
from mechanisms.accounting.truncated import fits_truncated
from mechanisms.gaussian import Gaussian
from mechanisms.losses import sphere
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.gaussian import line, log_masses
from simulations.output.markdown import table

DELTA = 1e-6
#: Users, central ε and D of each row; the last has the highest privacy.
ROWS = (*product((2_000, 20_000), (0.25, 1.0, 4.0), (49, 97)), (500, 0.05, 49))
#: Weights γ that are tried.
WEIGHTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def gaussian(dim: int, weight: float, ratio: float) -> tuple[BlanketCells, float]:
    """Return the cells of the mixed Gaussian of γ = weight and 1/σ = ratio, and its error."""
    cells = line(ratio)
    over, around = math.log(weight) if weight else -math.inf, math.log1p(-weight)

    def mixed(base: np.ndarray | float, values: np.ndarray) -> np.ndarray:
        return np.logaddexp(over + base, around + values)

    masses = {name: mixed(cells.log_w, getattr(cells, name)) for name in ("log_p", "log_q")}
    ends = ("log_u_low", "log_u_high", "log_v_low", "log_v_high")
    bounds = {name: mixed(0.0, getattr(cells, name)) for name in ends}
    return replace(cells, log_gamma=over, **masses, **bounds), (dim / ratio**2 / (1 - weight) + weight) / (1 - weight)


def direction(dim: int, weight: float, kappa: float) -> tuple[BlanketCells, float]:
    """Return the cells of the mixed direction on S^(dim-1) of γ = weight, and its error."""
    order = dim / 2 - 1
    log_z = float(gammaln(dim / 2) - order * math.log(kappa / 2) + math.log(ive(order, kappa)) + kappa)
    over, around = math.log(weight) if weight else -math.inf, math.log1p(-weight) - log_z
    cells = sphere.blanket_cells(dim, lambda theta: np.logaddexp(over, around + kappa * np.cos(theta)), 1024)
    return cells, float(ive(order, kappa) / ive(order + 1, kappa) / (1 - weight)) ** 2 - 1


Family = Callable[[float, float], tuple[BlanketCells, float]]


def best(family: Family, weights: Iterable[float], users: int, epsilon: float) -> tuple[float, float, float]:
    """Return the least error of the weights at a central ε, its γ, and its local ε at δ."""
    candidates = []
    for weight in weights:
        size = largest(lambda size, w=weight: fits_truncated(family(w, size)[0], users, epsilon, DELTA), most=300.0)
        if size is not None:
            candidates.append((family(weight, size)[1], weight, size))
    error, weight, size = min(candidates)
    return error, weight, family(weight, size)[0].loss().epsilon(DELTA)


def rows() -> Iterator[list[str]]:
    """Yield the rows of the table: errors over the curator's, with γ and the local ε."""
    number = partial(np.format_float_positional, fractional=False, trim="-")  # significant digits, no exponent
    for users, epsilon, dim in ROWS:
        curator = dim * Gaussian.calibrated(epsilon, DELTA, dim).sigma ** 2 / users
        row = [f"{users:,}", f"{epsilon:g}", str(dim), number(curator / users, 2)]
        for family, weights in ((gaussian, (0.0,)), (gaussian, WEIGHTS), (direction, WEIGHTS)):
            error, weight, local = best(partial(family, dim), weights, users, epsilon)
            row.append(f"{number(error / curator, 3)} ({f'{weight:.2f}; ' if weight else ''}{local:.1f})")
        privunit = best_privunit(dim, Target(epsilon, DELTA, users))
        assert privunit is not None
        yield [*row, f"{number((1 / privunit.scale**2 - 1) / curator, 3)} ({privunit.epsilon:.1f})"]


def check() -> str:
    """Hold the price of three users' mixed Gaussians, D = 1, against enumeration of all data, outputs in intervals."""
    weight, epsilon = 0.3, 0.5  # and σ = 1
    edges = np.concatenate([[-np.inf], np.linspace(-4.0, 4.0, 99), [np.inf]])
    over = weight * np.exp(log_masses(edges))
    law = {x: over + (1 - weight) * np.exp(log_masses(edges - x)) for x in (-1, 1)}

    def shuffled(data: tuple[int, ...]) -> np.ndarray:
        return sum(np.einsum("i,j,k->ijk", *(law[x] for x in order)) for order in permutations(data)) / 6

    true = max(
        float(np.maximum(shuffled((x, *others)) - math.exp(epsilon) * shuffled((-x, *others)), 0).sum())
        for x, *others in product((-1, 1), repeat=3)
    )
    bound = blanket_delta(gaussian(1, weight, 1.0)[0], 3, epsilon)
    assert true <= bound, f"three users: δ({epsilon}) is {true:.4g}, above the bound {bound:.4g}"
    return f"Three users, D = 1, γ = {weight}, σ = 1: δ({epsilon}) is {true:.4g} by enumeration, at most {bound:.4g}."


if __name__ == "__main__":
    print(check())
    names = ("users", "central ε", "D", "curator", "plain Gaussian", "mixed Gaussian", "mixed direction", "PrivUnit")
    print(table(names, rows()))

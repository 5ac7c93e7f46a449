"""Privacy filter: decides on one more release if its ε, its δ and its existence depend on the releases before.

Composition theorems fix the parameters of all releases in advance. A server that sees each answer before its next
request does not (Rogers, Roth, Ullman and Vadhan 2016). A filter fixes the *total* (ε, δ) instead. It looks at the
charges so far and refuses before the total is passed. Whatever was requested and whenever it stops, all releases
together are (ε, δ)-private.

**The theorem.** Release t, given all before it, costs at most: ε_t that holds except with probability δ_t (a Gaussian's
worst case at δ_t; δ_t = 0 otherwise), ν_t, the probability that its sampler does not draw from the theorem's mechanism,
and ρ_t of zero-concentrated privacy. One more may leave while, itself counted,

    Σ(δ_t + ν_t) <= δ/2,   and   Σε_t <= ε  or  Σρ_t <= ρ(ε, δ/2).

At δ = 0 the sum of ε alone decides: Σε_t <= ε and Σ(δ_t + ν_t) <= SAMPLERS. The releases are then pure ε-private,
except with probability SAMPLERS, with which draws may differ from the stated mechanisms.

*Sums* (Rogers et al. 2016, basic composition as a filter): an (ε_t, δ_t)-private release is one that fails with
probability δ_t and is ε_t-private otherwise. So releases within Σε_t <= ε are (ε, E[Σδ_t])-private.

*Concentrated* (Whitehouse, Ramdas, Rogers and Wu 2023, the filter of zCDP; Feldman and Zrnic 2021): stopped before Σρ_t
passes ρ, exp((α - 1)(loss - αΣρ_t)) has an expectation of at most 1 at every order α > 1. So the releases are ρ-zCDP,
and that is (ε, δ/2)-private for ρ = ρ(ε, δ/2).

*Either condition suffices* (proved). Σε_t and Σρ_t only grow. A course that ends within the first condition was within
it all along, so it is one of the first filter's, stopped. The same holds for the second. A set S of courses splits into
S1, those that end within the first, and S2: P(S) <= e^ε·Q(S1) + E[Σδ_t] + e^ε·Q(S2) + δ/2.

*Samplers* (coupling): all draws are those of the stated mechanisms except with probability E[Σν_t]. Both expectations
are over one course, on which Σ(δ_t + ν_t) <= δ/2. So, except with probability E[Σν_t], an observer sees releases that
are (ε, δ - E[Σν_t])-private. (Inside one (ε, δ) a distance would count 1 + e^ε times, which is useless at a large ε.)

ε and δ must not depend on the releases. The two sums prove nothing else. In particular, the ε that they give at a
moment chosen by looking, or advanced composition of the actual releases, is not a theorem
(`tests/mechanisms/accounting/test_privacy_filter.py` has a course of requests that breaks it).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.guarantee import Guarantee

THEOREM = (
    "privacy filter: sums (Rogers, Roth, Ullman and Vadhan 2016) or zCDP (Whitehouse, Ramdas, Rogers and Wu 2023), "
    "whichever allows more"
)
#: Orders that are tried. Any order gives a valid bound; the best of these is within a small fraction of the best.
ORDERS: tuple[float, ...] = tuple(float(a) for a in 1.0 + np.logspace(-3, 5, 321))
#: Largest relative rounding by which sums of floats may exceed a limit.
ROUNDING = 1e-9
#: Largest Σ(δ_t + ν_t) under a total of δ = 0, so of samplers: no draw from floats is exact.
SAMPLERS = 1e-12


@dataclass(frozen=True, eq=False)
class Account:
    """Charges of n people so far: four sums, (n,) each.

    Attributes:
        epsilon: Σε_t in nats.
        delta: Σ(δ_t + ν_t).
        rho: Σρ_t.
        releases: Number of releases.
    """

    epsilon: FloatArray
    delta: FloatArray
    rho: FloatArray
    releases: IntArray

    @classmethod
    def empty(cls, n: int) -> Account:
        """Return an account of n people without charges."""
        return cls(np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n, np.int64))

    @classmethod
    def of(cls, costs: Sequence[Cost], times: IntArray) -> Account:
        """Return the charges of `times` (k, n), the number of releases of each of k costs.

        No releases cost nothing, even at an infinite cost.
        """
        e, d, r = np.array([cost.sums for cost in costs]).T
        zero, mask = np.zeros(times.shape), times > 0
        e, d, r = (np.multiply(sums[:, None], times, out=zero.copy(), where=mask).sum(axis=0) for sums in (e, d, r))
        return cls(e, d, r, times.sum(axis=0))

    def __len__(self) -> int:
        return len(self.epsilon)

    def __add__(self, other: Account) -> Account:
        return Account(
            self.epsilon + other.epsilon, self.delta + other.delta, self.rho + other.rho, self.releases + other.releases
        )

    def take(self, rows: NDArray[np.intp]) -> Account:
        """Return the accounts of these rows."""
        return Account(self.epsilon[rows], self.delta[rows], self.rho[rows], self.releases[rows])

    def plus(self, cost: Cost, times: IntArray | BoolArray) -> Account:
        """Return the account with `times` (n,) more releases of this cost."""
        return self + Account.of([cost], times.astype(np.int64)[None, :])

    def sum_by(self, person: NDArray[np.intp], people: int) -> Account:
        """Return the accounts of `people`, where person[i] is charged row i."""
        columns = (self.epsilon, self.delta, self.rho, self.releases)
        e, d, r, releases = (np.bincount(person, column, people).astype(np.float64) for column in columns)
        return Account(e, d, r, releases.astype(np.int64))


@dataclass(frozen=True)
class Cost:
    """Charge of one release.

    Attributes:
        epsilon: Worst-case ε at δ_t, in nats.
        delta: δ_t + ν_t.
        rho: ρ_t.
    """

    epsilon: float
    delta: float
    rho: float

    @property
    def sums(self) -> tuple[float, float, float]:
        """Return (ε, δ, ρ)."""
        return self.epsilon, self.delta, self.rho


#: Charge of a release that is declared public. The release is counted all the same.
FREE = Cost(0.0, 0.0, 0.0)


def cost(guarantee: Guarantee, delta: float, *, declared: Collection[str] = ()) -> Cost:
    """Return the charge of a release under the guarantee.

    Args:
        guarantee: Guarantee of the release.
        delta: δ_t of a release that needs it (Gaussian noise). The others spend none.
        declared: Exposures that are declared public, as in `Guarantee.worst_case`.
    """
    noisy = guarantee.sigma is not None
    epsilon = guarantee.worst_case(delta, declared=declared)
    failing = (delta if noisy else 0.0) + guarantee.numeric_delta
    return Cost(epsilon, failing, concentrated(guarantee, declared=declared))


def concentrated(guarantee: Guarantee, *, declared: Collection[str] = ()) -> float:
    """Return the least ρ for which the guarantee implies ρ-zCDP (D_α <= αρ at every order α > 1), or inf.

    Gaussian noise: (Δ/σ)²/2 (Bun and Steinke 2016, Proposition 1.6). ε-privacy: ε·tanh(ε/2), never more than the ε²/2
    of their Proposition 1.4. (Proved.) Randomized response dominates every ε-private mechanism
    (Kairouz, Oh and Viswanath 2015), with D_α = log(cosh((α - 1/2)ε)/cosh(ε/2))/(α - 1). h(v) = log cosh(ε√v) is
    concave, since tanh(x)/x falls. With v = (α - 1/2)² = 1/4 + α(α - 1), its tangent at 1/4 gives
    h(v) - h(1/4) <= α(α - 1)·ε·tanh(ε/2).
    """
    if guarantee.sigma is None:
        epsilon = guarantee.worst_case(declared=declared)
        return epsilon * math.tanh(epsilon / 2)
    if guarantee.numeric_epsilon > 0 or not set(guarantee.exposes) <= set(declared):
        return math.inf
    return (guarantee.diameter / guarantee.sigma) ** 2 / 2


def renyi_to_epsilon(order: float, divergence: float, delta: float) -> float:
    """Return the least ε >= 0 that a Rényi divergence D_α <= divergence gives at delta in (0, 1).

    D + log((α - 1)/α) - (log δ + log α)/(α - 1): Canonne, Kamath and Steinke 2020, Proposition 12 (arXiv 2004.00010).
    It is Balle et al. 2020, Theorem 21, improved by its log(1 - 1/α).
    """
    if not order > 1:
        raise ValueError(f"Rényi divergence: order must be above 1, got {order}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    if math.isinf(divergence):
        return math.inf
    return max(0.0, divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1))


@lru_cache(maxsize=1024)
def concentrated_limit(epsilon: float, delta: float) -> float:
    """Return ρ(ε, δ): a ρ that makes ρ-zCDP (ε, δ)-private; 0 at δ = 0, inf at ε = ∞.

    Any order α with αρ + (the term that `renyi_to_epsilon` adds at δ) <= ε suffices. The best of ORDERS is used.
    """
    if delta == 0:
        return 0.0
    return max(0.0, max((epsilon - renyi_to_epsilon(order, 0.0, delta)) / order for order in ORDERS))


def within(account: Account, *, epsilon: float, delta: float) -> BoolArray:
    """Return, (n,), whether a filter of the total (epsilon, delta) accepts each of n accounts, by the module's theorem.

    The release in question is already counted. epsilon is at least 0, and inf is no limit (δ has one all the same);
    delta is in [0, 1).
    """
    return (account.delta <= (delta / 2 if delta else SAMPLERS) * (1 + ROUNDING)) & within_epsilon(
        account, epsilon=epsilon, delta=delta
    )


def within_epsilon(account: Account, *, epsilon: float, delta: float) -> BoolArray:
    """Return `within` without its first condition, for accounts that are part of others which are held to it."""
    sums = account.epsilon <= epsilon * (1 + ROUNDING)
    zcdp = account.rho <= concentrated_limit(epsilon, delta / 2) * (1 - ROUNDING)
    allowed: BoolArray = sums | zcdp
    return allowed

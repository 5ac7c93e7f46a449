"""Bounds on what dishonest users can do to a mean or to counts, and the law of honest reports that a test relies on.

A *liar* sends any message that the wire allows, and may know everything but the honest users' draws. Local privacy
makes liars strong: an estimate divides by the mechanism's contrast, so one lie counts as several honest users.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaln, ndtri
from scipy.stats import binom

from mechanisms import checks
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.privunit import PrivUnit
from mechanisms.randomized_response import RandomizedResponse

FloatArray = NDArray[np.float64]

#: Probability that the test alarms on a batch of honest users, half of it in `edge` and half in `edge_along`.
FALSE_ALARM = 1e-3
#: Quantile of the Tracy-Widom law (β = 1) above which it has the mass FALSE_ALARM/2 (by its Painlevé equation).
_TRACY_WIDOM = 3.6129
#: Probability that random liars are more than their share: see `confusable`.
CONFUSED = 1e-3
#: Angles and cosines at which the overlap of two caps is computed.
_ANGLES, _COSINES = 400, 2001
#: Rows multiplied at once.
_AT_ONCE = 1024
#: Shares of liars that ladders and reports show.
SHARES = (0.01, 0.03, 0.1)


def amplification(mechanism: Mechanism) -> float | None:
    """Return how many honest, like-minded users one liar equals, at most; inf if a release says nothing.

    A mean of PrivUnit reports is divided by the scale, so a liar's vector has length 1/scale after debiasing, where an
    honest user's has the expected length 1. A count under randomized response, truthful with probability p and each
    other class with q, is debiased as (frequency - q)/(p - q): a liar raises it by (1 - q)/(p - q) users.

    Returns:
        1 for releases in clear; None if this module knows no bound for the mechanism.
    """
    if isinstance(mechanism, Identity):
        return 1.0
    if isinstance(mechanism, PrivUnit):
        return math.inf if mechanism.scale == 0 else 1.0 / mechanism.scale
    if isinstance(mechanism, RandomizedResponse):
        if mechanism.epsilon == 0:
            return math.inf
        rest = math.exp(-mechanism.epsilon)
        return (1.0 + (mechanism.classes - 2) * rest) / -math.expm1(-mechanism.epsilon)
    return None


def moved(mechanism: Mechanism, share: float) -> float | None:
    """Return the largest distance by which a share a of liars moves the expected estimate, whatever they send.

    For a mean, let m be that of the honest users' vectors, |m| <= 1, and ȳ that of the liars' messages, |ȳ| <= 1. The
    estimate has the expectation (1 - a)·m + a·ȳ/scale, at most a·(1/scale + |m|) away from m. For the share of a class
    it is a·((1 - q)/(p - q) - share) <= a·(1 - q)/(p - q) upwards. Both are attained.

    Args:
        mechanism: PrivUnit, randomized response, or a release in clear.
        share: a, 0 to 1: liars among the delivered users.

    Returns:
        Distance of means (Euclidean), at most 2 + the excess of the amplification, or change of a class's share. None
        as for `amplification`.
    """
    share = _share(share)
    each = amplification(mechanism)
    if each is None or share == 0:
        return None if each is None else 0.0
    honest = 0.0 if isinstance(mechanism, RandomizedResponse) else 1.0
    return share * (each + honest)


def unavoidable(mechanism: Mechanism, share: float) -> float | None:
    """Return an error that no estimator avoids in every world with a share a of liars, whatever it computes.

    Two populations hold x and its opposite in the shares (1 ± κ)/2. Their messages differ in total variation by κ·t,
    where t is that of one user's messages. If κ·t <= a/(1 - a), liars turn either law into the same one, and the two
    means are 2κ apart. So an estimator errs by κ = min(1, a/((1 - a)·t)) in one of the worlds. This is the argument of
    Cheu, Smith and Ullman 2021 (arXiv 1909.09630) for one pair of inputs. For classes the two populations
    differ by κ in the share of a class, so the error is κ/2 for κ <= 1 and that of a class.

    Args:
        mechanism: PrivUnit, randomized response, or a release in clear.
        share: a, from 0 to below 1.
    """
    share = _share(share)
    apart = _apart(mechanism)
    if apart is None or share >= 1:
        return None if apart is None else 1.0
    odds = share / (1 - share)
    kappa = 0.0 if share == 0 else 1.0 if odds >= apart else odds / apart
    return kappa / 2 if isinstance(mechanism, RandomizedResponse) else kappa


def confusable(share: float, users: int) -> float:
    """Return a distance t: of two populations whose messages differ by t or less, no server knows which one it has.

    Let the laws of one honest message be P and Q, with TV(P, Q) <= t = b/(1 - b). If every message is a liar's with
    probability b, liars send what the other law has more of, and all messages have the same law in both worlds (Huber
    1965). The number of liars is Binomial(n, b); b is the largest one at which it exceeds a·n with probability CONFUSED
    or less. So the batches of n messages, with a·n liars at most, differ in total variation by 2·CONFUSED at most.

    Args:
        share: a, from 0 to below 1.
        users: n.
    """
    low, high, most = 0.0, _share(share), math.floor(share * users)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if binom.sf(most, users, middle) <= CONFUSED else (low, middle)
    return low / (1 - low)


def apart(mechanism: PrivUnit, vectors: FloatArray, others: FloatArray) -> float:
    """Return an upper bound of the total variation of the messages of two groups' users.

    A message of x has the density outer + h·1[<x, y> >= γ] by the uniform law. So the product of two densities has the
    mean h²·A(<x, x'>) and what cancels, where A is the uniform mass of two caps' overlap. That gives the distance of
    two mixtures in L2, and half of it bounds the total variation (Jensen). Groups of many different vectors are far
    nearer to each other than their users: noise hides all but what a group has in common.

    Args:
        mechanism: PrivUnit.
        vectors: Unit vectors (n, D) of a group, from which users are drawn.
        others: Those (m, D) of the other group.
    """
    c, p = math.exp(mechanism.log_mass), mechanism.cap_probability
    assert p is not None
    height = p / c - (1 - p) / (1 - c)
    cosines = np.sin(np.linspace(-np.pi / 2, np.pi / 2, _COSINES))
    shared = _overlap(mechanism, cosines)

    def mean(x: FloatArray, y: FloatArray) -> float:
        blocks = (x[at : at + _AT_ONCE] @ y.T for at in range(0, len(x), _AT_ONCE))
        return float(sum(np.interp(block, cosines, shared).sum() for block in blocks)) / len(x) / len(y)

    squared = mean(vectors, vectors) + mean(others, others) - 2 * mean(vectors, others)
    return min(1.0, 0.5 * height * math.sqrt(max(0.0, squared)))


def _overlap(mechanism: PrivUnit, cosines: FloatArray) -> FloatArray:
    """Return the uniform mass of the overlap of two caps whose centres have these cosines (k,)."""
    dim, gamma = mechanism.dim, mechanism.threshold
    nodes, weights = np.polynomial.legendre.leggauss(_ANGLES)
    end = math.acos(gamma)
    angles = (nodes + 1) * end / 2  # to the first centre
    density = np.exp((dim - 2) * np.log(np.sin(angles)) - betaln(0.5, (dim - 1) / 2)) * weights * end / 2
    sine = np.sqrt(np.maximum(1 - cosines**2, 1e-30))[:, None] * np.sin(angles)
    # coordinate of the rest of y, uniform on the sphere of one dimension less, towards the second centre
    needed = np.clip((gamma - cosines[:, None] * np.cos(angles)) / sine, -1, 1)
    half = 0.5 * betainc((dim - 2) / 2, 0.5, 1 - needed**2)
    mass: FloatArray = np.where(needed >= 0, half, 1 - half) @ density
    return mass


def told(mechanism: Mechanism) -> str:
    """Return in one sentence, without a full stop, how far liars move the estimate; "" if no bound is known.

    Args:
        mechanism: Mechanism of a training user's release.
    """
    if (each := amplification(mechanism)) is None:
        return ""
    if math.isinf(each):
        return "liars: a release says nothing, whoever sends it"
    what = "a class's share" if isinstance(mechanism, RandomizedResponse) else "the plain mean of vectors of length 1"
    far = ", ".join(f"{moved(mechanism, share):.2g}" for share in SHARES)
    least = ", ".join(f"{unavoidable(mechanism, share):.2g}" for share in SHARES)
    return (
        f"liars: one equals up to {each:.1f} honest users; {_percent()} of them move {what} by at most {far}, and no "
        f"estimator keeps the error below {least}"
    )


def _percent() -> str:
    *first, last = (f"{share:.0%}".removesuffix("%") for share in SHARES)
    return f"{', '.join(first)} and {last} %"


def _apart(mechanism: Mechanism) -> float | None:
    """Return the total variation of the messages of two users who differ most."""
    if isinstance(mechanism, Identity):
        return 1.0
    if isinstance(mechanism, PrivUnit):
        c, p = math.exp(mechanism.log_mass), mechanism.cap_probability
        assert p is not None
        return p - c * (1 - p) / (1 - c)  # the caps of x and -x are disjoint
    if isinstance(mechanism, RandomizedResponse):
        rest = math.exp(-mechanism.epsilon)
        return -math.expm1(-mechanism.epsilon) / (1 + (mechanism.classes - 1) * rest)
    return None


def edge(users: int, dim: int) -> float:
    """Return the largest eigenvalue that honest reports' second moment has, in units of its expectation.

    Of n independent rows of D coordinates and unit covariance it exceeds the limit of Johnstone 2001 (Ann. Statist. 29,
    theorem 1) with probability FALSE_ALARM/2 in the limit of many rows. Rows of a fixed length fluctuate less, so for
    PrivUnit's reports the test alarms less often.

    Args:
        users: n >= 2.
        dim: D.
    """
    a, b = math.sqrt(users - 1), math.sqrt(dim)
    spread: float = (1 / a + 1 / b) ** (1 / 3)
    return ((a + b) ** 2 + (a + b) * spread * _TRACY_WIDOM) / users


def edge_along(users: int, directions: int) -> float:
    """Return the largest second moment of honest reports along few directions that are fixed beforehand.

    The squares of n normal coordinates have the variance 2/n around their mean; one direction exceeds the result with
    probability FALSE_ALARM/(2·directions) in the limit of many rows. Reports of a fixed length vary less.

    Args:
        users: n.
        directions: Number of directions.
    """
    return 1 + float(ndtri(1 - FALSE_ALARM / 2 / directions)) * math.sqrt(2 / users)


@dataclass(frozen=True)
class HonestLaw:
    """Second moment of honest PrivUnit reports, E[y y'] = other·I + extra·E[x x'] for users' unit vectors x.

    Args:
        mechanism: PrivUnit.
    """

    mechanism: PrivUnit

    @property
    def other(self) -> float:
        """Return the expected square of a report along a direction orthogonal to the user's vector."""
        return (1 - self.mechanism.squared_cosine) / (self.mechanism.dim - 1)

    @property
    def extra(self) -> float:
        """Return by how much the expected square along the user's own vector is larger."""
        return max(0.0, self.mechanism.squared_cosine - self.other)

    def second_moment(self, vectors: FloatArray | None, rows: int | None = None) -> FloatArray:
        """Return E[y y'] (D, D), or an upper bound.

        Args:
            vectors: E[x x'] (D, D), or an upper bound of it. None if nothing is known of users' vectors: then the
                identity bounds it, whatever they hold.
            rows: Public rows from which E[x x'] was estimated; it is enlarged by the edge of so many.
        """
        dim = self.mechanism.dim
        if vectors is None:
            return (self.other + self.extra) * np.eye(dim)
        factor = 1.0 if rows is None else edge(rows, dim)
        return self.other * np.eye(dim) + self.extra * factor * np.asarray(vectors, np.float64)


@dataclass(frozen=True)
class Passed:
    """Bound for a mean of reports whose second moment has passed the test.

    Let all vectors be in units of the honest law (R^(-1/2)·y, E[y y'] = R for honest users). K are the reports kept,
    with mean second moment at most `top` in every direction. Of them a share a are liars, and the honest ones have at
    least `low` in every direction. The liars' sum c = Σ y/|K| has |c|² <= a·Σ <y, c/|c|>²/|K| <= a·(top - (1 - a)·low)
    by Cauchy and Schwarz. Their replacement by honest users moves the mean by at most |c| + a·|m|, m the honest mean.
    Dropped honest users, a share r of them, with second moment at most `high` before, move it by at most
    sqrt(r·high) + r·|m|.

    Args:
        top: Largest eigenvalue of the second moment of the kept reports.
        low: Smallest eigenvalue of that of the honest users among them.
        high: Largest eigenvalue of that of all honest users.
    """

    top: float
    low: float
    high: float

    def moved(self, share: float, dropped: float = 0.0, mean: float = 0.0) -> float:
        """Return the largest distance of the kept reports' mean from that of all honest users' reports.

        Args:
            share: a, liars among the reports kept.
            dropped: r, share of the honest users' reports that were dropped.
            mean: Length of the mean of the kept honest reports, in the same units.
        """
        liars = math.sqrt(share * max(0.0, self.top - (1 - share) * self.low))
        return liars + share * mean + math.sqrt(dropped * self.high) + dropped * mean


def hidden(law: HonestLaw, share: float, users: int, honest: FloatArray, *, exact: bool) -> float:
    """Return how far liars move the mean of a batch that passes the test, if honest users' reports are typical.

    That is the bound of `Passed` without dropped reports, in the direction in which honest reports vary most, with the
    largest second moment that passes (`edge`) and the smallest that so many honest rows have, and after debiasing.

    Args:
        law: Law of honest reports.
        share: a, liars among the users.
        users: n.
        honest: Second moment (D, D) of honest reports, or an upper bound (`HonestLaw.second_moment`).
        exact: Whether it is no mere bound.
    """
    share, dim = _share(share), law.mechanism.dim
    largest = float(np.linalg.eigvalsh(honest)[-1])
    low = max(0.0, 1.0 - math.sqrt(dim / users)) ** 2 * (1.0 if exact else law.other / largest)
    top = edge(users, dim)
    return math.sqrt(largest) / law.mechanism.scale * Passed(top, low, top).moved(share) + share


def withstood(law: HonestLaw, length: float, users: int, honest: FloatArray, *, exact: bool) -> tuple[float, float]:
    """Return the share of liars below which they cannot turn a mean around, without and with the test of a batch.

    Liars who move a mean by less than its own length leave a part of it in place, in every direction.

    Args:
        law: Law of honest reports.
        length: Length of the mean of users' vectors.
        users: n.
        honest: As in `hidden`.
        exact: As in `hidden`.
    """
    plain = length / (1 / law.mechanism.scale + length)
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        within = hidden(law, middle, users, honest, exact=exact) < length
        low, high = (middle, high) if within else (low, middle)
    return plain, max(plain, low)


def _share(share: float) -> float:
    return checks.real("liars", "share", share, 0, 1)

"""Bounds on what dishonest users can do to a plain mean or to counts, and limits of honest reports for a test.

A *liar* sends any message that the wire allows, and may know everything, the honest users' draws included. Local
privacy makes liars strong: an estimate divides by the mechanism's contrast, so one lie counts as several honest users.
"""

from __future__ import annotations

import math

from scipy.stats import chi2

from mechanisms import checks
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.privunit import PrivUnit
from mechanisms.randomized_response import RandomizedResponse

#: Probability that the test alarms on a batch of honest users, half of it in `edge` and half in `edge_along`.
FALSE_ALARM = 1e-3
#: Quantile of the Tracy-Widom law (β = 1) above which it has the mass FALSE_ALARM/2 (by its Painlevé equation).
_TRACY_WIDOM = 3.6129
#: Shares of liars in `told`.
SHARES = (0.01, 0.03, 0.1)


def amplification(mechanism: Mechanism) -> float | None:
    """Return what one liar adds to a debiased sum, where an honest user is expected to add 1 at most.

    A mean of PrivUnit reports is divided by the scale, so a liar's vector has length 1/scale after debiasing, where an
    honest user's has the expected length 1 at most. A count under randomized response, truthful with probability p and
    each other class with q, is debiased as (frequency - q)/(p - q): a liar raises it by (1 - q)/(p - q) users.

    Returns:
        1 for releases in clear; inf if a release says nothing; None if this module knows no bound for the mechanism.
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


def moved(mechanism: Mechanism, share: float, clip: float = 1.0) -> float | None:
    """Return the largest distance by which a share a of liars moves the expected plain estimate, whatever they send.

    For a mean, let m be that of the honest users' vectors, clipped at C, |m| <= C, and ȳ that of the liars' messages,
    |ȳ| <= 1. The estimate has the expectation (1 - a)·m + a·C·ȳ/scale, at most a·(C/scale + |m|) away from m. For the
    share of a class it is a·((1 - q)/(p - q) - share) <= a·(1 - q)/(p - q) upwards. Both are attained. Rounding to the
    wire's grid adds at most √D/2 steps of the grid to |ȳ|.

    Args:
        mechanism: PrivUnit, randomized response, or a release in clear.
        share: a, 0 to 1: liars among the delivered users.
        clip: C, at which users' means are clipped (`mechanisms.projection.signed_directions`).

    Returns:
        Distance of means (Euclidean), or change of a class's share. None as for `amplification`.
    """
    share = checks.real("liars", "share", share, 0, 1)
    factor = amplification(mechanism)
    if factor is None or share == 0:
        return None if factor is None else 0.0
    honest = 0.0 if isinstance(mechanism, RandomizedResponse) else 1.0
    return share * clip * (factor + honest)


def told(mechanism: Mechanism, clip: float = 1.0) -> str:
    """Return in one sentence, without a full stop, how far liars move the plain estimate; "" if no bound is known.

    Args:
        mechanism: Mechanism of a training user's release.
        clip: C, at which users' means are clipped; 1 is an upper bound where it is not known.
    """
    if (factor := amplification(mechanism)) is None:
        return ""
    if math.isinf(factor):
        return "liars: a release says nothing, whoever sends it"
    what, estimate, rest = "the sum of vectors", "the plain mean", "; no such bound of the robust mean is known"
    if isinstance(mechanism, RandomizedResponse):
        what, estimate, rest = "a class's count", "its share", ""
    far = ", ".join(_above(moved(mechanism, share, clip) or 0.0) for share in SHARES)
    return (
        f"liars: one adds up to {_above(clip * factor)} to {what}, an honest user {_above(clip)} at most; "
        f"1, 3 and 10 % of all users move {estimate} by at most {far}, beside noise{rest}"
    )


def _above(value: float) -> str:
    """Return a positive number with two digits, rounded up."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{float(f'{math.ceil(value / unit - 1e-9) * unit:.2g}'):g}"


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

    The mean square of n normal coordinates exceeds it along one direction with probability FALSE_ALARM/(2·directions).
    Reports of a fixed length vary less.

    Args:
        users: n.
        directions: Number of directions.
    """
    return float(chi2.isf(FALSE_ALARM / 2 / directions, users)) / users

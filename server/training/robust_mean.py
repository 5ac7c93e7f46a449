"""Mean of user vectors that a few dishonest users cannot move far, and a test of a batch for them.

The law of honest reports is known: PrivUnit's second moment is exact, and that of users' vectors is known from public
text. Reports of liars who agree stand out as a direction with a larger second moment (spectral filtering: Diakonikolas,
Kamath, Kane, Li, Moitra and Stewart 2019, arXiv 1604.06443). Only released vectors and public data are read, so this is
post-processing and costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from mechanisms.accounting.liars import HonestLaw, edge
from mechanisms.privunit import PrivUnit

FloatArray = NDArray[np.float64]

#: Reports within so many standard deviations along a direction are never dropped for it. Nothing tells them from honest
#: ones, and fewer would leave no mean.
NEAREST = 1.5
#: Cuts that are tried along a direction.
_CUTS = 256
#: Passes over the reports. Each drops at least one along every suspicious direction.
_PASSES = 50
#: Rows multiplied at once.
_AT_ONCE = 2**16


@dataclass(frozen=True)
class BatchTest:
    """Test of a batch of user vectors against the law of honest users.

    Attributes:
        stage: Stage of the batch.
        users: Users in it.
        top: Largest eigenvalue of the reports' second moment, in units of the honest law.
        limit: Eigenvalue that honest users exceed with the probability `liars.FALSE_ALARM`.
        dropped: Share of the reports that were left out of the mean.
    """

    stage: str
    users: int
    top: float
    limit: float
    dropped: float

    @property
    def alarm(self) -> bool:
        """Return True if some reports are not those of honest users."""
        return self.top > self.limit

    @property
    def told(self) -> str:
        """Return the finding in one sentence without a full stop."""
        left = f"{self.dropped:.1%} were left out" if self.dropped else "none was left out"
        return (
            f"some of {self.users:,} user vectors are not of honest users (second moment {self.top:.2f}, at most "
            f"{self.limit:.2f} for honest ones); {left}"
        )


@dataclass(frozen=True, eq=False)
class RobustMean:
    """Robust mean of a batch.

    Attributes:
        mean: Debiased mean (D,) of users' vectors.
        kept: Mask (n,) of the reports that entered it.
        top: Largest eigenvalue of the second moment of all reports, in units of the honest law.
        limit: Eigenvalue above which the test alarms.
    """

    mean: FloatArray
    kept: NDArray[np.bool_]
    top: float
    limit: float

    @property
    def dropped(self) -> float:
        """Return the share of the reports that did not enter the mean."""
        return 1.0 - float(self.kept.mean())


def vector_moments(features: FloatArray, length: int) -> FloatArray:
    """Return an upper bound of E[x x'] (D, D) for users' vectors x = code ⊗ [√d·f, 1]/√(d + 1) of one record each.

    A code has length 1, so E[x x'] <= I ⊗ E[f f'] whatever the labels. With two classes a code is ±1, and it is exact.

    Args:
        features: Features (N, d) of public text, unit rows, of the domain of users' texts.
        length: c, the number of coordinates of a code.
    """
    f = np.asarray(features, np.float64)
    d = f.shape[1]
    rows = np.hstack([f * np.sqrt(d / (d + 1)), np.full((len(f), 1), 1 / np.sqrt(d + 1))])
    return np.kron(np.eye(length), rows.T @ rows / len(rows))


def robust_mean(mechanism: PrivUnit, codes: NDArray[np.integer], honest: FloatArray) -> RobustMean:
    """Return the mean of a batch without the reports that betray themselves.

    While a direction x has a second moment above the limit, the reports farthest along it are dropped, up to the
    largest cut T at which the others' second moment is that of a normal law cut at T, up to the same factor. A cut at T
    shrinks the honest mean along x by the factor τ(T), the variance of that law; the mean is divided by it.
    Without an alarm it is the plain mean, to the last bit.

    Args:
        mechanism: PrivUnit.
        codes: Grid integers (n, D), n >= 2.
        honest: Second moment (D, D) of honest reports, or an upper bound (`HonestLaw.second_moment`).
    """
    n, dim = codes.shape
    limit, kept = edge(n, dim), np.ones(n, np.bool_)
    root = np.linalg.cholesky(honest)
    cuts: list[tuple[FloatArray, float]] = []
    reports, first = codes * np.float32(mechanism.grid.step), None
    for _ in range(_PASSES):
        values, vectors = np.linalg.eigh(_whitened(_second_moment(reports, kept), root))
        first = values[-1] if first is None else first
        suspects = np.linalg.solve(root.T, vectors[:, values > limit])[:, ::-1]
        if not suspects.shape[1]:
            break
        for x in suspects.T:
            along = np.abs(reports @ x.astype(np.float32))
            cut = _cut(np.sort(along[kept]), limit)
            kept &= along <= cut
            cuts.append((x, cut))
    assert first is not None
    if not cuts:
        return RobustMean(mechanism.decoded_mean(codes), kept, float(first), limit)
    mean = mechanism.decoded_mean(codes[kept])
    mean = mean + sum(honest @ x * float(x @ mean) * (1 / float(_variance(cut)) - 1) for x, cut in cuts)
    return RobustMean(mean, kept, float(first), limit)


def honest_moment(mechanism: PrivUnit, features: FloatArray | None, length: int) -> FloatArray:
    """Return the second moment (D, D) of honest reports.

    Args:
        mechanism: PrivUnit.
        features: Features (N, d) of public text of the users' domain. None if there is none: the bound then holds for
            users' vectors of any law, and the test is weaker.
        length: c, the number of coordinates of a code.
    """
    law = HonestLaw(mechanism)
    if features is None:
        return law.second_moment(None)
    return law.second_moment(vector_moments(features, length), rows=len(features))


def _second_moment(reports: NDArray[np.float32], kept: NDArray[np.bool_]) -> FloatArray:
    total = np.zeros((reports.shape[1],) * 2)
    for at in range(0, len(reports), _AT_ONCE):
        rows = reports[at : at + _AT_ONCE][kept[at : at + _AT_ONCE]]
        total += rows.T @ rows
    return total / int(kept.sum())


def _whitened(moment: FloatArray, root: FloatArray) -> FloatArray:
    half = np.linalg.solve(root, moment)
    return np.linalg.solve(root, half.T)


def _variance(cut: NDArray[np.float64] | float) -> FloatArray:
    """Return τ(T), the variance of a standard normal law within ±T."""
    cut = np.asarray(cut, np.float64)
    density = np.exp(-0.5 * cut**2) / np.sqrt(2 * np.pi)
    return 1 - 2 * cut * density / (2 * ndtr(cut) - 1)


def _cut(along: FloatArray, limit: float) -> float:
    """Return the largest cut below the farthest report at which the others' second moment is an honest one's.

    Args:
        along: Distances (n,) from 0 along a direction, ascending, in standard deviations of honest reports.
        limit: Factor on the honest second moment.
    """
    cuts = np.linspace(NEAREST, max(float(along[-1]), NEAREST), _CUTS, endpoint=False)
    inside = np.maximum(np.searchsorted(along, cuts, side="right"), 1)
    squares = np.cumsum(np.asarray(along, np.float64) ** 2)[inside - 1] / inside
    honest = np.flatnonzero(squares <= limit * _variance(cuts))
    return float(cuts[honest[-1]]) if len(honest) else NEAREST

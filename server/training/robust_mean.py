"""Mean of user vectors without most of what dishonest users do to it, and a test of a batch for them.

The law of honest reports is known: PrivUnit's second moment is exact, and that of users' vectors is known from public
text. Reports of liars who agree stand out as a direction with a larger second moment (spectral filtering: Diakonikolas,
Kamath, Kane, Li, Moitra and Stewart 2019, arXiv 1604.06443). How far liars can move this mean is measured, not proved:
`accounting.liars` bounds the plain mean. Only released vectors and public data are read, so this is post-processing and
costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from mechanisms.accounting.liars import FALSE_ALARM, edge, edge_along
from mechanisms.arrays import BoolArray, FloatArray
from mechanisms.privunit import PrivUnit
from mechanisms.projection import statistic_vectors

#: Reports within so many standard deviations along a direction are never dropped for it: too many are honest.
NEAREST = 2.5
#: Standard deviations at which reports along a suspicious direction are clipped. A share a of liars then moves the mean
#: along it by 1.31·a standard deviations (the least possible is 1.25·a), and honest noise is 12 % larger.
CLIP = 0.5
#: Least excess of a suspicious direction: users' second moment is not quite that of public text.
TOLERANCE = 0.05
#: Part of a suspicious direction that earlier ones must not contain, for it to be one more.
_NEW = 0.3
#: Cuts that are tried along a direction.
_CUTS = 256
#: Newton's steps to the clipped reports' centre: each leaves a small part of the way.
_STEPS = 20
#: Most coordinates of a vector: the time grows with their cube, to ten seconds here.
MAX_TESTED = 2048
#: Rows multiplied at once.
_AT_ONCE = 2**16


@dataclass(frozen=True)
class BatchTest:
    """Test of a batch of user vectors against the law of honest users.

    Attributes:
        stage: Stage of the batch.
        users: Users in it.
        excess: Largest second moment of the reports along a tested direction, over the limit that honest users exceed
            with the probability `liars.FALSE_ALARM`.
        dropped: Share of the reports that were left out of the mean.
    """

    stage: str
    users: int
    excess: float
    dropped: float

    @property
    def alarm(self) -> bool:
        """Return whether honest users, with texts like public ones, would hardly have sent the batch."""
        return self.excess > 1

    @property
    def finding(self) -> str:
        """Return the finding in one sentence without a full stop."""
        clause = f"{self.dropped:.1%} were left out" if self.dropped else "none was left out"
        return (
            f"some of {self.users:,} user vectors are not of honest users, or users' texts are unlike public text: "
            f"along one direction their second moment is {self.excess:.2f} times the limit, which honest "
            f"users exceed with probability {FALSE_ALARM:g}; {clause}"
        )


@dataclass(frozen=True, eq=False)
class RobustMean:
    """Robust mean of a batch.

    Attributes:
        mean: Debiased mean (D,) of users' vectors.
        kept: Mask (n,) of the reports that entered it.
        excess: As in `BatchTest`.
    """

    mean: FloatArray
    kept: BoolArray
    excess: float

    @property
    def dropped(self) -> float:
        """Return the share of the reports that did not enter the mean."""
        return 1.0 - float(self.kept.mean())


def robust_mean(mechanism: PrivUnit, codes: NDArray[np.integer], honest: FloatArray, length: int) -> RobustMean:
    """Return the mean of a batch, without most of what liars do to a plain mean.

    A direction is suspicious if the reports' second moment along it is above the limit for honest users: of all
    directions (`edge`), or of the constants of a code alone (`edge_along`), by which liars move a model's threshold.
    Along a suspicious direction the farthest reports are dropped, up to the largest cut at which the others' second
    moment is that of a normal law with the same cut; their mean along it is divided by the factor at which such a cut
    shrinks it. If there is no such cut, liars are among the others: the mean is Huber's (1964), the centre around which
    reports, clipped at CLIP, have the mean 0. All other directions have the plain mean. Without an alarm the result is
    the plain mean, to the last bit.

    Args:
        mechanism: PrivUnit.
        codes: Grid integers (n, D), n >= 2.
        honest: Second moment (D, D) of honest reports, or an upper bound (`honest_moment`).
        length: c, the number of coordinates of a code; D is a multiple of it.
    """
    n, dim = codes.shape
    root: FloatArray = np.asarray(np.linalg.cholesky(honest), np.float64)
    limit, narrow = max(edge(n, dim), 1 + TOLERANCE), edge_along(n, length)
    constants = _units(root[dim // length - 1 :: dim // length].T)  # of constants, in the units of the honest law
    reports, kept = codes * np.float32(mechanism.grid.step), np.ones(n, np.bool_)
    directions, cuts, excess = np.zeros((dim, 0)), list[float](), None
    while True:
        moment = _whitened(_second_moment(reports, kept), root)
        values, vectors = np.linalg.eigh(_without(directions, _without(directions, moment).T))
        along = np.einsum("ij,ik,kj->j", constants, moment, constants)
        excess = max(values[-1] / limit, along.max() / narrow) if excess is None else excess
        suspects = [(x, narrow) for x in constants[:, along > narrow].T]
        suspects += [(x, limit) for x in vectors[:, values > limit][:, ::-1].T]
        before = len(cuts)
        for suspect, most in suspects:
            rest = _without(directions, suspect)
            if np.linalg.norm(rest) > _NEW:
                directions = np.hstack([directions, _units(rest[:, None])])
                far = np.abs(reports @ np.linalg.solve(root.T, directions[:, -1]).astype(np.float32))
                cuts.append(_cut(np.sort(far[kept]), most))
                inside = kept & (far <= (cuts[-1] or NEAREST))
                kept = inside if 2 * int(inside.sum()) >= n else kept  # whatever is found, half of the reports stay
        if len(cuts) == before:
            break
    if not cuts:
        return RobustMean(mechanism.decoded_mean(codes), kept, float(excess))
    mean = np.linalg.solve(root, reports[kept].mean(axis=0, dtype=np.float64))
    centre = _centre(reports[kept] @ np.linalg.solve(root.T, directions).astype(np.float32), np.array(cuts))
    mean = root @ (_without(directions, mean) + directions @ centre)
    return RobustMean(mean / mechanism.scale, kept, float(excess))


def honest_moment(mechanism: PrivUnit, features: FloatArray | None, length: int) -> FloatArray:
    """Return the second moment (D, D) of honest reports, or an upper bound.

    It is E[y y'] = o·I + e·E[x x'] for users' unit vectors x, with o + e = E<x, y>² and D·o + e = 1. A user of one
    record has x = code ⊗ [√(1 - w)·f, √w] with a code of length 1, so E[x x'] <= I ⊗ E[f f'] whatever the labels. With
    two classes a code is ±1, and it is exact. E[f f'] of public text is enlarged by the edge of so many rows.

    Args:
        mechanism: PrivUnit.
        features: Features (N, d) of public text, unit rows, of the domain of users with one record each. None if there
            is none: E[x x'] <= I then holds whatever users' vectors are, and the test is weaker.
        length: c, the number of coordinates of a code.
    """
    dim = mechanism.dim
    other = (1 - mechanism.squared_cosine) / (dim - 1)
    extra = max(0.0, mechanism.squared_cosine - other)
    vectors: FloatArray = np.eye(dim)
    if features is not None:
        f = np.asarray(features, np.float64)
        rows = statistic_vectors(f, np.zeros(len(f), np.int64), np.ones((1, 1), np.float32))  # without a code
        vectors = np.asarray(edge(len(f), dim) * np.kron(np.eye(length), rows.T @ rows / len(f)), np.float64)
    return other * np.eye(dim) + extra * vectors


def _second_moment(reports: NDArray[np.float32], kept: BoolArray) -> FloatArray:
    total = np.zeros((reports.shape[1],) * 2)
    for at in range(0, len(reports), _AT_ONCE):
        rows = reports[at : at + _AT_ONCE][kept[at : at + _AT_ONCE]]
        total += rows.T @ rows
    return total / int(kept.sum())


def _whitened(moment: FloatArray, root: FloatArray) -> FloatArray:
    return np.linalg.solve(root, np.linalg.solve(root, moment).T)


def _without(basis: FloatArray, x: FloatArray) -> FloatArray:
    """Return columns without their part in the span of an orthonormal basis."""
    return x - basis @ (basis.T @ x)


def _units(columns: FloatArray) -> FloatArray:
    return columns / np.linalg.norm(columns, axis=0)


def _centre(along: NDArray[np.float32], cuts: FloatArray) -> FloatArray:
    """Return the mean (J,) of reports (n, J) along J directions, in standard deviations of honest reports.

    Args:
        along: Reports.
        cuts: Cuts (J,) below which reports passed the test; 0 if there is none. Such a direction has Huber's mean.
    """
    centre = np.zeros(along.shape[1])
    for _ in range(_STEPS):
        off = np.clip(along - centre.astype(np.float32), -CLIP, CLIP)
        centre += off.mean(axis=0, dtype=np.float64) / (2 * ndtr(CLIP) - 1)
    plain = along.mean(axis=0, dtype=np.float64) / _variance(np.maximum(cuts, NEAREST))
    return np.where(cuts > 0, plain, centre)


def _variance(cuts: FloatArray) -> FloatArray:
    """Return the variance of a standard normal law within ±T, by which its mean shrinks if it is shifted a little."""
    density = np.exp(-0.5 * cuts**2) / np.sqrt(2 * np.pi)
    shrunk: FloatArray = 1 - 2 * cuts * density / (2 * ndtr(cuts) - 1)
    return shrunk


def _cut(along: FloatArray, limit: float) -> float:
    """Return the largest cut, NEAREST at least, at which the other reports' second moment is an honest one's; else 0.

    Args:
        along: Distances (n,) from 0 along a direction, ascending, in standard deviations of honest reports.
        limit: Factor on the honest second moment.
    """
    cuts = np.linspace(NEAREST, max(float(along[-1]), NEAREST), _CUTS)
    inside = np.searchsorted(along, cuts, side="right")
    squares = np.cumsum(np.asarray(along, np.float64) ** 2)[np.maximum(inside, 1) - 1] / np.maximum(inside, 1)
    honest = np.flatnonzero(squares <= limit * _variance(cuts))
    return float(cuts[honest[-1]]) if len(honest) else 0.0

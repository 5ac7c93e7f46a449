"""Draws are certain on the public grid: float64 against decimals, decimals against mpmath, and what settles the rest.

Nothing here is a statistical test: every draw's error is compared with the bound that the sampler says of it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import betaincinv, gammaincinv, ndtri

import mechanisms.gaussian
import mechanisms.privunit
import mechanisms.spherical
from mechanisms import Gaussian, PlanarLaplace, Purkayastha, decimals
from mechanisms.certified import NORMAL, certify, normal_doubt
from mechanisms.losses.angle_table import SHARED, AngleTable, angle_table
from mechanisms.privunit import QUANTILE, PrivUnit
from mechanisms.quantizer import SPHERE
from mechanisms.spherical import RADIUS
from mechanisms.streams import LATTICE, SecureStreams, SimulationStreams

MECHANISMS = [
    Purkayastha(2, 0.0),
    Purkayastha(2, 1000.0),
    Purkayastha(16, 4.0),
    PlanarLaplace(2, 1.0),
    PlanarLaplace(16, 0.0),
    Gaussian(1, 0.5),
    Gaussian(3, 1e-4),
    PrivUnit(3, 5.0),
    PrivUnit(32, 8.0, 0.05),
]
ROWS = 60


def ident(mechanism: Any) -> str:
    return "-".join(str(v) for v in (mechanism.name, *vars(mechanism).values()))


def points(low: float = -52) -> np.ndarray:
    """Lattice points all over (0, 1), the first and the last among them."""
    tails = 2.0 ** np.arange(low, 0, 2)
    inside = np.random.default_rng(1).random(60)
    values = np.floor(np.concatenate([tails, 1 - tails, inside]) / LATTICE) * LATTICE + LATTICE / 2
    return np.unique(np.clip(values, LATTICE / 2, 1 - LATTICE / 2))


def test_decimals_against_mpmath() -> None:
    """Inverse functions, put back: what is asked for comes out to thirty digits, a normal to sixty places."""
    with mpmath.workdps(100), decimals.precise():
        for u in (2.0**-104, 1e-9, 0.3, 0.5, 0.5 + LATTICE, 1 - LATTICE / 2):
            z = mpmath.mpf(str(decimals.normal_quantile(Decimal(u))))
            assert abs(mpmath.ncdf(z) / mpmath.mpf(u) - 1) < 1e-30
            assert abs(mpmath.ncdf(z) - mpmath.mpf(u)) < 1e-60
            for shape in (2, 16, 300):
                r = mpmath.mpf(str(decimals.gamma_quantile(shape, Decimal(u))))
                assert abs(mpmath.gammainc(shape, 0, r, regularized=True) / mpmath.mpf(u) - 1) < 1e-30
            for dim in (2, 3, 4, 33, 200):
                if u <= 0.5:
                    a, q = mpmath.mpf(dim - 1) / 2, decimals.symmetric_beta_quantile(dim, Decimal(u))
                    back = mpmath.betainc(a, a, 0, mpmath.mpf(str(q)), regularized=True)
                    assert abs(back / mpmath.mpf(u) - 1) < 1e-30, (dim, u)
        for angle in (0.0, 1e-9, 1.0, 3.1):
            sine, cosine = (mpmath.mpf(str(v)) for v in decimals.sine_cosine(Decimal(angle)))
            assert abs(sine - mpmath.sin(angle)) < 1e-50 and abs(cosine - mpmath.cos(angle)) < 1e-50


def test_scipy_is_as_exact_as_is_relied_on() -> None:
    with decimals.precise():
        for u in points():
            exact = decimals.normal_quantile(Decimal(float(u)))
            assert abs(Decimal(float(ndtri(u))) / exact - 1) <= Decimal(NORMAL), u
            for shape in (2, 16, 768):
                radius = decimals.gamma_quantile(shape, Decimal(float(u)))
                assert abs(Decimal(float(gammaincinv(shape, u))) / radius - 1) <= Decimal(RADIUS), (shape, u)
            for dim in (2, 3, 32, 513):
                if u <= 0.5:
                    half = (dim - 1) / 2
                    quantile = decimals.symmetric_beta_quantile(dim, Decimal(float(u)))
                    assert abs(Decimal(float(betaincinv(half, half, u))) / quantile - 1) <= Decimal(QUANTILE), (dim, u)


class Chosen:
    """Uniforms of one's choice, and where in their cells they lie."""

    def __init__(self, values: np.ndarray, share: float | None) -> None:
        self.values, self.share = values, share

    def uniform(self, rows: int, k: int) -> np.ndarray:
        assert self.values.shape == (rows, k)
        return self.values

    def further(self, rows: np.ndarray, k: int) -> np.ndarray:
        if self.share is None:
            return np.random.default_rng(5).random((len(rows), k))
        return np.full((len(rows), k), self.share)


def chosen(k: int) -> np.ndarray:
    """Rows of uniforms, some of them with one in a tail, as few draws have."""
    rng = np.random.default_rng(3)
    values = np.floor(rng.random((ROWS, k)) / LATTICE) * LATTICE + LATTICE / 2
    tails = 2.0 ** -np.arange(1, 53)
    for row, tail in enumerate(tails[: ROWS - 8]):
        at = row % k if row % 3 else 0
        value = min(max(np.floor(tail / LATTICE) * LATTICE + LATTICE / 2, LATTICE / 2), 1 - LATTICE / 2)
        values[row, at] = value if row % 2 else 1 - value
    return values


#: A wide Gaussian's way, each coordinate by itself, at a size at which all of them can be settled.
WIDE = pytest.param(Gaussian(16, 2.0), 4, id="gaussian-wide")


@pytest.mark.parametrize(("mechanism", "together"), [*(pytest.param(m, 1024, id=ident(m)) for m in MECHANISMS), WIDE])
def test_a_draw_is_as_near_to_the_exact_one_as_it_says(
    mechanism: Any, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everywhere in the cells of its uniforms; and what it says is not much more than what is true."""
    monkeypatch.setattr(mechanisms.gaussian, "_TOGETHER", together)
    k = mechanism.dim if mechanism.name == "gaussian" else mechanism.dim + 1
    caught: list[tuple[np.ndarray, ...]] = []

    def catch(draws, doubt, grid, uniforms, further, exact):  # type: ignore[no-untyped-def]
        truth = np.full_like(draws, np.nan)
        certify(truth, np.full(len(draws), np.inf), mechanism.grid, uniforms, further, exact)  # all are settled
        with decimals.precise():
            for row, share in enumerate(further(np.arange(len(draws)))):
                fine = [
                    Decimal(u) + (Decimal(v) - Decimal("0.5")) * Decimal(2) ** -52
                    for u, v in zip(uniforms[row], share, strict=True)
                ]
                near = [abs(e - Decimal(float(d))) for e, d in zip(exact(row, fine), draws[row], strict=True)]
                caught.append((float(max(near)), doubt[row]))
        codes, settled = mechanism.grid.encode(draws), mechanism.grid.encode(truth)
        assert (codes == settled)[doubt < 1e-9].mean() > 0.99  # next to a boundary there is hardly any

    for module in (mechanisms.spherical, mechanisms.privunit, mechanisms.gaussian):
        monkeypatch.setattr(module, "certify", catch)
    x = np.random.default_rng(2).normal(size=(ROWS, mechanism.dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    for share in (2.0**-53, 1 - 2.0**-53, None):
        mechanism.sample(x, rng=Chosen(chosen(k), share))
    off, said = np.array(caught).T
    assert (off <= said).all(), float((off / said).max())
    finite = said[np.isfinite(said)]
    assert np.isfinite(said).mean() > 0.5 and np.median(finite) < 1e-9
    assert (off > said / 10**5).any()  # a bound that is so much smaller would be found out


def test_wide_rows_are_settled_coordinate_by_coordinate(monkeypatch: pytest.MonkeyPatch) -> None:
    """All settled, they are what they are row by row, to the bit."""
    small, n = Gaussian(16, 2.0), 5
    x = np.random.default_rng(2).normal(size=(n, 16))
    x /= np.linalg.norm(x, axis=1, keepdims=True)

    def all_of_them(draws, doubt, *rest):  # type: ignore[no-untyped-def]
        certify(draws, np.full(len(draws), np.inf), *rest)

    found = []
    for together in (1024, 4):
        with monkeypatch.context() as at:
            at.setattr(mechanisms.gaussian, "_TOGETHER", together)
            at.setattr(mechanisms.gaussian, "_AT_ONCE", 32)  # blocks of two rows
            at.setattr(mechanisms.gaussian, "certify", all_of_them)
            rng = SimulationStreams(4).rows(np.arange(n), np.arange(n), stage="s", channel="c")
            found.append(small.sample(x, rng=rng))
    np.testing.assert_array_equal(*found)


def test_what_is_in_doubt_is_settled_and_nothing_else() -> None:
    step = SPHERE.step
    draws = np.array([[0.5 * step + 1e-13, 0.2], [1.5 * step, 0.2], [0.5 * step + 1e-10, 0.2], [3.4 * step, np.nan]])
    exact = {
        0: (Decimal(0.5 * step) - Decimal("1e-13"), Decimal("0.2")),
        3: (Decimal("0.9"), Decimal("-0.9")),
        1: (Decimal(1.5 * step) + Decimal("1e-25"), Decimal("0.2")),
    }
    settled = draws.copy()
    uniforms, asked = np.full((4, 3), 0.5), []

    def further(rows: np.ndarray) -> np.ndarray:
        asked.append(rows.tolist())
        return np.full((len(rows), 3), 0.25)

    def answer(row: int, fine: Any) -> Any:
        assert fine == [Decimal(0.5 - 2.0**-54)] * 3
        return exact[row]

    certify(settled, np.full(4, 1e-12), SPHERE, uniforms, further, answer)
    assert asked == [[0, 1, 3]]  # the third is farther from a boundary than it may be off
    assert SPHERE.encode(draws[:1])[0, 0] == 1 and SPHERE.encode(settled[:1])[0, 0] == 0
    assert SPHERE.encode(settled[1:2])[0, 0] == 2  # beyond float64, and known all the same
    np.testing.assert_array_equal(settled[2], draws[2])
    np.testing.assert_array_equal(settled[3], [0.9, -0.9])
    unknown = draws[2:3].copy()
    certify(unknown, np.array([np.nan]), SPHERE, uniforms[:1], further, lambda row, fine: exact[3])
    np.testing.assert_array_equal(unknown, [[0.9, -0.9]])


def test_normals_move_less_in_their_cells_than_is_said() -> None:
    u = points(-40)
    tail = np.minimum(u, 1 - u)
    u, tail = u[tail > 2.0**-39], tail[tail > 2.0**-39]
    doubt = normal_doubt(u[:, None])
    with decimals.precise():
        for value, said in zip(u, doubt, strict=True):
            ends = [decimals.normal_quantile(Decimal(float(value)) + s * Decimal(2) ** -53) for s in (-1, 1)]
            middle = decimals.normal_quantile(Decimal(float(value)))
            assert all(abs(end - middle) <= Decimal(float(said)) for end in ends)
    assert np.isinf(normal_doubt(np.array([[0.5, 2.0**-45]]))).all()


@pytest.mark.parametrize(("dim", "kappa"), [(16, 4.0)])
def test_the_table_in_decimals_meets_itself_at_its_knots(dim: int, kappa: float) -> None:
    table = angle_table(dim, kappa)
    assert isinstance(table, AngleTable)
    starts = table.cells[:, 0]
    with decimals.precise():
        for cell in (1, 100, table.middle - 1, table.middle, table.middle + 1, len(starts) - 1):
            start = Decimal(float(starts[cell]))
            knot = start if cell < table.middle else 1 + start
            step = abs(start) * Decimal(10) ** -40
            before, after = (table.inverse(knot + s * step)[1] for s in (-1, 1))
            # a cell ends where the next begins, and the angle grows
            assert 0 < before - after < Decimal("1e-30")


@pytest.mark.parametrize(("dim", "kappa"), [(3, 0.5), (1024, 1000.0)])
@pytest.mark.parametrize("upper", [False, True])
def test_the_angle_has_its_density_in_the_tails_too(dim: int, kappa: float, upper: bool) -> None:
    """Of a uniform of 104 bits, by mpmath: what passes between two of its points over what the angle turns by is the
    density, in the tail, in what is met by the same cells, and next to these; and nothing is met twice or left out."""
    table = angle_table(dim, kappa)
    assert isinstance(table, AngleTable) and table.tails is not None
    tail, share = table.tails[upper], Decimal(table.share(upper))

    with mpmath.workdps(60), decimals.precise():
        cell, tiny = Decimal(LATTICE), Decimal(10) ** -30

        def angle(k: int, s: Decimal) -> Any:
            place = (k + s) * cell
            sine, cosine = table.exact_sine_cosine(1 - place if upper else place)
            return mpmath.atan2(mpmath.mpf(str(sine)), mpmath.mpf(str(cosine)))

        def density(theta: Any) -> Any:
            return mpmath.sin(theta) ** (dim - 2) * mpmath.exp(-kappa * theta)

        total = mpmath.beta(mpmath.mpf(dim - 1) / 2, mpmath.mpf(1) / 2)  # of κ = 0
        if kappa:  # F_n by its complex closed form: π·e^(-κπ/2)·Γ(n+1)/(2^n·|Γ(1 + (n + iκ)/2)|²)
            n = mpmath.mpf(dim - 2)
            total = (
                mpmath.pi
                * mpmath.exp(-kappa * mpmath.pi / 2)
                * mpmath.gamma(n + 1)
                / (2**n * abs(mpmath.gamma(1 + (n + 1j * mpmath.mpf(kappa)) / 2)) ** 2)
            )

        def beyond(theta: Any) -> Any:
            """The mass beyond an angle next to the end, with its peak there: a few hundred e-folds are enough."""
            rate = abs((dim - 2) * mpmath.cot(theta) - kappa)
            ends = [theta + (1 if upper else -1) * k / rate for k in (0, 1, 3, 6, 10, 20, 40, 80, 160)]
            last = mpmath.pi if upper else mpmath.mpf(0)
            ends = [end for end in ends if 0 < end < mpmath.pi] + [last]
            return abs(mpmath.quad(density, ends)) / total

        for k in (0, 1, 12_345, SHARED // 2, SHARED - 1, SHARED, 2 * SHARED):
            parts = [share * Decimal(at) for at in ("0.25", "0.9")] if k < SHARED else []
            for s in (*parts, *(Decimal(at) for at in ("0.001", "0.5", "0.999"))):
                theta, turned = angle(k, s), abs(angle(k, s + tiny * share) - angle(k, s))
                found = mpmath.mpf(str(tiny * share * cell)) / turned
                assert abs(mpmath.log(found * total / density(theta))) <= table.numeric_epsilon, (k, s)
        # each cell's part of the tail goes on where that of the cell before it ended; so does its part of the table
        for k in (0, 12_345, SHARED - 2):
            for end, begin in ((share - tiny * share, tiny * share), (1 - tiny, share + tiny * share)):
                assert 0 < (angle(k + 1, begin) - angle(k, end)) * (-1 if upper else 1) < 1e-24
        ends = angle(0, tiny * share), angle(SHARED - 1, share - tiny * share), angle(0, share + tiny)
        assert beyond(ends[0]) < 2.0**-104 and abs(ends[1] - ends[2]) < 1e-12
        mass = mpmath.mpf(str(share)) * SHARED * LATTICE
        assert abs(mpmath.log(beyond(ends[1]) / mass)) <= table.numeric_epsilon and tail.tails is None
        assert mass < 2.0**-60.99


def test_further_uniforms_are_their_rows_own_and_change_nothing() -> None:
    users, records = np.arange(40), np.arange(40) % 3

    def source(rows: Any = slice(None)) -> Any:
        return SimulationStreams(4).rows(users[rows], records[rows], stage="s", channel="c")

    whole = source()
    first = whole.uniform(40, 5)
    more = whole.further(np.arange(40), 5)
    assert not np.isin(more, source().uniform(40, 400)).any()
    np.testing.assert_array_equal(whole.further(np.array([7, 3]), 5), more[[7, 3]])
    np.testing.assert_array_equal(whole.uniform(40, 3), source().uniform(40, 8)[:, 5:])
    assert not np.isin(whole.further(np.arange(40), 3), more).any()
    alone = source(slice(7, 8))
    np.testing.assert_array_equal(alone.uniform(1, 5)[0], first[7])
    np.testing.assert_array_equal(alone.further(np.array([0]), 5)[0], more[7])
    secure = SecureStreams().rows(users, records, stage="s", channel="c")
    one, two = (secure.further(np.array([1, 2]), 4) for _ in range(2))
    assert one.shape == (2, 4) and not np.isin(one, two).any() and ((one > 0) & (one < 1)).all()


def test_samplers_of_a_hundred_million_users_are_within_a_part_in_10_to_the_12() -> None:
    for mechanism in (*MECHANISMS, Purkayastha(1024, 0.0), Purkayastha(3, 1000.0)):
        assert mechanism.guarantee.numeric_delta * 10**8 <= 1e-12, mechanism

"""Dishonest users: no attack exceeds the bounds, which are attained, and worlds that no estimator tells apart."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import betaln

from mechanisms.accounting.liars import (
    CONFUSED,
    FALSE_ALARM,
    SHARES,
    HonestLaw,
    Passed,
    amplification,
    apart,
    confusable,
    edge,
    hidden,
    moved,
    told,
    unavoidable,
    withstood,
)
from mechanisms.gaussian import Gaussian
from mechanisms.identity import Identity
from mechanisms.privunit import PrivUnit
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.streams import SeededUniforms

WORLDS = 1000
#: A coordinate on the wire is off by half a step.
STEP = 1 / 32767


def units(rng: np.random.Generator, n: int, dim: int) -> np.ndarray:
    x = rng.normal(size=(n, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def moved_by(mechanism: PrivUnit, share: float, length: float) -> float:
    return share * (1 / mechanism.scale + length)


def reports(mechanism: PrivUnit, x: np.ndarray, seed: int) -> np.ndarray:
    return mechanism.grid.encode(mechanism.sample(x, rng=SeededUniforms(seed)))


@pytest.mark.parametrize(("dim", "epsilon", "p"), [(2, 1.0, 0.5), (3, 8.0, None), (49, 3.0, None), (97, 6.19, 0.8)])
def test_second_moments_are_those_of_the_density(dim: int, epsilon: float, p: float | None) -> None:
    """By quadrature of the law of <x, y>, which the closed form does not use. Within 2/3 and 3/2 of nothing else."""
    mechanism = PrivUnit(dim, epsilon, p)
    c, gamma = math.exp(mechanism.log_mass), mechanism.threshold

    def square(angle: float) -> float:  # of the angle θ to x, with density sin^(D-2) θ
        density = math.exp((dim - 2) * math.log(math.sin(angle)) - betaln(0.5, (dim - 1) / 2)) if angle else 0.0
        inside = math.cos(angle) >= gamma
        p = mechanism.cap_probability
        return math.cos(angle) ** 2 * density * (p / c if inside else (1 - p) / (1 - c))

    ends = math.acos(gamma)
    exact = quad(square, 1e-12, ends, limit=200)[0] + quad(square, ends, math.pi - 1e-12, limit=200)[0]
    assert_allclose(mechanism.squared_cosine, exact, rtol=1e-6)
    law = HonestLaw(mechanism)
    assert_allclose(law.other * dim + law.extra, 1.0)  # the length of every report
    assert mechanism.scale**2 <= mechanism.squared_cosine <= 1


def test_extremes_of_the_second_moment() -> None:
    assert PrivUnit(49, 0.0).squared_cosine == pytest.approx(1 / 49)
    assert 0.999 < PrivUnit(3, 50.0).squared_cosine <= 1
    assert HonestLaw(PrivUnit(49, 0.0)).extra == pytest.approx(0.0, abs=1e-15)


def test_no_liars_move_a_mean_or_a_count_beyond_the_bound() -> None:
    """1,000 random worlds of 2 to 40 users; the liars send random points, one point, or the worst one."""
    rng = np.random.default_rng(1)
    nearest = 0.0
    for world in range(WORLDS):
        n, dim, epsilon = int(rng.integers(2, 41)), int(rng.integers(2, 7)), float(rng.uniform(0.2, 8))
        count = int(rng.integers(1, n))
        share = count / n
        mechanism = PrivUnit(dim, epsilon)
        honest = mechanism.decoded_mean(reports(mechanism, units(rng, n - count, dim), world))
        lies = units(rng, count, dim)
        if world % 3 == 1:
            lies[:] = lies[0]
        if world % 3 == 2:
            lies[:] = -honest / np.linalg.norm(honest)
        sent = np.rint(lies * 32767) * (STEP / mechanism.scale)
        distance = float(np.linalg.norm((1 - share) * honest + sent.sum(axis=0) / n - honest))
        most = share * (1 / mechanism.scale + float(np.linalg.norm(honest)))
        rounded = math.sqrt(dim) * STEP / mechanism.scale
        assert distance <= most + rounded
        assert moved(mechanism, share) == pytest.approx(share * (1 / mechanism.scale + 1))
        nearest = max(nearest, distance / most)

        labels = RandomizedResponse(epsilon, int(rng.integers(2, 6)))
        truthful = 1 / (1 + (labels.classes - 1) * math.exp(-epsilon))
        other = (1 - truthful) / (labels.classes - 1)
        counts = rng.multinomial(n - count, np.full(labels.classes, 1 / labels.classes))
        lied = rng.multinomial(count, rng.dirichlet(np.full(labels.classes, 0.2)))
        debiased = [(each - other) / (truthful - other) for each in (counts / (n - count), (counts + lied) / n)]
        # the expectation of the honest part is theirs; a class whose debiased share is 0 or more gains at most so much
        gains = (debiased[1] - debiased[0])[debiased[0] >= 0]
        assert (gains <= moved(labels, share) + 1e-12).all()
    assert nearest > 0.999  # the worst point attains it


def test_counts_attain_the_bound() -> None:
    """All liars send a class that no honest user has, in expectation."""
    for classes in (2, 4, 12):
        mechanism = RandomizedResponse(1.5, classes)
        truthful = 1 / (1 + (classes - 1) * math.exp(-1.5))
        other = (1 - truthful) / (classes - 1)
        honest = np.full(classes, other)
        honest[0] = truthful  # all of class 0
        sent = 0.97 * honest + 0.03 * np.eye(classes)[1]
        gain = (sent[1] - other) / (truthful - other)
        assert gain == pytest.approx(moved(mechanism, 0.03))
        assert gain == pytest.approx(0.03 * amplification(mechanism))


def test_reports_that_passed_bound_what_liars_do() -> None:
    """1,000 random worlds and any kept part of the reports: with true second moments, the inequality always holds."""
    rng = np.random.default_rng(2)
    nearest = 0.0
    for world in range(WORLDS):
        n, dim = int(rng.integers(6, 60)), int(rng.integers(2, 6))
        count = int(rng.integers(1, n // 2))
        honest, lies = rng.normal(size=(n - count, dim)), rng.normal(size=(count, dim)) * rng.uniform(0, 3)
        if world % 2:
            lies[:] = rng.uniform(0, 4) * units(rng, 1, dim)
        there = rng.random(n - count) < rng.uniform(0.5, 1)
        there[0] = True
        left = honest[there]
        kept = np.concatenate([left, lies])
        eigen = [np.linalg.eigvalsh(y.T @ y / len(y)) for y in (kept, left, honest)]
        passed = Passed(eigen[0][-1], eigen[1][0], eigen[2][-1])
        share, dropped = count / len(kept), 1 - len(left) / len(honest)
        most = passed.moved(share, dropped, float(np.linalg.norm(left.mean(axis=0))))
        distance = float(np.linalg.norm(kept.mean(axis=0) - honest.mean(axis=0)))
        assert distance <= most + 1e-12
        nearest = max(nearest, distance / most)
    assert nearest > 0.5


def test_two_worlds_that_nobody_tells_apart() -> None:
    """Messages of two populations, with liars in both, have one law, and their means are twice the error apart."""
    for mechanism, share in ((PrivUnit(5, 2.0), 0.05), (RandomizedResponse(1.0, 2), 0.1)):
        if isinstance(mechanism, PrivUnit):  # masses of the cap of x, of that of -x, and of the rest
            c, p = math.exp(mechanism.log_mass), mechanism.cap_probability
            outside = c * (1 - p) / (1 - c)
            laws = np.array([[p, outside, 1 - p - outside], [outside, p, 1 - p - outside]])
            kappa = unavoidable(mechanism, share)
        else:
            p = 1 / (1 + math.exp(-1.0))
            laws = np.array([[p, 1 - p], [1 - p, p]])
            kappa = 2 * unavoidable(mechanism, share)
        populations = [np.array([1 + sign * kappa, 1 - sign * kappa]) / 2 @ laws for sign in (1, -1)]
        missing = np.maximum(populations[::-1], populations)[0] - np.array(populations)
        # in each world the liars send what the other one has more of
        assert_allclose((1 - share) * missing.sum(axis=1), share, rtol=1e-9)
        mixed = [(1 - share) * own + (1 - share) * gap for own, gap in zip(populations, missing, strict=True)]
        assert_allclose(mixed[0], mixed[1], atol=1e-12)


def test_random_liars_keep_their_share() -> None:
    """By summing the binomial law. Two thirds and three halves of the gap to the share do not have the probability."""
    for share, users in ((0.1, 50), (0.03, 2000), (0.3, 60)):
        within = confusable(share, users)
        b = within / (1 + within)

        def more(b: float, share: float = share, users: int = users) -> float:
            most = math.floor(share * users)
            return 1 - sum(math.comb(users, k) * b**k * (1 - b) ** (users - k) for k in range(most + 1))

        assert more(b) == pytest.approx(CONFUSED, rel=1e-6)
        assert more(share - (share - b) * 2 / 3) > CONFUSED > more(share - (share - b) * 3 / 2)
    assert confusable(0.0, 100) == 0.0
    assert confusable(0.1, 10**8) == pytest.approx(1 / 9, rel=2e-3)


def test_groups_are_no_farther_apart_than_the_bound() -> None:
    """The total variation of two groups' messages, by quadrature on the circle and by points of spheres.

    L2 is computed from the densities alone, within 1 %.
    """
    rng = np.random.default_rng(5)
    for dim, epsilon in ((2, 1.5), (3, 3.0), (9, 3.0)):
        mechanism = PrivUnit(dim, epsilon)
        grid = np.linspace(0, 2 * np.pi, 40_000, endpoint=False)
        y = np.stack([np.cos(grid), np.sin(grid)], axis=1) if dim == 2 else units(rng, 200_000, dim)
        for n in (1, 8):
            x, others = units(rng, n, dim), units(rng, n, dim)
            gap = np.zeros(len(y))
            for sign, group in ((1, x), (-1, others)):
                for row in group:
                    gap += sign / n * np.exp(mechanism.log_prob(y, np.broadcast_to(row, y.shape)))
            bound, norm = apart(mechanism, x, others), 0.5 * math.sqrt(np.mean(gap**2))
            assert bound == pytest.approx(min(1.0, norm), rel=1e-2)
            assert 0.5 * np.mean(np.abs(gap)) <= bound * 1.01
            assert apart(mechanism, x, x) == pytest.approx(0.0, abs=1e-6)


def test_a_band_of_latitude_and_its_opposite() -> None:
    """Vectors with one constant coordinate: what remains of the difference is along it, and the bound nearly tight."""
    dim, rng = 16, np.random.default_rng(6)
    mechanism = PrivUnit(dim, 3.0)
    x = np.hstack([units(rng, 2000, dim - 1) * math.sqrt(1 - 1 / dim), np.full((2000, 1), 1 / math.sqrt(dim))])
    drawn = [mechanism.sample(sign * x, rng=SeededUniforms(seed))[:, -1] for seed, sign in ((1, 1), (2, -1))]
    largest = max(abs(np.mean(drawn[0] > cut) - np.mean(drawn[1] > cut)) for cut in np.linspace(-0.5, 0.5, 21))
    bound = apart(mechanism, x, -x)
    # the sample's largest difference is at most .06 off the laws' (probability 1e-3: Dvoretzky, Kiefer and Wolfowitz)
    assert largest - 0.12 <= bound <= 1.5 * largest + 0.12
    assert bound < 0.4 * apart(mechanism, x[:1], -x[:1])


def test_no_estimator_of_counts_notices_a_promotion() -> None:
    """The law of reports with liars of one class is that of honest users of other shares: these are all it can find."""
    epsilon, share, shares = 2.0, 0.01, np.array([0.5, 0.3, 0.2])
    mechanism = RandomizedResponse(epsilon, 3)
    truthful = 1 / (1 + 2 * math.exp(-epsilon))
    other = (1 - truthful) / 2
    sent = (1 - share) * (other + (truthful - other) * shares) + share * np.eye(3)[2]
    imitated = (sent - other) / (truthful - other)
    assert (imitated >= 0).all() and imitated.sum() == pytest.approx(1)
    assert imitated[2] - shares[2] == pytest.approx(moved(mechanism, share) - share * shares[2])


def test_bounds_at_the_ends() -> None:
    private, clear = PrivUnit(49, 3.0), Identity("statistic", 49)
    assert moved(private, 0.0) == unavoidable(private, 0.0) == 0.0
    assert amplification(clear) == 1.0 and moved(clear, 0.1) == pytest.approx(0.2)
    assert math.isinf(amplification(PrivUnit(49, 0.0))) and math.isinf(amplification(RandomizedResponse(0.0, 2)))
    assert unavoidable(private, 1.0) == unavoidable(private, 0.9) == 1.0
    assert amplification(Gaussian(8, 1.0)) is None and moved(Gaussian(8, 1.0), 0.1) is None
    assert told(Gaussian(8, 1.0)) == ""
    for share in SHARES:
        assert unavoidable(private, share) <= moved(private, share)
        law = HonestLaw(private)
        honest = law.second_moment(np.eye(49) / 49)
        found = [hidden(law, share, 20_000, honest, exact=exact) for exact in (True, False)]
        assert found[0] <= found[1] and found[0] < moved(private, share)
    plain, robust = withstood(law, 0.17, 20_000, honest, exact=True)
    assert moved_by(private, plain, 0.17) == pytest.approx(0.17)
    assert hidden(law, robust, 20_000, honest, exact=True) == pytest.approx(0.17, abs=1e-6) and robust > 1.5 * plain
    assert withstood(law, 0.0, 20_000, honest, exact=True)[0] == 0.0
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="liars: share"):
            moved(private, bad)


def test_edge_is_the_largest_eigenvalue_of_honest_rows() -> None:
    """Normal rows exceed it with probability FALSE_ALARM: 6 of 1,000 or more have probability 6e-4.

    2/3 or 3/2 of its distance from 1 alarms always, or would be 0.45 away from the mean.
    """
    rng = np.random.default_rng(3)
    n, dim = 400, 10
    tops = []
    for _ in range(WORLDS):
        rows = rng.normal(size=(n, dim))
        tops.append(np.linalg.eigvalsh(rows.T @ rows / n)[-1])
    limit = edge(n, dim)
    assert np.sum(np.array(tops) > limit) < 6
    assert np.mean(np.array(tops) > 1 + (limit - 1) * 2 / 3) > 20 * FALSE_ALARM
    assert max(tops) < 1 + (limit - 1) * 3 / 2 and max(tops) > 1 + (limit - 1) * 0.8

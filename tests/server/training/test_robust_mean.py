"""Mean of user vectors with dishonest users among them, and the test of a batch."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from mechanisms.accounting.liars import edge, moved
from mechanisms.privunit import PrivUnit
from mechanisms.projection import statistic_vectors
from mechanisms.streams import SeededUniforms
from server.training.robust_mean import NEAREST, honest_moment, robust_mean
from server.training.statistic_head import simplex_codes
from sottovoce.adversary.estimators.poison import imitations, leaning, points, unseen

DIM, EPSILON, USERS = 24, 3.0, 6000


def features(rng: np.random.Generator, n: int, dim: int = DIM) -> np.ndarray:
    """Return unit rows (n, dim) with variances that fall, as principal components have."""
    x = rng.normal(size=(n, dim)) / np.sqrt(1 + np.arange(dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def users(rng: np.random.Generator, n: int, dim: int = DIM) -> tuple[np.ndarray, PrivUnit]:
    x = features(rng, n, dim)
    labels = (x[:, 0] + 0.2 * rng.normal(size=n) > 0).astype(np.int64)
    vectors = statistic_vectors(x, labels, simplex_codes(2))
    return vectors, PrivUnit(vectors.shape[1], EPSILON)


def released(mechanism: PrivUnit, vectors: np.ndarray, seed: int) -> np.ndarray:
    return mechanism.grid.encode(mechanism.sample(vectors, rng=SeededUniforms(seed)))


def law(mechanism: PrivUnit, seed: int, dim: int = DIM) -> np.ndarray:
    return honest_moment(mechanism, features(np.random.default_rng([seed, 1]), 3000, dim), 1)


def test_without_liars_the_mean_is_the_plain_one_to_the_last_bit() -> None:
    vectors, mechanism = users(np.random.default_rng(1), USERS)
    batch = released(mechanism, vectors, 1)
    result = robust_mean(mechanism, batch, law(mechanism, 1), 1)
    assert result.excess < 1 and result.kept.all() and result.dropped == 0
    assert_array_equal(result.mean, mechanism.decoded_mean(batch))


def test_false_alarms_of_honest_batches() -> None:
    """300 batches: 4 alarms or more have probability 3e-4 at the stated rate. A law of 2/3 alarms always."""
    rng = np.random.default_rng(2)
    n, dim = 500, 8
    alarms = wrong = 0
    for seed in range(300):
        vectors, mechanism = users(rng, n, dim)
        honest = law(mechanism, 2, dim)
        batch = released(mechanism, vectors, seed)
        result = robust_mean(mechanism, batch, honest, 1)
        alarms += result.excess > 1
        if seed < 20:
            wrong += result.excess * 1.5 > 1
            assert result.excess / 1.5 < 1
    assert alarms < 4 and wrong == 20


@pytest.mark.parametrize("goal", ["flip", "threshold"])
def test_one_percent_of_liars_with_one_point_are_found_and_left_out(goal: str) -> None:
    """12,000 users and 1 %: 4 of 4 batches alarm. The mean is then that of the honest users."""
    rng = np.random.default_rng(3)
    for seed in range(4):
        vectors, mechanism = users(rng, 2 * USERS)
        mean = vectors.mean(axis=0)
        direction = -mean / np.linalg.norm(mean) if goal == "flip" else np.eye(len(mean))[-1]
        count = USERS // 50
        others = released(mechanism, vectors[count:], seed)
        batch = np.concatenate([points(mechanism, direction, count, seed), others])
        result, honest = robust_mean(mechanism, batch, law(mechanism, 3), 1), mechanism.decoded_mean(others)
        apart = np.linalg.norm(mechanism.decoded_mean(batch) - honest)
        assert result.excess > 1
        assert np.linalg.norm(result.mean - honest) < apart / 4
        assert result.kept[count:].mean() > 0.97


def test_imitations_are_not_found_and_move_the_mean_as_honest_users_would() -> None:
    vectors, mechanism = users(np.random.default_rng(4), USERS)
    mean = vectors.mean(axis=0)
    direction, count = -mean / np.linalg.norm(mean), USERS // 100
    others = released(mechanism, vectors[count:], 4)
    batch = np.concatenate([imitations(mechanism, direction, count, 4), others])
    result = robust_mean(mechanism, batch, law(mechanism, 4), 1)
    assert result.excess < 1
    honest = mechanism.decoded_mean(others)
    # a·(1 + |mean|) and noise of 60 draws
    noise = 4 * 0.01 / mechanism.scale / np.sqrt(mechanism.dim * count)
    assert abs(result.mean @ direction - honest @ direction - 0.01 * (1 + np.linalg.norm(mean))) < noise + 0.01


@pytest.mark.parametrize("share", [0.03, 0.1])
def test_liars_who_know_the_defence_stay_below_what_it_lets_through(share: float) -> None:
    """Whatever coordinate along the direction they choose, they move the mean by half of what one point would, at most.

    The honest mean is not lost with them: the cut's debiasing keeps it within noise.
    """
    rng = np.random.default_rng(5)
    vectors, mechanism = users(rng, USERS)
    mean, honest = vectors.mean(axis=0), law(mechanism, 5)
    direction, count = -mean / np.linalg.norm(mean), round(share * USERS)
    others = released(mechanism, vectors[count:], 5)
    reference, unit = mechanism.decoded_mean(others), np.sqrt(direction @ honest @ direction)
    for step in (1.0, NEAREST, unseen(share, USERS, mechanism.dim), 3.0, 1 / unit):
        lies = leaning(mechanism, direction, count, 5, step=min(step * unit, 1.0))
        batch = np.concatenate([lies, others])
        result = robust_mean(mechanism, batch, honest, 1)
        for estimate in (result.mean, mechanism.decoded_mean(batch)):
            assert np.linalg.norm(estimate - reference) <= moved(mechanism, share)
        assert np.linalg.norm(result.mean - reference) < share / mechanism.scale / 2 + 0.05


def test_the_law_bounds_reports_of_any_labels() -> None:
    """E[y y'] = o·I + e·E[x x'], with E<x, y>² of a user's own vector and reports of length 1: of two classes exact."""
    rng = np.random.default_rng(6)
    x, labels = features(rng, 4000), rng.integers(0, 4, 4000)
    for classes in (2, 4):
        vectors = statistic_vectors(x, labels % classes, simplex_codes(classes))
        dim = vectors.shape[1]
        mechanism = PrivUnit(dim, EPSILON)
        own, other = mechanism.squared_cosine, (1 - mechanism.squared_cosine) / (dim - 1)
        honest = other * np.eye(dim) + (own - other) * vectors.T @ vectors / len(vectors)
        public = honest_moment(mechanism, x, classes - 1)
        enlarged = other * np.eye(dim) + (public - other * np.eye(dim)) / edge(len(x), len(x.T) + 1)
        assert np.linalg.eigvalsh(public - honest)[0] > -1e-12
        assert np.linalg.eigvalsh(honest_moment(mechanism, None, 1) - honest)[0] > -1e-12
        if classes == 2:
            np.testing.assert_allclose(enlarged, honest, atol=1e-12)


def test_two_users_and_identical_reports_do_not_break_it() -> None:
    mechanism = PrivUnit(5, 1.0)
    same = np.tile(mechanism.grid.encode(np.eye(5)[:1]), (50, 1))
    for batch in (same[:2], same):
        result = robust_mean(mechanism, batch, honest_moment(mechanism, None, 1), 1)
        assert np.isfinite(result.mean).all() and result.kept.any()

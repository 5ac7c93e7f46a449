"""Guarantees, their composition, the public grid and releases."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mechanisms.accounting.ladder import ledger_rung
from mechanisms.accounting.privacy_filter import cost
from mechanisms.gaussian import Gaussian
from mechanisms.guarantee import Guarantee, gaussian_delta, metric_statement
from mechanisms.identity import Identity
from mechanisms.messages.release import Release, digest
from mechanisms.metrics import angular, discrete, euclidean
from mechanisms.quantizer import SPACE, SPHERE
from mechanisms.spherical import PlanarLaplace, Purkayastha

EMBEDDING = Guarantee(epsilon=10.0, metric="angular", diameter=math.pi, protects="sequence")
LABEL = Guarantee(epsilon=2.0, metric="discrete", diameter=1.0, protects="label")


def test_loss_and_worst_case():
    guarantee = Guarantee(
        epsilon=4.0, metric="angular", diameter=math.pi, protects="sequence", offset=0.5, numeric_epsilon=0.25
    )
    assert guarantee.loss(0.0) == 0.0
    assert guarantee.loss(1.5) == 4.0 * 1.5 + 0.75
    assert guarantee.worst_case() == guarantee.worst_case(1e-6) == 4.0 * math.pi + 0.75
    unbounded = Guarantee(epsilon=0.1, metric="euclidean", diameter=math.inf, protects="sequence")
    assert unbounded.worst_case() == math.inf and unbounded.loss(3.0) == pytest.approx(0.3)
    nothing = Guarantee(epsilon=0.0, metric="euclidean", diameter=math.inf, protects="sequence")
    assert nothing.worst_case() == 0.0


@pytest.mark.parametrize(
    ("change", "agrees"),
    [
        ({"numeric_epsilon": 5.05e-8}, True),
        ({"numeric_delta": 1.1e-24, "diameter": math.pi * (1 + 1e-12)}, True),
        ({"numeric_epsilon": 6e-9 + 5e-8}, False),
        ({"numeric_delta": 1e-15}, False),
        ({"diameter": 3.1415}, False),
        ({"epsilon": math.nextafter(10, 11)}, False),
        ({"exposes": ("length",)}, False),
    ],
)
def test_guarantees_agree_if_two_cpus_may_have_computed_them(change, agrees):
    one = Guarantee(10.0, "angular", math.pi, "sequence", numeric_epsilon=5e-8, numeric_delta=1e-24)
    assert one.agrees(replace(one, **change)) is agrees
    assert replace(one, **change).agrees(one) is agrees


@pytest.mark.parametrize(
    ("guarantees", "words"),
    [
        ([EMBEDDING], "10·d_angular"),
        ([EMBEDDING, EMBEDDING, LABEL], "20·d_angular + 2"),
        ([PlanarLaplace(4, 0.5).guarantee, EMBEDDING], "10·d_angular + 0.5·d_euclidean"),
        ([Purkayastha(4, 0.0).guarantee], "0"),
        ([EMBEDDING, Identity("label", 2).guarantee], "inf"),
        ([Gaussian(4, 1.0).guarantee], "inf"),
    ],
)
def test_the_statement_in_words(guarantees, words):
    assert metric_statement(guarantees) == words


def test_angles_keep_their_precision_at_both_ends():
    for angle in (0.0, 1e-12, 1e-8, 1.0, math.pi - 1e-8, math.pi):
        x, y = np.array([[1.0, 0.0]]), np.array([[math.cos(angle), math.sin(angle)]])
        assert angular(x, y)[0] == pytest.approx(angle, rel=1e-14, abs=1e-15)
    np.testing.assert_array_equal(euclidean(np.zeros((1, 2)), np.array([[3.0, 4.0]])), [5.0])
    np.testing.assert_array_equal(discrete(np.array([1, 2]), np.array([1, 3])), [0.0, 1.0])


@pytest.mark.parametrize("grid", [SPHERE, SPACE])
def test_the_grid_rounds_clips_and_returns(grid):
    values = np.random.default_rng(0).uniform(-1, 1, (200, 3))
    codes = grid.encode(values)
    assert codes.dtype == grid.dtype and codes.dtype.itemsize * 8 == grid.bits
    assert np.max(np.abs(grid.decode(codes) - values)) <= grid.step / 2 * (1 + 1e-12)
    np.testing.assert_array_equal(grid.encode(grid.decode(codes)), codes)
    np.testing.assert_array_equal(grid.encode(np.array([np.inf, -np.inf])), [grid.limit, -grid.limit])
    with pytest.raises(ValueError, match="not a number"):
        grid.encode(np.array([np.nan]))


def release(rows=3, **change):
    fields = {
        "payload": {"z": np.zeros((rows, 16), np.int16), "y": np.zeros(rows, np.int8)},
        "channel": "embedding",
        "stage": "train",
        "guarantee": EMBEDDING,
        "digest": "00",
    }
    return Release(**(fields | change))


def test_malformed_releases_are_refused():
    for change in ({"channel": "loss"}, {"payload": {}}, {"payload": {"a": np.zeros(2), "b": np.zeros(3)}}):
        with pytest.raises(ValueError, match="release"):
            release(**change)
    assert len(release()) == 3 and release().bytes_per_row == 33


def test_a_digest_depends_on_every_public_parameter():
    base = {"a": 1, "map": np.arange(6, dtype=np.float32).reshape(2, 3), "limit": math.inf, "nested": {"x": [1, "b"]}}
    same = {"nested": {"x": (1, "b")}, "limit": math.inf, "map": np.asfortranarray(base["map"]), "a": 1}
    assert digest(base) == digest(same) and len(digest(base)) == 64
    changes = [
        {"a": 2},
        {"map": base["map"].reshape(3, 2)},
        {"map": base["map"].astype(np.float64)},
        {"map": base["map"] + 1},
        {"nested": {"x": [1, "c"]}},
        {"limit": 5.0},
        {"more": None},
    ]
    assert len({digest(base | change) for change in changes} | {digest(base)}) == len(changes) + 1
    with pytest.raises(ValueError):
        digest({"a": math.nan})


def test_gaussian_noise_from_a_sampler_that_is_only_near_costs_what_it_adds():
    """Densities within e^(±a) of the theorem's: (ε, δ) becomes (ε + a, e^a·δ), so that at δ it is ε(e^-a·δ) + a."""
    exact, near = (Guarantee(math.inf, "euclidean", 2.0, "sequence", sigma=2.0, numeric_epsilon=a) for a in (0.0, 0.5))
    for delta in (1e-3, 1e-6, 1e-12):
        epsilon = near.worst_case(delta)
        assert epsilon == pytest.approx(exact.worst_case(delta * math.exp(-0.5)) + 0.5, rel=1e-9)
        assert math.exp(0.5) * gaussian_delta(1.0, epsilon - 0.5) <= delta
        assert cost(near, delta).epsilon >= epsilon > exact.worst_case(delta) + 0.5
        rung = ledger_rung("user", [near] * 2, delta=delta, unit="user", neighbours="", note="from the ledger")
        assert rung.epsilon >= 2 * epsilon and rung.delta == 2 * delta

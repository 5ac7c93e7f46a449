"""Contracts of every entry of the catalogue, of its loss too; the catalogue itself."""

import itertools
import math

import numpy as np
import pytest

from mechanisms.catalogue import build
from mechanisms.gaussian import Gaussian
from mechanisms.identity import Identity
from sottovoce.contracts.cases import extras, inputs, streams, unit
from tests.support.mechanisms import every_mechanism

pytest.register_assert_rewrite("sottovoce.contracts.test_mechanism")

from sottovoce.contracts import test_mechanism as contracts  # noqa: E402


@every_mechanism
def test_every_contract_holds(mechanism, monkeypatch):
    for name, contract in vars(contracts).items():
        if name.startswith("test_") and contracts.ONLY.get(name, lambda mechanism: True)(mechanism):
            marks = [mark.args for mark in getattr(contract, "pytestmark", ())]
            for values in itertools.product(*(values for _, values in marks)):
                contract(mechanism, **dict(zip((key for key, _ in marks), values, strict=True)))
    _chunks_do_not_matter(mechanism, monkeypatch)
    _the_loss_is_within_the_guarantee(mechanism)


def _chunks_do_not_matter(mechanism, monkeypatch):
    x, more = inputs(mechanism, 40), extras(mechanism, 40)
    whole = mechanism.sample(x, rng=streams(40), **more)
    for module in ("spherical", "words.distances", "words.custext"):
        monkeypatch.setattr(f"mechanisms.{module}._CHUNK", 9)
    np.testing.assert_array_equal(mechanism.sample(x, rng=streams(40), **more), whole)


def _the_loss_is_within_the_guarantee(mechanism):
    guarantee = mechanism.guarantee
    for distance in (None, 0.0, 1 if guarantee.metric == "discrete" else 0.5):
        cells = mechanism.privacy_loss(distance)
        bound = guarantee.loss(guarantee.diameter if distance is None else distance)
        losses, masses = cells.pessimistic
        assert cells.symmetric and masses.sum() + cells.infinite + cells.left_out == pytest.approx(1.0, abs=1e-10)
        if math.isfinite(bound):
            assert cells.infinite == cells.left_out == 0.0
            assert losses.max(initial=0.0) <= bound * (1 + 1e-12)
            assert cells.delta(bound * (1 + 1e-12)) == 0.0 and cells.epsilon(0.0) <= bound * (1 + 1e-12)
        assert cells.epsilon(0.0) == 0.0 if distance == 0 else math.isfinite(bound) or cells.epsilon(0.0) == math.inf
    cells = mechanism.privacy_loss()
    deltas = [(cells.delta(e), cells.delta_optimistic(e)) for e in (0.0, 0.1, 1.0, 3.0, 30.0)]
    assert all(high >= low * (1 - 1e-9) for high, low in deltas)
    assert all(a[0] >= b[0] * (1 - 1e-12) for a, b in itertools.pairwise(deltas))
    epsilon = cells.epsilon(1e-6)
    assert epsilon == math.inf or cells.delta(epsilon) <= 1e-6
    assert epsilon in (0, math.inf) or cells.delta(epsilon * (1 - 1e-6)) > 1e-6 * (1 - 1e-9)
    for distance in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"{mechanism.name.rstrip('+')}.*distance"):
            mechanism.privacy_loss(distance)


def test_the_catalogue_fills_in_sizes():
    for spec, sizes, parameters in (
        ({"mechanism": "purkayastha", "epsilon": 10}, {"channel": "embedding", "dim": 8}, {"dim": 8, "epsilon": 10.0}),
        ({"mechanism": "purkayastha", "epsilon": 1.0, "dim": 4}, {"channel": "embedding", "dim": 8}, {"dim": 4}),
        ({"mechanism": "randomized-response", "epsilon": 2}, {"channel": "label", "classes": 3}, {"classes": 3}),
        ({"mechanism": "identity"}, {"channel": "label", "classes": 3}, {"channel": "label", "size": 3}),
        ({"mechanism": "identity", "dim": 4}, {"channel": "embedding", "dim": 8}, {"size": 4}),
    ):
        built = build(spec, **sizes)
        assert {key: getattr(built, key) for key in parameters} == parameters
    spec = {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-6}
    assert build(spec, channel="embedding", dim=8) == Gaussian.calibrated(1.0, 1e-6, 8)


def test_identity_passes_values_and_promises_nothing():
    x = unit(5, 16)
    mechanism = Identity("embedding", 16)
    np.testing.assert_allclose(mechanism.sample(x, rng=streams(5)), x, rtol=0, atol=1e-15)
    assert mechanism.guarantee.worst_case(1e-6) == math.inf == Identity("label", 2).guarantee.worst_case()
    np.testing.assert_array_equal(Identity("label", 3).sample(np.array([2, 0]), rng=streams(2)), [2, 0])
    with pytest.raises(ValueError, match="channel"):
        Identity("text", 5)

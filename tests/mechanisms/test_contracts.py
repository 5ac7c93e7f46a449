"""Contracts that every catalogue entry passes; the catalogue itself."""

import math

import numpy as np
import pytest

from mechanisms.catalogue import build
from mechanisms.gaussian import Gaussian
from mechanisms.identity import Identity
from mechanisms.spherical import PlanarLaplace, Purkayastha
from sottovoce.contracts.cases import extras, inputs, streams, unit
from tests.support.mechanisms import every_mechanism, instances

pytest.register_assert_rewrite("sottovoce.contracts.test_mechanism")

from sottovoce.contracts import test_mechanism as contracts  # noqa: E402

globals().update({name: test for name, test in vars(contracts).items() if name.startswith("test_")})

# --- contracts
# ----------------------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc):
    """Every entry of the catalogue, where a contract does not name its mechanisms itself."""
    if "mechanism" in metafunc.fixturenames and metafunc.function.__module__ != __name__:
        applies = contracts.ONLY.get(metafunc.function.__name__, lambda mechanism: True)
        metafunc.parametrize("mechanism", [p for p in instances() if applies(p.values[0])])


@every_mechanism
def test_chunks_do_not_matter(mechanism, monkeypatch):
    x, more = inputs(mechanism, 40), extras(mechanism, 40)
    whole = mechanism.sample(x, rng=streams(40), **more)
    for module in ("spherical", "words.distances", "words.custext"):
        monkeypatch.setattr(f"mechanisms.{module}._CHUNK", 9)
    np.testing.assert_array_equal(mechanism.sample(x, rng=streams(40), **more), whole)


# --- the catalogue
# ------------------------------------------------------------------------------------------------


def test_the_catalogue_fills_in_sizes():
    assert build({"mechanism": "purkayastha", "epsilon": 10}, channel="embedding", dim=8) == Purkayastha(8, 10.0)
    assert build({"mechanism": "purkayastha", "epsilon": 10.0, "dim": 4}, channel="embedding", dim=8).dim == 4
    assert build({"mechanism": "randomized-response", "epsilon": 2}, channel="label", classes=3).classes == 3
    assert build({"mechanism": "identity"}, channel="label", classes=3) == Identity("label", 3)
    assert build({"mechanism": "identity", "dim": 4}, channel="embedding", dim=8) == Identity("embedding", 4)
    spec = {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-6}
    assert build(spec, channel="embedding", dim=8) == Gaussian.calibrated(1.0, 1e-6, 8)
    assert PlanarLaplace(3, 1.0).normalize


# --- identity
# -----------------------------------------------------------------------------------------------------


def test_identity_passes_values_and_promises_nothing():
    x = unit(5, 16)
    mechanism = Identity("embedding", 16)
    np.testing.assert_allclose(mechanism.sample(x, rng=streams(5)), x, rtol=0, atol=1e-15)
    assert mechanism.guarantee.worst_case(1e-6) == math.inf == Identity("label", 2).guarantee.worst_case()
    np.testing.assert_array_equal(Identity("label", 3).sample(np.array([2, 0]), rng=streams(2)), [2, 0])
    with pytest.raises(ValueError, match="channel"):
        Identity("text", 5)

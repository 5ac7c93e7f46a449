"""`amplify`: every bound that a mechanism has, and the least of them."""

import itertools
import json
import math

import numpy as np
import pytest

from mechanisms.accounting import shuffle
from mechanisms.accounting.shuffle import NAMES, amplify
from mechanisms.gaussian import Gaussian
from mechanisms.identity import Identity
from mechanisms.losses import response_blanket
from mechanisms.randomized_response import RandomizedResponse, RandomizedResponsePrior
from mechanisms.spherical import Purkayastha
from tests.support.lower import lower_bounds


def test_amplify_reports_every_bound_and_takes_the_least():
    answer = amplify([Purkayastha(16, 2.0)], users=10_000, delta=1e-6)
    told = answer.to_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert {"local_worst_case", "local_epsilon", "bounds", "epsilon"} <= told.keys()
    assert tuple(told["bounds"]) == NAMES
    assert answer.local_worst_case == pytest.approx(2 * math.pi, rel=1e-6)
    assert answer.local_epsilon == pytest.approx(4.37, abs=0.01)
    assert answer.bounds["blanket"] == pytest.approx(0.203, rel=0.05)
    assert answer.epsilon == answer.bounds["blanket_truncated"] == pytest.approx(0.145, rel=0.05)
    assert answer.bounds["blanket"] < answer.bounds["variation_ratio"] < 1.92  # the stronger clone has no less
    assert max(lower_bounds([Purkayastha(16, 2.0)], 10_000, 1e-6).values()) < answer.epsilon
    numeric = Purkayastha(16, 2.0).guarantee.numeric_delta
    assert answer.sampler_delta == pytest.approx(10_000 * numeric)
    assert answer.total_variation == pytest.approx(Purkayastha(16, 2.0).privacy_loss().delta(0.0), abs=1e-6)


@pytest.mark.parametrize("kappa", [12.0, 40.0])
def test_no_generic_bound_falls_below_what_data_sets_show_where_floats_end(kappa):
    # beyond ε = 36.7 the two sides of a clone pair's divergence agree in float64: their δ of 0 is rounding
    answer = amplify([Purkayastha(16, kappa)], users=1000, delta=1e-6)
    assert answer.epsilon == answer.local_epsilon and set(answer.bounds.values()) == {None}
    assert max(lower_bounds([Purkayastha(16, kappa)], 1000, 1e-6).values()) <= answer.epsilon


def test_amplify_of_a_linked_release_is_that_of_the_joint_randomizer():
    parts = (Purkayastha(4, 0.7), RandomizedResponse(1.0, 2))
    joint = amplify(parts, users=5000, delta=1e-6)
    alone = [amplify([part], users=5000, delta=1e-6) for part in parts]
    assert joint.local_worst_case == pytest.approx(sum(a.local_worst_case for a in alone))
    assert max(a.local_epsilon for a in alone) < joint.local_epsilon <= sum(a.local_epsilon for a in alone)
    assert joint.epsilon > max(a.epsilon for a in alone)
    assert joint.epsilon == pytest.approx(amplify(parts[::-1], users=5000, delta=1e-6).epsilon, rel=1e-3)
    # β of the two together, by enumeration of the cells of each
    assert max(a.total_variation for a in alone) < joint.total_variation < sum(a.total_variation for a in alone)


def test_amplify_uses_only_what_a_mechanism_has():
    # priors of the users' own are one randomizer only together with the embeddings they are made from
    alone = amplify([RandomizedResponsePrior(1.0, 4)], users=1000, delta=1e-6)
    assert set(alone.bounds.values()) == {None} and alone.epsilon == alone.local_epsilon
    prior = amplify([Purkayastha(4, 0.5), RandomizedResponsePrior(1.0, 4)], users=1000, delta=1e-6)
    response = amplify([Purkayastha(4, 0.5), RandomizedResponse(1.0, 2)], users=1000, delta=1e-6)
    assert response.epsilon < prior.epsilon == prior.bounds["blanket"] < prior.bounds["variation_ratio"]
    noise = amplify([Gaussian(4, 2.0)], users=1000, delta=1e-6)
    assert noise.local_worst_case == math.inf and math.isfinite(noise.local_epsilon)
    assert all(value is None for name, value in noise.bounds.items() if not name.startswith("blanket"))
    assert noise.epsilon == noise.bounds["blanket_truncated"] < noise.local_epsilon
    one = amplify([Purkayastha(16, 10.0)], users=1, delta=1e-6)
    assert one.bounds["blanket"] is None and one.epsilon == pytest.approx(one.local_epsilon)


@pytest.mark.parametrize(("embedding", "label", "before", "now"), [(2.0, 1.0, 0.690, 0.102), (1.0, 1.0, 0.107, 0.0368)])
def test_a_prior_over_two_labels_costs_what_randomized_response_costs(embedding, label, before, now):
    """Of which it is a function, message by message: what the generic bounds say of it stood here before."""
    prior, response = (
        amplify([Purkayastha(16, embedding), kind(label, 2)], users=67_349, delta=1e-6)
        for kind in (RandomizedResponsePrior, RandomizedResponse)
    )
    assert prior.epsilon == pytest.approx(response.epsilon, rel=1e-12)
    assert prior.epsilon == pytest.approx(now, rel=5e-3)
    assert prior.bounds["variation_ratio"] == pytest.approx(before, rel=5e-3)


@pytest.mark.parametrize("classes", [2, 3, 7, 300])
def test_the_pair_of_a_prior_is_above_that_of_every_number_of_labels(classes):
    """Every pair of labels under randomized response of k <= K labels, by stop-losses of u·U - v·V."""
    epsilon, above = 1.3, response_blanket.with_prior(1.3, classes)
    w, u, v = np.exp(above.log_w), np.exp(above.log_p - above.log_w), np.exp(above.log_q - above.log_w)
    assert w @ u == pytest.approx(1.0) and w.sum() == pytest.approx(1.0)
    assert np.exp(above.log_gamma) == pytest.approx(min(u.min(), v.min()))
    slack = 1e-12 if classes <= 64 else 1e-4  # gathered cells count at their means here

    def stop_loss(w, u, v, a, b, t):
        return w @ np.maximum(a * u - b * v - t, 0)

    seen = 0
    for k in range(1, classes + 1, max(1, classes // 12)):
        high, low = k * math.exp(epsilon) / (math.exp(epsilon) + k - 1), k / (math.exp(epsilon) + k - 1)
        weights = np.array([1.0, 1.0, k - 2]) / k if k > 1 else np.array([1.0, 0.0, 0.0])
        inside = (np.array([high, low, low]), np.array([low, high, low])) if k > 1 else (np.ones(3), np.ones(3))
        for first, second in (inside, (inside[0], np.ones(3)), (np.ones(3), inside[1])):
            for a, b, t in itertools.product((0.3, 1.0, 2.0), (0.5, 1.0, 3.0), np.linspace(-3, 3, 25)):
                found = stop_loss(weights, first, second, a, b, t)
                assert found <= stop_loss(w, u, v, a, b, t) + slack
                seen += found > stop_loss(np.array([0.5, 0.5]), *(inside[i][:2] for i in (0, 1)), a, b, t) + 1e-3
    assert seen or classes == 2  # a pair of one k alone would not do


def test_amplify_of_an_unprotected_channel_is_infinite():
    answer = amplify([RandomizedResponse(1.0, 2), Identity("embedding", 4)], users=1000, delta=1e-6)
    assert answer.epsilon == answer.local_epsilon == math.inf
    assert set(answer.bounds.values()) == {None}
    assert answer.to_dict()["epsilon"] == "inf"
    json.dumps(answer.to_dict(), allow_nan=False)


def test_amplify_composes_where_cells_would_be_too_many(monkeypatch):
    pytest.importorskip("dp_accounting")
    parts = [Purkayastha(4, 0.3), RandomizedResponsePrior(0.7, 3)]
    exact = amplify(parts, users=2000, delta=1e-6)
    monkeypatch.setattr(shuffle, "_MOST_CELLS", 1)
    rough = amplify(parts, users=2000, delta=1e-6)
    assert rough.local_epsilon == pytest.approx(exact.local_epsilon, rel=1e-3)
    assert rough.bounds["blanket"] is None and rough.epsilon == rough.bounds["variation_ratio"] >= exact.epsilon


@pytest.mark.parametrize(
    "users, delta", [(0, 1e-6), (-5, 1e-6), (1.5, 1e-6), (math.nan, 1e-6), (10, 0.0), (10, 1.0), (10, math.nan)]
)
def test_amplify_refuses_numbers_that_make_no_sense(users, delta):
    with pytest.raises(ValueError, match=r"^shuffle: [^\n]+$"):
        amplify([RandomizedResponse(1.0, 2)], users=users, delta=delta)


def test_amplify_refuses_mechanisms_without_a_loss():
    with pytest.raises(ValueError, match="nothing is released"):
        amplify([], users=10, delta=1e-6)
    with pytest.raises(ValueError, match="has no loss distribution"):
        amplify([object()], users=10, delta=1e-6)

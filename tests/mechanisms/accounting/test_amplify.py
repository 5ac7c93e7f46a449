"""`amplify`: every bound of a mechanism, the least of them, samplers in δ, and several rounds of a shuffler."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from mechanisms.accounting import shuffle
from mechanisms.accounting.blanket import blanket_delta
from mechanisms.accounting.ladder import ladder
from mechanisms.accounting.planner import Target, fits
from mechanisms.accounting.rounds import envelope, round_loss, rounds_epsilon
from mechanisms.accounting.shuffle import NAMES, amplify, joint_blanket, price, with_sampler_error
from mechanisms.accounting.truncated import truncated_epsilon
from mechanisms.gaussian import Gaussian
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import prior_blanket
from mechanisms.randomized_response import RandomizedResponse, RandomizedResponsePrior
from mechanisms.spherical import PlanarLaplace, Purkayastha
from tests.support.lower import lower_bounds
from tests.support.small_worlds import hockey_stick, ring, ring_cells, shuffled


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
    assert 0 < answer.sampler_delta == pytest.approx(10_000 * numeric, abs=0)
    assert answer.total_variation == pytest.approx(Purkayastha(16, 2.0).privacy_loss().delta(0.0), abs=1e-6)


def test_amplify_of_a_linked_release_is_that_of_the_joint_randomizer():
    parts = (Purkayastha(4, 0.7), RandomizedResponse(1.0, 2))
    joint = amplify(parts, users=5000, delta=1e-6)
    alone = [amplify([part], users=5000, delta=1e-6) for part in parts]
    assert joint.local_worst_case == pytest.approx(sum(a.local_worst_case for a in alone))
    assert max(a.local_epsilon for a in alone) < joint.local_epsilon <= sum(a.local_epsilon for a in alone)
    assert joint.epsilon > max(a.epsilon for a in alone)
    assert joint.epsilon == pytest.approx(amplify(parts[::-1], users=5000, delta=1e-6).epsilon, rel=1e-3)
    cells, numeric = joint_blanket(parts), parts[0].guarantee.numeric_epsilon
    assert cells.log_gamma == pytest.approx(sum(part.blanket().log_gamma for part in parts) - numeric)
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


@pytest.mark.parametrize("classes", [2, 3, 300])
def test_the_pair_of_a_prior_is_above_that_of_every_number_of_labels(classes):
    """Every pair of labels under randomized response of k <= K labels, by stop-losses of u·U - v·V."""
    epsilon, above = 1.3, prior_blanket(1.3, classes)
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


def test_amplify_composes_where_cells_would_be_too_many(monkeypatch):
    pytest.importorskip("dp_accounting")
    parts = [Purkayastha(4, 0.3), RandomizedResponsePrior(0.7, 3)]
    exact = amplify(parts, users=2000, delta=1e-6)
    monkeypatch.setattr(shuffle, "_MOST_CELLS", 1)
    rough = amplify(parts, users=2000, delta=1e-6)
    assert rough.local_epsilon == pytest.approx(exact.local_epsilon, rel=1e-3)
    assert rough.bounds["blanket"] is None and rough.epsilon == rough.bounds["variation_ratio"] >= exact.epsilon


EPSILONS = (0.0, 0.5, 2.0, 8.0)


def test_samplers_add_what_the_theorem_says_and_can_add_that_much() -> None:
    # an output that x has more often than its mechanism, and x' never: both sides of the sum are paid
    near_p, near_q = np.array([0.6, 0.4, 0.0]), np.array([0.4, 0.5, 0.1])
    assert hockey_stick(near_p, near_q, 0.1) == pytest.approx(price(0.1, 0.1) - 0.5 * math.expm1(0.1))


def test_what_is_set_aside_suffices() -> None:
    def bound(delta: float) -> float:
        asked.append(delta)
        return math.log(1e-3 / delta)

    for lost in (0.0, 1e-19, 1e-12, 1e-10, 1e-8, 2e-7, 1e-3):
        asked: list[float] = []
        epsilon = with_sampler_error(bound, 1e-6, lost)
        if epsilon is not None:
            assert asked[-1] + price(epsilon, lost) * (lost > 0) <= 1e-6 * (1 + 1e-15)
            assert len(asked) <= 4
    assert with_sampler_error(bound, 1e-6, 0.0) == bound(1e-6)
    assert with_sampler_error(bound, 1e-6, 2e-7) is None  # e^ε of them is more than δ
    assert with_sampler_error(lambda delta: None, 1e-6, 1e-12) is None


@dataclass(frozen=True)
class Poor(RandomizedResponse):
    """Randomized response whose sampler is off by so much."""

    lost: float = 0.0

    @property
    def guarantee(self) -> Guarantee:
        return replace(super().guarantee, numeric_delta=self.lost)


def printed(mechanism: Any) -> float | None:
    return {r.name: r for r in ladder(None, mechanism, users=1000, delta=1e-6)}["shuffled"].epsilon


def test_a_poor_sampler_is_counted_wherever_shuffling_is() -> None:
    """The samplers of a thousand users: as before where they are nothing, more where they are much, else no figure."""
    good = printed(Poor(1.0, 2, lost=1e-17))
    assert good == pytest.approx(printed(RandomizedResponse(1.0, 2)), rel=1e-6)
    worse = printed(Poor(1.0, 2, lost=1.5e-10))
    assert good is not None and worse is not None and worse > good * 1.001
    assert printed(Poor(1.0, 2, lost=1e-9)) is None
    found = amplify([Poor(1.0, 2, lost=1e-9)], users=1000, delta=1e-6)
    assert set(found.bounds.values()) == {None} and found.sampler_delta == pytest.approx(1e-6)
    target = Target(good * 1.0005, 1e-6, 1000)
    assert fits([Poor(1.0, 2, lost=1e-17)], target) and not fits([Poor(1.0, 2, lost=1e-9)], target)


def test_a_hundred_million_users_are_hidden_at_a_small_delta() -> None:
    found = amplify([Purkayastha(16, 2.0)], users=10**8, delta=1e-10)
    assert found.reason == "" and 0.002 < found.epsilon < 0.0024 and found.sampler_delta < 1e-14
    raw = amplify([PlanarLaplace(16, 2.0, normalize=False)], users=10**8, delta=1e-10)
    assert raw.epsilon == raw.local_epsilon and raw.reason.startswith("the samplers of all users may be 1.0e+00")


DELTA = 1e-6


def test_the_envelope_lies_between_the_true_profile_and_the_bounds():
    """Exact profiles of exchangeable pairs, raised at random: chords of what is left lie above the truth everywhere."""
    rng = np.random.default_rng(0)
    grid = np.linspace(0, 3, 60)

    def chords(corners, deltas, epsilons):
        return np.interp(np.exp(epsilons), np.exp(corners), deltas)

    for _ in range(50):
        p = rng.dirichlet(np.full(6, 0.3))
        truth = np.array([np.maximum(p - math.exp(e) * p[::-1], 0).sum() for e in grid])
        bounds = truth * (1 + rng.exponential(0.2, 60)) + 1e-9
        corners, deltas = envelope(grid, bounds)
        slopes = np.diff(deltas) / np.diff(np.exp(corners))
        assert (np.diff(slopes) >= 0).all()
        left = chords(corners, deltas, grid)
        assert (left <= bounds * (1 + 1e-9)).all() and (left >= truth * (1 - 1e-9)).all()
        # δ(0) <= tanh(ε/2) + 2·δ(ε)/(1 + e^ε), of the truth; and the envelope has it
        assert deltas[0] <= (np.tanh(corners / 2) + 2 * deltas / (1 + np.exp(corners))).min() * (1 + 1e-9)


def test_two_rounds_of_every_data_set_are_below_the_composition():
    """All data sets of three users on a ring of four, any two of them in turn: exact hockey sticks of the product."""
    laws, cells, n = ring(4, 0.8), ring_cells(4, 0.8), 3
    tables = []
    for other in (1, 2):
        for others in itertools.combinations_with_replacement(range(4), n - 1):
            first, second = (shuffled([laws[z], *(laws[w] for w in others)]) for z in (0, other))
            masses = np.stack([first, second], axis=1)
            tables += [masses, masses[:, ::-1]]

    def worst(epsilon):
        pairs = itertools.product(tables, repeat=2)
        products = ((np.outer(a[:, 0], b[:, 0]), np.outer(a[:, 1], b[:, 1])) for a, b in pairs)
        return max(np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in products)

    for delta in (0.2, 0.05):
        epsilon = rounds_epsilon(cells, n, 2, delta)
        assert worst(epsilon) <= delta < worst(epsilon / 3)


@pytest.mark.parametrize(("kappa", "count", "prototype", "before"), [(4, 50, 2.988, 5.944)])
def test_rounds_take_the_least_over_several_cuts(kappa, count, prototype, before):
    epsilon = rounds_epsilon(Purkayastha(16, kappa).blanket(), 67_349, count, DELTA)
    assert 0.97 * prototype <= epsilon <= prototype < before


def test_rounds_compose():
    cells = Purkayastha(16, 2.0).blanket()
    single = truncated_epsilon(cells, 67_349, DELTA)
    one, four = (rounds_epsilon(cells, 67_349, count, DELTA) for count in (1, 4))
    assert single * (1 - 1e-3) <= one <= single * 1.1  # the truncation pays for a hundredth of δ here
    assert 1.5 * one < four < 4 * one
    assert rounds_epsilon(Purkayastha(16, 50.0).blanket(), 10, 1, DELTA) is None


def test_a_round_that_costs_next_to_nothing_is_not_free():
    """Its δ(0) is within its share of δ, and no less than it says."""
    faint, share = RandomizedResponse(0.02, 2).blanket(), 0.1 * 1e-2 / 2
    assert 0 < blanket_delta(faint, 400, 0.0) <= share == round_loss(faint, 400, share).delta(0.0)
    assert rounds_epsilon(faint, 400, 2, 0.1) == 0.0

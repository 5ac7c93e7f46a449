"""Several rounds of a shuffler: never below what two data sets in turn show, and one by one as all at once."""

import itertools
import math

import numpy as np
import pytest

from mechanisms import Purkayastha
from mechanisms.accounting.blanket import blanket_delta
from mechanisms.accounting.rounds import envelope, profile, round_loss, rounds_epsilon
from mechanisms.accounting.truncated import truncated_epsilon
from mechanisms.randomized_response import RandomizedResponse
from tests.support.rings import ring, ring_cells, shuffled

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
        assert (chords(corners[1:], deltas[1:] * 0.99, grid[grid >= corners[1]]) < truth[grid >= corners[1]]).any() or (
            left > truth * 1.001
        ).any()  # the harness sees a profile that is too low


def test_two_rounds_of_every_data_set_are_below_the_composition():
    """All data sets of three users on a ring of four, any two of them in turn: exact hockey sticks of the product."""
    laws, cells, n = ring(4, 0.8), ring_cells(4, 0.8), 3
    tables = []
    for other in (1, 2):
        for others in itertools.combinations_with_replacement(range(4), n - 1):
            first, second = (shuffled([laws[z], *(laws[w] for w in others)]) for z in (0, other))
            masses = np.array([[first[key], second[key]] for key in first])
            tables += [masses, masses[:, ::-1]]

    def worst(epsilon):
        pairs = itertools.product(tables, repeat=2)
        products = ((np.outer(a[:, 0], b[:, 0]), np.outer(a[:, 1], b[:, 1])) for a, b in pairs)
        return max(np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in products)

    for delta in (0.2, 0.05):
        epsilon = rounds_epsilon([(cells, n, 2)], delta)
        assert worst(epsilon) <= delta < worst(epsilon / 3)


def test_one_round_is_not_two_rounds():
    """What the harness above would say of a bound that forgot a round."""
    cells = ring_cells(4, 0.8)
    one, two = (rounds_epsilon([(cells, 3, count)], 0.05) for count in (1, 2))
    assert two > 1.2 * one


@pytest.mark.parametrize(("kappa", "count", "prototype", "before"), [(4, 2, 0.682, 0.916), (4, 50, 2.988, 5.944)])
def test_rounds_take_the_least_over_several_cuts(kappa, count, prototype, before):
    epsilon = rounds_epsilon([(Purkayastha(16, kappa).blanket(), 67_349, count)], DELTA)
    assert 0.97 * prototype <= epsilon <= prototype < before


def test_profile_falls():
    deltas = profile(Purkayastha(16, 2.0).blanket(), 10_000, [0.0, 0.1, 0.2])
    assert deltas[0] > deltas[1] > deltas[2] > 0


def test_rounds_compose():
    cells = Purkayastha(16, 2.0).blanket()
    single = truncated_epsilon(cells, 67_349, DELTA)
    one, four = (rounds_epsilon([(cells, 67_349, count)], DELTA) for count in (1, 4))
    assert single * (1 - 1e-3) <= one <= single * 1.1  # the truncation pays for a hundredth of δ here
    assert one < four < 4 * one
    # one by one costs what four at once cost
    singly = rounds_epsilon([(cells, 67_349, 1)] * 4, DELTA)
    assert singly == pytest.approx(four, rel=0.01)
    assert rounds_epsilon([(Purkayastha(16, 50.0).blanket(), 10, 1)], DELTA) is None


def test_a_round_that_costs_next_to_nothing_is_not_free_beside_another():
    """Its δ(0) is within its share of δ, and no less than it says: two rounds of two kinds cost more than one."""
    faint, loud = RandomizedResponse(0.02, 2).blanket(), RandomizedResponse(2.0, 2).blanket()
    share = 0.1 * 1e-2 / 2
    assert 0 < blanket_delta(faint, 400, 0.0) <= share and round_loss(faint, 400, share).delta(0.0) == share
    alone, both = (rounds_epsilon(rounds, 0.1) for rounds in ([(loud, 20, 1)], [(loud, 20, 1), (faint, 400, 1)]))
    assert both > alone
    assert rounds_epsilon([(faint, 400, 2)], 0.1) == 0.0

"""The blanket bound where numbers end: next to no samples, tilts that overflow, values far below 0."""

import math
from itertools import product

import mpmath
import numpy as np
import pytest

from mechanisms import Gaussian, PlanarLaplace, Purkayastha, RandomizedResponse
from mechanisms.accounting.blanket import blanket_delta, blanket_epsilon
from mechanisms.accounting.generic import LEAST_DELTA
from mechanisms.accounting.shuffle import amplify, joint_blanket
from mechanisms.accounting.truncated import fits_truncated, truncated_epsilon
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.privunit import PrivUnit
from tests.support.lower import few_cells_delta, lower_bounds

DELTA = 1e-6


@pytest.mark.parametrize("share", [0.5, 0.9, 0.97, 0.999])
@pytest.mark.parametrize("n", [1, 1000, 10**6])
def test_the_bound_holds_where_next_to_nobody_sends_a_sample(n, share):
    """The exact δ is then the local one, (p - e^ε·q)_+ of an answer."""
    local = 40.0
    mechanism = RandomizedResponse(local, 2)
    epsilon = share * local
    exact = -math.expm1(epsilon - local) / (1 + math.exp(-local))
    assert exact * (1 - 1e-9) <= blanket_delta(mechanism.blanket(), n, epsilon)


@pytest.mark.filterwarnings("error")
def test_what_no_number_holds_is_no_bound_and_no_noise():
    """A tilt that overflows, and a law with values far below 0 whose bins are wider than its largest value."""
    response = RandomizedResponse(20.0, 10)
    found = blanket_epsilon(response.blanket(), 10**9, DELTA)
    assert found is None or 0 <= found <= 20.0
    far = joint_blanket([Purkayastha(16, 8.0), RandomizedResponse(1.0, 2)])
    found = truncated_epsilon(far, 10**6, DELTA)
    assert 20 < found < far.loss().epsilon(DELTA)


def two_outcomes(tilt, gamma):
    """Cells of (1 ± tilt)/2 under either input, over a fair coin as blanket of weight gamma."""
    log_half, up = math.log(0.5), np.array([math.log1p(tilt), math.log1p(-tilt)])
    down = up[::-1]
    return BlanketCells(math.log(gamma), np.full(2, log_half), log_half + up, log_half + down, up, up, down, down)


@pytest.mark.parametrize("loss", [1e-12, 4.22e-10, 1e-7, 1e-4, 1.0])
@pytest.mark.parametrize("gamma", [0.011, 0.3, 1 - 1e-6])
def test_a_loss_of_next_to_nothing_is_not_lost_in_rounding(loss, gamma):
    """The sum over who sends a sample and what it is, at fifty digits; U - e^ε·V was known to 1e-16/loss alone."""
    cells = two_outcomes(math.tanh(loss / 2), gamma)
    with mpmath.workdps(50):
        tilt = mpmath.tanh(mpmath.mpf(loss) / 2)
        for n, share in product((1, 2, 3, 4), (0.0, 0.3, 0.9, 0.999, 1 - 1e-6)):
            epsilon = share * loss
            values = [1 + tilt - mpmath.exp(epsilon) * (1 - tilt), 1 - tilt - mpmath.exp(epsilon) * (1 + tilt)]
            exact = mpmath.mpf(0)
            for samples in range(1, n + 1):
                sent = mpmath.binomial(n, samples) * mpmath.mpf(gamma) ** samples * (1 - gamma) ** (n - samples)
                sums = (
                    max(ups * values[0] + (samples - ups) * values[1], 0) * mpmath.binomial(samples, ups)
                    for ups in range(samples + 1)
                )
                exact += sent * mpmath.fsum(sums) / 2**samples / (gamma * n)
            assert exact <= blanket_delta(cells, n, epsilon)


def test_an_output_that_next_to_nobody_else_sends_is_left_out_and_not_a_crash():
    w, p, q = np.array([1.0, 1e-160]), np.array([0.5, 0.5]), np.array([0.75, 0.25])
    u, v = np.log(p / w), np.log(q / w)
    cells = BlanketCells(math.log(0.5), np.log(w), np.log(p), np.log(q), u, u, v, v)
    assert blanket_delta(cells, 3, 0.1) == pytest.approx(0.5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("mechanism", "users", "delta"),
    [
        (Purkayastha(16, 60.0), 3, 1e-90),
        (PlanarLaplace(3, 1e-8), 10, 1e-10),
        (Purkayastha(2, 1e-3), 4, LEAST_DELTA),
        (PrivUnit(16, 1e-6), 1, LEAST_DELTA),
        (PrivUnit(16, 60.0), 10, 1e-20),
        (RandomizedResponse(60.0, 3), 1000, 1e-9),
        (RandomizedResponse(1e-100, 2), 10**9, 1e-6),
        (Gaussian(2, 1e-6), 100, 1e-200),
        (Gaussian(2, 1e6), 10, 1 - 1e-9),
        (Purkayastha(3, 1000.0), 2, 0.999),
    ],
)
def test_every_accepted_input_has_a_number(mechanism, users, delta):
    answer = amplify([mechanism], users=users, delta=delta)
    assert 0 <= answer.epsilon <= answer.local_epsilon


def test_a_delta_that_leaves_nothing_to_share_is_refused_in_one_line():
    for delta in (5e-324, 1e-300, 0.99 * LEAST_DELTA):
        with pytest.raises(ValueError, match=r"^shuffle: delta must be at least 1e-290, got [^\n]+$"):
            amplify([Purkayastha(3, 1.0)], users=10, delta=delta)


def test_users_who_all_but_tell_the_truth() -> None:
    """Three of them: the exact δ of randomized response, by its three counts."""
    cells = RandomizedResponse(60.0, 2).blanket()
    for epsilon in (1.0, 30.0, 59.0):
        assert few_cells_delta(cells, 3, epsilon) <= blanket_delta(cells, 3, epsilon)


@pytest.mark.parametrize("mechanism", [Gaussian(4, 1.0), PlanarLaplace(4, 2.0), Purkayastha(4, 2.0)])
def test_a_delta_at_a_known_epsilon_agrees_with_the_search_for_an_epsilon(mechanism):
    """What a search says holds at a hair above it, and nothing holds well below the truth's own lower bound."""
    cells, users = mechanism.blanket(), 5000
    found = truncated_epsilon(cells, users, DELTA)
    assert fits_truncated(cells, users, found * 1.001, DELTA)
    least = max(lower_bounds([mechanism], users, DELTA).values())
    assert not fits_truncated(cells, users, least * 0.99, DELTA)

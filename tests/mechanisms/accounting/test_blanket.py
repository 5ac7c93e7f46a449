"""The blanket bound and its truncation: for pure mechanisms, for Gaussian noise, and where numbers end."""

import math
from dataclasses import replace
from itertools import product

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from mechanisms import Gaussian, PlanarLaplace, Purkayastha, RandomizedResponse
from mechanisms.accounting.blanket import blanket_delta, blanket_epsilon
from mechanisms.accounting.generic import LEAST_DELTA
from mechanisms.accounting.shuffle import amplify, joint_blanket
from mechanisms.accounting.truncated import best_truncation, fits_truncated, truncated, truncated_epsilon
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.gaussian import line
from mechanisms.privunit import PrivUnit
from tests.support.lower import few_cells_delta, lower_bounds, mixture
from tests.support.small_worlds import World, largest_delta, reduced_pair, ring, ring_cells

DELTA = 1e-6

MECHANISMS = [
    Purkayastha(2, 1.5),
    Purkayastha(16, 2.0),
    Purkayastha(768, 4.0),
    PlanarLaplace(16, 4.0),
    RandomizedResponse(2.0, 2),
    RandomizedResponse(4.0, 10),
]


def ident(mechanism):
    return "-".join(str(v) for v in (mechanism.name, *vars(mechanism).values()))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("n", [1, 6])
def test_reduced_pair_by_definition(classes, n):
    local = 1.5
    mechanism = RandomizedResponse(local, classes)
    every = np.arange(classes)
    p = np.exp(mechanism.log_prob(every, np.zeros(classes, dtype=int)))
    q = np.exp(mechanism.log_prob(every, np.ones(classes, dtype=int)))
    gamma = classes / (math.exp(local) + classes - 1)
    for epsilon in (0.0, 0.3, 1.0):
        exact = reduced_pair(p, q, np.full(classes, 1 / classes), gamma, n, epsilon)
        above = blanket_delta(mechanism.blanket(), n, epsilon)
        assert exact <= above * (1 + 1e-9)
        assert above <= exact * 1.02 + 1e-12


@pytest.mark.parametrize("kappa", [1.0])
def test_every_data_set_is_below_the_blanket_and_its_truncation(kappa):
    """All data sets of four users on a ring of six."""
    cells, n, epsilons = ring_cells(6, kappa), 4, (0.1, 0.5)
    for epsilon, worst in zip(epsilons, largest_delta(World(ring(6, kappa)), n, epsilons), strict=True):
        assert worst <= blanket_delta(cells, n, epsilon)
        for weight in np.log([0.3, 0.6, 0.9]):
            cut, eta = truncated(cells, max(weight, cells.log_gamma))
            assert worst <= blanket_delta(cut, n, epsilon) + (1 + math.exp(epsilon)) * (n - 1) * eta


@pytest.mark.parametrize(("users", "epsilon"), [(20_000, 4.0), (10**6, 8.0)])
def test_the_blanket_of_privunit_is_reached_by_a_data_set(users, epsilon):
    mechanism = PrivUnit(64, epsilon, 0.5)
    above, bounds = blanket_epsilon(mechanism.blanket(), users, DELTA), lower_bounds([mechanism], users, DELTA)
    assert above / 1.002 < bounds["all_apart"] < above
    assert max(bounds[name] for name in ("all_at_x", "all_at_x_prime", "half_half")) < above / 1.3


def test_truncation_counts_what_it_moves():
    """η by its definition, and the cut really covers γ'·ω: the ring, where everything is a finite sum."""
    cells = ring_cells(6, 1.0)
    law = ring(6, 1.0)[0]
    for gamma in (0.2, 0.5, 1.0):
        if math.log(gamma) >= cells.log_gamma:
            _, eta = truncated(cells, math.log(gamma))
            assert eta == pytest.approx(np.maximum(gamma / 6 - law, 0).sum(), rel=1e-9, abs=1e-15)
    with pytest.raises(ValueError, match="log_gamma"):
        truncated(cells, cells.log_gamma - 1)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=ident)
def test_masses_and_bounds_of_cells(mechanism):
    cells = mechanism.blanket()
    for mass in (cells.log_w, cells.log_p, cells.log_q):
        assert np.exp(mass).sum() == pytest.approx(1.0, abs=1e-10)
    with np.errstate(invalid="ignore"):
        u, v = cells.log_p - cells.log_w, cells.log_q - cells.log_w
    seen = cells.log_w > -300
    assert (u[seen] >= cells.log_u_low[seen] - 1e-9).all() and (u[seen] <= cells.log_u_high[seen] + 1e-9).all()
    assert (v[seen] >= cells.log_v_low[seen] - 1e-9).all() and (v[seen] <= cells.log_v_high[seen] + 1e-9).all()
    assert cells.log_u_low.min() >= cells.log_gamma - 1e-9
    local = cells.loss()
    if mechanism.channel == "embedding":
        assert local.epsilon(DELTA) >= mechanism.privacy_loss().epsilon_optimistic(DELTA) * (1 - 1e-9)
    assert local.epsilon(DELTA) == pytest.approx(mechanism.privacy_loss().epsilon(DELTA), rel=0.01)


def test_weight_of_the_blanket_by_quadrature():
    with mpmath.workdps(30):
        for dim, kappa in ((2, 1.5), (16, 2.0)):
            total = mpmath.quad(lambda t, m=dim, k=kappa: mpmath.sin(t) ** (m - 2) * mpmath.exp(-k * t), [0, mpmath.pi])
            flat = mpmath.quad(lambda t, m=dim: mpmath.sin(t) ** (m - 2), [0, mpmath.pi])
            expected = float(mpmath.log(mpmath.exp(-kappa * mpmath.pi) * flat / total))
            assert Purkayastha(dim, kappa).blanket().log_gamma == pytest.approx(expected, rel=1e-12)
        # the normalized planar Laplace at the pole opposite to the input: its density there is e^-ε of the uniform's
        radial = mpmath.quad(lambda r: r**15 * mpmath.exp(-4 * (r + 1)), [0, 2, 5, 10, 40]) * 4**16 / mpmath.gamma(16)
        assert PlanarLaplace(16, 4.0).blanket().log_gamma == pytest.approx(float(mpmath.log(radial)), rel=1e-10)
    assert PlanarLaplace(16, 4.0, normalize=False).blanket() is None
    assert math.exp(RandomizedResponse(2.0, 5).blanket().log_gamma) == pytest.approx(5 / (math.exp(2) + 4), rel=1e-14)


def test_truncation_counts_what_samplers_may_be_off():
    """A law within e^(±a) of the ring's: what it misses of γ'·ω is in η, which it was not."""
    cells, off = ring_cells(6, 1.0), 0.15
    sampled = ring(6, 1.0)[0] * np.exp(np.where(np.arange(6) == 0, 1.0, -1.0) * off)
    sampled[0] += 1 - sampled.sum()  # its likeliest output takes what is left
    assert abs(math.log(sampled[0] / ring(6, 1.0)[0, 0])) <= off
    for share in (0.5, 0.8):
        missed = np.maximum(share / 6 - sampled, 0).sum()
        assert truncated(cells, math.log(share))[1] < missed
        assert truncated(replace(cells, numeric=off), math.log(share))[1] >= missed * (1 - 1e-12)
    mechanism = Purkayastha(16, 2.0)
    assert joint_blanket([mechanism]).numeric == mechanism.guarantee.numeric_epsilon > 0


def test_no_amplification_is_none_never_a_number():
    strong = Purkayastha(16, 100.0).blanket()
    assert blanket_epsilon(strong, 1000, DELTA) is None
    assert blanket_epsilon(Purkayastha(16, 2.0).blanket(), 1, DELTA) is None
    assert truncated_epsilon(strong, 1000, DELTA) is None
    # one user alone: the bound is the local δ
    cells = Purkayastha(16, 2.0).blanket()
    assert blanket_delta(cells, 1, 1.0) == pytest.approx(cells.loss().delta(1.0), rel=0.01)


@pytest.mark.parametrize(("share", "n"), [(0.5, 1), (0.97, 1000), (0.999, 10**6)])
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


@pytest.mark.parametrize(("loss", "gamma"), [(1e-12, 0.3), (4.22e-10, 0.011), (1e-7, 1 - 1e-6), (1.0, 0.011)])
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


@pytest.mark.parametrize("ratio", [0.2, 1.5])
def test_what_a_truncation_moves_is_that_of_the_normal_law(ratio: float) -> None:
    """η = E(γ' - U)_+ under N(0, 1), for U = exp(rt - r²/2): γ'·Φ(a) - Φ(a - r), r·a - r²/2 = log γ'."""
    for log_gamma in (-6.0, -2.0, -0.5, 0.0):
        a = (log_gamma + mpmath.mpf(ratio) ** 2 / 2) / ratio
        exact = mpmath.exp(log_gamma) * mpmath.ncdf(a) - mpmath.ncdf(a - ratio)
        found = truncated(line(ratio), log_gamma)[1]
        assert exact <= found <= exact * 1.1 + 1e-30
    cells = line(ratio)
    for log_mass, mean in ((cells.log_w, 0), (cells.log_p, ratio), (cells.log_q, -ratio)):
        assert np.exp(log_mass).sum() == pytest.approx(1.0, abs=1e-13)
        middle = len(log_mass) // 2
        assert math.exp(log_mass[middle - 1]) == pytest.approx(
            float(mpmath.ncdf(-mean) - mpmath.ncdf(-(ratio + 12.0) / 767 - mean)), rel=1e-11
        )


@pytest.mark.parametrize(("users", "epsilon"), [(1000, 6.0), (30_000, 2.0)])
def test_many_users_are_between_a_data_set_and_the_local_loss(users: int, epsilon: float) -> None:
    """The sign along the axis is randomized response of two labels: pure, its δ known in closed form."""
    noise = Gaussian.calibrated(epsilon, 1e-6, 768)
    answer = amplify([noise], users=users, delta=1e-6)
    assert answer.epsilon < 0.3 * answer.local_epsilon
    high = float(ndtr(1 / noise.sigma))
    pair = RandomizedResponse(math.log(high / (1 - high)), 2).blanket()
    for at_x in (0.0, 0.5, 1.0):
        signs = mixture(pair, at_x, 1.0 - at_x)
        assert few_cells_delta(signs, users, answer.epsilon) <= 1e-6
        assert few_cells_delta(signs, users, answer.epsilon / 16) > 1e-6
    assert fits_truncated(noise.blanket(), users, answer.epsilon * 1.001, 1e-6)


def test_any_dimension_has_one_bound_and_a_lone_user_the_local_one() -> None:
    several = [amplify([Gaussian(d, 2.0)], users=5000, delta=1e-6) for d in (2, 15_361)]
    assert several[0].epsilon == pytest.approx(several[1].epsilon, rel=1e-6)
    for alone in (
        amplify([Gaussian(768, 2.0)], users=1, delta=1e-6),
        amplify([Gaussian(768, 2.0)], users=2, delta=1e-9),
    ):
        assert alone.epsilon == alone.local_epsilon
    assert best_truncation(line(0.5), 1, 1e-6) is None

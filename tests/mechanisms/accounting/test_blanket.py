"""The blanket bound, its lower bounds and truncation.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds, and must reject an ε that is 10 % off.
"""

import itertools
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest

from mechanisms import PlanarLaplace, Purkayastha, RandomizedResponse
from mechanisms.accounting.blanket import blanket_delta, blanket_epsilon
from mechanisms.accounting.shuffle import joint_blanket
from mechanisms.accounting.truncated import truncated, truncated_epsilon
from mechanisms.losses import sphere_blanket
from mechanisms.privunit import PrivUnit
from tests.support import lower
from tests.support.lower import apart, apart_share, few_cells_delta, lower_bounds
from tests.support.rings import compositions, hockey_stick, reduced_pair, ring, ring_cells, shuffled
from tests.support.small_worlds import discrete, largest_delta

DELTA = 1e-6
#: Two-sided normal quantile of a false-alarm rate of 1e-6.
Z = 4.9

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
@pytest.mark.parametrize("n", [1, 2, 6])
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


@pytest.mark.parametrize("kappa", [0.4, 1.0])
def test_every_data_set_is_below_the_blanket_and_its_truncation(kappa):
    """All data sets of four users on a ring of six: bounds hold, and the explicit data sets are what they say."""
    laws, cells, n = ring(6, kappa), ring_cells(6, kappa), 4
    for epsilon in (0.1, 0.5):
        worst = 0.0
        for x, other in itertools.product((0,), (1, 2, 3)):
            for others in itertools.combinations_with_replacement(range(6), n - 1):
                rest = [laws[z] for z in others]
                first, second = shuffled([laws[x], *rest]), shuffled([laws[other], *rest])
                worst = max(worst, hockey_stick(first, second, epsilon), hockey_stick(second, first, epsilon))
        assert worst <= blanket_delta(cells, n, epsilon)
        for weight in np.log([0.3, 0.6, 0.9]):
            cut, eta = truncated(cells, max(weight, cells.log_gamma))
            assert worst <= blanket_delta(cut, n, epsilon) + (1 + math.exp(epsilon)) * (n - 1) * eta
        all_at_x = [laws[0]] * (n - 1)
        exact = hockey_stick(shuffled([laws[0], *all_at_x]), shuffled([laws[3], *all_at_x]), epsilon)
        found = few_cells_delta(lower.mixture(lower.gathered(cells), 1.0, 0.0), n, epsilon)
        assert found <= exact * (1 + 1e-9) <= worst * (1 + 1e-8)


@pytest.mark.parametrize("mechanism", [RandomizedResponse(2.0, 2), RandomizedResponse(1.0, 5), PrivUnit(8, 3.0, 0.6)])
def test_lower_bounds_of_few_cells(mechanism):
    """By the multinomial law of a few users, and close below the FFT's bound for many."""
    cells = mechanism.blanket()
    p, q = np.exp(cells.log_p), np.exp(cells.log_q)
    for shares in ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (0.2, 0.3)):
        law = lower.mixture(cells, *shares)
        h, n = np.exp(law.log_w), 7
        for epsilon in (0.0, 0.2, 1.0):
            value = (p - math.exp(epsilon) * q) / h
            exact = (
                sum(
                    math.factorial(n)
                    * math.prod(h[i] ** c / math.factorial(c) for i, c in enumerate(counts))
                    * max(0.0, float(np.dot(counts, value)))
                    for counts in compositions(n, len(h))
                )
                / n
            )
            found = lower.few_cells_delta(law, n, epsilon)
            assert exact * (1 - 2e-6) <= found <= exact
            above = blanket_delta(law, 3000, epsilon)
            assert above * 0.95 - 1e-12 <= lower.few_cells_delta(law, 3000, epsilon) <= above


def test_lower_bounds_of_a_hundred_million_users():
    """Two labels, all others at x: the binomial sum in 40 digits, term by term around its bulk."""
    n, epsilon, delta = 10**6, 2.0, 1e-6
    found = lower_bounds([RandomizedResponse(epsilon, 2)], n, delta)["all_at_x"]
    with mpmath.workdps(40):
        p = 1 / (1 + mpmath.exp(-epsilon))
        ratio = mpmath.exp(-epsilon)

        def exact(at):  # N of n are at x, where L = 1 - e^(at - ε0); elsewhere 1 - e^(at + ε0)
            growth, total = mpmath.exp(at), mpmath.mpf(0)
            for count in range(int(n * p), int(n * p) + 4000):
                weight = count * (1 - growth * ratio) + (n - count) * (1 - growth / ratio)
                if weight > 0:
                    log_mass = mpmath.loggamma(n + 1) - mpmath.loggamma(count + 1) - mpmath.loggamma(n - count + 1)
                    total += weight * mpmath.exp(log_mass + count * mpmath.log(p) + (n - count) * mpmath.log(1 - p))
            return total / n

        assert exact(found) > delta > exact(found * 1.001)
    big = lower_bounds([PrivUnit(32, 6.0, 0.5)], 10**8, delta)
    assert 0.0039 < max(big.values()) < blanket_epsilon(PrivUnit(32, 6.0, 0.5).blanket(), 10**8, delta)


@pytest.mark.parametrize("users", [20_000, 10**6])
@pytest.mark.parametrize("epsilon", [4.0, 6.0, 8.0])
def test_the_blanket_of_privunit_is_reached_by_a_data_set(users, epsilon):
    mechanism = PrivUnit(64, epsilon, 0.5)
    above, bounds = blanket_epsilon(mechanism.blanket(), users, DELTA), lower_bounds([mechanism], users, DELTA)
    assert above / 1.002 < bounds["all_apart"] < above
    assert max(bounds[name] for name in ("all_at_x", "all_at_x_prime", "half_half")) < above / 1.3


@pytest.mark.parametrize("classes", [3, 4])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_others_at_a_third_label_are_a_data_set(n, classes):
    """Its δ by the law of histograms, (x; third, ...) against (x'; third, ...); a fourth label is counted as third."""
    mechanism = RandomizedResponse(1.5, classes)
    rows = discrete(mechanism, classes).rows
    law = apart(mechanism.blanket(), 1.0)
    exact = []
    for epsilon in (0.0, 0.2, 0.7):
        seen = [histogram_law([rows[first], *[rows[2]] * (n - 1)]) for first in (0, 1)]
        exact.append(sum(max(0.0, seen[0][h] - math.exp(epsilon) * seen[1][h]) for h in seen[0]))
        found = few_cells_delta(law, n, epsilon)
        assert found <= exact[-1] <= found * (1 + (1e-5 if classes == 3 else 0.01)) + 1e-12
    assert (np.array(exact) <= largest_delta(discrete(mechanism, classes), n, [0.0, 0.2, 0.7]) + 1e-12).all()


def histogram_law(rows):
    """Probability of each histogram of independent outputs of these laws."""
    law = {(0,) * len(rows[0]): 1.0}
    for row in rows:
        after = {}
        for counts, chance in law.items():
            for y, share in enumerate(row):
                more = tuple(c + (i == y) for i, c in enumerate(counts))
                after[more] = after.get(more, 0.0) + chance * share
        law = after
    return law


@pytest.mark.parametrize("mechanism", [PrivUnit(64, 4.0, 0.5), PrivUnit(3, 3.0, 0.5), PrivUnit(16, 2.0)])
def test_masses_of_three_inputs_at_120_degrees(mechanism):
    """Draws of all three in the caps of x and x' alone, against masses of the same ratios; 1e-6 a side each."""
    draws, dim = 100_000, mechanism.dim
    inputs = np.zeros((3, dim))
    inputs[:, :2] = [[math.cos(a), math.sin(a)] for a in (0.0, 2 * math.pi / 3, 4 * math.pi / 3)]
    law, factors = apart(mechanism.blanket(), apart_share(mechanism)), []
    for held, log_mass in enumerate((law.log_p, law.log_q, law.log_w)):
        x = np.tile(inputs[held], (draws, 1))
        caps = mechanism.sample(x, rng=np.random.default_rng(held)) @ inputs.T >= mechanism.threshold
        for place in (0, 1):
            mass = math.exp(log_mass[place])
            alone = float((caps[:, place] & (caps.sum(axis=1) == 1)).mean())
            factors.append((alone / mass, Z * math.sqrt(alone * (1 - alone) / draws) / mass))
    # the caps have at least the share that is claimed, and under every input the same multiple of it
    assert all(factor > 1 - room for factor, room in factors)
    assert all(abs(f - g) < math.hypot(r, s) + 1e-12 for f, r in factors for g, s in factors)
    assert all(abs(f - 1.5 * g) > math.hypot(r, 1.5 * s) for f, r in factors for g, s in factors)
    assert apart_share(PrivUnit(2, 0.5, 0.5)) <= 0 and apart_share(RandomizedResponse(1.0, 2)) == 0


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


# ---------------------------------------------------------------- the cells


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


@pytest.mark.parametrize("kind", ["purkayastha", "planar-laplace"])
def test_antipodal_pair_is_largest_in_the_convex_order(kind):
    """E (t - L)_+ and E (L - t)_+ over a grid of S², for pairs at many angles: the antipodal one is above."""
    mechanism = Purkayastha(3, 1.2) if kind == "purkayastha" else PlanarLaplace(3, 2.0)
    z, weights = np.polynomial.legendre.leggauss(200)
    phi = (np.arange(200) + 0.5) * 2 * math.pi / 200
    shape = np.sqrt(1 - z**2)
    y = np.stack(np.broadcast_arrays(shape[:, None] * np.cos(phi), shape[:, None] * np.sin(phi), z[:, None]), -1)
    w = np.repeat(weights / 400, 200)
    y = y.reshape(-1, 3)

    def ratio(x):
        angle = np.arccos(np.clip(y @ x, -1, 1))
        cells = mechanism.blanket()
        edges = np.concatenate([cells.log_u_high, cells.log_u_low[-1:]])
        if kind == "purkayastha":
            return np.exp(cells.log_u_high[0] - 1.2 * angle)
        theta = sphere_blanket.log_radial_ratio(3, 2.0, np.linspace(0, math.pi, 4001))
        return np.exp(np.interp(angle, np.linspace(0, math.pi, 4001), theta) - theta[0] + edges[0])

    x = np.array([0.0, 0.0, 1.0])
    for c in (1.0, math.exp(0.7)):
        largest = ratio(x) - c * ratio(-x)
        for alpha in (0.3, 1.5, 2.8):
            other = ratio(x) - c * ratio(np.array([math.sin(alpha), 0.0, math.cos(alpha)]))
            for t in np.linspace(-6, 6, 25):
                assert w @ np.maximum(other - t, 0) <= w @ np.maximum(largest - t, 0) + 2e-3
        middle = ratio(x) - c * ratio(np.array([1.0, 0.0, 0.0]))  # and strictly so, well beyond the grid's error
        assert w @ np.maximum(middle, 0) < w @ np.maximum(largest, 0) - 0.01


# ---------------------------------------------------------------- the bound


def simulated(cosines, ratio, gamma, n, epsilon, runs, rng):
    """Mean and standard error of (Σ L)_+/(γn), M ~ Bin(n, γ)."""
    values = np.zeros(runs)
    counts = rng.binomial(n, gamma, runs)
    for at in range(counts.max()):
        live = counts > at
        t = cosines(int(live.sum()))
        values[live] += ratio(t) - math.exp(epsilon) * ratio(-t)
    parts = np.maximum(values, 0) / (gamma * n)
    return parts.mean(), parts.std() / math.sqrt(runs)


@pytest.mark.parametrize("kappa", [1.0, 2.5])
def test_monte_carlo_of_the_blanket_bound(kappa):
    rng = np.random.default_rng(int(10 * kappa))
    cells, n, epsilon = Purkayastha(16, kappa).blanket(), 60, 0.5
    top, gamma = cells.log_u_high[0], math.exp(cells.log_gamma)
    mean, error = simulated(
        lambda size: 2 * rng.beta(7.5, 7.5, size) - 1,
        lambda t: np.exp(top - kappa * np.arccos(t)),
        gamma,
        n,
        epsilon,
        400_000,
        rng,
    )
    assert blanket_delta(cells, n, epsilon) >= mean - Z * error
    assert not blanket_delta(cells, n, epsilon * 1.1) >= mean - Z * error


@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)])
def test_monte_carlo_of_the_data_sets(shares):
    """The others' outputs drawn by the mechanism's own angle law, the likelihood ratio averaged by definition."""
    rng = np.random.default_rng(5)
    kappa, n, epsilon, runs = 1.0, 40, 0.15, 100_000
    grid = np.linspace(0, math.pi, 200_001)
    share = np.concatenate([[0], np.cumsum(np.diff(grid) * (np.sin(grid) ** 14 * np.exp(-kappa * grid))[1:])])
    theta = np.interp(rng.random((runs, n)), share / share[-1], grid)
    if shares[0] < 1:
        away = rng.random((runs, n)) < shares[1]
        theta = np.where(away, math.pi - theta, theta)
    p, q = np.exp(-kappa * theta), np.exp(-kappa * (math.pi - theta))
    values = ((p - math.exp(epsilon) * q) / (shares[0] * p + shares[1] * q)).sum(axis=1)
    parts = np.maximum(values, 0) / n
    mean, error = parts.mean(), parts.std() / math.sqrt(runs)
    law = lower.mixture(Purkayastha(16, kappa).blanket(), *shares)
    assert mean - Z * error <= blanket_delta(law, n, epsilon) <= (mean + Z * error) * 1.05
    assert not mean - Z * error <= blanket_delta(law, n, epsilon * 1.3)


@pytest.mark.parametrize(
    ("users", "kappa", "prototype"),
    [
        (10_000, 1.0, 0.040),
        (10_000, 2.0, 0.203),
        (10_000, 3.0, 0.822),
        (67_349, 2.0, 0.074),
        (67_349, 3.0, 0.289),
        (67_349, 4.0, 1.097),
        (1_000_000, 4.0, 0.254),
    ],
)
def test_figures_of_the_prototype(users, kappa, prototype):
    cells = Purkayastha(16, kappa).blanket()
    above = blanket_epsilon(cells, users, DELTA)
    assert 0.95 * prototype <= above <= 1.05 * prototype
    cut = truncated_epsilon(cells, users, DELTA)
    assert cut < above
    assert 0 < max(lower_bounds([Purkayastha(16, kappa)], users, DELTA).values()) < cut


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=ident)
def test_the_bound_is_monotone(mechanism):
    cells = mechanism.blanket()
    above = blanket_epsilon(cells, 20_000, DELTA)
    assert above < cells.loss().epsilon(DELTA)
    assert blanket_epsilon(cells, 80_000, DELTA) < above < blanket_epsilon(cells, 20_000, DELTA / 100)
    assert blanket_delta(cells, 20_000, above, slack=3e-3 * DELTA) <= DELTA


def test_joint_release_costs_more_than_either_and_is_symmetric():
    embedding, label = Purkayastha(16, 1.0).blanket(), RandomizedResponse(1.0, 3).blanket()
    joint = embedding.product(label)
    assert joint.log_gamma == pytest.approx(embedding.log_gamma + label.log_gamma)
    one = blanket_epsilon(joint, 50_000, DELTA)
    other = blanket_epsilon(label.product(embedding), 50_000, DELTA)
    assert one == pytest.approx(other, rel=1e-3)
    assert one > max(blanket_epsilon(embedding, 50_000, DELTA), blanket_epsilon(label, 50_000, DELTA))
    bounds = lower_bounds([Purkayastha(16, 1.0), RandomizedResponse(1.0, 3)], 50_000, DELTA)
    assert 0 < max(bounds.values()) < one


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


@pytest.mark.parametrize("bad", [0, -3, 2.5, True])
def test_bad_users(bad):
    with pytest.raises(ValueError, match="number of users"):
        blanket_epsilon(RandomizedResponse(1.0, 2).blanket(), bad, DELTA)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1.0, math.nan])
def test_bad_delta(bad):
    with pytest.raises(ValueError, match="delta"):
        blanket_epsilon(RandomizedResponse(1.0, 2).blanket(), 10, bad)

"""Choices are exact to 2^-104: against inverse distribution functions in 60 digits, where float64 leaves a draw open.

Small worlds are compared draw by draw, cell by cell around every end of every interval. Statistical tests raise a false
alarm with ALARM (tests.support.words), one in a million.
"""

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from mechanisms import categorical
from mechanisms.randomized_answer import RandomizedAnswer
from mechanisms.randomized_response import RandomizedResponse, RandomizedResponsePrior
from mechanisms.streams import FINE, LATTICE, Points, SecureStreams, SeededUniforms
from mechanisms.words import exponential
from mechanisms.words.custext import CusText, CusTextImportance
from mechanisms.words.exponential import Exponential, Geometry
from mechanisms.words.length import Length
from mechanisms.words.random_substitution import RandomSubstitution
from mechanisms.words.santext import SanText, SanTextPlus
from tests.mechanisms.words.test_words import WORDS
from tests.support.words import fits, vocabulary


class Given:
    """A source whose uniforms, and where in their cells these lie, are given."""

    def __init__(self, u, shares):
        self.u, self.shares = np.atleast_2d(u.T).T, np.atleast_2d(shares.T).T

    def uniform(self, rows, k):
        return self.u[:rows, :k]

    def further(self, rows, k):
        return self.shares[rows][:, :k]


def points(u, shares):
    given = Given(np.asarray(u), np.asarray(shares))
    return Points.drawn(given, (len(given.u),), given.u.shape[1])


def around(end, cells=(-1, 0, 1)):
    """Midpoints of cells at and near an end (a rational), and shares on either side of it: [(u, share)]."""
    cell, inside = divmod(end / Fraction(LATTICE), 1)
    place = int(inside / Fraction(LATTICE))
    found = []
    for step in cells:
        at = int(cell) + step
        if 0 <= at < 2**52:
            u = (at + 0.5) * LATTICE
            found += [(u, (min(max(j, 0), 2**52 - 1) + 0.5) * LATTICE) for j in (0, place - 1, place + 1, 2**52 - 1)]
    return found


def whole(u, share):
    """A uniform with its further digits, as a rational."""
    return Fraction(float(u)) + (Fraction(float(share)) - Fraction(1, 2)) * Fraction(LATTICE)


def rational(value):
    """An mpmath number as a rational, exactly."""
    sign, man, power, _ = mpmath.mpf(value)._mpf_
    return Fraction((-1) ** sign * int(man)) * Fraction(2) ** power


def ends(log_weights):
    """Where intervals end, in 60 digits."""
    with mpmath.workdps(60):
        weights = [mpmath.exp(mpmath.mpf(float(w))) if np.isfinite(w) else mpmath.mpf(0) for w in log_weights]
        total, sums = mpmath.fsum(weights), []
        for at in range(len(weights)):
            sums.append(rational(mpmath.fsum(weights[: at + 1]) / total))
        return sums


WORLDS = [
    np.array([2.0, 0.0]),
    np.array([0.0, 1e-9]),
    np.array([0.1, 0.1, 0.1]),
    np.array([1000.0, 0.0, 0.0]),
    np.array([-np.inf, 0.3, -np.inf, 1.7, -0.2, -np.inf]),
    np.array([0.0, -36.0, -37.0, -700.0, -0.5]),
    np.random.default_rng(2).normal(size=40) * 3,
    np.zeros(77),
    -0.15 * np.abs(np.arange(65) - 20.0),
]


@pytest.mark.parametrize("world", range(len(WORLDS)))
def test_a_choice_is_the_one_of_exact_arithmetic(world):
    log_weights = WORLDS[world]
    sums = ends(log_weights)
    tried = [point for end in sums[:: 1 + len(sums) // 12] for point in around(end)]
    u, shares = np.array(tried).T
    drawn = categorical.sample(np.tile(log_weights, (len(u), 1)), points(u, shares))
    right = [next(i for i, end in enumerate(sums) if whole(a, b) < end) for a, b in tried]
    assert drawn.tolist() == right
    # plain uniforms pick one side of an end for the whole cell, where points take either
    plain = categorical.sample(np.tile(log_weights, (len(u), 1)), u)
    assert (plain != right).any() or len(set(sums)) == 1


def test_choices_that_are_certain_are_what_they_were():
    rng = np.random.default_rng(7)
    for size in (2, 9, 300):
        weights = rng.normal(size=(4000, size)) * 2
        u = SeededUniforms(size).uniform(4000, 1)[:, 0]
        plain = categorical.sample(weights, u)
        np.testing.assert_array_equal(categorical.sample(weights, points(u, rng.random(4000))), plain)


CHOICES = [
    RandomizedResponse(2.0, 3),
    RandomizedAnswer(2.0, 3),
    Length(0.4, 12),
    RandomSubstitution(WORDS),
    CusText(3.0, WORDS, k=12),
    SanText(3.0, WORDS),
]


@pytest.mark.parametrize("mechanism", CHOICES, ids=lambda m: f"{m.channel}-{m.name}")
def test_a_mechanism_whose_every_draw_is_settled_in_decimals_draws_the_same(mechanism, monkeypatch):
    x = np.random.default_rng(0).integers(0, 3, size=400)
    before = mechanism.sample(x, rng=SeededUniforms(5))
    calls = []
    settled, first = categorical._settled, Exponential._settled
    monkeypatch.setattr(categorical, "_UNIT", 1.0)
    monkeypatch.setattr(Exponential, "_doubt", lambda self, total, cells: np.full(len(total), np.inf))
    monkeypatch.setattr(categorical, "_settled", lambda *given: (calls.append(1), settled(*given))[1])
    monkeypatch.setattr(Exponential, "_settled", lambda *given: (calls.append(1), first(*given))[1])
    np.testing.assert_array_equal(mechanism.sample(x, rng=SeededUniforms(5)), before)
    assert len(calls) >= 400 or mechanism.name == "random"
    assert mechanism.guarantee.numeric_delta <= 1000 * FINE * (200 if mechanism.channel == "text" else 1)


@pytest.mark.parametrize("settled", [False, True])
def test_draws_fit_their_probabilities(settled, monkeypatch):
    if settled:
        monkeypatch.setattr(categorical, "_UNIT", 1.0)
    n = 1500 if settled else 30_000
    for make in (lambda e: RandomizedResponse(e, 4), lambda e: Length(e, 6)):
        draws = make(1.2).sample(np.full(n, 1), rng=SeededUniforms(8))
        every = np.arange(7 if make(1.0).name == "length" else 4)
        for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
            assert fits(draws, make(1.2 * factor).log_prob(every, np.full(len(every), 1))) == right


def attempt(sampler, x, u, share):
    """The first attempt of an exponential sampler in rationals and 60 digits: a position, or -1."""
    held, places = sampler._proposals(np.array([x]))
    weights = held.weights[places[0]]
    widths = [Fraction(float(width)) for width in exponential._widths(weights[None])[0]]
    left = whole(u, share) * sum(widths)
    for cell, width in enumerate(widths):
        if left < width:
            for place in range(64 * cell, 64 * cell + 64):
                weight = Fraction(float(weights[place]))
                if left < weight:
                    apart = sampler.geometry.pairs(np.array([x]), sampler.geometry.outputs[[place]])[0]
                    with mpmath.workdps(60):
                        short = mpmath.mpf(float(apart)) - mpmath.mpf(float(held.offsets[places[0]]))
                        true = rational(mpmath.exp(-mpmath.mpf(sampler.epsilon) / 2 * short))
                    return place if left < true * Fraction(1 - 2.0**-20) else -1
                left -= weight
            return -1
        left -= width
    raise AssertionError("beyond the last cell")


@pytest.mark.parametrize(("epsilon", "outputs"), [(2.0, np.arange(70)), (9.0, np.arange(0, 70, 2)), (200.0, [3, 9])])
def test_the_first_attempt_is_that_of_exact_arithmetic(epsilon, outputs):
    """At every end of a word's interval, of the part that is taken, and of a cell."""
    sampler = Exponential(Geometry(vocabulary(70, 5, seed=3).points, np.asarray(outputs)), epsilon)
    for x in (0, 70):
        held, places = sampler._proposals(np.array([x]))
        weights = held.weights[places[0]]
        widths = [Fraction(float(width)) for width in exponential._widths(weights[None])[0]]
        total, tried, cell_start = sum(widths), [], Fraction(0)
        for cell, width in enumerate(widths):
            start = cell_start
            for place in range(64 * cell, min(64 * cell + 64, len(sampler.geometry.outputs))):
                weight = Fraction(float(weights[place]))
                if place % 9 > 1:
                    start += weight
                    continue
                apart = sampler.geometry.pairs(np.array([x]), sampler.geometry.outputs[[place]])[0]
                true = np.exp(-epsilon / 2 * (apart - held.offsets[places[0]])) * (1 - 2.0**-20)
                tried += around((start + weight) / total) + around((start + Fraction(float(true))) / total)
                start += weight
            cell_start += width
            tried += around(min(cell_start / total, 1 - Fraction(LATTICE)))
        u, shares = np.array(tried).T
        drawn = sampler._propose(np.full(len(u), x), np.repeat(places, len(u)), points(u, shares), held)
        right = [attempt(sampler, x, a, b) for a, b in tried]
        assert drawn.tolist() == right
        assert {-1, 0, 1} <= set(right) or epsilon == 200.0


def test_both_attempts_together_have_the_law_of_the_theorem():
    """Lengths of intervals in rationals, against e^(-ε·d/2): within what the guarantee says."""
    epsilon = 3.0
    sampler = Exponential(Geometry(vocabulary(9, 4, seed=6).points, np.arange(9)), epsilon)
    for x in (0, 4, 9):
        held, places = sampler._proposals(np.array([x]))
        total = sum(Fraction(float(w)) for w in exponential._widths(held.weights[places[0]][None])[0])
        apart = sampler.geometry.pairs(np.full(9, x), np.arange(9))
        with mpmath.workdps(60):

            def weight(d, offset):
                return rational(mpmath.exp(-mpmath.mpf(epsilon) / 2 * (mpmath.mpf(float(d)) - mpmath.mpf(offset))))

            taken = [weight(d, float(held.offsets[places[0]])) * Fraction(1 - 2.0**-20) / total for d in apart]
            second = [weight(d, 0.0) for d in sampler.geometry.distances(np.array([x]))[0]]
            law = [t + (1 - sum(taken)) * s / sum(second) for t, s in zip(taken, second, strict=True)]
            exact = [weight(d, 0.0) for d in apart]
            off = [abs(float(p / (w / sum(exact))) - 1) for p, w in zip(law, exact, strict=True)]
        assert sum(law) == 1 and max(off) <= sampler.numeric_epsilon


def test_a_uniform_word_and_a_coin_are_those_of_exact_arithmetic():
    size = len(WORDS)
    tried = [point for word in (1, 3, 77, size - 1) for point in around(Fraction(word, size))]
    u, shares = np.array(tried).T
    drawn = RandomSubstitution(WORDS).sample(np.zeros(len(u), int), rng=Given(u, shares))
    assert drawn.tolist() == [int(whole(a, b) * size) for a, b in tried]
    coin = SanTextPlus(1.0, WORDS, w=0.5, p=0.3)
    tried = around(Fraction(0.3))
    u, shares = np.array(tried).T
    replaced = coin._replaced(points(u, shares))
    assert replaced.tolist() == [whole(a, b) < Fraction(0.3) for a, b in tried] and 0 < replaced.sum() < len(u)


def test_equal_words_that_share_a_uniform_share_its_further_digits(monkeypatch):
    """One draw for each distinct word of a text, also where fresh digits of a secure source settle every draw."""
    monkeypatch.setattr(categorical, "_UNIT", 1.0)
    mechanism = CusTextImportance(2.0, 1.0, WORDS, strategy="conservative")
    x = np.tile([[5, 9, 5, 9, 5]], (200, 1))
    y = mechanism.sample(x, rng=SecureStreams(), importance=np.ones(x.shape))
    assert (y[:, [0, 1]] == y[:, [2, 3]]).all() and (y[:, 0] == y[:, 4]).all()
    one = points(np.full(3, 0.5 + LATTICE / 2), np.full(3, 0.25))[np.array([1, 1])]
    assert one.fine(0) == one.fine(1)


def test_priors_are_settled_too(monkeypatch):
    monkeypatch.setattr(categorical, "_UNIT", 1.0)
    prior = np.random.default_rng(1).dirichlet(np.ones(5), 300)
    x = np.arange(300) % 5
    mechanism = RandomizedResponsePrior(1.0, 5)
    settled = mechanism.sample(x, prior=prior, rng=SeededUniforms(2))
    monkeypatch.undo()
    np.testing.assert_array_equal(settled, mechanism.sample(x, prior=prior, rng=SeededUniforms(2)))

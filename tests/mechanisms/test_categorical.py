"""Choices are exact to 2^-104: against inverse distribution functions in 60 digits, where float64 leaves a draw open.

Small worlds are compared draw by draw, cell by cell around every end of every interval. Statistical tests raise a false
alarm with ALARM (tests.support.words), one in a million.
"""

from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from mechanisms import categorical
from mechanisms.randomized_response import RandomizedAnswer, RandomizedResponse, RandomizedResponsePrior
from mechanisms.streams import FINE, LATTICE, Points, SecureStreams, SeededUniforms
from mechanisms.words.custext import CusText, CusTextImportance
from mechanisms.words.distances import Geometry
from mechanisms.words.madlib_syntax import MadlibSyntax
from mechanisms.words.santext import SanText, SanTextPlus
from mechanisms.words.tables import RandomSubstitution
from mechanisms.words.text import Length
from tests.mechanisms.words.test_words import WORDS
from tests.support.words import vocabulary


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
    settled = categorical._settled
    monkeypatch.setattr(categorical, "_UNIT", 1.0)
    monkeypatch.setattr(categorical, "_settled", lambda *given: (calls.append(1), settled(*given))[1])
    np.testing.assert_array_equal(mechanism.sample(x, rng=SeededUniforms(5)), before)
    assert len(calls) >= 400 or mechanism.name == "random"
    assert mechanism.guarantee.numeric_delta <= 1000 * FINE


@pytest.mark.parametrize("off", [1e-12, 1e-3, 9.0])
def test_a_choice_by_log_weights_that_are_off_is_that_of_the_law(off):
    """By weights as far off as stated, at and near every end, and where they move it: those of exact arithmetic."""
    rng = np.random.default_rng(5)
    for log_weights in WORLDS[2:]:
        near = log_weights + off * rng.choice([-1.0, 1.0], len(log_weights)) + 3.0
        sums, moved = ends(log_weights), ends(near)
        tried = [point for end in [*sums[:8], *moved[:8]] for point in around(min(end, 1 - Fraction(LATTICE)))]
        u, shares = np.array(tried).T
        drawn = categorical.sample_alike(near, points(u, shares), off, lambda law=log_weights: law)
        assert drawn.tolist() == [next(i for i, end in enumerate(sums) if whole(a, b) < end) for a, b in tried]


@pytest.mark.parametrize("penalty", [0.0, 1.5])
def test_words_are_drawn_by_the_distances_of_their_differences(penalty, monkeypatch):
    """At every end, whatever a matrix product makes of the distances within its stated error."""
    words, sign = vocabulary(70, 5, seed=3), np.random.default_rng(1).choice([-1.0, 1.0], (71, 70))
    words = replace(words, tags=np.arange(70, dtype=np.int8) % 3)
    sampler, product = MadlibSyntax(3.0, words, penalty=penalty)._sampler, Geometry.distances
    monkeypatch.setattr(Geometry, "distances", lambda self, x: product(self, x) + sign[x] * self.error)
    for x in (0, 30, 70):
        law, tags = sampler._settling(np.int64(x)), np.append(words.tags, 12)
        apart = np.linalg.norm(words.points[x].astype(float) - words.vectors, axis=1)
        np.testing.assert_allclose(law, -1.5 * (apart + penalty * (tags[x] != tags[:-1])), rtol=1e-12, atol=1e-12)
        sums = ends(law)
        tried = [point for end in sums[:-1:3] for point in around(end)]
        u, shares = np.array(tried).T
        drawn = sampler.sample(np.full(len(u), x), points(u, shares))
        assert drawn.tolist() == [next(i for i, end in enumerate(sums) if whole(a, b) < end) for a, b in tried]


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

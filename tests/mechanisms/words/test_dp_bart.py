"""DP-BART on states that tests make up: one draw a text, and what it promises.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds, and must reject noise that is 2/3 or 3/2
of the right one.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from mechanisms.accounting.compose import compose
from mechanisms.accounting.ladder import ladder
from mechanisms.accounting.privacy_filter import cost
from mechanisms.catalogue import build
from mechanisms.gaussian import MAX_DIM, Gaussian
from mechanisms.guarantee import gaussian_delta
from mechanisms.mechanism import parameters
from mechanisms.quantizer import SPACE
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.dp_bart import DpBart
from mechanisms.words.text import TextMechanism
from sottovoce.contracts.cases import Recorder
from tests.support.words import streams

ALARM = 1e-6
V = Vocabulary(tuple(f"w{i}" for i in range(6)), np.zeros((6, 1), np.float32))
EPSILON, DELTA = 1.0, 0.05


def bart(**changes):
    return DpBart(**({"epsilon": EPSILON, "delta": DELTA, "width": 2, "vocabulary": V, "window": 3} | changes))


def corner(mechanism, n, side=1.0, beyond=10.0):
    return np.full((n, mechanism.size), side * beyond * mechanism.clip)


def wrong(mechanism, factor):
    """The same, whose noise is so many times the right one."""
    spoiled = dataclasses.replace(mechanism)
    spoiled.__dict__["noise"] = Gaussian(mechanism.size + 1, mechanism.noise.sigma * factor)
    return spoiled


def silent(states, tokens):
    return np.full((len(states), tokens), NOTHING, dtype=np.int64)


# -- what one draw promises


def fits(mechanism, claimed):
    """Whether draws of two texts at opposite corners are as far apart, and as noisy, as `claimed` reckons with: each
    coordinate, and their sum, along which the two are 2σ' apart, σ' = 1/σ. The family keeps to ALARM."""
    n, tests = 20_000, []
    for side in (1.0, -1.0):
        noisy = mechanism.noised(corner(mechanism, n, side), rng=streams(n, seed=int(side)))
        tests.append((noisy.sum(axis=1) / mechanism.radius / math.sqrt(mechanism.size), side, claimed.noise.sigma))
        each = noisy / mechanism.radius
        tests += [(c, side / math.sqrt(mechanism.size), claimed.noise.sigma) for c in each.T]
    return all(stats.kstest(v, stats.norm(at, sd).cdf).pvalue > ALARM / len(tests) for v, at, sd in tests)


def test_noise_is_that_of_the_claim_and_no_other():
    mechanism = bart()
    assert fits(mechanism, mechanism)
    assert not any(fits(wrong(mechanism, factor), mechanism) for factor in (2 / 3, 3 / 2))


def test_states_inside_the_clip_are_what_the_noise_is_about():
    """Each coordinate at its own value, as the lift leaves it; on the public grid, as all of the claim is about."""
    mechanism, n = bart(clip=0.5), 20_000
    inside = np.array([0.1, -0.5, 0.0, 0.3, -0.2, 0.4])
    noisy = mechanism.noised(np.tile(inside, (n, 1)), rng=streams(n))
    spread = mechanism.radius * mechanism.noise.sigma
    for column, at in zip(noisy.T, inside, strict=True):
        assert stats.kstest(column, stats.norm(at, spread).cdf).pvalue > ALARM / 6
    steps = noisy / mechanism.radius / SPACE.step
    assert np.abs(steps - np.rint(steps)).max() < 1e-6
    turned = mechanism.noised(np.tile(-inside, (n, 1)), rng=streams(n))  # and is no other's
    assert stats.kstest(turned[:, 1], stats.norm(inside[1], spread).cdf).pvalue < ALARM / 6


def test_the_curve_that_is_measured_is_the_one_that_is_claimed():
    """Pr[sum > t | x] - e^ε·Pr[sum > t | x'], with t where the likelihood ratio is e^ε, is δ(ε) of Balle and Wang; at
    the ε asked for it is the δ asked for. Counts are binomial: each of 2·4 within its law at ALARM/8. A noise of 2/3
    shows more than δ, in spite of that."""
    mechanism, n = bart(), 100_000
    sigma = mechanism.noise.sigma
    assert DELTA * (1 - 1e-6) < gaussian_delta(2 / sigma, EPSILON) <= DELTA

    def sums(of):
        for side in (1.0, -1.0):
            noisy = of.noised(corner(of, n, side), rng=streams(n, seed=int(3 * side)))
            yield noisy.sum(axis=1) / of.radius / math.sqrt(of.size)

    right, false = list(sums(mechanism)), list(sums(wrong(mechanism, 2 / 3)))
    for epsilon in (0.0, 0.5, EPSILON, 1.5):
        t = sigma**2 * epsilon / 2
        chances = [stats.norm(side, sigma).sf(t) for side in (1.0, -1.0)]
        assert chances[0] - math.exp(epsilon) * chances[1] == pytest.approx(gaussian_delta(2 / sigma, epsilon))
        for drawn, chance in zip(right, chances, strict=True):
            assert stats.binomtest(int((drawn > t).sum()), n, chance).pvalue > ALARM / 8
    first, second = (int((drawn > sigma**2 * EPSILON / 2 * 4 / 9).sum()) for drawn in false)
    spread = 6 * math.sqrt((1 + math.exp(2 * EPSILON)) / 4 / n)
    assert (first - math.exp(EPSILON) * second) / n > DELTA + spread


def test_sigma_is_rounded_up_and_the_size_of_the_model_costs_nothing():
    for epsilon, delta in ((0.1, 1e-6), (8.0, 1e-6), (500.0, 1e-5), (1000.0, 1e-12)):
        mechanism = bart(epsilon=epsilon, delta=delta)
        exact = Gaussian.calibrated(epsilon, delta, 7).sigma
        assert exact * (1 + 4e-10) <= mechanism.noise.sigma <= exact * (1 + 2e-9)
        assert mechanism.guarantee.worst_case(delta) == pytest.approx(epsilon, rel=1e-7)
        assert mechanism.guarantee.worst_case(delta) <= epsilon + 1e-11
        assert mechanism.guarantee.worst_case() == math.inf
        wide = bart(epsilon=epsilon, delta=delta, width=768, window=20)
        assert wide.guarantee == mechanism.guarantee and wide.guarantee.numeric_delta < 1e-15
        assert wide.noise.guarantee.numeric_delta <= wide.guarantee.numeric_delta


def test_what_is_beyond_the_clip_is_clipped():
    """The same bits, however far beyond, in every coordinate by itself; without clipping nothing is drawn at all."""
    mechanism, n = bart(), 5
    base = mechanism.noised(corner(mechanism, n, beyond=1.0), rng=streams(n))
    for beyond in (1.5, 1e30, math.inf):
        np.testing.assert_array_equal(mechanism.noised(corner(mechanism, n, beyond=beyond), rng=streams(n)), base)
    states = np.random.default_rng(0).normal(size=(n, mechanism.size)) * mechanism.clip
    clipped = np.maximum(np.minimum(states, mechanism.clip), -mechanism.clip)
    assert (states != clipped).any()
    found, kept = (mechanism.noised(each, rng=streams(n)) for each in (states, clipped))
    np.testing.assert_array_equal(found, kept)


def test_a_sampler_without_the_clip_is_found(monkeypatch):
    """What it hands on is no unit vector, which `Gaussian` refuses: the noise cannot be drawn about it."""
    monkeypatch.setattr(np, "clip", lambda values, low, high, out: values)
    with pytest.raises(ValueError, match="not 1; normalize"):
        bart().noised(corner(bart(), 3), rng=streams(3))


def test_what_a_failing_encoder_makes_is_in_the_domain():
    """No error, and no noise that is not a number: a failure would say something of the text."""
    mechanism = bart()
    states = np.zeros((4, mechanism.size))
    states[0], states[1, 0], states[2, :2] = np.nan, np.inf, (-np.inf, np.nan)
    noisy = mechanism.noised(states, rng=streams(4))
    assert np.isfinite(noisy).all()
    same = np.zeros((4, mechanism.size))
    same[1, 0], same[2, 0] = mechanism.clip, -mechanism.clip
    np.testing.assert_array_equal(noisy, mechanism.noised(same, rng=streams(4)))
    assert np.isnan(states[0]).all()  # the caller's own stays what it was


# -- a whole text


def test_of_the_text_nothing_but_its_states_is_read():
    """Empty, short and long texts take the same uniforms, ask for as many words, and give the decoder the same."""
    text, asked = TextMechanism(bart(), tokens=5), []
    states = np.random.default_rng(1).normal(size=(3, 6))

    def writer(noisy, tokens):
        asked.append((noisy.copy(), tokens))
        return np.tile(np.array([3, 2, NOTHING, NOTHING, NOTHING]), (len(noisy), 1))

    for x in (np.full((3, 5), NOTHING), np.array([[0, *[NOTHING] * 4]] * 3), np.array([[0, 1, 2, 3, 6]] * 3)):
        source = Recorder(streams(3))
        y = text.sample(x, rng=source, states=states, writer=writer)
        assert y.tolist() == [[3, 2, -1, -1, -1]] * 3 and y.dtype == np.int32
        assert source.asked == [(3, text.uniforms)] == [(3, 7)]
        assert asked[-1][1] == 5
        np.testing.assert_array_equal(asked[-1][0], asked[0][0])
    assert text.texts(y) == ["w3 w2"] * 3


def test_what_the_decoder_writes_is_checked():
    text, x, states = TextMechanism(bart(), tokens=2), np.zeros((1, 2), np.int64), np.zeros((1, 6))
    for written in ([[0, 6]], [[-2, 0]], [[0]], [[0.0, 1.0]]):
        with pytest.raises(ValueError, match=r"dp-bart: (expected word ids|the decoder wrote)"):
            text.sample(x, rng=streams(1), states=states, writer=lambda noisy, tokens, w=written: np.array(w))
    for bad in (np.zeros((1, 5)), np.zeros((2, 6)), np.zeros(6)):
        with pytest.raises(ValueError, match="dp-bart: expected states"):
            text.sample(x, rng=streams(len(bad)), states=bad, writer=silent)


def test_a_text_is_charged_once_whatever_its_length():
    for tokens in (1, 64):
        text = TextMechanism(bart(), tokens=tokens)
        assert text.parts() == ((text.word, 1),) and text.lengths is None
        assert text.guarantee == text.word.guarantee
        assert text.guarantee.worst_case(DELTA) == pytest.approx(EPSILON, rel=1e-7)
        assert text.privacy_loss().delta(EPSILON) == pytest.approx(DELTA, rel=1e-2)
        assert text.privacy_loss(0.0).epsilon(0.0) == 0.0
        charged = cost(text.guarantee, DELTA)
        assert charged.epsilon == pytest.approx(EPSILON, rel=1e-7) and charged.delta >= DELTA


def test_two_sides_are_two_draws_and_releases_at_once_cost_what_they_cost_one_by_one():
    one, two = (TextMechanism(bart(delta=1e-6), tokens=5, sides=sides) for sides in (1, 2))
    assert two.parts() == ((two.word, 2),) and two.uniforms == 2 * one.uniforms
    ratio = math.sqrt(2) * 2 / two.word.noise.sigma
    assert two.guarantee.worst_case(1e-6) > one.guarantee.worst_case(1e-6) * 1.3
    together = two.guarantee.worst_case(1e-6)  # by its own theorem, by its parts', and as two releases of one side
    assert gaussian_delta(ratio, together) == pytest.approx(1e-6, rel=1e-6)
    for listed in ([(two.word, 2)], [(one, 1), (TextMechanism(bart(delta=1e-6), tokens=9), 1)]):
        assert compose(listed, delta=1e-6).epsilon == pytest.approx(together, rel=1e-3)
    assert two.guarantee.numeric_delta == 2 * one.guarantee.numeric_delta
    assert cost(two.guarantee, 1e-6).rho == pytest.approx(2 * cost(one.guarantee, 1e-6).rho)


def test_the_ladder_says_one_draw_and_nothing_at_no_delta():
    for sides, said in ((1, "one draw of the whole text"), (2, "one draw of each side")):
        text = TextMechanism(bart(delta=1e-6), tokens=5, sides=sides)
        rungs = {r.name: r for r in ladder(None, None, users=10**6, delta=1e-6, text=text, public={"label": "x"})}
        assert said in rungs["text"].assumption and "at once" in rungs["token"].assumption
        assert rungs["text"].epsilon == pytest.approx(text.guarantee.worst_case(1e-6), rel=1e-3)
        assert rungs["text"].worst_case == math.inf and rungs["token"].epsilon is None
        assert rungs["shuffled"].epsilon is None  # no amplification is claimed
        assert compose([(text, 1)], delta=0.0).epsilon == math.inf


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"length": "kept"}, "leave length out"),
        ({"length": 2.0}, "leave length out"),
        ({"unknown": "drop"}, "leave unknown out"),
        ({"stop_words": "drop"}, "leave stop_words out"),
        ({"stop_words": "keep"}, "leave stop_words out"),
        ({"punctuation": "keep"}, "leave punctuation out"),
        ({"numbers": "drop"}, "leave numbers out"),
        ({"delta": 0.0}, "delta must be from"),
        ({"delta": 1.0}, "delta"),
        ({"epsilon": -1.0}, "epsilon must be from"),
        ({"epsilon": 0.0, "delta": 1e-9}, "no sigma up to"),
        ({"clip": 0.0}, "clip must be at least"),
        ({"clip": math.nan}, "clip must be from"),
        ({"width": 0}, "width must be from 1"),
        ({"window": 2.0}, "window must be a whole number"),
        ({"window": 512, "width": 256}, "lower window"),
        ({"window": MAX_DIM}, "window must be from 1"),
    ],
)
def test_what_it_has_no_place_for_is_refused(changes, why):
    spec = {"mechanism": "dp-bart", "epsilon": 8.0, "delta": 1e-6, "width": 2}
    with pytest.raises(ValueError, match=why) as caught:
        build(spec | changes, channel="text", vocabulary=V)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("dp-bart: ")


def test_a_description_makes_it_again():
    spec = {"mechanism": "dp-bart", "epsilon": 8.0, "delta": 1e-6, "width": 768, "tokens": 30}
    text = build(spec, channel="text", vocabulary=V)
    assert (text.word.window, text.word.clip, text.word.size) == (20, 0.1, 15_360)
    assert parameters(text)["length"] == 0.0 and build(parameters(text), channel="text", vocabulary=V) == text
    with pytest.raises(ValueError, match="dp-bart: missing parameter delta, width"):
        build({"mechanism": "dp-bart", "epsilon": 8.0}, channel="text", vocabulary=V)

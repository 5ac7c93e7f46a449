"""DP-MLM, its additions and deletions, and DP-Prompt, on logits that tests make up.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds, and each must reject samplers whose ε is
2/3 or 3/2 of the right one.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.dp_mlm import DpMlm, DpMlmResized, DpParaphrase, DpPrompt
from mechanisms.words.language_model import BLOCK, log_weights
from mechanisms.words.text import TextMechanism
from tests.support.words import fits, streams

ALARM = 1e-6
LOW, HIGH = -1.0, 3.0
KINDS = (DpMlm, DpMlmResized, DpPrompt, DpParaphrase)


def words(size):
    vectors = np.random.default_rng(0).normal(size=(size, 3)).astype(np.float32)
    return Vocabulary(tuple(f"w{i}" for i in range(size)), vectors)


V8, V200 = words(8), words(200)


def logits_of(texts, vocabulary):
    """A language model of sorts: logits that depend on the whole original text, on what stands now and on where."""
    table = np.random.default_rng(5).normal(1.0, 2.0, size=(997, len(vocabulary)))
    weights = np.random.default_rng(6).integers(1, 900, size=64)
    asked = []

    def scores(positions, now, rows):
        asked.append((positions.copy(), now[rows].copy(), rows.copy()))
        key = (texts[rows] + 2) @ weights[: texts.shape[1]] + (now[rows] + 2) @ weights[: now.shape[1]]
        return table[(key * 31 + positions) % 997]

    return scores, asked


def worst_ratio(table):
    assert np.allclose(np.exp(table).sum(axis=1), 1.0, rtol=1e-12)
    return max(float((row - table).max()) for row in table)


def test_weights_stay_within_half_of_epsilon_whatever_the_model_says():
    wild = np.array([[np.nan, np.inf, -np.inf, 1e300, -1e300, LOW, HIGH, np.nextafter(HIGH, 9)]])
    for epsilon in (0.1, 3.0, 1000.0):
        for low, high in ((LOW, HIGH), (-0.1, 0.2), (1e5, 1e5 + 1e-9)):
            weights = log_weights(wild, epsilon, low, high)
            assert weights.min() >= 0 and weights.max() <= epsilon / 2
    assert log_weights(wild, 4.0, LOW, HIGH)[0].tolist() == [0, 2, 0, 2, 0, 0, 2, 2]


@pytest.mark.parametrize("kind", [DpMlm, DpPrompt])
def test_the_sampler_draws_what_log_probs_says(kind):
    n, epsilon = 40_000, 6.0
    row = np.random.default_rng(2).normal(1, 2, size=(1, 8))
    options = {"addition": 0.0, "deletion": 0.0} if kind is DpMlmResized else {}
    mechanism = kind(epsilon, LOW, HIGH, V8, **options)
    x = np.random.default_rng(4).integers(0, 9, size=(n, 1))
    y = mechanism.sample(x, rng=streams(n), scores=lambda p, w, rows: np.repeat(row, len(rows), axis=0))
    for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert fits(y[:, 0], dataclasses.replace(mechanism, epsilon=factor * epsilon).log_probs(row)[0]) == right


def test_a_text_is_drawn_position_by_position_given_what_was_drawn_before():
    n, length = 20, 6
    x = np.random.default_rng(1).integers(0, 9, size=(n, length))
    x[3:, 4:] = NOTHING
    x[7] = NOTHING
    scores, asked = logits_of(x, V8)
    y = DpMlm(8.0, LOW, HIGH, V8).sample(x, rng=streams(n), scores=scores)
    assert ((y == NOTHING) == (x == NOTHING)).all() and y.max() < 8
    assert sum(len(rows) for _, _, rows in asked) == (x != NOTHING).sum()  # no forward pass where there is no word
    for positions, now, rows in asked:
        at = int(positions[0])
        assert (positions == at).all() and (now[:, :at] == y[rows, :at]).all() and (now[:, at:] == x[rows, at:]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_alone_and_rows_in_a_cohort_are_drawn_alike(kind):
    n = 3 * BLOCK + 5
    x = np.random.default_rng(6).integers(0, 9, size=(n, 5))
    x[np.arange(5)[None] >= np.random.default_rng(7).integers(0, 6, size=n)[:, None]] = NOTHING
    mechanism = kind(7.0, LOW, HIGH, V8)
    together = mechanism.sample(x, rng=streams(n), scores=logits_of(x, V8)[0])
    for i in (0, 1, BLOCK, n - 1):
        one = x[i : i + 1]
        alone = mechanism.sample(one, rng=streams(1, offset=i), scores=logits_of(one, V8)[0])
        assert (alone[0] == together[i]).all()
    flat = mechanism.sample(x[:, 0], rng=streams(n), scores=logits_of(x[:, :1], V8)[0])
    assert flat.shape == (n,) and ((flat == NOTHING) >= (x[:, 0] == NOTHING)).all()


def test_antonyms_are_repaired_by_weight_and_filtered_in_paper_mode():
    pairs = (("w1", "w2"), ("w3", "not there"))
    repaired = DpMlm(9.0, LOW, HIGH, V8, pairs)
    paper = DpMlm(9.0, LOW, HIGH, V8, pairs, "paper")
    logits = np.full((3, 8), HIGH)
    x = np.array([1, 2, 3])
    mild, hard = repaired.log_probs(logits, x), paper.log_probs(logits, x)
    assert np.isneginf(hard[0, 2]) and np.isneginf(hard[1, 1]) and np.isfinite(hard[2]).all()
    assert mild[0, 0] - mild[0, 2] == pytest.approx(4.5) and np.isfinite(mild).all()
    worst = max(float((mild[i] - mild).max()) for i in range(3))
    assert worst <= 9.0  # a filter that sets weights within [0, ε/2] is one more score
    assert repaired.guarantee.exposes == () and math.isfinite(repaired.guarantee.worst_case())
    assert paper.guarantee.exposes == ("filter",) and math.isinf(paper.guarantee.worst_case())
    assert paper.guarantee.worst_case(declared=["filter"]) == 9.0
    assert DpMlm(9.0, LOW, HIGH, V8, mode="paper").guarantee.exposes == ()
    n = 3000
    y = paper.sample(np.full((n, 1), 1), rng=streams(n), scores=lambda p, w, r: np.full((len(r), 8), HIGH))
    assert set(y[:, 0]) == {0, 1, 3, 4, 5, 6, 7}


def test_without_additions_and_deletions_it_is_algorithm_2():
    x = np.random.default_rng(1).integers(0, 9, size=(50, 4))
    x[10:, 3] = NOTHING
    mechanism = DpMlmResized(6.0, LOW, HIGH, V8, 0.0, 0.0)
    scores, asked = logits_of(x, V8)
    y = mechanism.sample(x, rng=streams(50), scores=scores)
    assert ((y == NOTHING) == (x == NOTHING)).all()
    for positions, now, rows in asked:
        at = int(positions[0])
        assert (now[:, :at] == y[rows, :at]).all() and (now[:, at:4] == x[rows, at:]).all()
        assert (now[:, 4:] == NOTHING).all()


def test_no_text_is_charged_for_fewer_draws_than_are_made():
    """Each word of the output is one draw, and there are at most L of them, whatever the coins."""
    n, length = 400, 6
    x = np.random.default_rng(1).integers(0, 9, size=(n, length))
    for addition, deletion in ((0.25, 0.05), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.5)):
        mechanism = DpMlmResized(6.0, LOW, HIGH, V8, addition, deletion)
        scores, asked = logits_of(x, V8)
        y = mechanism.sample(x, rng=streams(n), scores=scores)
        draws = np.bincount(np.concatenate([r for _, _, r in asked] or [np.zeros(0, np.int64)]), minlength=n)
        assert (draws == (y != NOTHING).sum(axis=1)).all() and draws.max(initial=0) <= length
        there = y != NOTHING
        assert not (there[:, 1:] & ~there[:, :-1]).any()
        text = TextMechanism(mechanism, tokens=length, length="kept")
        assert text.guarantee.worst_case(declared=["length"]) == 6.0 * length >= 6.0 * draws.max(initial=0)
    assert (DpMlmResized(6.0, LOW, HIGH, V8, 0.0, 1.0).sample(x, rng=streams(n), scores=scores) == NOTHING).all()


def test_lengths_change_by_coins_alone():
    n = 20_000
    x = np.full((n, 8), NOTHING)
    x[:, :3] = 2
    chances = {"addition": 0.25, "deletion": 0.1}
    y = DpMlmResized(6.0, LOW, HIGH, V8, **chances).sample(x, rng=streams(n), scores=logits_of(x, V8)[0])
    counts = np.bincount((y != NOTHING).sum(axis=1), minlength=7)
    one = np.convolve([0.1, 0.9], [0.75, 0.25])
    expected = n * np.convolve(np.convolve(one, one), one)
    assert stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), 6) > ALARM
    wrong = n * np.convolve(np.convolve(np.convolve([0.05, 0.95], [0.75, 0.25]), one), one)
    assert stats.chi2.sf(((counts - wrong) ** 2 / wrong).sum(), 6) < ALARM


def test_generation_reads_nothing_of_the_words_but_where_they_are():
    n = 30
    x = np.random.default_rng(1).integers(0, 9, size=(n, 5))
    x[10:, 3:] = NOTHING
    fixed, asked = logits_of(np.zeros_like(x), V8)
    mechanism = DpPrompt(6.0, LOW, HIGH, V8)
    y = mechanism.sample(x, rng=streams(n), scores=fixed)
    other = np.where(x == NOTHING, NOTHING, (x + 3) % 8)
    assert (mechanism.sample(other, rng=streams(n), scores=logits_of(np.zeros_like(x), V8)[0]) == y).all()
    for positions, now, rows in asked:
        at = int(positions[0])
        assert (now[:, :at] == y[rows, :at]).all() and (now[:, at:] == NOTHING).all()


def test_a_generated_text_stops_at_its_end_and_is_a_cut_of_the_unstopped_one():
    n = 200
    x = np.zeros((n, 6), np.int64)
    scores = logits_of(x, V8)[0]
    whole = DpPrompt(4.0, LOW, HIGH, V8).sample(x, rng=streams(n), scores=scores)
    cut = DpPrompt(4.0, LOW, HIGH, V8, "w5").sample(x, rng=streams(n), scores=scores)
    ended = np.cumsum(whole == 5, axis=1) > 0
    assert (cut == np.where(ended, NOTHING, whole)).all() and ended.any()
    with pytest.raises(ValueError, match="end token 'no'"):
        DpPrompt(1.0, LOW, HIGH, V8, "no")


@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_loss_of_one_draw_is_at_most_its_theorem_and_far_less_at_a_large_epsilon(kind):
    """By a search over all weights at their bounds, for few words, beside the closed form."""
    for size in (2, 3, 5):
        for epsilon in (0.3, 2.0, 30.0):
            corners = np.array(np.meshgrid(*[[LOW, HIGH]] * size, indexing="ij")).reshape(size, -1).T
            mechanism = kind(epsilon, LOW, HIGH, words(size))
            exact = float(mechanism.privacy_loss().high.max())
            assert worst_ratio(mechanism.log_probs(corners)) == pytest.approx(exact, rel=1e-12)
            assert exact <= epsilon * (1 + 1e-12)
            weights = np.exp(corners / (2 * (HIGH - LOW) / epsilon))  # of the temperature
            np.testing.assert_allclose(np.exp(mechanism.log_probs(corners)), weights / weights.sum(1, keepdims=True))
    assert kind(100.0, LOW, HIGH, V200).privacy_loss().high.max() == pytest.approx(50 + math.log(199), abs=1e-6)
    assert kind(0.0, LOW, HIGH, V8).privacy_loss().infinite == 0
    assert len(kind(2.0, LOW, HIGH, V8).privacy_loss(0).low) == 1
    assert kind(2.0, LOW, HIGH, V8).guarantee.numeric_delta < 1e-12

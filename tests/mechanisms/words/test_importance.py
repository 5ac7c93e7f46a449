"""Words chosen by their importance: what the choice shows, and what the repaired one protects.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds; each must also reject samplers whose
privacy parameter is 2/3 or 3/2 of the right one.
"""

import itertools
import math

import numpy as np
import pytest

from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.custext import CusText, CusTextImportance
from mechanisms.words.custext_mapping import mapping
from mechanisms.words.text import TextMechanism
from tests.support.words import ALL, WORDS, fits, largest_ratio, streams, sums_to_one


@pytest.mark.parametrize(("a", "b"), list(itertools.product((0.0, 1.0, 4.0, 9.0), repeat=2)))
def test_two_parameters_in_one_group_differ_by_their_mean_at_most(a, b):
    """All pairs of words of a group, the first drawn with a, the second with b."""
    first, second = (CusText(e, WORDS, 20).log_probs(ALL) for e in (a, b))
    group = mapping(WORDS, 20, "euclidean").group
    for x in ALL:
        members = np.flatnonzero(group == group[x])
        possible = np.isfinite(first[x])
        ratio = np.abs(first[x, possible] - second[members][:, possible])
        assert ratio.max() <= (a + b) / 2 + 1e-9 <= max(a, b) + 1e-9
        assert ratio[members == x].max() <= abs(a - b) / 2 + 1e-9


SMALL = Vocabulary(tuple("abc"), np.array([[0.0], [1.0], [3.0]], np.float32))
TEXTS = np.array(list(itertools.product(range(3), repeat=3)))


def reading(texts):
    """An importance that depends on the whole text: what one token is, decides which of the others matter."""
    return np.stack([(texts.sum(axis=1)[:, None] * (1 + np.arange(3)) % 5 + texts)[:, i] for i in range(3)], axis=1)


def whole_texts(mechanism):
    """Log probability of every text of three words given every other, (27, 27)."""
    importance = np.repeat(reading(TEXTS), 27, axis=0).astype(np.float64)
    x, y = np.repeat(TEXTS, 27, axis=0), np.tile(TEXTS, (27, 1))
    return mechanism.log_prob(y, x, importance=importance).reshape(27, 27)


@pytest.mark.parametrize("which", ["top", "bottom"])
@pytest.mark.parametrize(("epsilon", "rest"), [(1.0, 6.0), (4.0, 0.5), (2.0, 2.0), (0.0, 0.0)])
def test_the_repaired_choice_protects_sequences_and_only_them(epsilon, rest, which):
    """All pairs of texts of three words in one group, under an importance that reads the whole text."""
    mechanism = CusTextImportance(epsilon, rest, SMALL, share=0.4, which=which, k=3)
    table = whole_texts(mechanism)
    assert sums_to_one(table) and np.isfinite(table).all()
    guarantee = TextMechanism(mechanism, tokens=3, length="kept").guarantee
    assert guarantee.exposes == ("length",) and mechanism.guarantee.protects == "sequence"
    ratio = largest_ratio(table)
    assert ratio.max() <= guarantee.worst_case(declared=("length",)) + 1e-9 == 3 * max(epsilon, rest) + 1e-9
    neighbours = (TEXTS[:, None] != TEXTS[None]).sum(axis=2) == 1
    if epsilon != rest:  # one token changed: other tokens' parameters change, so no token-level claim would hold
        alone = largest_ratio(CusText(max(epsilon, rest), SMALL, 3).log_probs(np.arange(3))).max()
        assert ratio[neighbours].max() > alone
    else:
        assert ratio[neighbours].max() <= epsilon + 1e-9


def test_the_paper_choice_shows_what_was_not_chosen():
    mechanism = CusTextImportance(1.0, 6.0, SMALL, share=0.4, k=3, mode="paper")
    table = whole_texts(mechanism)
    assert sums_to_one(table)
    ratio = largest_ratio(table)
    chosen = mechanism.chosen(TEXTS, reading(TEXTS))
    assert set(chosen.sum(axis=1)) == {2}
    assert mechanism.guarantee.exposes == ("choice",) and mechanism.guarantee.worst_case() == math.inf
    agree = (chosen[:, None] == chosen[None]).all(axis=2) & np.where(
        chosen[:, None], True, TEXTS[:, None] == TEXTS[None]
    ).all(axis=2)
    differ = (TEXTS[:, None] != TEXTS[None]).sum(axis=2)
    assert np.all(ratio[agree] <= 1.0 * differ[agree] + 1e-9)
    neighbours = differ == 1
    assert np.isinf(ratio[neighbours]).any()  # a text is told from its neighbour for certain, with some probability
    revealed = max(np.exp(table[a])[np.isneginf(table[b])].sum() for a, b in np.argwhere(neighbours & np.isinf(ratio)))
    assert revealed == pytest.approx(1.0)
    kept = mechanism.sample(TEXTS, rng=streams(27), importance=reading(TEXTS))
    np.testing.assert_array_equal(kept[~chosen], TEXTS[~chosen])
    unknown = np.full((500, 3), 3)
    shown = mechanism.sample(unknown, rng=streams(500), importance=np.zeros((500, 3)))
    assert shown.min() >= 0 and shown.max() < 3  # the unknown word has no spelling to show


@pytest.mark.parametrize("mode", ["repaired", "paper"])
def test_one_draw_for_each_word_shows_repetition(mode):
    mechanism = CusTextImportance(1.0, 3.0, SMALL, share=0.4, strategy="conservative", k=3, mode=mode)
    table = whole_texts(mechanism)
    assert sums_to_one(table)
    pattern = (TEXTS[:, :, None] == TEXTS[:, None]).reshape(27, -1)
    agree = (pattern[:, None] == pattern[None]).all(axis=2)
    ratio = largest_ratio(table)
    assert "repetition" in mechanism.guarantee.exposes
    if mode == "repaired":
        distinct = np.array([len(set(row)) for row in TEXTS.tolist()])
        assert np.all(ratio[agree] <= (3.0 * distinct[:, None] * np.ones(27))[agree] + 1e-9)
        assert np.isfinite(ratio[agree]).all()
    assert np.isinf(ratio[~agree]).all()
    n = 3000
    x = np.tile([0, 1, 0, NOTHING, 0], (n, 1))
    y = mechanism.sample(x, rng=streams(n), importance=np.tile([1.0, 5.0, 0.0, 9.0, 2.0], (n, 1)))
    assert (y[:, 0] == y[:, 2]).all() and (y[:, 0] == y[:, 4]).all() and (y[:, 3] == NOTHING).all()


def test_importance_draws_fit_their_probabilities():
    n = 30_000
    x, weights = np.tile([60, 61, 200], (n, 1)), np.tile([0.1, 0.7, 0.2], (n, 1))
    y = CusTextImportance(1.5, 6.0, WORDS, share=0.3).sample(x, rng=streams(n), importance=weights)
    for column, epsilon in enumerate((6.0, 1.5, 6.0)):
        for factor, right in ((1, True), (2 / 3, False), (3 / 2, False)):
            expected = CusText(epsilon * factor, WORDS).log_probs(x[0, [column]])[0]
            assert fits(y[:, column], expected) == right


def test_which_tokens_are_chosen():
    x = np.array([[1, 2, 3, 4, NOTHING], [5, 5, 6, NOTHING, NOTHING], [NOTHING] * 5])
    weights = np.array([[0.1, 0.9, 0.9, 0.2, np.nan], [0.0, 3.0, 1.0, 9.0, 9.0], [0] * 5], dtype=float)

    def chosen(**more):
        return CusTextImportance(1.0, 2.0, WORDS, **more).chosen(x, weights).astype(int).tolist()

    assert chosen(share=0.25) == [[0, 1, 0, 0, 0], [0, 1, 0, 0, 0], [0] * 5]  # ties: the earlier
    assert chosen(share=0.3, which="bottom") == [[1, 0, 0, 1, 0], [1, 0, 0, 0, 0], [0] * 5]
    assert chosen(share=0.25, strategy="conservative") == [[0, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0] * 5]
    assert chosen(share=0.0) == [[0] * 5] * 3
    assert chosen(share=1.0) == (x != NOTHING).astype(int).tolist()
    mechanism = CusTextImportance(1.0, 2.0, WORDS)
    for wrong in (weights[:, :4], np.full((3, 5), np.nan), np.full((3, 5), "a")):
        with pytest.raises(ValueError, match="importance"):
            mechanism.sample(x, rng=streams(3), importance=wrong)
    with pytest.raises(ValueError, match="strategy must be aggressive or conservative, got 'bold'"):
        CusTextImportance(1.0, 2.0, WORDS, strategy="bold")

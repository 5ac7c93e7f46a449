"""Attacks on whole sanitized texts, in worlds so small that everything can be gone through: as good as exact Bayes."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from mechanisms.catalogue import build
from mechanisms.vocabulary import NOTHING, Vocabulary
from sottovoce.adversary.attacks.attributes import Collected, _Attributes
from sottovoce.adversary.attacks.words import Held
from sottovoce.adversary.estimators import attributes, context, linkage, presence, tokens
from sottovoce.adversary.estimators.channel import LEAST, Channel, Table
from tests.support.attacked_words import LENGTH, SIZE, V, again, law, text

#: Four words at the corners of a square, texts of two of them.
SQUARE = Vocabulary(
    ("a", "b", "c", "d"), np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32), np.array([4, 3, 2, 1])
)
PAIRS = np.array(list(product(range(4), repeat=2)))
#: Frequencies of the words, as the first of a text.
OPENS = np.array([0.4, 0.3, 0.2, 0.1])


def square(epsilon: float, **more: object):
    spec = {"mechanism": "santext", "epsilon": epsilon, "tokens": 2, "length": "kept"} | more
    return build(spec, channel="text", vocabulary=SQUARE)


def exactly(mechanism) -> np.ndarray:
    """(16, 16) Pr[released pair | pair], word by word."""
    one = law(mechanism)[:4]
    return np.einsum("ac,bd->abcd", one, one).reshape(16, 16)


# --- how likely a release is


@pytest.mark.parametrize(
    "spec",
    [
        {"mechanism": "identity"},
        {"mechanism": "custext", "epsilon": 2.0, "k": 8, "stop_words": "keep"},
        {"mechanism": "santext", "epsilon": 3.0, "length": 1.0},
    ],
    ids=lambda spec: spec["mechanism"],
)
def test_a_releases_likelihood_is_the_product_over_its_places(spec):
    mechanism = text(spec)
    with np.errstate(divide="ignore"):
        whole = np.maximum(np.log(law(mechanism)), LEAST)
    rng = np.random.default_rng(0)
    x = rng.integers(SIZE + 1, size=(3, LENGTH))
    x[1, 6:] = NOTHING
    y = np.vstack([np.where(x < SIZE, x, NOTHING), rng.integers(SIZE, size=(2, LENGTH))])
    y[3, 6:] = NOTHING
    found = Table.of(Channel(mechanism), x, y).likelihood(x, y)
    for (i, released), (j, own) in product(enumerate(y), enumerate(x)):
        end, expected = int((np.flatnonzero(released != NOTHING)).max()) + 1, 0.0
        if mechanism.lengths is not None:
            expected += float(mechanism.lengths.log_prob(np.array([end]), np.array([(own != NOTHING).sum()]))[0])
        for place in range(end if mechanism.lengths is not None else LENGTH):
            word, out = own[place], released[place]
            if word == NOTHING and mechanism.lengths is not None:
                word = SIZE
            if word == NOTHING or out == NOTHING:
                silent = word == out or (spec["mechanism"] == "identity" and word == SIZE and out == NOTHING)
                expected += 0.0 if silent else LEAST
            else:
                expected += whole[word, out]
        assert found[i, j] == pytest.approx(expected, rel=1e-5, abs=1e-4)


# --- is a known text among the releases?


def test_membership_of_a_text_is_guessed_as_well_as_by_exact_bayes():
    """Two releases, one of them perhaps of the text in question: all 256 pairs of them gone through. Words go together.
    Overlap, which ignores the noise, is not as good."""
    mechanism = square(2.0)
    prior = np.outer(OPENS, OPENS) * (1 + 4 * np.eye(4))
    prior = (prior / prior.sum()).ravel()
    table = exactly(mechanism)
    public = np.repeat(PAIRS, np.round(1000 * prior).astype(int), axis=0)
    candidate = np.array([[1, 2]])
    stranger = prior @ table
    own = table[6]
    without = np.outer(stranger, stranger)
    among = (np.outer(own, stranger) + np.outer(stranger, own)) / 2
    best = (1 + np.abs(among - without).sum() / 2) / 2
    rows = Table.of(Channel(mechanism), PAIRS, PAIRS)
    both = [np.stack([PAIRS[a], PAIRS[b]]) for a, b in product(range(16), repeat=2)]

    def told(evidence: np.ndarray) -> float:
        """The best balanced accuracy of any threshold."""
        return max(
            (among.ravel()[evidence >= cut].sum() + without.ravel()[evidence < cut].sum()) / 2
            for cut in np.unique(evidence)
        )

    by_law = np.array([presence.text_evidence(rows, pair, candidate, public)[0] for pair in both])
    by_overlap = np.array([presence.overlap(pair, candidate, 4)[0] for pair in both])
    assert best - 0.01 < told(np.round(by_law, 9)) <= best + 1e-12
    assert told(np.round(by_overlap, 9)) < best - 0.01


FOLLOWS = 0.05 + 0.8 * np.roll(np.eye(4), 1, axis=1)


def chained(n: int, length: int, seed: int) -> np.ndarray:
    """(n, length) texts of that chain."""
    rng = np.random.default_rng(seed)
    x = np.empty((n, length), dtype=np.int64)
    x[:, 0] = rng.choice(4, size=n, p=OPENS)
    for i in range(1, length):
        x[:, i] = (rng.random(n)[:, None] > np.cumsum(FOLLOWS, axis=1)[x[:, i - 1]]).sum(axis=1)
    return x


def test_words_are_guessed_from_their_text_as_well_as_exact_bayes_guesses_them():
    """All texts of three words and all releases gone through, 64 each, with a chain learned on 20,000 texts. A guess
    from single words, even of the true frequencies in each place, is not as good."""
    mechanism = square(1.0, tokens=3)
    one, all_texts = law(mechanism)[:4], np.array(list(product(range(4), repeat=3)))
    first, second, third = all_texts.T
    prior = OPENS[first] * FOLLOWS[first, second] * FOLLOWS[second, third]
    joint = prior[:, None] * np.prod([one[all_texts[:, i]][:, all_texts[:, i]] for i in range(3)], axis=0)
    chain = context.Chain.fitted(chained(20_000, 3, seed=1), np.append(np.full(4, 0.25), 0.0))
    guesses = context.guessed(chain, Table.of(Channel(mechanism), all_texts, all_texts), all_texts)
    single = tokens.decode(Channel(mechanism), np.append(chain.share, 0.0)[None]).guesses[0][all_texts]
    best = right = alone = 0.0
    for i in range(3):
        of_word = np.stack([joint[all_texts[:, i] == w].sum(axis=0) for w in range(4)])
        best += of_word.max(axis=0).sum() / 3
        right += of_word[guesses[:, i], np.arange(64)].sum() / 3
        alone += of_word[single[:, i], np.arange(64)].sum() / 3
    assert best - 0.01 < right <= best + 1e-12
    assert alone < best - 0.03


def test_a_chain_adds_to_one_and_knows_what_it_has_not_seen():
    texts = np.array([[0, 1, NOTHING], [0, 2, 1]])
    chain = context.Chain.fitted(texts, np.array([0.25, 0.25, 0.25, 0.25, 0.0]))
    assert chain.states.tolist() == [0, 1, 2, 3], "the unknown word may not stand anywhere"
    np.testing.assert_allclose(chain.forward(np.eye(4)).sum(axis=1), 1.0)
    np.testing.assert_allclose(chain.backward(np.eye(4)).T, chain.forward(np.eye(4)))
    assert chain.first.sum() == pytest.approx(1.0) and chain.share[3] > 0
    # of 0: followed once by 1 and once by 2; half is left for all words alike
    np.testing.assert_allclose(chain.forward(np.eye(4)[:1])[0], np.array([0, 0.25, 0.25, 0]) + 0.5 * chain.share)


def test_what_users_wrote_is_no_part_of_what_guesses_an_attribute():
    """The same releases, of texts in words that no public text holds, or of others: the same law, the same guesses."""
    mechanism = square(1.0)
    public, values = np.array([[0, 0]] * 30 + [[0, 1]] * 3), np.repeat([0, 1], [30, 3])
    found = Collected(("x", "y"), np.arange(33), values, np.arange(16), np.zeros(16, np.int64))

    def guessed(truth):
        target = SimpleNamespace(seed=1)
        held = Held("train", PAIRS, truth, [""] * 16, np.arange(16), np.zeros(16, np.int64))
        attacked = _Attributes(target, mechanism, held, None)
        vars(attacked)["_public"] = public
        _, exact, plain = attacked._exact(found)
        return attacked._table.inputs.tolist(), exact.tolist(), plain.tolist()

    known, of_other_words = guessed(np.zeros((16, 2), np.int64)), guessed(np.full((16, 2), 3))
    assert known[0] == of_other_words[0] == [0, 1, 4] and known[1] == of_other_words[1]
    assert known[2] == [0] * 16


def lengths_say_it(epsilon: float, length: float | str):
    """Texts of one to three words, of which one value writes long ones: (mechanism, all texts, Pr[text | value])."""
    mechanism = square(epsilon, tokens=3, length=length)
    texts = [list(words) + [NOTHING] * (3 - m) for m in (1, 2, 3) for words in product(range(4), repeat=m)]
    words, long = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]), np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    written = [[w for w in row if w != NOTHING] for row in texts]
    of_texts = [[long[a, len(row) - 1] * np.prod(words[a, row]) for row in written] for a in (0, 1)]
    return mechanism, np.array(texts), np.array(of_texts)


@pytest.mark.parametrize("length", ["kept", 0.5])
def test_how_long_a_text_is_tells_of_its_attribute_too(length):
    """All 84 texts and 85 releases, one of them empty, gone through: as good as exact Bayes, with what fills a text up
    among it. Words alone, place by place, are not."""
    mechanism, texts, of_texts = lengths_say_it(1.0, length)
    releases = np.vstack([texts, np.full((1, 3), NOTHING)])
    table = Table.of(Channel(mechanism), texts, releases)
    likelihood = np.exp(table.likelihood(texts, releases).astype(np.float64)).T
    np.testing.assert_allclose(likelihood.sum(axis=1), 1.0, atol=1e-5)
    joint = 0.5 * of_texts @ likelihood
    times = np.round(20_000 * of_texts).astype(int)
    public = np.concatenate([np.repeat(texts, row, axis=0) for row in times])
    values = np.repeat([0, 1], times.sum(axis=1))
    guesses = attributes.through_channel(table, public, values, 2, releases)
    best = joint.max(axis=0).sum()
    assert best - 0.005 < joint[guesses, np.arange(len(releases))].sum() <= best + 1e-12
    one = attributes.by_value(table, public, values, 2)[:, :4] @ law(mechanism)[:4]
    alone = np.stack([one[:, row[row != NOTHING]].prod(axis=1) for row in releases], axis=1).argmax(axis=0)
    assert joint[alone, np.arange(len(releases))].sum() < best - 0.02
    plain = attributes.as_written(table, public, values, 2, texts)
    assert of_texts[plain, np.arange(len(texts))].sum() > of_texts.max(axis=0).sum() - 0.01


def test_the_view_that_counts_is_chosen_on_public_texts_alone():
    """Of a view that says everything and one of noise the first, whatever the attacked texts say."""
    rng = np.random.default_rng(5)
    labels, truth = rng.integers(2, size=300), rng.integers(2, size=400)
    noise = rng.integers(50, size=(1, 300, 5)), rng.integers(50, size=(400, 5))

    def view(name: str, auxiliary: np.ndarray, seen: np.ndarray) -> attributes.View:
        return attributes.View(name, attributes.by_words, auxiliary, seen, auxiliary)

    said = view("says", np.repeat(labels[None, :, None], 5, axis=2) * 7, np.repeat(truth[:, None], 5, axis=1) * 7)
    blind = view("noise", *noise)
    for views in ([said, blind], [blind, said]):
        name, guesses = attributes.most_promising(views, labels, classes=2, seed=1)
        assert name == "says" and (guesses == truth).all()


def two_texts(n: int, seed: int) -> np.ndarray:
    """(n, 2, 3) numbers of words, of no length to all."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, 4, size=(n, 2, 1))
    return np.where(np.arange(3) < ends, rng.integers(0, SIZE, size=(n, 2, 3)), NOTHING)


@pytest.fixture(params=[1.0, "kept"])
def pair(request: pytest.FixtureRequest):
    spec = {"mechanism": "santext", "epsilon": 4.0, "tokens": 3, "sides": 2, "length": request.param}
    return build(spec, channel="text", vocabulary=V)


def test_the_likelihood_of_a_pair_is_that_of_its_two_texts(pair):
    x = two_texts(7, 0)
    y = again(pair, x.reshape(len(x), -1))
    whole = Table.of(Channel(pair), x, y).likelihood(x.reshape(7, 6), y)
    side = Table.of(Channel(pair.side), x, y)
    np.testing.assert_allclose(whole, side.likelihood(x[:, 0], y[:, :3]) + side.likelihood(x[:, 1], y[:, 3:]))


def test_two_releases_of_a_pair_are_linked_by_both_sides(pair):
    x = two_texts(30, 3)
    prior = tokens.unigram(V, unknown=0.1)
    one, other = (again(pair, x.reshape(30, 6), seed) for seed in (1, 2))
    both = linkage.scores(Channel(pair), prior, one, other)
    apart = [linkage.scores(Channel(pair.side), prior, one[:, s], other[:, s]) for s in pair.slices]
    np.testing.assert_allclose(both, sum(apart))

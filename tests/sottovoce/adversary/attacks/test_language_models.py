"""Language models as priors over the channel: as good as exact Bayes where everything can be gone through."""

from itertools import product

import numpy as np
import pytest

from mechanisms.catalogue import build
from mechanisms.vocabulary import NOTHING, Vocabulary
from sottovoce.adversary.attacks import scores
from sottovoce.adversary.estimators import beam, context
from sottovoce.adversary.estimators.channel import Channel
from sottovoce.adversary.estimators.ngrams import Trigrams
from sottovoce.adversary.estimators.sequences import Table
from tests.support.attacked_words import law

#: Four words at the corners of a square, texts of four of them.
SQUARE = Vocabulary(
    ("a", "b", "c", "d"), np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32), np.array([4, 3, 2, 1])
)
TEXTS = np.array(list(product(range(4), repeat=4)))
ELSEWHERE = np.append(np.full(4, 0.25), 0.0)


def language(certain):
    """(256,) how likely each text is: each word is mostly the sum of the two before it, of which no pair of neighbours
    says anything."""
    total = (np.arange(4)[:, None] + np.arange(4)) % 4
    follows = (1 - certain) / 4 + certain * np.eye(4)[total]
    one, two, three, four = TEXTS.T
    return np.array([0.4, 0.3, 0.2, 0.1])[one] / 4 * follows[one, two, three] * follows[two, three, four]


class World:
    """All texts and all releases of them through SanText."""

    def __init__(self, epsilon, certain=0.84):
        spec = {"mechanism": "santext", "epsilon": epsilon, "tokens": 4, "length": "kept"}
        self.mechanism = build(spec, channel="text", vocabulary=SQUARE)
        one = law(self.mechanism)[:4]
        self.prior = language(certain)
        self.joint = self.prior[:, None] * np.prod([one[TEXTS[:, i]][:, TEXTS[:, i]] for i in range(4)], axis=0)
        self.of_words = [np.stack([self.joint[TEXTS[:, i] == w].sum(axis=0) for w in range(4)]) for i in range(4)]
        self.best = sum(each.max(axis=0).sum() for each in self.of_words) / 4
        rng = np.random.default_rng(1)
        self.public = TEXTS[rng.choice(256, size=20_000, p=self.prior)]
        self.chain = context.Chain.fitted(self.public, ELSEWHERE)
        self.table = Table.of(Channel(self.mechanism), TEXTS, TEXTS)

    def right(self, guesses):
        """How often guesses (256, 4) of the words behind all releases are right."""
        return sum(self.of_words[i][guesses[:, i], np.arange(256)].sum() for i in range(4)) / 4

    def candidates(self, count=4):
        return context.candidates(self.chain, self.table, TEXTS, count)


class Exactly:
    """What a perfect masked language model says."""

    def __init__(self, prior):
        self.prior = prior

    def log_probs(self, texts, place, words):
        index = np.zeros(words.shape, dtype=int)
        for i in range(4):
            index = index * 4 + (words if i == place else texts[:, i : i + 1])
        return np.log(self.prior[index])


@pytest.fixture(scope="module", params=[1.5, 3.0])
def world(request):
    return World(request.param)


def test_a_causal_prior_guesses_as_well_as_exact_bayes(world):
    """Of a language that pairs of neighbours say nothing of, the chain is far behind; trigrams reach the best possible,
    which the whole beam cannot exceed, and three states and three candidates come near."""
    model, found = Trigrams.fitted(world.public, ELSEWHERE), world.candidates()
    full = world.right(found.best(beam.causal(model, found, 16), 4))
    assert world.best - 0.01 < full <= world.best + 1e-12
    assert world.right(context.guessed(world.chain, world.table, TEXTS)) < full - 0.005
    few = world.candidates(3)
    narrow = world.right(few.best(beam.causal(model, few, 3), 4))
    assert world.best - 0.05 < narrow <= world.best + 1e-12


@pytest.mark.parametrize("epsilon", [1.5, 3.0])
def test_a_masked_prior_guesses_as_well_as_exact_bayes(epsilon):
    """A perfect one, in 100 sweeps; a model that says all words alike loses the words around."""
    world = World(epsilon, certain=0.5)
    found, begin = world.candidates(), context.guessed(world.chain, world.table, TEXTS)
    model, rng = Exactly(world.prior), np.random.default_rng(2)
    right = world.right(found.best(beam.masked(model, found, begin, sweeps=100, skip=5, rng=rng), 4))
    assert world.best - 0.01 < right <= world.best + 1e-12
    certain = World(epsilon)
    found, begin = certain.candidates(), context.guessed(certain.chain, certain.table, TEXTS)
    alike = Exactly(np.full(256, 1 / 256))
    weights = beam.masked(alike, found, begin, sweeps=2, rng=rng)
    assert certain.right(found.best(weights, 4)) < certain.best - 0.01


def test_a_whole_beam_gives_the_posterior_itself(world):
    """With the model's own law for a prior, every weight of every word behind every release."""
    model, found = Trigrams.fitted(world.public, ELSEWHERE), world.candidates()
    one, own = law(world.mechanism)[:4], np.zeros(256)
    for t, text in enumerate(TEXTS):
        state, total = np.array([model.start]), 0.0
        for word in text:
            total += model.log_probs(state, np.array([word]))[0, 0]
            state = model.after(state, np.array([word]))[0]
        own[t] = np.exp(total)
    assert own.sum() == pytest.approx(1.0)
    weights = beam.causal(model, found, 16)
    for release in (0, 27, 200, 255):
        joint = own * np.prod([one[TEXTS[:, i], TEXTS[release, i]] for i in range(4)], axis=0)
        for i in range(4):
            exact = np.bincount(TEXTS[:, i], joint) / joint.sum()
            mine = np.zeros(4)
            mine[found.words[release, i]] = weights[release, i] / weights[release, i].sum()
            np.testing.assert_allclose(mine, exact, atol=1e-6)


def test_trigrams_add_to_one_and_know_what_they_have_not_seen():
    texts = np.array([[0, 1, 2, NOTHING], [0, 1, 3, 2], [0, 2, 1, 3], [1, 1, NOTHING, NOTHING]])
    elsewhere = np.append(np.full(5, 0.2), 0.0)
    model, words = Trigrams.fitted(texts, elsewhere), np.arange(6)
    begin = np.array([model.start])
    states = np.concatenate([begin, model.after(begin, words).ravel(), model.after(words * 7 + 1, words).ravel()])
    np.testing.assert_allclose(np.exp(model.log_probs(states, words)).sum(axis=1), 1.0)
    opened = np.exp(model.log_probs(begin, words))[0]
    assert opened[0] == opened.max() and opened[4] > 0 and opened[5] == 0, "the unknown word may not stand anywhere"
    # 0, 1 is followed once by 2 and once by 3; of each 8/(8 + 2·1) is left for the order below
    state = model.after(model.after(begin, np.array([0]))[0], np.array([1]))[0]
    below = np.exp(model.log_probs(np.array([5 * 7 + 1]), words))[0]  # of a pair that was never seen
    np.testing.assert_allclose(np.exp(model.log_probs(state, words))[0], 0.8 * below + [0, 0, 0.1, 0.1, 0, 0])


def test_texts_end_where_their_releases_do():
    mechanism = build({"mechanism": "identity", "tokens": 3, "length": "kept"}, channel="text", vocabulary=SQUARE)
    public = np.array([[0, 1, 2], [3, 1, NOTHING]] * 50)
    elsewhere = np.append(np.full(4, 0.25), 0.01)
    chain, sent = context.Chain.fitted(public, elsewhere), np.array([[0, 1, 2], [3, NOTHING, NOTHING], [NOTHING] * 3])
    found = context.candidates(chain, Table.of(Channel(mechanism), chain.states, sent), sent, 4)
    guesses = found.best(beam.causal(Trigrams.fitted(public, elsewhere), found, 8), 4)
    assert guesses.tolist() == sent.tolist()


def test_the_best_of_many_is_chosen_on_other_texts_than_it_is_measured_on():
    """Forty guesses by chance, right in half of 400 words: the largest success of each forty is above 1/2 by more
    than 5 standard errors (of the mean of 50 runs), and where they are chosen on the other half it is not."""
    rng, truth, where = np.random.default_rng(0), np.zeros((200, 2), dtype=int), np.ones((200, 2), dtype=bool)
    chance = [{str(i): rng.integers(2, size=(200, 2)) for i in range(40)} for _ in range(50)]
    largest = [max((each == truth).mean() for each in guesses.values()) for guesses in chance]
    fair = [(scores.chosen_by_the_other_half(guesses, truth, where)[0] == truth).mean() for guesses in chance]
    error = 0.025 / np.sqrt(50)
    assert np.mean(largest) > 0.5 + 5 * error and abs(np.mean(fair) - 0.5) < 5 * error
    better = chance[0] | {"good": np.where(rng.random((200, 2)) < 0.8, 0, 1)}
    guesses, chosen = scores.chosen_by_the_other_half(better, truth, where)
    assert chosen == ("good", "good") and (guesses == better["good"]).all()

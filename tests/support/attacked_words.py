"""Mechanisms of words, what they release, and how often a guess is right."""

import numpy as np

from mechanisms.catalogue import build
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import Vocabulary
from sottovoce.adversary.attacks import scores
from sottovoce.adversary.estimators.channel import Channel

SIZE, LENGTH = 40, 10
SIGMAS = 5.0
#: Every mechanism whose law is known, and how.
EXACT = {
    "identity": {"mechanism": "identity"},
    "random": {"mechanism": "random"},
    "santext": {"mechanism": "santext", "epsilon": 3.0},
    "santext+": {"mechanism": "santext+", "epsilon": 3.0, "w": 0.6, "p": 0.4},
    "custext": {"mechanism": "custext", "epsilon": 4.0, "k": 8},
    "custext+": {"mechanism": "custext+", "epsilon": 2.0, "k": 8},
    "one group": {"mechanism": "custext", "epsilon": 2.0, "k": SIZE},
    "madlib-syntax": {"mechanism": "madlib-syntax", "epsilon": 3.0, "penalty": 0.5},
    "tem": {"mechanism": "tem", "epsilon": 3.0, "gamma": 1.5},
    "kept": {"mechanism": "santext", "epsilon": 1.0, "stop_words": "keep"},
}
ESTIMATED = {
    "madlib": {"mechanism": "madlib", "epsilon": 3.0},
    "mahalanobis": {"mechanism": "mahalanobis", "epsilon": 3.0, "lam": 0.5},
    "madlib-syntax paper": {"mechanism": "madlib-syntax", "epsilon": 3.0, "mode": "paper", "k": 5},
}


def words(size=SIZE):
    """Words at random places with Zipf's counts; the first ten are stop words, three tags go round."""
    rng = np.random.default_rng(4)
    names = ("the", "a", "of", "and", "to", "in", "is", "it", "was", "not", *(f"word{i}" for i in range(size - 10)))
    counts = (10_000 / np.arange(1, size + 1)).astype(np.int64)
    tags = (np.arange(size) % 3).astype(np.int8)
    return Vocabulary(names, rng.normal(size=(size, 3)).astype(np.float32), counts, tags)


V = words()


def text(spec, vocabulary=V):
    return build({"tokens": LENGTH, "length": "kept"} | spec, channel="text", vocabulary=vocabulary)


def released(mechanism, n, prior, seed=1, stage="train"):
    """(n, L) tokens drawn from the prior, and what is released of them."""
    rng = np.random.default_rng(seed)
    x = rng.choice(len(prior), size=(n, LENGTH), p=prior)
    return x, again(mechanism, x, seed, stage)


def again(mechanism, x, seed=1, stage="train"):
    people = np.arange(len(x))
    streams = SimulationStreams(seed).rows(people, np.zeros_like(people), stage=stage, channel="text")
    return mechanism.sample(x, rng=streams).astype(np.int64)


def law(mechanism):
    """(V + 1, V) probabilities, one whole table."""
    return np.exp(Channel(mechanism).log_probs(np.arange(len(mechanism.vocabulary) + 1)))


def success(guesses, x, y):
    return scores.rate(guesses, x, scores.scored(y, x, SIZE))

"""Attacks on released pairs: the two texts of one are read as two, each with a beginning and an end."""

from __future__ import annotations

import numpy as np
import pytest

from mechanisms.catalogue import build
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING
from sottovoce.adversary.estimators import context, linkage, presence, tokens
from sottovoce.adversary.estimators.channel import Channel
from sottovoce.adversary.estimators.sequences import Table
from tests.support.texts import vocabulary

WORDS = vocabulary()


def texts(n: int, seed: int) -> np.ndarray:
    """(n, 2, 3) numbers of words, of no length to all."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, 4, size=(n, 2, 1))
    return np.where(np.arange(3) < ends, rng.integers(0, len(WORDS), size=(n, 2, 3)), NOTHING)


@pytest.fixture(params=[1.0, "kept"])
def pair(request: pytest.FixtureRequest):
    spec = {"mechanism": "santext", "epsilon": 4.0, "tokens": 3, "sides": 2, "length": request.param}
    return build(spec, channel="text", vocabulary=WORDS)


def released(pair, x: np.ndarray) -> np.ndarray:
    rows = np.arange(len(x))
    rng = SimulationStreams(1).rows(rows, np.zeros_like(rows), stage="t", channel="text")
    return pair.sample(x.reshape(len(x), -1), rng=rng).astype(np.int64)


def test_the_likelihood_of_a_pair_is_that_of_its_texts(pair):
    x = texts(7, 0)
    y = released(pair, x)
    whole = Table.of(Channel(pair), x, y).likelihood(x.reshape(7, 6), y)
    side = Table.of(Channel(pair.side), x, y)
    np.testing.assert_allclose(whole, side.likelihood(x[:, 0], y[:, :3]) + side.likelihood(x[:, 1], y[:, 3:]))


def test_a_pair_is_found_among_releases(pair):
    """By what is likely of both sides: those who are in, before those who are not."""
    known, public = texts(40, 1), texts(60, 2)
    y = released(pair, known[:20])
    table = Table.of(Channel(pair), np.concatenate([known, public]), y)
    evidence = presence.text_evidence(table, y, known.reshape(40, 6), public.reshape(60, 6))
    assert np.isfinite(evidence).all() and np.median(evidence[:20]) > np.median(evidence[20:])


def test_two_releases_of_a_pair_are_linked_by_both_sides(pair):
    x = texts(30, 3)
    again = pair.sample(
        x.reshape(30, 6),
        rng=SimulationStreams(2).rows(np.arange(30), np.zeros(30, np.int64), stage="u", channel="text"),
    ).astype(np.int64)
    prior = tokens.unigram(WORDS, unknown=0.1)
    one = released(pair, x)
    both = linkage.scores(Channel(pair), prior, one, again)
    apart = [linkage.scores(Channel(pair.side), prior, one[:, s], again[:, s]) for s in pair.slices]
    np.testing.assert_allclose(both, sum(apart))


def test_no_chain_runs_from_one_side_to_the_other(pair):
    """What a place says of the next stops at the end of a side: a guess on one side does not move with the other."""
    x = texts(50, 4)
    y = released(pair, x)
    public = texts(200, 5).reshape(-1, 3)
    chain = context.Chain.fitted(public, tokens.unigram(WORDS, unknown=0.01))
    channel = Channel(pair.side)
    changed = y.copy()
    changed[:, 3:] = released(pair, texts(50, 6))[:, 3:]
    guesses = [
        context.guessed(chain, Table.of(channel, chain.states, each), each.reshape(-1, 3)).reshape(50, 6)
        for each in (y, changed)
    ]
    np.testing.assert_array_equal(guesses[0][:, :3], guesses[1][:, :3])

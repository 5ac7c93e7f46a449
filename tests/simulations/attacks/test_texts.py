"""Attacks on whole sanitized texts, in worlds so small that everything can be gone through: as good as exact Bayes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mechanisms.catalogue import build
from mechanisms.vocabulary import NOTHING, Vocabulary
from server.attacks import presence
from server.attacks.channel import Channel
from server.attacks.sequences import LEAST, Table
from simulations.attacks import membership_scores as scores
from tests.support.attacked_words import LENGTH, SIZE, again, law, text

#: Four words at the corners of a square, texts of two of them.
SQUARE = Vocabulary(
    ("a", "b", "c", "d"), np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32), np.array([4, 3, 2, 1])
)
PAIRS = np.array(list(product(range(4), repeat=2)))


def square(epsilon: float, **more: object):
    spec = {"mechanism": "santext", "epsilon": epsilon, "tokens": 2, "length": "kept"} | more
    return build(spec, channel="text", vocabulary=SQUARE)


def exactly(mechanism) -> np.ndarray:
    """(16, 16) Pr[released pair | pair], word by word."""
    one = law(mechanism)[:4]
    return np.einsum("ac,bd->abcd", one, one).reshape(16, 16)


# --- how likely a release is


@pytest.mark.parametrize("spec", ["identity", "santext", "custext", "kept", "drawn length"])
def test_a_releases_likelihood_is_the_product_over_its_places(spec):
    specs = {
        "identity": {"mechanism": "identity"},
        "santext": {"mechanism": "santext", "epsilon": 3.0},
        "custext": {"mechanism": "custext", "epsilon": 2.0, "k": 8},
        "kept": {"mechanism": "santext", "epsilon": 2.0, "stop_words": "keep"},
        "drawn length": {"mechanism": "santext", "epsilon": 3.0, "length": 1.0},
    }
    mechanism = text(specs[spec])
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
                silent = word == out or (spec == "identity" and word == SIZE and out == NOTHING)
                expected += 0.0 if silent else LEAST
            else:
                expected += whole[word, out]
        assert found[i, j] == pytest.approx(expected, rel=1e-5, abs=1e-4)


# --- is a known text among the releases?


@pytest.mark.parametrize("texts", ["words one by one", "words that go together"])
@pytest.mark.parametrize("epsilon", [2.0, 4.0])
def test_membership_of_a_text_is_told_as_well_as_exact_bayes_tells_it(epsilon, texts):
    """Two releases, one of them perhaps of the text in question: all 256 pairs of them gone through. Overlap, which
    ignores the noise, is not as good."""
    mechanism = square(epsilon)
    share = np.array([0.4, 0.3, 0.2, 0.1])
    prior = np.outer(share, share)
    if texts == "words that go together":
        prior = prior * (1 + 4 * np.eye(4))
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


def test_membership_of_texts_is_found_where_overlap_sees_a_coin():
    """Where noise leaves few words in place: five standard errors apart on a fixed seed."""
    mechanism = text({"mechanism": "santext", "epsilon": 2.5})
    rng = np.random.default_rng(1)
    x, public = rng.integers(SIZE, size=(400, LENGTH)), rng.integers(SIZE, size=(200, LENGTH))
    members = np.arange(400) < 200
    released = again(mechanism, x[members])
    table = Table.of(Channel(mechanism), np.vstack([x, public]), released)
    evidence = presence.text_evidence(table, released, x, public)
    found, plain = scores.area(evidence, members), scores.area(presence.overlap(released, x, SIZE), members)
    assert found.success > plain.success + 5 * np.hypot(found.error, plain.error), (found, plain)

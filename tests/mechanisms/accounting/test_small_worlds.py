"""Every bound that is printed, against brute force over all data sets of small worlds; what was printed before fails.

Nothing here is random. `largest_delta` is exact to rounding; cousins of continuous mechanisms are integrated to about
1e-6, which is the room they are given.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from mechanisms import Gaussian, PlanarLaplace, Purkayastha, RandomizedResponse, RandomizedResponsePrior
from mechanisms.accounting.blanket import blanket_delta
from mechanisms.accounting.ladder import Rung, ladder
from mechanisms.accounting.shuffle import amplify, joint_blanket
from mechanisms.catalogue import build
from mechanisms.privunit import PrivUnit
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.custext import CusText, CusTextImportance
from mechanisms.words.dp_mlm import DpMlm
from mechanisms.words.santext import SanText, SanTextPlus, Tem
from mechanisms.words.text import Length
from tests.support.small_worlds import World, circle, discrete, joint, largest_delta, with_labels, with_priors

EPSILONS = (0.0, 0.1, 0.3, 0.6, 1.0, 1.6)
DELTAS = (0.3, 0.1, 0.03, 0.01)
ROOM = 1e-6


WORLDS: dict[str, tuple[list[Any], World]] = {
    "randomized-response 6": ([RandomizedResponse(2.5, 6)], discrete(RandomizedResponse(2.5, 6), 6)),
    "purkayastha": ([Purkayastha(2, 0.7)], circle(Purkayastha(2, 0.7), 6, 6)),
    "planar-laplace": ([PlanarLaplace(2, 1.0)], circle(PlanarLaplace(2, 1.0), 6, 6)),
    "planar-laplace raw": (
        [PlanarLaplace(2, 1.0, normalize=False)],
        circle(PlanarLaplace(2, 1.0, normalize=False), 4, 4, ring=1.5),
    ),
    "gaussian": ([Gaussian(2, 1.5)], circle(Gaussian(2, 1.5), 4, 4, ring=1.8)),
    "privunit 6": ([PrivUnit(2, 3.0, 0.75)], circle(PrivUnit(2, 3.0, 0.75), 6, 6)),
    "purkayastha and a label": (
        [Purkayastha(2, 0.6), RandomizedResponse(0.8, 2)],
        joint(circle(Purkayastha(2, 0.6), 4, 4), discrete(RandomizedResponse(0.8, 2), 2)),
    ),
}


def prior_world(embedding: Any, label: RandomizedResponsePrior, kept: list[str]) -> tuple[list[Any], World]:
    """An embedding of so many arcs, and in each of these a prior that keeps the labels named: "02" is 0 and 2."""
    priors = np.array([[float(str(k) in names) for k in range(label.classes)] for names in kept])
    priors /= priors.sum(axis=1, keepdims=True)
    assert [np.flatnonzero(row).tolist() for row in label.kept(priors)] == [[int(k) for k in names] for names in kept]
    return [embedding, label], with_priors(circle(embedding, len(kept), len(kept)), label, priors)


for name, world in {
    "priors of one, two and three labels": (Purkayastha(2, 0.4), RandomizedResponsePrior(1.0, 3), ["012", "01", "2"]),
    "priors of four and two labels": (Purkayastha(2, 0.3), RandomizedResponsePrior(1.5, 4), ["0123", "13"]),
}.items():
    WORLDS[name] = prior_world(*world)


def few_words(many: int) -> Vocabulary:
    vectors = np.random.default_rng(3).normal(size=(many, 2)).astype(np.float32)
    return Vocabulary(tuple(f"w{i}" for i in range(many)), vectors, counts=np.arange(many) + 1)


def by_weights(mechanism: Any, rows: int, outputs: int) -> World:
    """Every choice by weights 1 and e^(ε/2) on so many outputs: the vertices of what a language model may ask for."""
    high = np.array(list(itertools.product((0.0, 1.0), repeat=outputs)))[:rows]
    weights = np.exp(high * mechanism.epsilon / 2)
    return World(weights / weights.sum(axis=1, keepdims=True))


def whole_texts(text: Any, inputs: list[list[int]]) -> World:
    """The law of a text of at most two words, of its drawn length and of what stands at each position, by hand."""
    words, places = np.exp(text.word.log_probs(np.arange(len(text.vocabulary) + 1))), range(len(text.vocabulary))
    rows = []
    for given in inputs:
        filled = given + [text.vocabulary.unknown] * (2 - len(given))
        lengths = np.exp(text.lengths.log_prob(np.arange(3), np.full(3, len(given))))
        one = [lengths[1] * words[filled[0], y] for y in places]
        two = [lengths[2] * words[filled[0], y] * words[filled[1], z] for y in places for z in places]
        rows.append([lengths[0], *one, *two])
    return World(np.array(rows))


def word_worlds() -> dict[str, tuple[list[Any], World]]:
    three, four, all_four = few_words(3), few_words(4), np.arange(5)
    near, plus, group = SanText(0.8, four), SanTextPlus(0.6, four, w=0.75, p=1.0), CusText(2.0, four, k=4)
    cut = Tem(2.0, four, gamma=0.6)
    mixed, length = CusTextImportance(2.5, 0.5, four, k=4), Length(0.7, 4)
    logits = DpMlm(2.0, -1.0, 3.0, three)
    text = build(
        {"mechanism": "custext", "epsilon": 0.9, "k": 3, "tokens": 2, "length": 0.4}, channel="text", vocabulary=three
    )
    lengths = np.array([np.exp(length.log_prob(np.arange(5), np.full(5, x))) for x in range(5)])
    two = [CusText(epsilon, four, k=4) for epsilon in (2.5, 0.5)]
    sensitive = np.exp(plus.log_probs(all_four))
    return {
        "santext": ([near], World(np.exp(near.log_probs(all_four)))),
        "santext+": ([plus], World(sensitive[:, sensitive.any(axis=0)])),
        "tem": ([cut], World(np.exp(cut.log_probs(all_four)))),
        "custext": ([group], World(np.exp(group.log_probs(all_four)))),
        "custext-importance": ([mixed], World(np.concatenate([np.exp(m.log_probs(all_four)) for m in two]))),
        "length": ([length], World(lengths)),
        "dp-mlm": ([logits], by_weights(logits, 8, 3)),
        "a whole text": ([text], whole_texts(text, [[], [0], [1], [0, 2], [2, 1], [1, 1]])),
    }


WORLDS |= word_worlds()


def test_the_harness_by_hand() -> None:
    """Two users of binary randomized response: histograms (2, 0), (1, 1), (0, 2), by the binomial formula."""
    p = math.exp(1.0) / (1 + math.exp(1.0))
    same = np.array([p * p, 2 * p * (1 - p), (1 - p) ** 2])  # both hold 0
    mixed = np.array([p * (1 - p), p * p + (1 - p) ** 2, p * (1 - p)])
    for epsilon in (0.0, 0.2, 0.5):
        pairs = [(same, mixed), (mixed, same), (same[::-1], mixed), (mixed, same[::-1])]
        by_hand = max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in pairs)
        found = largest_delta(discrete(RandomizedResponse(1.0, 2), 2), 2, [epsilon])
        assert found == pytest.approx([by_hand], abs=1e-12)
    # who is alone in what he sends in clear is not helped by the other; in a crowd of two he is
    labelled = with_labels(discrete(RandomizedResponse(1.0, 2), 2), 2)
    local = max(0.0, p - math.exp(0.2) * (1 - p))
    assert largest_delta(labelled, 2, [0.2]) == pytest.approx([local], abs=1e-12)
    whole = largest_delta(discrete(RandomizedResponse(1.0, 2), 2), 2, [0.2])
    assert largest_delta(labelled, 2, [0.2], crowd=2) == pytest.approx(whole, abs=1e-12) and whole < local


@pytest.mark.parametrize("users", [4, pytest.param(5, marks=[pytest.mark.slow, pytest.mark.soak])])
@pytest.mark.parametrize("name", WORLDS)
def test_no_data_set_exceeds_a_bound(name: str, users: int) -> None:
    mechanisms, world = WORLDS[name]
    cells = joint_blanket(mechanisms)
    whole = cells is not None and math.isfinite(cells.log_gamma)  # Gaussian noise has a truncated blanket alone
    above = np.array([blanket_delta(cells, users, e) for e in EPSILONS]) if cells is not None and whole else np.ones(6)
    said: list[tuple[float, str, float]] = []
    for delta in DELTAS:
        answer = amplify(mechanisms, users=users, delta=delta)
        said += [(delta, bound, e) for bound, e in answer.bounds.items() if e is not None]
        said.append((delta, "least", answer.epsilon))
    exact = largest_delta(world, users, [*EPSILONS, *(e for _, _, e in said)])  # every data set, once
    reached, exact = exact[len(EPSILONS) :], exact[: len(EPSILONS)]
    assert (exact <= above + ROOM).all(), (exact, above)
    if cells is not None and whole:  # it says something: less than without a shuffler
        assert (above < [cells.loss().delta(e) * 0.999 for e in EPSILONS]).any()
    assert (reached <= np.array([delta for delta, _, _ in said]) + ROOM).all(), (said, reached)


# --- what is sent in clear beside a release


def printed(rungs: tuple[Rung, ...]) -> float:
    """The ε that a ladder shows for the shuffled batch: the user's own where nothing is amplified."""
    by_name = {rung.name: rung.epsilon for rung in rungs}
    shown = by_name["user"] if by_name["shuffled"] is None else by_name["shuffled"]
    assert shown is not None
    return shown


@pytest.mark.parametrize(
    "mechanism",
    [Purkayastha(2, 0.7), pytest.param(PlanarLaplace(2, 1.0), marks=[pytest.mark.slow, pytest.mark.soak])],
    ids=["purkayastha", "laplace"],
)
def test_a_lone_label(mechanism: Any) -> None:
    """Labels in clear: the ladder counted all five users; one who alone has his label hides among nobody."""
    world, users = with_labels(circle(mechanism, 4, 6), 2), 5
    public, deltas = {"label": "public in this task"}, np.array([0.2, 0.1, 0.05])
    before = [amplify([mechanism], users=users, delta=d).epsilon for d in deltas]
    for crowd in (None, 1, 2, 3, 5):
        shown = [printed(ladder(mechanism, None, users=users, crowd=crowd, delta=d, public=public)) for d in deltas]
        assert (np.array(shown) >= before).all()
        reached = largest_delta(world, users, [*shown, *before], crowd=crowd or 1)
        assert (reached[:3] <= deltas + ROOM).all()
        if crowd == 1:
            assert (reached[3:] > deltas * 1.2).all()
        if crowd == 5:
            assert (reached[3:] <= deltas + ROOM).all()  # all of one label: it holds


def words(many: int) -> Vocabulary:
    vectors = np.random.default_rng(7).normal(size=(many, 3)).astype(np.float32)
    return Vocabulary(tuple(f"w{i}" for i in range(many)), vectors)


def test_a_lone_group() -> None:
    """CusText, two groups of two words: the published bounds counted the eleven users of the other group too."""
    spec = {"mechanism": "custext", "epsilon": 1.0, "k": 2, "tokens": 1, "length": "kept"}
    text = build(spec, channel="text", vocabulary=words(4))
    kept, users = {"group": "said in this test", "length": "one word each"}, 12
    groups = text.word.mapping.group[:4]
    assert sorted(groups) == [0, 0, 1, 1]
    world = World(np.exp(text.word.log_probs(np.arange(4))), tuple(int(g) for g in groups))
    for delta in (0.2, 0.1, 0.05):
        before = _generic(1.0, users, delta)
        for crowd in (None, 1, 2, 6, 12):
            shown = printed(ladder(None, None, text=text, users=users, crowd=crowd, delta=delta, public=kept))
            assert shown >= before or (crowd or 1) > 2  # the words of a group are closer than any labels
            assert largest_delta(world, users, [shown], crowd=crowd or 1) <= delta + ROOM
        assert largest_delta(world, users, [before], crowd=12) <= delta + ROOM  # all of one group: it holds
        assert largest_delta(world, users, [before]) > delta * 1.15


def _generic(epsilon: float, users: int, delta: float) -> float:
    """What the generic bound says of users with one ε-LDP randomizer; the local ε where it says nothing."""
    answer = amplify([RandomizedResponse(epsilon, 2)], users=users, delta=delta)
    bound = answer.bounds["variation_ratio"]
    return answer.local_epsilon if bound is None else min(answer.local_epsilon, bound)

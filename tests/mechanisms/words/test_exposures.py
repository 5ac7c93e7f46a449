"""What a text costs, of every text mechanism and every treatment of what is no word: held against the exact loss of all
texts of a few words, between those that agree in what is said to be exposed.

Nothing is sampled: a test that holds never fails. A new mechanism of the catalogue is tried here with all values that
it declares; one with a law that nobody knows says so.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from mechanisms.catalogue import CATALOGUE, OWN_KINDS, build
from mechanisms.facts import tried
from mechanisms.guarantee import EXPOSURES
from mechanisms.vocabulary import NOTHING
from mechanisms.words.text import KEPT, TREATMENTS, TextMechanism
from tests.support.text_laws import (
    AGREE,
    SIZE,
    SMALL,
    Given,
    agreement,
    assembled,
    claimed,
    losses,
    played,
    read,
    texts,
    word_table,
)

#: Kinds that are not enumerated, and why.
LEFT_OUT = {
    "identity": "its ε is infinite whatever is declared public: there is nothing to hold",
}
#: Where this vocabulary, or an exact law, needs other values than those that a mechanism declares.
CHANGED = {
    "epsilon": (0.7,),
    "similarity": ("euclidean",),
    "rest": (1.5,),
    "low": (-1.0,),
    "high": (2.0,),
    "antonyms": ((("film", "7"),),),
    "addition": (0.3,),
    "deletion": (0.2,),
    "end": ("", "!"),
    "gamma": (1.5,),
}
KINDS = {kind.name: kind for kind in CATALOGUE.values() if getattr(kind, "channel", "") == "text"}
ROUNDING = 1e-9


def words():
    """Every word mechanism with every parameter that is tried."""
    for name, kind in KINDS.items():
        if name in LEFT_OUT:
            continue
        named = tried(kind, SMALL)
        named |= {field: values for field, values in {"k": (2, 4), **CHANGED}.items() if field in named}
        seen = set()
        for values in itertools.product(*named.values()):
            pairs = set(itertools.combinations(enumerate(values), 2)) or {values}
            if pairs <= seen:
                continue
            seen |= pairs
            chosen = dict(zip(named, values, strict=True))
            shown = ",".join(str(v) for f, v in chosen.items() if f != "vocabulary" and len(named[f]) > 1)
            yield pytest.param(kind(**chosen), id=f"{name}-{shown}")


every_word = pytest.mark.parametrize("word", list(words()))


def treated(word, tokens, every=True):
    """The word mechanism in texts: with a length drawn and one kept, and every treatment of what is no word."""
    moves = getattr(word, "moves", False)
    kinds = ("stop_words", "punctuation", "numbers")
    ways = [TREATMENTS[:2] if moves else TREATMENTS] * len(kinds) if every else [TREATMENTS[:1]] * len(kinds)
    for length, unknown, *others in itertools.product((0.3, KEPT), TREATMENTS[:2] if every else TREATMENTS[:1], *ways):
        yield TextMechanism(word, tokens, length, unknown, **dict(zip(kinds, others, strict=True)))


def check(text, table):
    """The exact loss of every two texts that agree in what is exposed, against everything that is printed of it."""
    x = texts(text.tokens, without=np.flatnonzero(text.dropped))
    private = read(text, x)
    law = played(text, x, private) if table is None else assembled(text, x, table)
    agree, exact = agreement(text, x, private), losses(law)
    guarantee = text.guarantee
    public = guarantee.exposes
    worst = guarantee.worst_case(declared=public)
    assert worst < math.inf
    assert all(guarantee.worst_case(declared=set(public) - {name}) == math.inf for name in public)
    assert exact[agree].max() <= worst + ROUNDING, (text, x[np.argwhere(agree & (exact > worst + ROUNDING))[0]])
    bound = claimed(text, x)
    over = agree & (exact > bound + ROUNDING)
    assert not over.any(), (text, x[np.argwhere(over)[0]])
    if text.word.guarantee.protects == "token":  # the same words place by place, and perhaps another length
        alike = agree & (_filled(x)[:, None] == _filled(x)[None]).all(axis=2)
        assert exact[alike].max() <= text.privacy_loss(0.0).epsilon(0) + ROUNDING
    both = dataclasses.replace(text, sides=2).guarantee  # independent of each other: their losses add
    assert both.exposes == public and 2 * exact[agree].max() <= both.worst_case(declared=public) + ROUNDING
    return exact[agree].max() / worst if worst else 1.0


def _filled(x):
    return np.where(x == NOTHING, SIZE, x)


def tokens_of(word, most):
    """How many tokens are enumerated: of a mechanism with coins and two draws at each, one less."""
    return most - 1 if word.name == "dp-mlm-resized" else most


def test_every_text_mechanism_and_every_exposure_is_tried():
    assert set(AGREE) == set(EXPOSURES)
    kinds = {name for name, channel in OWN_KINDS if channel == "text"} | set(KINDS)
    assert {p.values[0].name for p in words()} | set(LEFT_OUT) == kinds


@every_word
def test_the_loss_of_texts_that_agree_in_what_is_exposed_is_what_is_printed(word):
    table = word_table(word)
    every = table is not None  # what is played takes its time
    found = [check(text, table) for text in treated(word, tokens_of(word, 2), every=every)]
    found += [check(text, table) for text in treated(word, 3, every=False)] if every else []
    assert max(found) > 0.15  # and what is printed is no empty bound
    _uniforms_are_counted_without_a_draw(word)
    if not word.reads:
        _words_have_uniforms_of_their_own(word)


@pytest.mark.soak
@every_word
def test_the_loss_of_texts_of_three_words_under_every_treatment(word):
    table = word_table(word)
    every = table is not None
    for text in [*treated(word, tokens_of(word, 3), every=every), *treated(word, tokens_of(word, 2))]:
        check(text, table)


@pytest.mark.parametrize(
    ("spec", "exposes"),
    [
        ({"mechanism": "custext", "epsilon": 1.0, "k": 2}, ("length", "group")),
        ({"mechanism": "custext", "epsilon": 1.0, "k": SIZE}, ()),
        ({"mechanism": "custext+", "epsilon": 1.0, "k": SIZE}, ("stop-words",)),
        ({"mechanism": "santext+", "epsilon": 1.0, "w": 0.5}, ("frequent-words",)),
        ({"mechanism": "madlib-syntax", "epsilon": 1.0, "mode": "paper"}, ("length", "unknown-words", "tag")),
        ({"mechanism": "madlib-syntax", "epsilon": 1.0, "mode": "paper", "unknown": "drop"}, ("length", "tag")),
        ({"mechanism": "madlib-syntax", "epsilon": 1.0}, ()),
        (
            {"mechanism": "custext-importance", "epsilon": 1.0, "rest": 1.0, "k": SIZE, "strategy": "conservative"},
            ("repetition",),
        ),
        (
            {"mechanism": "custext-importance", "epsilon": 1.0, "rest": 1.0, "k": SIZE, "mode": "paper"},
            ("length", "choice"),
        ),
    ],
)
def test_a_drawn_length_is_exposed_by_what_every_token_shows(spec, exposes):
    text = build(spec | {"tokens": 3, "length": 0.1}, channel="text", vocabulary=SMALL)
    assert text.guarantee.exposes == exposes
    for name in exposes:
        assert text.guarantee.worst_case(declared=set(EXPOSURES) - {name}) == math.inf


def _uniforms_are_counted_without_a_draw(word):
    text = TextMechanism(word, 64, 1.0)  # whose length is most often above 0: what reads scores has none to give
    assert text.uniforms == 1 + 64 * (TextMechanism(word, 1, KEPT).uniforms)


def _words_have_uniforms_of_their_own(word):
    """Which laws put together of words rest on."""
    rng, n, tokens = np.random.default_rng(1), 60, 3
    count = TextMechanism(word, tokens, KEPT).uniforms
    x, others = rng.integers(0, SIZE + 1, (2, n, tokens))
    others[:20] = NOTHING
    u, more = rng.random((2, n, count))
    whole = word.sample(x, rng=Given(u))
    for place in range(tokens):
        mine = np.arange(tokens) == place
        columns = np.repeat(mine, count // tokens)
        y = word.sample(np.where(mine, x, others), rng=Given(np.where(columns, u, more)))
        np.testing.assert_array_equal(y[:, place], whole[:, place])

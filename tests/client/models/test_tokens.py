"""Texts as numbers of words: any Unicode text, in linear time, without a failure."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from client.models import tokens
from mechanisms.catalogue import build
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.text import TextMechanism

TREEBANK = "it 's a do n't the film old - fashioned cafe ... ! , . ( ) \" 😀 天 气 3 3.5 Paris :) é good שלום"
BERT = "it ' s t don can a do n the film old - fashioned . …"
BARE = "it s t don can a do n the film old fashioned good"


def vocabulary(listed: str) -> Vocabulary:
    each = tuple(listed.split())
    return Vocabulary(each, np.random.default_rng(0).normal(size=(len(each), 3)).astype(np.float32))


def text(listed: str = TREEBANK, **values: object) -> TextMechanism:
    return build({"mechanism": "identity", **values}, channel="text", vocabulary=vocabulary(listed))


def marked(listed: str, found: str) -> str:
    """The tokens, the unknown ones in angle brackets."""
    v = vocabulary(listed)
    return " ".join(t if v.word_id(t) != v.unknown else f"<{t}>" for t in tokens.tokenize(found, v))


@pytest.mark.parametrize(
    ("listed", "given", "expected"),
    [
        (TREEBANK, "it 's a do n't", "it 's a do n't"),  # tokenized already
        (TREEBANK, "it's don't IT’S", "it 's do n't IT 'S"),
        (BERT, "it's don't it 's do n't", "it ' s don ' t it ' s do n ' t"),
        (BARE, "it's it 's don't", "it <'s> it <'s> do <n't>"),
        (TREEBANK, "old-fashioned xx-yy", "old - fashioned <xx-yy>"),
        (BARE, "old-fashioned", "old fashioned"),
        (TREEBANK, "café cafe\u0301 é e\u0301", "cafe cafe é é"),
        (TREEBANK, "film... film!!! (film), :) film:)", "film ... film ! ! ! ( film ) , :) film :)"),
        (TREEBANK, "``the'' -lrb- -LRB-", '" the " ( ('),
        (BERT, "the… the...", "the … the . . ."),
        (TREEBANK, "3.5km 3 1,000 12:30pm", "3.5 <km> 3 <1,000> <12:30> <pm>"),
        (TREEBANK, "😀👍🏽film👨\u200d👩\u200d👧🇩🇪❤️", "😀 <👍🏽> film <👨\u200d👩\u200d👧> <🇩🇪> <❤️>"),
        (TREEBANK, "😀\ufe0f", "😀"),
        (TREEBANK, "天气好", "天 气 <好>"),
        (TREEBANK, "שלום, עולם", "שלום , <עולם>"),
        (TREEBANK, "مرحبا بالعالم", "<مرحبا> <بالعالم>"),
        (TREEBANK, "हिन्दी", "<हिन्दी>"),  # its vowel signs are combining marks
        (TREEBANK, "Paris PARIS FILM", "Paris <PARIS> FILM"),
        (TREEBANK, "a\x00the\u200bfilm\x85it\u2028do\rthe so\xadft \u202ea\ufeff", "a the film it do the <soft> a"),
        (TREEBANK, "\ud800 a", "<\ud800> a"),
        (TREEBANK, "", ""),
        (TREEBANK, " \t\x00 ", ""),
    ],
)
def test_tokens(listed: str, given: str, expected: str) -> None:
    assert marked(listed, given) == expected


def test_every_word_of_a_vocabulary_is_found_as_one_token() -> None:
    for listed in (TREEBANK, BERT, BARE):
        v = vocabulary(listed)
        assert tokens.word_ids(" ".join(v.words), v) == list(range(len(v)))


def test_numbers_are_cut_filled_and_joined() -> None:
    t = text(tokens=4)
    x = tokens.padded_word_ids(["the film", "", ("the film", "do it the film"), "xx"], t)
    of = t.vocabulary.word_id
    assert x.dtype == np.int64 and x.shape == (4, 4)
    assert x[0].tolist() == [of("the"), of("film"), NOTHING, NOTHING]
    assert (x[1] == NOTHING).all()
    assert x[2].tolist() == [of(w) for w in ("the", "film", "do", "it")]
    assert x[3].tolist() == [t.vocabulary.unknown, *[NOTHING] * 3]
    assert tokens.padded_word_ids([], t).shape == (0, 4)


def test_dropped_kinds_are_left_out_before_the_cut() -> None:
    given = "the film , good 3 xx film"
    shown = {
        ("stop_words",): "film , good 3 ? film",
        ("punctuation",): "the film good 3 ? film",
        ("numbers",): "the film , good ? film",
        ("unknown",): "the film , good 3 film",
        ("stop_words", "punctuation", "numbers", "unknown"): "film good film",
    }
    for kinds, expected in shown.items():
        t = text(tokens=20, **dict.fromkeys(kinds, "drop"))
        row = tokens.padded_word_ids([given], t)[0]
        names = [*t.vocabulary.words, "?"]
        assert " ".join(names[n] for n in row if n != NOTHING) == expected
    short = tokens.padded_word_ids([given], text(tokens=2, stop_words="drop", punctuation="drop"))[0]
    assert short.tolist() == [text().vocabulary.word_id(w) for w in ("film", "good")]


def test_what_is_remembered_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    letters = list("abIT's-’.,:3 \x00é\u0301😀\u200d天שल\u093f_\ud83d")
    t = text(tokens=64)
    made = ["".join(rng.choice(letters, size=rng.integers(0, 60))) for _ in range(400)]
    once = tokens.padded_word_ids(made, t)
    tokens._reader.cache_clear()
    again = np.concatenate([tokens.padded_word_ids([m], t) for m in reversed(made)])[::-1]
    assert (once == again).all()
    for m, row in zip(made, once, strict=True):
        found = [t.vocabulary.word_id(w) for w in tokens.tokenize(m, t.vocabulary)]
        assert found == tokens.word_ids(m, t.vocabulary) and found[:64] == [n for n in row if n != NOTHING]


LONG: dict[str, Callable[[int], str]] = {
    "words": lambda n: "film the good " * (n // 3),
    "hyphens": lambda n: "x-" * n,
    "contractions": lambda n: "it's" * n,
    "combining": lambda n: "a" + "\u0301\u0323" * n,
    "numbers": lambda n: "1." * n + "x",
    "joiners": lambda n: "👨\u200d" * n,
    "controls": lambda n: "\x00a\u200b" * n,
}


@pytest.mark.parametrize("name", LONG)
def test_long_texts_take_linear_time(name: str) -> None:
    """Eight times the length in less than forty times the time: a quadratic part would need sixty-four."""

    def seconds(n: int) -> float:
        v, given, times = vocabulary(TREEBANK), LONG[name](n), []
        for _ in range(3):
            tokens._reader.cache_clear()
            start = time.process_time()
            tokens.tokenize(given, v)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(16_000) < 40 * seconds(2_000) + 0.05

"""Redaction by rules: what is removed, what stays, and that it promises nothing."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest

from client.models.tokens import padded_word_ids
from client.rewrite import Rewriter, describe_cost
from mechanisms.catalogue import build
from mechanisms.streams import SeededUniforms
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.redaction import MARK, Presidio, Redaction

WORDS = ("i", "wrote", "to", "anna", "from", "paris", "the", "film", "was", "good", ".", "then", "she", "in")
VOCABULARY = Vocabulary(WORDS, np.eye(len(WORDS), dtype=np.float32))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("I wrote to anna@example.org or @anna today.", "I wrote to █ or █ today."),
        ("See https://example.org/x and www.example.org, example.com too", "See █ and █ █ too"),
        ("Call +1 555 0100 by May 3rd, it costs $20.", "Call █ █ █ by █ █ it costs █"),
        ("Then I met Anna Smith in Paris. Anna left.", "Then I met █ █ in █. █ left."),
        ("Paris is fine. We left on Monday for New York!", "█ is fine. We left on █ for █ █!"),
        ("The film was good. It's OK, I'm fine: I know.", "The film was good. It's OK, I'm fine: I know."),
        ('She said "Never again" (And so did he).', 'She said "Never again" (And so did he).'),
        ("Anna was there. she lives in paris", "Anna was there. she lives in paris"),  # what rules do not find
        ("", ""),
    ],
)
def test_what_is_removed_and_what_stays(text: str, read: str) -> None:
    assert Redaction(VOCABULARY).read_as(text) == read


def test_it_is_a_text_mechanism_without_a_guarantee() -> None:
    text = build({"mechanism": "redaction", "length": "kept"}, channel="text", vocabulary=VOCABULARY)
    assert text.guarantee.worst_case() == text.word.privacy_loss().epsilon(0.0) == math.inf
    assert "no protection" in describe_cost(text)


def test_removed_words_are_left_out_of_a_release_and_known_to_nobody_else() -> None:
    rewriter = Rewriter({"mechanism": "redaction", "length": "kept"}, VOCABULARY)
    texts = ["I wrote to Anna from Paris.", "the film was good"]
    assert rewriter.rewrite(texts, rng=SeededUniforms(1)) == ["i wrote to from .", "the film was good"]
    assert (padded_word_ids(texts, rewriter.text) == VOCABULARY.unknown).sum() == 2
    assert (padded_word_ids(texts, rewriter.text, as_written=True) == VOCABULARY.unknown).sum() == 0
    assert [token.original for token in rewriter.explain(texts[0])].count(MARK) == 2


@pytest.mark.skipif(importlib.util.find_spec("presidio_analyzer") is not None, reason="Presidio is installed")
def test_presidio_where_it_is_missing_is_one_line() -> None:
    for make in (
        lambda: Presidio(VOCABULARY),
        lambda: build({"mechanism": Presidio.name, "length": "kept"}, channel="text", vocabulary=VOCABULARY),
    ):
        with pytest.raises(ValueError, match=r"sottovoce\[presidio\]") as caught:
            make()
        assert "\n" not in str(caught.value)


def test_presidio_removes_what_its_analyzer_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        start, end = 11, 15

    class Analyzer:
        def analyze(self, *, text: str, language: str) -> list[Found]:
            assert language == "en"
            return [Found()]

    monkeypatch.setattr("mechanisms.words.redaction._analyzer", Analyzer)
    text = build({"mechanism": Presidio.name, "length": "kept"}, channel="text", vocabulary=VOCABULARY)
    assert Rewriter(text).rewrite(["I wrote to Anna."], rng=SeededUniforms(1)) == ["i wrote to ."]

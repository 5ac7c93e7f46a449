"""What a text holds neither makes reading it fail nor, however long it is, take long."""

from __future__ import annotations

import numpy as np
import pytest

from client.models.clean_text import LONGEST, clean_text
from client.models.encoder import Encoder
from client.models.tokens import padded_word_ids
from mechanisms.catalogue import build
from tests.support.devices import SENTENCES, encoder_folder, words


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return Encoder(encoder_folder(tmp_path_factory.mktemp("legible")), threads=1)


@pytest.mark.parametrize("text", ["a film", "", "漢字 😀", "naïve", ("one", "two")])
def test_a_text_stays_as_it_is(text: str | tuple[str, str]) -> None:
    assert clean_text(text) == text


def test_half_a_character_is_a_mark_of_its_own() -> None:
    assert clean_text("a \ud83d film \udc00") == "a \ufffd film \ufffd"
    assert clean_text(("\ud83d", "b")) == ("\ufffd", "b")


def test_one_text_with_half_a_character_does_not_make_all_fail(encoder: Encoder) -> None:
    """JSON may hold one; the tokenizer's library refuses it, and with it every text of its batch."""
    found = encoder.encode([SENTENCES[0], "the \ud83d film", ("a", "\udfff")])
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[:1], encoder.encode(SENTENCES[:1]))


def test_what_stands_behind_the_longest_text_is_not_read(encoder: Encoder) -> None:
    for text in ("film " * 400_000, "x" * 2_000_000, " " * 2_000_000):
        assert len(clean_text(text)) == LONGEST
    assert len("".join(clean_text(("a" * 10**6, "b" * 10**6)))) == 2 * LONGEST
    short, long = encoder.encode(["good film " * 1000, "good film " * 200_000])
    np.testing.assert_array_equal(short, long)
    text = build({"mechanism": "santext", "epsilon": 2.0, "tokens": 6}, channel="text", vocabulary=words())
    ids = padded_word_ids(["good film " * 200_000, "good film " * 3, " " * LONGEST + "good"], text)
    np.testing.assert_array_equal(ids[0], ids[1])
    assert len(np.unique(ids[2])) == 1

"""What is in two parts is found: the same texts, nearly the same, people; and nothing else is."""

from __future__ import annotations

import re

import numpy as np
import pytest

from simulations.corpora import overlap
from simulations.corpora.builtin import builtin
from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.files import read_files
from simulations.corpora.overlap import NEARLY, compared, nearly, normalized
from simulations.corpora.splits import split_by_sentence
from tests.support.paths import DATA

SST2 = DATA / "sst2"
SENTENCE = "the of film a slow story with wit and no heart it never quite ends where one hoped but charm wins"
WORDS = re.findall(r"\w+", SENTENCE)


def shingles(text: str) -> set[bytes]:
    data = text.encode()
    return {data[i : i + 5] for i in range(len(data) - 4)}


def index(one: str, other: str) -> float:
    """Jaccard's, by the definition."""
    a, b = shingles(one), shingles(other)
    return len(a & b) / len(a | b) if a and b else 0.0


def test_letters_and_digits_make_a_text() -> None:
    assert normalized("  A “fine” Film, of 1999!") == normalized("a fine\tfilm of 1999") == "a fine film of 1999"
    assert normalized("Ｃａｆé") == "café" and normalized(":-)") == ":-)" and normalized("İ") == normalized("i̇")
    assert normalized(("Who?", "Ann.")) == "who\nann" != normalized("who ann")


UNSEEN = ("\u200b", "\u00ad", "\u2060", "\ufeff", "\u034f", "\u200d", "\ufe0f", "\U000e0061")


@pytest.mark.parametrize("sign", UNSEEN)
def test_what_nobody_sees_makes_no_other_text(sign: str) -> None:
    """A space of no width between all letters would hide a text from the comparison, and from what is nearly it."""
    assert normalized(sign.join(SENTENCE)) == normalized(SENTENCE) == SENTENCE
    found, _ = compared(Split(part(["public"]), part([SENTENCE]), part([sign.join(SENTENCE)])), people=False)
    assert [each.texts for each in found] == [0, 1, 0]


def test_marks_of_letters_tell_texts_apart() -> None:
    """Where vowels are marks, they are no punctuation: he and she, I and in, would be one text."""
    assert normalized("मैं!") == "मैं" != normalized("में") and normalized("ไป่") != normalized("ไป")
    assert normalized("किताब, दो") == "किताब दो" and normalized("x̂ ~̂ y") == "x̂ y" and normalized("❤️") == "❤"


@pytest.mark.parametrize("seed", range(6))
def test_what_is_nearly_the_same_is_what_the_definition_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_AT_ONCE", 16)
    monkeypatch.setattr(overlap, "_BLOCK", 32)
    monkeypatch.setattr(overlap, "_PAIRS", 50)
    rng = np.random.default_rng(seed)

    def text() -> list[str]:
        return [WORDS[i] for i in rng.integers(0, len(WORDS), size=rng.integers(1, 16))]

    others = [text() for _ in range(100)]
    texts = [text() for _ in range(20)]
    for row in rng.integers(0, 100, size=60):  # some of the others, a few words changed, left out or added
        changed = list(others[row])
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(0, len(changed)))
            new = [WORDS[i] for i in rng.integers(0, len(WORDS), size=rng.integers(0, 2))]
            changed[at : at + int(rng.integers(0, 2))] = new
            changed = changed or ["film"]
        texts.append(changed)
    theirs = [" ".join(words) for words in others]
    mine = sorted({" ".join(words) for words in texts} - set(theirs))
    wanted = {one for one in mine if max(index(one, other) for other in theirs) >= NEARLY - 1e-9}
    assert nearly(mine, theirs) == wanted and 0 < len(wanted) < len(mine)


def test_texts_without_a_shingle() -> None:
    assert nearly([], ["a b c d"]) == nearly(["a b c d e"], []) == nearly(["a", "ok"], ["b", "ok!"]) == set()


def part(texts: list[str], users: list[str] | None = None) -> Corpus:
    return Corpus(texts, np.arange(len(texts)) % 2, ("0", "1"), users=users)


def test_all_parts_are_compared_and_rows_are_counted() -> None:
    long = "it never quite ends where one hoped, but its charm wins in the end"
    split = Split(
        public=part(["A fine film.", long, "of its own"], [*"abe"]),
        train=part(["a fine film", "a fine film", "quite another"], [*"acc"]),
        test=part(["A FINE FILM", "a  fine film!", long.replace("charm", "charms"), "new"], [*"dcad"]),
    )
    found, repeated = compared(split, people=True)
    counted = [(each.of, each.within, each.rows, each.texts, each.near, each.users) for each in found]
    assert counted == [("public", "train", 3, 1, 0, 1), ("test", "train", 4, 2, 0, 2), ("test", "public", 4, 2, 1, 1)]
    assert repeated == {"public": 0, "train": 1, "test": 1} and all(found)
    assert str(found[2]) == "2 and 1 nearly of 4 test texts are in public, 1 user is in test and public"


def test_the_built_in_parts_have_nothing_in_common() -> None:
    found, repeated = compared(builtin(public=150, train=400, test=100, seed=3), people=True)
    assert [(each.texts, each.near) for each in found] == [(0, 0)] * 3 and not any(repeated.values())
    assert found[1].users and not found[0].users  # whoever wrote them; a study says whether that is who holds them


@pytest.mark.slow
@pytest.mark.skipif(not SST2.is_dir(), reason=f"{SST2} is missing: SST-2 is not part of the repository")
def test_sst2_as_the_bundled_experiments_split_it() -> None:
    train, test = read_files(SST2, "train.tsv", "dev.tsv", text="sentence", label="label")
    public, private, _ = split_by_sentence(train, 0.05, 1)
    found, _ = compared(Split(public, private, test), people=True)
    assert [(each.texts, each.near) for each in found] == [(9, 22), (1, 0), (0, 0)]

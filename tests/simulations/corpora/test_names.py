"""Normal form of names, and files in which one person or one class has two spellings."""

from __future__ import annotations

import csv
import random
import unicodedata
from pathlib import Path

import pytest

from simulations.corpora.classes import matched
from simulations.corpora.corpus import Corpus
from simulations.corpora.files import read_files
from simulations.corpora.names import alike, folded, normal, spelled
from tests.support.commands import refused

#: Pairs that are one name: numbers, Unicode forms, invisible characters, spaces.
SAME = [
    ("1", "1.0"),
    ("1", "1e0"),
    ("1", "１"),
    ("1", "١"),
    ("-1", "−1"),
    ("1000000", "1e6"),
    ("1e400", "10E399"),
    ("José", "Jose\u0301"),
    ("한", "\u1112\u1161\u11ab"),
    ("ann", "a\u200bnn"),
    ("ann", "\u2066ann\u2069"),
    ("ann lee", "ann\u00a0lee"),
    ("é", "e\u200d\u0301"),
    ("ann", "ann\u2800"),
]
#: Pairs that a reader distinguishes, but that may differ by chance: in case or width alone.
CASE = [("Ann", "ann"), ("Weiß", "WEISS"), ("Ａnn", "Ann"), ("ΝΙΚΟΣ", "νικος"), ("ﬁn", "fin"), ("ışık", "IŞIK")]
CASE += [("İnci", "inci")]
OTHER = [("1", "1.5"), ("1", "-1"), ("e", "é"), ("1.0.0", "1"), ("ann", "anna"), ("1_0", "10")]


def test_forms_of_pairs() -> None:
    for first, second in SAME:
        assert normal(first) == normal(second) and folded(first) == folded(second), ascii(second)
        assert alike([first, second, first], normal) == [(first, second)]
        assert spelled(first) != spelled(second) and spelled(second).isprintable()
    for first, second in CASE:
        assert normal(first) != normal(second) and folded(first) == folded(second), ascii(second)
    for first, second in OTHER:
        assert normal(first) != normal(second) and folded(first) != folded(second), ascii(second)


def test_the_forms_of_random_names_agree() -> None:
    """Letters, marks, digits, spaces and invisible characters, seeded; and every letter of the basic plane."""
    rng = random.Random(40)
    signs = "aAé1０9.+-eE_\u0301\u0323\u200b\u200d\u00ad\u00a0 \u3000\u0660ßİıΣς한\u1112\u1161ﬁ²½\U0001d7d9\ufeff"
    names = ["".join(rng.choices(signs, k=rng.randrange(1, 7))) for _ in range(5_000)]
    names += [f"a{chr(code)}\u0301" for code in (*range(0xD800), *range(0xE000, 0x10000))]
    for name in names:
        form = normal(name)
        assert normal(form) == form == normal(unicodedata.normalize("NFD", name)), ascii(name)
        assert folded(form) == folded(name), ascii(name)
        try:
            number = float(name) if name.isascii() else None
        except ValueError:
            continue
        assert number is None or float(form) == number, name


def corpora(folder: Path, *parts: list[tuple[str, ...]]) -> tuple[Corpus, Corpus]:
    """Return the corpora of two files with these rows: text, label, and user if there is one."""
    roles = {name: name for name in ("text", "label", "user")[: len(parts[0][0])]}
    for name, rows in zip(("train.csv", "test.csv"), parts, strict=True):
        with (folder / name).open("w", encoding="utf-8", newline="") as opened:
            csv.writer(opened).writerows([tuple(roles), *rows])
    return read_files(folder, "train.csv", "test.csv", **roles)


def people(folder: Path, train: str, test: str, *, other: str = "ben") -> list[str]:
    """Read two files with a user in each, and return the users of the first."""
    first, second = [("a", "0", train), ("b", "1", other)], [("c", "0", test), ("d", "1", "zoe")]
    return corpora(folder, first, second)[0].users


@pytest.mark.parametrize(("first", "second"), [SAME[1], SAME[7], SAME[9]])
def test_one_name_in_two_spellings_is_refused(tmp_path: Path, first: str, second: str) -> None:
    line = refused("one name in two spellings", people, tmp_path, first, second)
    assert "train.csv: line 2 and" in line and "test.csv: line 2" in line
    refused("two spellings", people, tmp_path, first, "pat", other=second)  # within one file
    for train, test, match in ((second, first, "write it one way"), (first, second, "in another spelling")):
        refused(match, corpora, tmp_path, [("a", "x"), ("b", train), ("c", first)], [("d", "x"), ("e", test)])


def test_a_user_whose_names_differ_in_case_is_refused_and_others_keep_their_spelling(tmp_path: Path) -> None:
    for first, second in CASE[:3]:
        refused("differ in case or width alone", people, tmp_path, first, second)
    for names in (["1.0", "2.0"], ["Jose\u0301", "Ann"], ["10", "9"]):  # keys of ledgers depend on them
        assert people(tmp_path, names[0], "x", other=names[1]) == names
    for name in ("\u200b", "\u200bnan", "\u2066\u2069"):
        refused("name the user of the record", people, tmp_path, name, "ann")


@pytest.mark.parametrize("first", ["My doctor says it is diabetes", "ann.lee@example.org", "+49 151 12345678"])
def test_a_name_that_may_be_a_persons_words_is_not_shown(tmp_path: Path, first: str) -> None:
    rows = [("a", first), ("b", f"{first}\u200b"), ("c", "x")]
    assert first not in refused("two spellings", people, tmp_path, first, f"{first}\u200b")
    assert first not in refused("are one name", corpora, tmp_path, rows, rows)


def test_classes_of_public_texts_are_matched_in_another_spelling() -> None:
    assert matched(["cafe\u0301", "No"], ["no", "café"], None) == {"cafe\u0301": "café", "No": "no"}
    for public in (["A", "b"], ["a", "A"]):
        refused("is missing", matched, ["A", "a"], public, None)

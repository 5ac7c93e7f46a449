"""Normal form of names, and files in which one person or one class has two spellings."""

from __future__ import annotations

import csv
import random
import unicodedata
from pathlib import Path

import pytest

from simulations.corpora.classes import matched
from simulations.corpora.files import read_files
from simulations.corpora.names import alike, folded, normal, spelled
from simulations.errors import UserError

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


def table(path: Path, rows: list[tuple[str, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened).writerows([("text", "label", "user")[: len(rows[0])], *rows])


def people(tmp_path: Path, train: str, test: str, *, other: str = "ben") -> list[str]:
    """Read two files with a user in each, and return the users of the first."""
    table(tmp_path / "train.csv", [("a", "0", train), ("b", "1", other)])
    table(tmp_path / "test.csv", [("c", "0", test), ("d", "1", "zoe")])
    return read_files(tmp_path, "train.csv", "test.csv", text="text", label="label", user="user")[0].users


def complaint(action) -> str:
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("first", "second"), [SAME[1], SAME[7], SAME[9]])
def test_one_name_in_two_spellings_is_refused(tmp_path: Path, first: str, second: str) -> None:
    line = complaint(lambda: people(tmp_path, first, second))
    assert "one name in two spellings" in line and "train.csv: line 2 and" in line and "test.csv: line 2" in line
    assert "two spellings" in complaint(lambda: people(tmp_path, first, "pat", other=second))  # within one file

    def labels(train: str, test: str) -> None:
        table(tmp_path / "train.csv", [("a", "x"), ("b", train), ("c", first)])
        table(tmp_path / "test.csv", [("d", "x"), ("e", test)])
        read_files(tmp_path, "train.csv", "test.csv", text="text", label="label")

    assert "write it one way" in complaint(lambda: labels(second, first))
    assert "in another spelling" in complaint(lambda: labels(first, second))


def test_a_user_whose_names_differ_in_case_is_refused_and_others_keep_their_spelling(tmp_path: Path) -> None:
    for first, second in CASE[:3]:
        assert "differ in case or width alone" in complaint(lambda a=first, b=second: people(tmp_path, a, b))
    for names in (["1.0", "2.0"], ["Jose\u0301", "Ann"], ["10", "9"]):  # keys of ledgers depend on them
        assert people(tmp_path, names[0], "x", other=names[1]) == names
    for name in ("\u200b", "\u200bnan", "\u2066\u2069"):
        assert "name the user of the record" in complaint(lambda name=name: people(tmp_path, name, "ann"))


@pytest.mark.parametrize("first", ["My doctor says it is diabetes", "ann.lee@example.org", "+49 151 12345678"])
def test_a_name_that_may_be_a_persons_words_is_not_shown(tmp_path: Path, first: str) -> None:
    second = f"{first}\u200b"
    assert first not in complaint(lambda: people(tmp_path, first, second))
    table(tmp_path / "train.csv", [("a", first), ("b", second), ("c", "x")])
    line = complaint(lambda: read_files(tmp_path, "train.csv", "train.csv", text="text", label="label"))
    assert first not in line and "are one name" in line


def test_classes_of_public_texts_are_matched_in_another_spelling() -> None:
    assert matched(["cafe\u0301", "No"], ["no", "café"], None) == {"cafe\u0301": "café", "No": "no"}
    for public in (["A", "b"], ["a", "A"]):
        assert "is missing" in complaint(lambda public=public: matched(["A", "a"], public, None))

"""One normal form of names, and what readers do where one person or one class has two of them."""

from __future__ import annotations

import csv
import random
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.corpora.classes import matched
from simulations.corpora.files import read_files
from simulations.corpora.names import alike, folded, normal, spelled
from simulations.errors import UserError

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
#: Pairs that are one name: numbers, Unicode forms, what nobody sees, spaces.
SAME = [
    ("1", "1.0"),
    ("1", "1e0"),
    ("1", "１"),
    ("1", "١"),
    ("-1", "−1"),
    ("1.5", "1.50"),
    ("1000000", "1e6"),
    ("1e400", "10E399"),
    ("José", "Jose\u0301"),
    ("Å", "\u212b"),
    ("한", "\u1112\u1161\u11ab"),
    ("ann", "a\u200bnn"),
    ("ann", "\ufeffann"),
    ("ann", "\u2066ann\u2069"),
    ("ann", "ann\u200d"),
    ("ann lee", "ann\u00a0lee"),
    ("ann", " ann\u3000"),
    ("é", "e\u200d\u0301"),
    ("ann", "ann\u2800"),
]
#: Pairs that differ for a reader, of which no more than the case or the width may be chance.
CASE = [
    ("Ann", "ann"),
    ("Weiß", "WEISS"),
    ("Ａnn", "Ann"),
    ("ΝΙΚΟΣ", "νικος"),
    ("ﬁn", "fin"),
    ("ışık", "IŞIK"),
    ("İnci", "inci"),
]
OTHER = [
    ("1", "2"),
    ("1", "1.5"),
    ("1", "-1"),
    ("e", "é"),
    ("1.0.0", "1"),
    ("ann", "anna"),
    ("1_0", "10"),
]


def refused(match: str, action: Callable[[], object]) -> None:
    with pytest.raises(UserError) as result:
        action()
    assert re.search(match, str(result.value)) and "\n" not in str(result.value), result.value


@pytest.mark.parametrize("first, second", SAME)
def test_two_spellings_of_one_name(first: str, second: str) -> None:
    assert normal(first) == normal(second) and folded(first) == folded(second)
    assert alike([first, second, first], normal) == [(first, second)]
    assert spelled(first) != spelled(second) and spelled(second).isprintable()


@pytest.mark.parametrize("first, second", CASE)
def test_a_difference_in_case_alone_is_kept_apart_and_found(first: str, second: str) -> None:
    assert normal(first) != normal(second) and folded(first) == folded(second)


@pytest.mark.parametrize("first, second", OTHER)
def test_other_names_stay_others(first: str, second: str) -> None:
    assert normal(first) != normal(second) and folded(first) != folded(second)


def test_the_normal_form_is_idempotent_over_unicode() -> None:
    """Every character of three planes, alone, behind a letter, and before a mark; all Unicode forms of it."""
    for code in (*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE1000)):
        for name in (chr(code), f"a{chr(code)}\u0301"):
            form = normal(name)
            assert normal(form) == form == normal(unicodedata.normalize("NFD", name)), ascii(name)


def test_the_forms_of_random_names_agree() -> None:
    """20,000 names out of letters, marks, digits, spaces and what nobody sees, seeded."""
    rng = random.Random(40)
    signs = "aAé1０9.+-eE_\u0301\u0323\u200b\u200d\u00ad\u00a0 \u3000\u0660ßİıΣς한\u1112\u1161ﬁ²½\U0001d7d9\ufeff"
    for _ in range(20_000):
        name = "".join(rng.choices(signs, k=rng.randrange(1, 7)))
        for form in FORMS[:2]:
            assert normal(unicodedata.normalize(form, name)) == normal(name), ascii(name)
        assert normal(normal(name)) == normal(name) and folded(normal(name)) == folded(name), ascii(name)
        if name.isascii() and (number := _float(name)) is not None:
            assert _float(normal(name)) == number, name


def _float(name: str) -> float | None:
    try:
        return float(name)
    except ValueError:
        return None


def table(path: Path, rows: list[tuple[str, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened).writerows([("text", "label", "user")[: len(rows[0])], *rows])


def people(tmp_path: Path, train: str, test: str, *, between: str = "ben") -> None:
    """Reads two files, of a user in each."""
    table(tmp_path / "train.csv", [("a", "0", train), ("b", "1", between)])
    table(tmp_path / "test.csv", [("c", "0", test), ("d", "1", "zoe")])
    read_files(tmp_path, "train.csv", "test.csv", text="text", label="label", user="user")


@pytest.mark.parametrize("first, second", [pair for pair in SAME if pair[1].strip() != pair[0]])
def test_a_user_of_two_spellings_is_refused(tmp_path: Path, first: str, second: str) -> None:
    with pytest.raises(UserError, match="are one name in two spellings") as result:
        people(tmp_path, first, second)
    text = str(result.value)
    assert spelled(first) in text and spelled(second.strip()) in text and 'column "user"' in text
    with pytest.raises(UserError, match="are one name in two spellings"):
        people(tmp_path, first, "pat", between=second)  # within one file


@pytest.mark.parametrize("first, second", CASE)
def test_a_user_of_two_cases_is_refused(tmp_path: Path, first: str, second: str) -> None:
    refused("differ in case or width alone", lambda: people(tmp_path, first, second))
    people(tmp_path, first, first)


@pytest.mark.parametrize("first", ["My doctor says it is diabetes", "ann.lee@example.org", "+49 151 12345678"])
def test_a_name_that_may_be_somebodys_words_is_not_shown(tmp_path: Path, first: str) -> None:
    """Of a column that holds something else, an error would print what somebody wrote."""
    second = first.upper() if first.upper() != first else f"{first}\u200b"
    refused(
        f"one of {len(first)} characters .*train.csv: line 2.* and one of {len(second)} characters .*test.csv: line 2",
        lambda: people(tmp_path, first, second),
    )
    with pytest.raises(UserError) as result:
        people(tmp_path, first, second)
    assert first not in str(result.value) and second not in str(result.value)
    table(tmp_path / "train.csv", [("a", first), ("b", f"{first}\u200b"), ("c", "x")])
    with pytest.raises(UserError, match="are one name") as told:
        read_files(tmp_path, "train.csv", "train.csv", text="text", label="label")
    assert first not in str(told.value)


@pytest.mark.parametrize("name", ["\u200b", "\ufeff\u00ad", "\u200bnan", "\u2066\u2069"])
def test_a_name_that_nobody_sees_is_none(tmp_path: Path, name: str) -> None:
    refused('"user" is .*; name the user of the record', lambda: people(tmp_path, name, "ann"))


def test_names_of_one_spelling_stay_as_they_are_written(tmp_path: Path) -> None:
    """Users are numbered by what is written, on which keys of ledgers rest."""
    for names in (["1.0", "2.0"], ["Jose\u0301", "Ann"], ["10", "9"]):
        table(tmp_path / "train.csv", [("a", "0", names[0]), ("b", "1", names[1])])
        table(tmp_path / "test.csv", [("c", "0", "x"), ("d", "1", "y")])
        train, _ = read_files(tmp_path, "train.csv", "test.csv", text="text", label="label", user="user")
        assert train.users == names


@pytest.mark.parametrize("first, second", [pair for pair in SAME if pair[1].strip() != pair[0]])
def test_a_label_of_two_spellings_is_refused(tmp_path: Path, first: str, second: str) -> None:
    def read(train: str, test: str) -> None:
        table(tmp_path / "train.csv", [("a", "x"), ("b", train), ("c", first)])
        table(tmp_path / "test.csv", [("d", "x"), ("e", test)])
        read_files(tmp_path, "train.csv", "test.csv", text="text", label="label")

    refused("are one (name|number); write it one way", lambda: read(second, first))
    refused("is the class .* in another spelling; write it one way", lambda: read(first, second))


def test_the_classes_of_public_texts_are_found_in_another_spelling() -> None:
    assert matched(["cafe\u0301", "No"], ["no", "café"], None) == {"cafe\u0301": "café", "No": "no"}
    refused("is missing", lambda: matched(["A", "a"], ["A", "b"], None))
    refused("is missing", lambda: matched(["A", "a"], ["a", "A"], None))

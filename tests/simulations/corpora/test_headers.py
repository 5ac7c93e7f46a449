"""First lines that are no headers: positions are for them, and nothing of them is shown."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from simulations.corpora import headers
from simulations.corpora.rewriting import blocks
from simulations.errors import UserError

#: Of (label, text) and of (text, label): what users wrote, and nothing else.
CSV = "ham,Call me at 5 tomorrow\nham,Ok lar see you\nspam,Free entry win cash now\n"
TSV = "Call me at 5 Anna\tham\nOk lar see you\tham\n"
PRIVATE = ("Call", "Anna", "tomorrow", "lar", "ham", "Free")


def sanitized(path: Path, columns: Sequence[str]) -> str:
    """A file whose texts were all replaced, as `sanitize` writes it."""
    made = [
        block.with_texts([("X",) * len(cells) for cells in block.texts])
        for block in blocks(path, io.BytesIO(), columns, 2)
    ]
    return b"".join(made).decode()


def refused(path: Path, columns: Sequence[str]) -> str:
    """The one line that says why, with nothing of the file that was not typed."""
    with pytest.raises(UserError) as caught:
        sanitized(path, columns)
    said = str(caught.value)
    assert said.isprintable() and not any(word in said for word in PRIVATE if word not in columns), said
    return said


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    (tmp_path / "in.csv").write_text(CSV)
    return tmp_path / "in.csv"


def test_by_position_every_row_is_a_record_the_first_one_too(csv: Path, tmp_path: Path) -> None:
    assert sanitized(csv, ["2"]) == "ham,X\nham,X\nspam,X\n"
    assert sanitized(csv, ["2", "1"]) == "X,X\n" * 3
    tsv = tmp_path / "in.tsv"
    tsv.write_text("\n" + TSV)
    assert sanitized(tsv, ["1"]) == "\nX\tham\nX\tham\n"
    tsv.write_text("Call Anna\n\nOk\n")
    assert sanitized(tsv, ["1"]) == "X\nX\nX\n"
    assert [block.others for block in blocks(csv, io.BytesIO(), ["2"], 9)] == [("column 1",)]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (["text"], "if the first line is a record, put a line of names above it"),
        ([], "put a line of names above it"),
        (["3"], "has 2 columns, and no position 3"),
        (["0"], "no position 0"),
        (["02"], "no position 02"),
        (["2", "text"], "positions for all"),
    ],
)
def test_no_cell_is_shown(csv: Path, columns: list[str], why: str) -> None:
    assert why in refused(csv, columns)


def test_one_column_has_a_header_only_where_that_is_certain(tmp_path: Path) -> None:
    tsv = tmp_path / "in.tsv"
    tsv.write_text("Call Anna\nOk\n")
    assert "say whether it has a header" in refused(tsv, [])
    tsv.write_text("text\nOk\n")
    assert sanitized(tsv, []) == "text\nX\n"


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ("text", True),
        ("Review Text", True),
        ("Unnamed: 0", True),
        ("", True),
        ('"odd"', True),
        ("2019", True),
        ("étiquette", True),
        ("评论内容", True),
        ("label (0/1)", True),
        ("Call me at 5 Anna", False),
        ("Ok lar see you", False),
        ("0171234567", False),
        ("ann@example.org", False),
        ("Come.", False),
        ("明天下午五点给我打电话", False),
        ("a\x07", False),
        ("x" * 41, False),
    ],
)
def test_what_looks_like_a_name(cell: str, name: bool) -> None:
    assert headers.is_name(cell) == name


def test_names_that_are_shown_are_words_of_a_list() -> None:
    assert headers.told(["text", "Anna", "label"]) == "text, label, 1 more"
    assert headers.told(["Anna", "Bob"]).startswith("2 of names that are not shown")
    assert headers.nearest("labels_", ["Anna", "label"]) == "label" and headers.nearest("Ann", ["Anna"]) is None
    assert set(map(str.casefold, headers.USUAL)) == headers.USUAL

"""CSV files as spreadsheets write them where a comma stands in numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.corpora.files import column_names
from simulations.corpora.reading import separator
from sottovoce.cli.main import main

ROWS = [["a fine film; truly", "1,5"], ["dull", "0,5"]]


@pytest.mark.parametrize(
    ("first", "mark"),
    [
        ("text,label\n", ","),
        ("text;label\n", ";"),
        ("text\tlabel\r\n", "\t"),
        ("text\n", ","),
        ("", ","),
        ("\n", ","),
        ('"a;b",label\n', ","),
        ('"a,b";label\n', ";"),
        ("a;b,label\n", ","),
    ],
)
def test_the_first_line_tells_what_stands_between_cells(first: str, mark: str) -> None:
    assert separator(first) == mark


@pytest.mark.parametrize("mark", [";", "\t", ","])
def test_a_file_is_read_and_written_with_its_own(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("fine 1 0\ndull 0 1\n")
    quoted = [[f'"{cell}"' for cell in row] for row in ROWS]
    (tmp_path / "in.csv").write_text("".join(mark.join(row) + "\n" for row in [["text", "score"], *quoted]))
    assert column_names(tmp_path / "in.csv") == ["text", "score"]
    asked = ["text", "sanitize", "--mechanism", "santext:epsilon=2", "--words", "words.txt", "--column", "text"]
    assert main([*asked, "--in", "in.csv", "--out", "out.csv"]) == 0
    head, first, second = (tmp_path / "out.csv").read_text().splitlines()
    assert head == f"text{mark}score" and [line.rpartition(mark)[2] for line in (first, second)][1] in ("0,5", '5"')
    assert all(mark in line for line in (first, second))

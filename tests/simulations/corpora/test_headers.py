"""First lines that are no headers: nothing of them is shown."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from simulations.corpora import headers
from simulations.corpora.files import read
from simulations.corpora.rewriting import blocks
from simulations.errors import UserError, other_encoding
from simulations.experiment import load
from sottovoce.cli import main as cli

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
    text = str(caught.value)
    assert text.isprintable() and not any(word in text for word in PRIVATE if word not in columns), text
    return text


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    (tmp_path / "in.csv").write_text(CSV)
    return tmp_path / "in.csv"


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (["text"], "if the first line is a record, put a line of names above it"),
        ([], "put a line of names above it"),
        (["2"], "put a line of names above it"),
    ],
)
def test_no_cell_is_shown(csv: Path, columns: list[str], why: str) -> None:
    assert why in refused(csv, columns)


def test_one_column_has_a_header_only_where_that_is_certain(tmp_path: Path) -> None:
    tsv = tmp_path / "in.tsv"
    tsv.write_text("Call Anna\nOk\n")
    assert "put a line of names above it" in refused(tsv, [])
    tsv.write_text("text\nOk\n")
    assert sanitized(tsv, []) == "text\nX\n"


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ("text", True),
        ("Review Text", True),
        ("", True),
        ('"odd"', True),
        ("étiquette", True),
        ("评论内容", True),
        ("Call me at 5 Anna", False),
        ("0171234567", False),
        ("ann@example.org", False),
        ("明天下午五点给我打电话", False),
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


# --- pipes, marks of an encoding, and other encodings

STUDY = 'name = "a"\n[[arm]]\nname = "b"\nembedding = { mechanism = "identity" }\nreference = true\n'
TABLE = "text,label\na fine film,1\na bad one,0\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def piped(name: str, data: bytes) -> Path:
    """A pipe that gives these bytes, once."""
    os.mkfifo(name)
    threading.Thread(target=lambda: Path(name).write_bytes(data), daemon=True).start()
    return Path(name)


def test_a_pipe_is_read_where_once_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    Path("w.txt").write_text("a 1 2\nfine 2 1\nfilm 3 3\nbad 1 1\none 4 4\n")
    options = ("--mechanism", "identity:length=kept", "--words", "w.txt", "--column", "text")
    assert cli.main(["sanitize", *options, "--in", str(piped("in.csv", TABLE.encode()))]) == 0
    assert capsys.readouterr().out == TABLE
    assert load(piped("study", STUDY.encode())).name == "a"


@pytest.mark.parametrize(
    "command",
    [
        ["init", "x", "--from", "pipe.csv"],
        ["device", "add", "node", "--file", "pipe.csv", "--text", "text"],
        ["sanitize", "--mechanism", "identity", "--words", "pipe.csv"],
    ],
)
def test_a_pipe_is_named_where_once_is_not_enough(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe.csv")
    assert cli.main(command) == 2
    output = capsys.readouterr().err
    assert "pipe.csv: is a pipe or a device, which can be read only once; save what it gives in a file" in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_another_encoding_is_named(coding: str) -> None:
    name = coding[:6].upper()
    Path("a.csv").write_bytes(TABLE.encode(coding))
    Path("a.toml").write_bytes(STUDY.encode(coding))
    tries: tuple[Callable[[], object], ...] = (lambda: read(Path("a.csv"), ["text"]), lambda: load("a.toml"))
    for action in tries:
        with pytest.raises(UserError, match=rf"is {name}; convert it to UTF-8: iconv -f {name} -t UTF-8$"):
            action()


def test_a_mark_at_the_beginning_is_no_text() -> None:
    Path("a.toml").write_bytes(b"\xef\xbb\xbf" + STUDY.replace("\n", "\r\n").encode())
    assert load("a.toml") == load(_written("b.toml", STUDY))
    Path("a.csv").write_bytes(b"\xef\xbb\xbf" + TABLE.encode())
    assert list(read(Path("a.csv"), ["text"]).values["text"]) == ["a fine film", "a bad one"]
    assert [other_encoding(data) for data in (b"", b"a", b"a\0", b"\0\0\0\0", b"text")] == [None] * 5


def _written(name: str, said: str) -> str:
    Path(name).write_text(said)
    return name

"""Where bytes come from, and what they are: pipes, marks of an encoding, and what a file says of itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.corpora.files import read
from simulations.errors import UserError, other_encoding
from simulations.experiment import load
from sottovoce.cli import main as cli

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
    assert cli.main(["text", "sanitize", *options, "--in", str(piped("in.csv", TABLE.encode()))]) == 0
    assert capsys.readouterr().out == TABLE
    assert load(piped("study", STUDY.encode())).name == "a"


@pytest.mark.parametrize(
    "command",
    [
        ["init", "x", "--from", "pipe.csv"],
        ["device", "add", "node", "--file", "pipe.csv", "--text", "text"],
        ["text", "sanitize", "--mechanism", "identity", "--words", "pipe.csv"],
    ],
)
def test_a_pipe_is_named_where_once_is_not_enough(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe.csv")
    assert cli.main(command) == 2
    said = capsys.readouterr().err
    assert "pipe.csv: is a pipe or a device, which can be read only once; save what it gives in a file" in said
    assert said.count("\n") == 1


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

"""Embeddings kept on the disk: each text once, whatever the list, the process or what was deleted meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from client.models.embeddings import TableEmbeddings
from simulations.artifacts import cache
from simulations.artifacts.cache import cache_folder, embed
from simulations.artifacts.segments import _MANY, Segments
from tests.support.paths import ROOT

WIDTH = 3


class Counting:
    """An encoder of the letters of a text, which remembers what it was asked."""

    identity, dim = "ab" * 32, WIDTH

    def __init__(self) -> None:
        self.asked: list = []

    def encode(self, texts: list) -> np.ndarray:
        self.asked += texts
        return np.array([[len(t), len("".join(t)), hash(t) % 1000] for t in texts], np.float32)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def quiet(_line: str) -> None:
    pass


def folders() -> list[Path]:
    return sorted(next((cache_folder() / "embeddings").iterdir()).glob("[0-9a-f]*"))


def test_each_text_is_encoded_once_whatever_the_list() -> None:
    encoder = Counting()
    texts = ["a", "b", ("a", "b"), "ab", ("ab", ""), "", "a", "\ud800"]
    first = embed(encoder, texts, progress=quiet)
    assert len(encoder.asked) == 7 and set(encoder.asked) == set(texts)
    np.testing.assert_array_equal(first, Counting().encode(texts))
    assert isinstance(first, TableEmbeddings) and (len(first), first.width) == (8, WIDTH)
    second = embed(encoder, ["ab", "new", "a"], progress=quiet)
    assert encoder.asked[7:] == ["new"]
    np.testing.assert_array_equal(second, Counting().encode(["ab", "new", "a"]))
    np.testing.assert_array_equal(second[1:], np.asarray(second)[1:])
    np.testing.assert_array_equal(second.take(np.array([2, 0])), np.asarray(second)[[2, 0]])
    assert np.asarray(second, dtype=np.float64).dtype == np.float64
    assert len(folders()) == 2


def test_no_texts() -> None:
    assert np.asarray(embed(Counting(), [], progress=quiet)).shape == (0, WIDTH)


def test_another_encoder_and_another_runtime_have_rows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Counting()
    embed(encoder, ["a"], progress=quiet)
    other = Counting()
    other.identity = "cd" * 32
    embed(other, ["a"], progress=quiet)
    assert other.asked == ["a"]
    monkeypatch.setattr(cache, "onnxruntime", SimpleNamespace(__version__="0.0.0"))
    embed(encoder, ["a"], progress=quiet)
    assert encoder.asked == ["a", "a"]


def test_what_is_deleted_is_made_again() -> None:
    encoder = Counting()
    whole = np.asarray(embed(encoder, ["a", "b"], progress=quiet))
    embed(encoder, ["c"], progress=quiet)
    for segment in folders():
        (segment / "keys.npy").write_bytes(b"half")
    (folders()[0] / "keys.npy").unlink()
    for segment in folders():
        for file in segment.iterdir():
            file.unlink()
        segment.rmdir()
    np.testing.assert_array_equal(embed(encoder, ["a", "b"], progress=quiet), whole)
    assert sorted(encoder.asked) == ["a", "a", "b", "b", "c"]


def test_progress_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_PIECE", 2)
    monkeypatch.setattr(cache, "_SECONDS_BETWEEN_LINES", -1.0)
    lines: list[str] = []
    embed(Counting(), ["a", "b", "c"], progress=lines.append)
    assert [line.partition(" texts,")[0] for line in lines] == ["encoded 2 of 3", "encoded 3 of 3"]
    embed(Counting(), ["a", "b", "c"], progress=lines.append)
    assert len(lines) == 2


def test_a_long_list_is_kept_in_pieces_so_that_a_kill_loses_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_SEGMENT", 2)

    class Killed(Counting):
        def encode(self, texts: list) -> np.ndarray:
            if len(self.asked) >= 4:
                raise KeyboardInterrupt
            return super().encode(texts)

    with pytest.raises(KeyboardInterrupt):
        embed(Killed(), list("abcdef"), progress=quiet)
    again = Counting()
    np.testing.assert_array_equal(embed(again, list("abcdef"), progress=quiet), Counting().encode(list("abcdef")))
    assert len(again.asked) == 2


def test_many_segments_that_nobody_uses_become_one() -> None:
    encoder = Counting()
    texts = [f"text {i}" for i in range(_MANY + 3)]
    for text in texts:
        embed(encoder, [text, "shared"], progress=quiet)
    assert len(folders()) == len(texts)
    embed(encoder, [], progress=quiet)
    before = len(folders())
    assert before >= len(texts)  # all in use a moment ago
    past = time.time() - 2 * 86_400
    for segment in folders():
        os.utime(segment, (past, past))
    embed(encoder, [], progress=quiet)
    assert len(folders()) == 1 + 1  # and the one without rows, in use again
    asked = len(encoder.asked)
    np.testing.assert_array_equal(embed(encoder, texts, progress=quiet), Counting().encode(texts))
    assert len(encoder.asked) == asked


def test_a_segment_in_use_is_not_merged_away() -> None:
    encoder = Counting()
    for i in range(_MANY + 2):
        embed(encoder, [f"text {i}"], progress=quiet)
    past = time.time() - 2 * 86_400
    for segment in folders():
        os.utime(segment, (past, past))
    segments = Segments(folders()[0].parent, WIDTH)
    used = segments.find(cache._keys(["text 3"]))[0][0]
    segments.compact()
    assert used.exists() and len(folders()) == 2


def test_keys_with_equal_first_halves_are_told_apart(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "s", 1)
    segments.add(np.array([[1, 5]], np.uint64), np.ones((1, 1), np.float32))
    paths, rows = segments.find(np.array([[1, 4], [1, 5], [2, 5]], np.uint64))
    assert rows.tolist() == [-1, 0, -1] and len(paths) == 1


TWO = """
import sys, numpy as np
from tests.simulations.artifacts.test_cache import Counting, quiet
from simulations.artifacts.cache import embed
texts = [f"text {i}" for i in range(int(sys.argv[1]), int(sys.argv[1]) + 400)]
for n in range(20, 401, 20):
    got = np.asarray(embed(Counting(), texts[:n], progress=quiet))
    assert (got[:, :2] == Counting().encode(texts[:n])[:, :2]).all()
"""


def test_two_processes_at_once() -> None:
    root = ROOT
    at_work = [subprocess.Popen([sys.executable, "-c", TWO, start], cwd=root) for start in ("0", "200")]
    assert [process.wait(120) for process in at_work] == [0, 0]
    assert not list(folders()[0].parent.glob(".*"))

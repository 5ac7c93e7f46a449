"""Columns of texts and embeddings on the disk say what they were made of; what is torn is refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from client.models.embeddings import TableEmbeddings, embeddings_path, read_embeddings, write_embeddings
from client.store.tables import Tables
from client.store.text_column import TextColumn

TEXTS = ["one", "", "naïve 漢字", ("first", "second"), ("", "x"), ("x", ""), "line\u2028and\nline", "\ud800 half"]


@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:3], [], [("a", "b")] * 3, [""]])
def test_a_column_is_its_list(tmp_path: Path, texts: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.store.text_column._BLOCK", 3)
    made = TextColumn.of(texts)
    made.save(tmp_path / "t")
    for column in (made, TextColumn.load(tmp_path / "t")):
        assert list(column) == texts and column == texts and texts == column and len(column) == len(texts)
        assert [column[i] for i in range(len(texts))] == texts and column[1:] == texts[1:]
        if texts:
            assert column[-1] == texts[-1] and column != texts[:-1] and column != [*texts[:-1], "other"]
        rows = np.random.default_rng(0).integers(0, max(1, len(texts)), 10 * len(texts))
        taken = column.take(rows)
        assert taken == [texts[i] for i in rows] and taken.take(np.arange(len(rows))[::-1]) == [*taken][::-1]
        with pytest.raises(IndexError):
            column[len(texts)]
    assert "one" not in repr(made)


def test_long_texts_are_taken_in_the_memory_that_they_need() -> None:
    """It took two numbers for each byte: 850 MB for a text of 50."""
    column = TextColumn.of(["a" * 2**22, "short", "b" * 2**22])
    for rows, kept in (([2, 0], 2), ([0, 1, 2], 2), ([0], 1)):
        tracemalloc.start()
        try:
            taken = column.take(np.array(rows))
            assert tracemalloc.get_traced_memory()[1] < (kept + 0.25) * 2**22
        finally:
            tracemalloc.stop()
        assert taken == [column[row] for row in rows]


def test_what_lies_behind_the_last_text_is_not_read(tmp_path: Path) -> None:
    TextColumn.of(TEXTS).save(tmp_path / "t")
    with open(tmp_path / "t", "ab") as file:
        file.write(b"\xff not told of yet")
    assert TextColumn.load(tmp_path / "t") == TEXTS
    for n in range(len(TEXTS) + 1):
        assert TextColumn.load(tmp_path / "t", n) == TEXTS[:n]


def test_a_torn_column_is_refused_without_a_word_of_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for spoil in (
        lambda: path.write_bytes(b"HIV"),
        lambda: path.unlink(),
        lambda: (tmp_path / "t.starts.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': 'HIV'}\n"),
        lambda: np.save(tmp_path / "t.starts.npy", np.array([0, 3, 9])),
        lambda: np.save(tmp_path / "t.starts.npy", np.array([[0, 7, 6, 9]])),
        lambda: np.save(tmp_path / "t.starts.npy", np.array([[1, 9]])),
        lambda: np.save(tmp_path / "t.starts.npy", np.array([[0, 9], [10, -1]])),
        lambda: np.save(tmp_path / "t.starts.npy", np.array([[0.0, 9.0]])),
    ):
        TextColumn.of(["HIV", "HIV", ("H", "IV")]).save(path)
        spoil()
        with pytest.raises(ValueError, match="does not hold a column") as caught:
            TextColumn.load(path)
        assert "HIV" not in str(caught.value)
    TextColumn.of(["HIV"]).save(path)
    path.write_bytes(b"HI\xff")
    with pytest.raises(ValueError, match="not UTF-8") as caught:
        list(TextColumn.load(path))
    assert "HI" not in str(caught.value)


def test_embeddings_of_a_file_and_of_shared_tables(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(20, 5)).astype(np.float32)
    np.save(tmp_path / "a.npy", values[:12])
    np.save(tmp_path / "b.npy", values[12:])
    tables = Tables((tmp_path / "a.npy", tmp_path / "b.npy"))
    rows = np.array([19, 0, 0, 13, 11])
    write_embeddings(tmp_path, "train", "e", TableEmbeddings(tables, rows))
    write_embeddings(tmp_path, "test", "e", values[rows])
    assert embeddings_path(tmp_path, "train", "e").stat().st_size < 200  # the numbers alone
    for split in ("train", "test"):
        found = read_embeddings(tmp_path, split, "e", 5)
        assert found is not None and found.width == 5
        np.testing.assert_array_equal(found.take(np.array([4, 0, 2])), values[rows[[4, 0, 2]]])
        assert found.take(np.zeros(0, np.int64)).shape == (0, 5)
        fewer = read_embeddings(tmp_path, split, "e", 4)  # somebody is adding a fifth behind them
        assert fewer is not None
        np.testing.assert_array_equal(fewer.take(np.arange(4)), values[rows[:4]])
        with pytest.raises(ValueError, match="does not fit"):
            read_embeddings(tmp_path, split, "e", 6)
    assert read_embeddings(tmp_path, "train", "other", 5) is None
    write_embeddings(tmp_path, "train", "e", TableEmbeddings(tables, np.array([20])))
    with pytest.raises(ValueError, match="does not fit"):
        read_embeddings(tmp_path, "train", "e", 1)
    embeddings_path(tmp_path, "train", "e").with_suffix(".json").unlink()
    with pytest.raises(ValueError, match="does not hold"):
        read_embeddings(tmp_path, "train", "e", 1)
    for wrong in (values.astype(np.float64), values[0], TableEmbeddings(tables, np.zeros(3))):
        with pytest.raises(ValueError):
            write_embeddings(tmp_path, "train", "e", wrong)

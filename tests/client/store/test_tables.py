"""Columns, tables and embeddings on the disk: equal to what they were made of, refused in one line where torn."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from client.models.embeddings import TableEmbeddings, Tables, embeddings_path, read_embeddings, write_embeddings
from client.store.text_column import TextColumn


def write(folder: Path, *sizes: int, width: int = 7) -> tuple[tuple[Path, ...], np.ndarray]:
    """Tables of those numbers of rows, and the matrix that they make."""
    parts = [np.random.default_rng(i).normal(size=(n, width)).astype(np.float32) for i, n in enumerate(sizes)]
    paths = tuple(folder / f"{i}.npy" for i in range(len(sizes)))
    for path, part in zip(paths, parts, strict=True):
        np.save(path, part)
    return paths, np.concatenate(parts)


@pytest.mark.parametrize("sizes", [(0,), (5, 0, 3), (2000, 1, 3000)])
def test_rows_are_those_of_the_plain_matrix(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    paths, whole = write(tmp_path, *sizes)
    tables = Tables(paths)
    assert (len(tables), tables.width) == whole.shape
    rng = np.random.default_rng(1)
    asked = [np.arange(len(whole)), np.arange(len(whole))[::-1], np.zeros(0, np.int64)]
    if len(whole):
        asked += [rng.integers(0, len(whole), 5000), np.full(3, len(whole) - 1)]
    for rows in asked:
        taken = tables.take(rows)
        assert taken.dtype == np.float32 and taken.tobytes() == whole[rows].tobytes()
    with pytest.raises(IndexError):
        tables.take(np.array([len(whole)]))


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((3, 7)), "must hold float32"),
        (np.zeros(7, np.float32), "must hold float32"),
        (np.zeros((3, 7), np.float32, order="F"), "row by row"),
        (np.zeros((3, 6), np.float32), "is 6 wide"),
        (b"something else", "no whole .npy file"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(tmp_path: Path, array: object, said: str) -> None:
    paths, _ = write(tmp_path, 2)
    bad = tmp_path / "bad.npy"
    if isinstance(array, bytes):
        bad.write_bytes(array)
    elif array is not None:
        np.save(bad, array)
    with pytest.raises(ValueError, match=said) as caught:
        Tables((*paths, bad))
    assert str(bad) in str(caught.value) and "\n" not in str(caught.value)


def test_a_table_cut_short_is_refused_before_and_after(tmp_path: Path) -> None:
    paths, _ = write(tmp_path, 40)
    tables = Tables(paths)
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[:-4])
    for torn in (lambda: Tables(paths), lambda: tables.take(np.array([39]))):
        with pytest.raises(ValueError, match="no whole"):
            torn()
    np.save(paths[0], np.zeros((39, 7), np.float32))
    with pytest.raises(ValueError, match="has changed"):
        tables.take(np.array([38]))
    paths[0].unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        tables.take(np.array([0]))


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
    paths, values = write(tmp_path, 12, 8, width=5)
    tables, rows = Tables(paths), np.array([19, 0, 0, 13, 11])
    write_embeddings(tmp_path, "train", "e", TableEmbeddings(tables, rows))
    write_embeddings(tmp_path, "test", "e", values[rows])
    assert embeddings_path(tmp_path, "train", "e").stat().st_size < 200  # the numbers alone
    for split in ("train", "test"):
        found, fewer = (read_embeddings(tmp_path, split, "e", n) for n in (5, 4))  # somebody is adding a fifth behind
        assert found is not None and found.width == 5 and fewer is not None
        np.testing.assert_array_equal(found.take(np.array([4, 0, 2])), values[rows[[4, 0, 2]]])
        np.testing.assert_array_equal(fewer.take(np.arange(4)), values[rows[:4]])
        assert found.take(np.zeros(0, np.int64)).shape == (0, 5)
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


@pytest.mark.parametrize("links", [True, False])
def test_a_node_moves_and_its_tables_may_go(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("cache", "node"):
        (tmp_path / folder).mkdir()
    paths, whole = write(tmp_path / "cache", 30, 20)
    rows, node = np.array([3, 49, 0, 30, 29, 3, 7]), tmp_path / "node"
    if not links:  # as between two file systems

        def refuse(*_: object) -> None:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "link", refuse)
    for _ in range(2):  # a run that goes on may write them again
        write_embeddings(node, "train", "ab" * 32, TableEmbeddings(Tables(paths), rows))
    shutil.rmtree(tmp_path / "cache")
    node = node.rename(tmp_path / "moved")
    found = read_embeddings(node, "train", "ab" * 32, 7)
    assert found is not None and found.take(np.arange(7)).tobytes() == whole[rows].tobytes()
    assert len(list(node.glob("*.table-*.npy"))) == (2 if links else 0)

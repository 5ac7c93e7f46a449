"""Embeddings in shared tables: a node keeps row numbers and links, and outlives what the tables came from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from client.models.embeddings import TableEmbeddings, read_embeddings, write_embeddings
from client.store.tables import Tables

IDENTITY = "ab" * 32


def rows_of(folder: Path) -> tuple[TableEmbeddings, np.ndarray]:
    """Seven rows of two tables, and what they are."""
    folder.mkdir()
    whole = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.save(folder / "a.npy", whole[:30])
    np.save(folder / "b.npy", whole[30:])
    rows = np.array([3, 49, 0, 30, 29, 3, 7])
    return TableEmbeddings(Tables((folder / "a.npy", folder / "b.npy")), rows), whole[rows]


@pytest.mark.parametrize("links", [True, False])
def test_a_node_moves_and_its_tables_may_go(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, values = rows_of(tmp_path / "cache")
    if not links:  # as between two file systems

        def refuse(*_: object) -> None:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "link", refuse)
    node = tmp_path / "node"
    node.mkdir()
    for _ in range(2):  # a run that goes on may write them again
        write_embeddings(node, "train", IDENTITY, rows)
    shutil.rmtree(tmp_path / "cache")
    node = node.rename(tmp_path / "moved")
    found = read_embeddings(node, "train", IDENTITY, len(values))
    assert found is not None and found.width == 4
    assert found.take(np.arange(7)).tobytes() == values.tobytes()
    assert len(list(node.glob("*.table-*.npy"))) == (2 if links else 0)


def test_embeddings_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    rows, _ = rows_of(tmp_path / "cache")
    write_embeddings(tmp_path, "train", IDENTITY, rows)
    assert read_embeddings(tmp_path, "test", IDENTITY, 7) is None
    with pytest.raises(ValueError, match="does not fit its records"):
        read_embeddings(tmp_path, "train", IDENTITY, 8)
    next(tmp_path.glob("*.table-1.npy")).unlink()
    with pytest.raises(ValueError, match="does not hold the embeddings"):
        read_embeddings(tmp_path, "train", IDENTITY, 7)

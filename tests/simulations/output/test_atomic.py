"""A file is whole or not there, and as private as the process that writes it wants its files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from simulations.errors import UserError
from simulations.output.atomic import check_writable, whole


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644)])
@pytest.mark.parametrize("synced", [True, False])
def test_the_umask_says_who_reads_it(tmp_path: Path, mask: int, mode: int, synced: bool) -> None:
    path = tmp_path / "file"
    before = os.umask(mask)
    try:
        with whole(path, synced=synced) as file:
            file.write(b"first")
            (draft,) = tmp_path.iterdir()
            assert draft != path and stat.S_IMODE(draft.stat().st_mode) == mode
    finally:
        os.umask(before)
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_bytes() == b"first"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_what_was_there_stays_where_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(RuntimeError), whole(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_bytes() == b"before"


def test_an_error_names_the_file_that_was_to_be(tmp_path: Path) -> None:
    """And not the hidden one beside it. Into a folder that is a file not even the superuser can write."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError) as caught, whole(tmp_path / "file" / "figure.png"):
        raise AssertionError
    assert caught.value.filename == str(tmp_path / "file" / "figure.png")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught, whole(tmp_path / "folder") as file:
        file.write(b"whole")
    assert caught.value.filename == str(tmp_path / "folder")
    check_writable(tmp_path)
    with pytest.raises(UserError, match=r"file: cannot be written: Not a directory$"):
        check_writable(tmp_path / "file")
        check_writable(tmp_path / "file")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]

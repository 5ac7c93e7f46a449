"""Rows of tables on the disk: equal to the plain matrix, refused in one line, not resident."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from client.store.tables import Tables
from tests.support.paths import ROOT


def write(folder: Path, *sizes: int, width: int = 7) -> tuple[tuple[Path, ...], np.ndarray]:
    """Tables of those numbers of rows, and the matrix that they make."""
    parts = [np.random.default_rng(i).normal(size=(n, width)).astype(np.float32) for i, n in enumerate(sizes)]
    paths = tuple(folder / f"{i}.npy" for i in range(len(sizes)))
    for path, part in zip(paths, parts, strict=True):
        np.save(path, part)
    return paths, np.concatenate(parts)


@pytest.mark.parametrize("sizes", [(1,), (0,), (5, 0, 3), (2000, 1, 30_000), (0, 4)])
def test_rows_are_those_of_the_plain_matrix(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    paths, whole = write(tmp_path, *sizes)
    tables = Tables(paths)
    assert (len(tables), tables.width) == whole.shape
    rng = np.random.default_rng(1)
    asked = [np.arange(len(whole)), np.arange(len(whole))[::-1], np.zeros(0, np.int64)]
    if len(whole):
        asked += [rng.integers(0, len(whole), 50_000), rng.permutation(len(whole))[:17], np.full(3, len(whole) - 1)]
    for rows in asked:
        taken = tables.take(rows)
        assert taken.dtype == np.float32 and taken.tobytes() == whole[rows].tobytes()


def test_it_travels_to_another_process_as_its_paths(tmp_path: Path) -> None:
    paths, whole = write(tmp_path, 3, 2)
    again = pickle.loads(pickle.dumps(Tables(paths)))
    assert again == Tables(paths)
    np.testing.assert_array_equal(again.take(np.array([4, 0])), whole[[4, 0]])


@pytest.mark.parametrize("row", [-1, 5])
def test_a_row_outside_is_an_error(tmp_path: Path, row: int) -> None:
    tables = Tables(write(tmp_path, 5)[0])
    with pytest.raises(IndexError, match="rows are 0 to 4"):
        tables.take(np.array([0, row]))


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((3, 7)), "must hold float32"),
        (np.zeros((3, 7), ">f4"), "must hold float32"),
        (np.zeros(7, np.float32), "must hold float32"),
        (np.zeros((3, 7), np.float32, order="F"), "row by row"),
        (np.zeros((3, 6), np.float32), "is 6 wide"),
        (b"", "no .npy file"),
        (b"something else", "no .npy file"),
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
    with pytest.raises(ValueError, match="not whole"):
        Tables(paths)
    with pytest.raises(ValueError, match="shorter"):
        tables.take(np.array([39]))
    paths[0].unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        tables.take(np.array([0]))


def test_no_tables_are_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Tables(())


RESIDENT = """
import resource, sys
from pathlib import Path
import numpy as np
from client.store.tables import Tables
tables = Tables((Path(sys.argv[1]),))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = np.random.default_rng(0).permutation(len(tables))
total = sum(float(tables.take(part).sum()) for part in np.array_split(rows, 40))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, total)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
def test_a_table_read_in_parts_does_not_stay_in_memory(tmp_path: Path) -> None:
    """64 MiB read in 40 random parts of 1.6 MiB: the peak grows by less than a quarter. A mapped table would grow by
    all of it."""
    paths, whole = write(tmp_path, 1 << 16, width=256)
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, str(paths[0])], capture_output=True, text=True, check=True, cwd=ROOT
    )
    grown, total = done.stdout.split()
    assert int(grown) < (16 << 10)
    assert float(total) == pytest.approx(float(whole.sum(dtype=np.float64)), rel=1e-2)

"""Corpora from a folder's files: TSV and CSV with a header, JSONL and Parquet."""

import gzip
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Unpack, cast

from client.store.text_column import TextColumnWriter
from simulations.corpora import reading
from simulations.corpora.columns import Columns, Roles, as_numbers, make_corpora, named
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError, no_file

#: Kinds of files with a header and cells.
_CELLS = (".tsv", ".txt", ".csv")


def read_files(path: str | Path, train: str, test: str, **roles: Unpack[Roles]) -> tuple[Corpus, Corpus]:
    """Return train and test corpora from two files of the folder `path`, read by the ends of their names.

    .tsv, .txt: a header, tabs, no quoting. .csv: a header, commas, double quotes. .jsonl: one object on each line. All
    of them are UTF-8, and compressed if .gz follows. .parquet. Spaces around texts are removed. Classes are those of
    the train file. The column `text` may have another name in the test file if the two headers differ in nothing else
    (SST-2's are published so).

    Args:
        path: Folder.
        train: Train file.
        test: Test file.
        **roles: Columns (`Roles`).

    Raises:
        UserError: A file or column is missing, a text is empty, a label is outside the classes, or a file is not UTF-8
            or not in its format; the message has the line.
    """
    wanted = named(roles)
    train_file, test_file = (_existing(Path(path), name) for name in (train, test))
    renamed = _renamed(_header(train_file), _header(test_file), wanted[0])
    first = read(train_file, wanted)
    second = read(test_file, [renamed.get(name, name) for name in wanted])
    second = replace(second, values={name: second.values[renamed.get(name, name)] for name in wanted})
    corpora = make_corpora((first, second), **roles)
    return corpora[0], corpora[1]


def _existing(folder: Path, name: str) -> Path:
    file = folder / name
    if not folder.is_dir():
        missing = "is a file" if folder.is_file() else "there is no such folder"
        raise UserError(f"{folder}: {missing}; name the {'folder' if folder.is_file() else 'one'} that holds {name}")
    if file.exists() and not file.is_file():
        raise no_file(file)
    if not file.is_file():
        here = sorted(entry.name for entry in folder.iterdir() if _kind(entry) in _READERS)
        raise UserError(f"{file}: there is no such file; the folder holds {', '.join(here) or 'no data files'}")
    _reader(file)
    return file


def _header(file: Path) -> list[str]:
    """Return the names in the first line of a file of cells; none for other kinds."""
    if _kind(file) not in _CELLS:
        return []
    with _readable(file), _opened(file) as opened:
        return reading.table(reading.decoded(opened, str(file)), _kind(file), str(file))[0]


def declares(file: Path) -> bool:
    """Return True if a schema names the columns. Such names are not a person's words."""
    return _kind(file) == ".parquet"


def column_names(file: Path) -> list[str]:
    """Return the names of a file's columns; for JSON lines, the keys of the first.

    Raises:
        UserError: The file cannot be read, or names no columns.
    """
    if not file.is_file():
        raise no_file(file)
    _reader(file)
    with _readable(file):
        if _kind(file) == ".jsonl":
            first = next(((number, line) for number, line in lines(file) if line.strip()), None)
            names = [] if first is None else list(reading.parsed(first[1], str(file), first[0], "text"))
        elif declares(file):
            names = _schema(file).names
        else:
            names = [name for name in _header(file) if name]
    if not names:
        raise UserError(f"{file}: names no columns; its first line must")
    return names


def _renamed(train: list[str], test: list[str], text: str) -> dict[str, str]:
    """Return the test file's name of the column of texts, if the two headers differ in nothing else.

    A label under another name may be another label.
    """
    if len(train) != len(test):
        return {}
    differ = {
        train_name: test_name for train_name, test_name in zip(train, test, strict=True) if train_name != test_name
    }
    return differ if list(differ) == [text] and text not in test else {}


def _kind(file: Path) -> str:
    """Return the kind of the file by the end of its name, compressed or not."""
    return (Path(file.stem) if _is_compressed(file) else file).suffix.lower()


def _is_compressed(file: Path) -> bool:
    return file.suffix.lower() == ".gz"


def _reader(file: Path) -> Callable[[Path, list[str]], Columns]:
    kind = _kind(file)
    if kind not in _READERS or (_is_compressed(file) and declares(file)):
        raise UserError(f"{file}: unknown kind of file; use {', '.join(_READERS)}, or text files with .gz behind it")
    return _READERS[kind]


def read(file: Path, wanted: list[str]) -> Columns:
    """Return some columns of one file, by the end of its name, as for `read_files`.

    Raises:
        UserError: As for `read_files`.
    """
    with _readable(file):
        return _reader(file)(file, wanted)


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """Open the bytes of a file, decompressed, or raise UserError if it is damaged."""
    if not _is_compressed(file):
        with file.open("rb") as opened:
            yield opened
        return
    try:
        with gzip.open(file, "rb") as compressed:
            yield cast(BinaryIO, compressed)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{file}: is not a whole gzip file: {(str(error).splitlines() or ['?'])[0]}") from error


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error


def lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbers and lines of a file, one by one: a file may be larger than memory."""
    with _opened(file) as opened:
        for number, line in reading.decoded(opened, str(file)):
            yield number, reading.without_end(line)


def _cells(file: Path, wanted: list[str]) -> Columns:
    place, numbers = str(file), array("q")
    with _opened(file) as opened:
        header, rows = reading.table(reading.decoded(opened, place), _kind(file), place)
        values = {name: (TextColumnWriter(), reading.column(header, name, place)) for name in wanted}
        for number, cells in rows:
            if cells:
                for column, i in values.values():
                    column.add(cells[i])
                numbers.append(number)
    return Columns(place, {name: column.column() for name, (column, _) in values.items()}, "line", numbers)


def _jsonl(file: Path, wanted: list[str]) -> Columns:
    values: dict[str, list[object]] = {name: [] for name in wanted}
    numbers = array("q")
    for number, record in reading.objects(lines(file), str(file), wanted):
        for name in wanted:
            values[name].append(record[name])
        numbers.append(number)
    return Columns(str(file), values, "line", numbers)


def _parquet(file: Path, wanted: list[str]) -> Columns:
    from pyarrow import parquet

    names = _schema(file).names
    for name in wanted:
        reading.column(names, name, str(file), declared=True)
    with reading.parquet_errors(file):
        table = parquet.read_table(file, columns=list(dict.fromkeys(wanted)))
        values = {name: as_numbers(table.column(name).to_pylist()) for name in wanted}
    return Columns(str(file), values, "row", range(1, table.num_rows + 1))


def _schema(file: Path) -> Any:
    from pyarrow import parquet

    with reading.parquet_errors(file):
        return parquet.read_schema(file)


_READERS: dict[str, Callable[[Path, list[str]], Columns]] = {
    **dict.fromkeys(_CELLS, _cells),
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}

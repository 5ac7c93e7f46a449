"""Corpora from a folder's files: TSV and CSV, with names or positions of columns, JSONL, Parquet and Arrow."""

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Unpack, cast

from client.store.text_column import TextColumnWriter
from simulations.corpora import headers, reading
from simulations.corpora.columns import Columns, Roles, RowNames, as_numbers, make_corpora, named, require_columns
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError, no_file

#: Column by its name, or by its position from 1 in a file without a header.
Column = str | int
#: Kinds of files: of cells with tabs between, and those with a schema.
_TABS, _TABLES = (".tsv", ".txt"), (".parquet", ".arrow")


def read_files(path: str | Path, train: str, test: str, **roles: Unpack[Roles]) -> tuple[Corpus, Corpus]:
    """Return train and test corpora from two files of the folder `path`, read by the ends of their names.

    .tsv, .txt: a header, tabs, no quoting. .csv: a header, commas, double quotes. .jsonl: one object on each line. All
    of them are UTF-8, and compressed if .gz follows. .parquet, .arrow. Spaces around texts are removed. Classes are
    those of the train file. The column `text` may have another name in the test file if the two headers differ in
    nothing else (SST-2's are published so).

    Args:
        path: Folder.
        train: Train file.
        test: Test file.
        **roles: Columns (`Roles`).

    Raises:
        UserError: A file or column is missing, a text is empty, a label is outside the classes, or a file is not UTF-8
            or not in its format; the message has the line.
    """
    wanted, by_name = column_list(*named(roles))
    train_file, test_file = (_existing(Path(path), name) for name in (train, test))
    renamed = _renamed(_header(train_file), _header(test_file), wanted[0]) if by_name else {}
    first = read(train_file, wanted, named=by_name)
    second = read(test_file, [renamed.get(name, name) for name in wanted], named=by_name)
    second = replace(second, values={name: second.values[renamed.get(name, name)] for name in wanted})
    corpora = make_corpora((first, second), **roles)
    return corpora[0], corpora[1]


def column_list(*columns: Column | None) -> tuple[list[str], bool]:
    """Return the wanted columns, and True if they are names, False if positions.

    Raises:
        UserError: Some are names and some positions.
    """
    there = [column for column in columns if column is not None]
    by_name = [isinstance(column, str) for column in there]
    if any(by_name) and not all(by_name):
        raise UserError(
            "data: a file has names for all of its columns or for none; give names, or positions as text = 3"
        )
    return [str(column) for column in there], all(by_name)


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
    """Return the names in the first line of a file of tabs or commas; none for other kinds."""
    if _kind(file) not in (*_TABS, ".csv"):
        return []
    with _readable(file), _opened(file) as opened:
        first = reading.decoded(opened, str(file))
        rows: Iterator[Any] = (
            reading.tab_separated(first) if _kind(file) in _TABS else reading.comma_separated(first, str(file))
        )
        return [name.strip() for name in next(rows, (1, []))[1]]


def positional(file: Path, columns: Iterable[str | None]) -> bool:
    """Return True if the columns given to a command are positions: numbers, of a file of tabs or commas.

    Raises:
        UserError: Only some are.
    """
    return _kind(file) in (*_TABS, ".csv") and headers.by_position(columns)


def declares(file: Path) -> bool:
    """Return True if a schema names the columns. Such names are not a person's words."""
    return _kind(file) in _TABLES


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
        elif _kind(file) in _TABLES:
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
    differ = {ours: theirs for ours, theirs in zip(train, test, strict=True) if ours != theirs}
    return differ if list(differ) == [text] and text not in test else {}


def _kind(file: Path) -> str:
    """Return the kind of the file by the end of its name, compressed or not."""
    return (Path(file.stem) if _is_compressed(file) else file).suffix.lower()


def _is_compressed(file: Path) -> bool:
    return file.suffix.lower() == ".gz"


def _reader(file: Path) -> Callable[[Path, list[str]], Columns]:
    kind = _kind(file)
    if kind not in _READERS or (_is_compressed(file) and kind in _TABLES):
        raise UserError(f"{file}: unknown kind of file; use {', '.join(_READERS)}, or text files with .gz behind it")
    return _READERS[kind]


def read(file: Path, wanted: list[str], *, named: bool = True) -> Columns:
    """Return some columns of one file, by the end of its name, as for `read_files`.

    Args:
        file: File.
        wanted: Names of columns, or positions from 1.
        named: Whether `wanted` are names. Positions are for a file without a header.

    Raises:
        UserError: As for `read_files`.
    """
    with _readable(file):
        if named:
            return _reader(file)(file, wanted)
        if _kind(file) not in (*_TABS, ".csv"):
            _reader(file)
            raise UserError(f"{file}: its columns have names; give them in place of positions")
        with _opened(file) as opened:
            return _from_rows(file, _rows(file, opened), wanted, named=False)


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
    except OSError as error:  # Parquet's reader raises it for damage too
        reason = (str(error.strerror or error).splitlines() or ["?"])[0]
        raise UserError(f"{file}: cannot be read: {reason}") from error


def lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbers and lines of a file, one by one: a file may be larger than memory."""
    with _opened(file) as opened:
        for number, line, end in reading.decoded(opened, str(file)):
            yield number, line[: len(line) - len(end)]


def _cells(file: Path, wanted: list[str]) -> Columns:
    with _opened(file) as opened:
        return _from_rows(file, _rows(file, opened), wanted)


def _rows(file: Path, opened: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line, with its number."""
    result = reading.decoded(opened, str(file))
    if _kind(file) == ".csv":
        yield from reading.comma_separated(result, str(file))
    else:
        yield from ((number, cells) for number, cells, _ in reading.tab_separated(result))


def _from_rows(file: Path, rows: Iterable[tuple[int, list[str]]], wanted: list[str], *, named: bool = True) -> Columns:
    """Return columns of rows of cells. If `named`, the first row is a header; else columns are positions from 1."""
    place = str(file)
    rows = ((number, cells) for number, cells in rows if cells)
    first = next(rows, None)
    if first is None:
        raise UserError(
            f"{file}: is empty; " + ("its first line must name the columns" if named else "give it at least one record")
        )
    if named:
        header = reading.header(first[1], place)
        at = [reading.column(header, name, place) for name in wanted]
    else:
        at, rows = reading.places(first, wanted, place), chain([first], rows)
    values = {name: (TextColumnWriter(), i) for name, i in zip(wanted, at, strict=True)}
    where = RowNames("line")
    for number, cells in rows:
        row = reading.fitted(cells, len(first[1]), place, number, named=named)
        for column, i in values.values():
            column.add(row[i])
        where.add(number)
    return Columns(place, {name: column.column() for name, (column, _) in values.items()}, where)


def _jsonl(file: Path, wanted: list[str]) -> Columns:
    values: dict[str, list[object]] = {name: [] for name in wanted}
    where = RowNames("line")
    for number, line in lines(file):
        if not line.strip():
            continue
        record = reading.parsed(line, str(file), number, wanted[0])
        require_columns(f"{file}: line {number}", wanted, record)
        for name in wanted:
            values[name].append(record[name])
        where.add(number)
    return Columns(str(file), values, where)


def _table(file: Path, wanted: list[str]) -> Columns:
    """Read Parquet, and Arrow's files and streams."""
    import pyarrow
    from pyarrow import parquet

    names = _schema(file).names
    for name in wanted:
        reading.column(names, name, str(file), declared=True)
    try:
        if _kind(file) == ".arrow":
            with _arrow(file) as reader:
                table = reader.read_all()
        else:
            table = parquet.read_table(file, columns=list(dict.fromkeys(wanted)))
        values = {name: as_numbers(table.column(name).to_pylist()) for name in wanted}
    except (pyarrow.ArrowException, ValueError, OverflowError, KeyError):
        raise _damaged(file, "a value cannot be read") from None  # the original error may quote the value
    return Columns(str(file), values, RowNames("row", range(1, table.num_rows + 1)))


def _schema(file: Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        if _kind(file) == ".arrow":
            with _arrow(file) as reader:
                return reader.schema
        return parquet.read_schema(file)
    except (pyarrow.ArrowException, ValueError, OverflowError, KeyError) as error:
        raise _damaged(file, (str(error).splitlines() or ["?"])[0]) from error


@contextmanager
def _arrow(file: Path) -> Iterator[Any]:
    """Open a reader of an Arrow file, or of a stream, as `datasets` writes it."""
    from pyarrow import ipc, memory_map

    with memory_map(str(file), "r") as source:
        magic = source.read(6)
        source.seek(0)
        with (ipc.open_file if magic == b"ARROW1" else ipc.open_stream)(source) as reader:
            yield reader


def _damaged(file: Path, why: str) -> UserError:
    kind = "Arrow" if _kind(file) == ".arrow" else "Parquet"
    return UserError(f"{file}: is not a readable {kind} file: {why}")


_READERS: dict[str, Callable[[Path, list[str]], Columns]] = {
    ".tsv": _cells,
    ".txt": _cells,
    ".csv": _cells,
    ".jsonl": _jsonl,
    ".parquet": _table,
    ".arrow": _table,
}

"""Corpora from a folder's TSV, CSV, JSONL and Parquet files with named columns."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from client.store.text_column import TextColumnWriter
from simulations.corpora import reading
from simulations.corpora.columns import Columns, RowNames, make_corpora, require_columns
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError, no_file


def read_files(
    path: str | Path,
    train: str,
    test: str,
    *,
    text: str,
    label: str,
    user: str | None = None,
    second_text: str | None = None,
    numbers: Sequence[float] | None = None,
) -> tuple[Corpus, Corpus]:
    """Train and test corpora from two files of the folder `path`, read by what their names end with.

    .tsv: a header, tabs, no quoting. .csv: a header, commas, double quotes. .jsonl: one object on each line.
    .parquet. Text files are UTF-8. text, label, user, second_text: column names; with the last, each text is
    a pair. numbers: of a label that is a number (`make_corpora`). Spaces around texts are removed. Classes are
    those of the train file. The column `text` may be called
    otherwise in the test file if the two headers differ in nothing else (SST-2's are published so).

    Raises UserError, in one line: a missing file or column, an empty text, a label outside the classes, a
    file that is not UTF-8 or not in its format, with the line.
    """
    wanted = [column for column in (text, label, user, second_text) if column]
    train_file, test_file = (_existing(Path(path), name) for name in (train, test))
    called = _renamed(_header(train_file), _header(test_file), text)
    first = read(train_file, wanted)
    second = read(test_file, [called.get(name, name) for name in wanted])
    second = replace(second, values={name: second.values[called.get(name, name)] for name in wanted})
    return make_corpora(first, second, text=text, label=label, user=user, second_text=second_text, numbers=numbers)


def _existing(folder: Path, name: str) -> Path:
    file = folder / name
    if not folder.is_dir():
        missing = "is a file" if folder.is_file() else "there is no such folder"
        raise UserError(f"{folder}: {missing}; name the {'folder' if folder.is_file() else 'one'} that holds {name}")
    if not file.is_file():
        here = sorted(entry.name for entry in folder.iterdir() if entry.suffix in _READERS)
        raise UserError(
            f"{file}: there is no such file; the folder holds {', '.join(here) or 'no data files'}"
        )
    _reader(file)
    return file


def _header(file: Path) -> list[str]:
    """The names in the first line of a .tsv or .csv file; none for other kinds."""
    if file.suffix not in (".tsv", ".csv"):
        return []
    with _readable(file), file.open("rb") as opened:
        first = reading.decoded(opened, str(file))
        rows = reading.tab_separated(first) if file.suffix == ".tsv" else reading.comma_separated(first, str(file))
        return [name.strip() for name in next(iter(rows), (1, []))[1]]


def column_names(file: Path) -> list[str]:
    """The names of a file's columns; of JSON lines, the keys of the first. Raises UserError."""
    if not file.is_file():
        raise no_file(file)
    _reader(file)
    with _readable(file):
        if file.suffix == ".jsonl":
            first = next(((number, line) for number, line in lines(file) if line.strip()), None)
            names = [] if first is None else list(reading.parsed(first[1], str(file), first[0], "text"))
        elif file.suffix == ".parquet":
            names = _schema(file).names
        else:
            names = [name for name in _header(file) if name]
    if not names:
        raise UserError(f"{file}: names no columns; its first line must")
    return names


def _renamed(train: list[str], test: list[str], text: str) -> dict[str, str]:
    """What the test file calls the column of the texts, if nothing else differs between its header and the train
    file's: a label under another name may be another label."""
    if len(train) != len(test):
        return {}
    differ = {ours: theirs for ours, theirs in zip(train, test, strict=True) if ours != theirs}
    return differ if list(differ) == [text] and text not in test else {}


def _reader(file: Path) -> Callable[[Path, list[str]], Columns]:
    if file.suffix not in _READERS:
        raise UserError(f"{file}: unknown kind of file; use {', '.join(_READERS)}")
    return _READERS[file.suffix]


def read(file: Path, wanted: list[str]) -> Columns:
    """Some columns of one file, by what its name ends with, as `read_files` has it. Raises UserError."""
    with _readable(file):
        return _reader(file)(file, wanted)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # of Parquet's reader, damage too
        reason = (str(error.strerror or error).splitlines() or ["?"])[0]
        raise UserError(f"{file}: cannot be read: {reason}") from error


def lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file and their numbers, read one by one: a file may be larger than memory."""
    with file.open("rb") as opened:
        for number, line, end in reading.decoded(opened, str(file)):
            yield number, line[: len(line) - len(end)]


def _tsv(file: Path, wanted: list[str]) -> Columns:
    with file.open("rb") as opened:
        rows = reading.tab_separated(reading.decoded(opened, str(file)))
        return _from_rows(file, ((number, cells) for number, cells, _ in rows), wanted)


def _csv(file: Path, wanted: list[str]) -> Columns:
    with file.open("rb") as opened:
        return _from_rows(file, reading.comma_separated(reading.decoded(opened, str(file)), str(file)), wanted)


def _from_rows(file: Path, rows: Iterable[tuple[int, list[str]]], wanted: list[str]) -> Columns:
    place = str(file)
    rows = ((number, cells) for number, cells in rows if cells)
    _, first = next(rows, (1, None))
    if first is None:
        raise UserError(f"{file}: is empty; its first line must name the columns")
    header = reading.header(first, place)
    values = {name: (TextColumnWriter(), reading.column(header, name, place)) for name in wanted}
    where = RowNames("line")
    for number, cells in rows:
        row = reading.fitted(cells, header, place, number)
        for column, at in values.values():
            column.add(row[at])
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


def _parquet(file: Path, wanted: list[str]) -> Columns:
    import pyarrow
    from pyarrow import parquet

    names = _schema(file).names
    for name in wanted:
        reading.column(names, name, str(file))
    try:
        table = parquet.read_table(file, columns=list(dict.fromkeys(wanted)))
        values = {name: table.column(name).to_pylist() for name in wanted}
    except (pyarrow.ArrowException, ValueError, OverflowError, KeyError) as error:
        raise _damaged(file, error) from error
    return Columns(str(file), values, RowNames("row", range(1, table.num_rows + 1)))


def _schema(file: Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_schema(file)
    except (pyarrow.ArrowException, ValueError, OverflowError, KeyError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: BaseException) -> UserError:
    return UserError(f"{file}: is not a readable Parquet file: {(str(error).splitlines() or ['?'])[0]}")


_READERS: dict[str, Callable[[Path, list[str]], Columns]] = {
    ".tsv": _tsv,
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}

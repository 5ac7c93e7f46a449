"""Corpora from a folder's TSV, CSV, JSONL and Parquet files with named columns."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from client.store.text_column import TextColumnWriter
from simulations.corpora.columns import Columns, RowNames, make_corpora, require_columns
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError


def read_files(
    path: str | Path,
    train: str,
    test: str,
    *,
    text: str,
    label: str,
    user: str | None = None,
    second_text: str | None = None,
) -> tuple[Corpus, Corpus]:
    """Train and test corpora from two files of the folder `path`, read by what their names end with.

    .tsv: a header, tabs, no quoting. .csv: a header, commas, double quotes. .jsonl: one object on each line.
    .parquet. Text files are UTF-8. text, label, user, second_text: column names; with the last, each text is
    a pair. Spaces around texts are removed. Classes are those of the train file. One column may be called
    otherwise in the test file if the two headers differ in nothing else (SST-2's are published so).

    Raises UserError, in one line: a missing file or column, an empty text, a label outside the classes, a
    file that is not UTF-8 or not in its format, with the line.
    """
    wanted = [column for column in (text, label, user, second_text) if column]
    train_file, test_file = (_existing(Path(path), name) for name in (train, test))
    called = _renamed(_header(train_file), _header(test_file))
    first = read(train_file, wanted)
    second = read(test_file, [called.get(name, name) for name in wanted])
    second = replace(second, values={name: second.values[called.get(name, name)] for name in wanted})
    return make_corpora(first, second, text=text, label=label, user=user, second_text=second_text)


def _existing(folder: Path, name: str) -> Path:
    file = folder / name
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; name the one that holds {name}")
    if not file.is_file():
        here = sorted(entry.name for entry in folder.iterdir() if entry.suffix in _READERS)
        raise UserError(
            f"{file}: there is no such file; the folder holds {', '.join(here) or 'no data files'}"
        )
    _reader(file)
    return file


def _header(file: Path) -> list[str]:
    """The names in the first line of a .tsv or .csv file; none for other kinds."""
    separator = {".tsv": "\t", ".csv": ","}.get(file.suffix)
    if separator is None:
        return []
    with file.open("rb") as lines:
        first = lines.readline().decode("utf-8-sig", errors="replace")
    return [name.strip() for name in first.split(separator)]


def _renamed(train: list[str], test: list[str]) -> dict[str, str]:
    """What the test file calls the one column in which its header differs from that of the train file."""
    if len(train) != len(test):
        return {}
    differ = {ours: theirs for ours, theirs in zip(train, test, strict=True) if ours != theirs}
    return differ if len(differ) == 1 else {}


def _reader(file: Path) -> Callable[[Path, list[str]], Columns]:
    if file.suffix not in _READERS:
        raise UserError(f"{file}: unknown kind of file; use {', '.join(_READERS)}")
    return _READERS[file.suffix]


def read(file: Path, wanted: list[str]) -> Columns:
    """Some columns of one file, by what its name ends with, as `read_files` has it. Raises UserError."""
    try:
        return _reader(file)(file, wanted)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror or error}") from error


def _decoded(file: Path) -> str:
    raw = file.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(f"{file}: line {line}: is not UTF-8; convert the file to UTF-8") from None


def _tsv(file: Path, wanted: list[str]) -> Columns:
    # Not csv: in published TSV files a quotation mark is a word of the sentence.
    rows = ((number, line.split("\t")) for number, line in lines(file) if line)
    return _from_rows(file, rows, wanted)


def lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file and their numbers, read one by one: a file may be larger than memory."""
    with file.open("rb") as opened:
        for number, line in enumerate(opened, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise UserError(f"{file}: line {number}: is not UTF-8; convert the file to UTF-8") from None
            yield number, text.removesuffix("\n").removesuffix("\r")


def _csv(file: Path, wanted: list[str]) -> Columns:
    reader = csv.reader(io.StringIO(_decoded(file), newline=""), strict=True)
    rows = []
    try:
        start = 1
        for row in reader:
            if row:
                rows.append((start, row))
            start = reader.line_num + 1  # a quoted text may run over several lines
    except csv.Error as error:
        raise UserError(f"{file}: line {reader.line_num}: is not valid CSV: {error}") from error
    return _from_rows(file, rows, wanted)


def _from_rows(file: Path, rows: Iterable[tuple[int, list[str]]], wanted: list[str]) -> Columns:
    rows = iter(rows)
    _, first = next(rows, (1, None))
    if first is None:
        raise UserError(f"{file}: is empty; its first line must name the columns")
    header = [name.strip() for name in first]
    require_columns(str(file), wanted, header)
    for name in wanted:
        if header.count(name) > 1:
            raise UserError(f'{file}: line 1: names column "{name}" twice; rename one of them')
    values = {name: (TextColumnWriter(), header.index(name)) for name in wanted}
    where = RowNames("line")
    for number, row in rows:
        if len(row) != len(header):
            raise UserError(
                f"{file}: line {number}: has {len(row)} cells, and the header names {len(header)}"
            )
        for column, place in values.values():
            column.add(row[place])
        where.add(number)
    return Columns(str(file), {name: column.column() for name, (column, _) in values.items()}, where)


def _jsonl(file: Path, wanted: list[str]) -> Columns:
    values: dict[str, list[object]] = {name: [] for name in wanted}
    where = RowNames("line")
    # Not splitlines: JSON strings may hold the rarer line separators.
    for number, line in enumerate(_decoded(file).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{file}: line {number}: is not valid JSON: {error.msg}") from error
        if not isinstance(record, dict):
            raise UserError(f'{file}: line {number}: must be an object such as {{"{wanted[0]}": "..."}}')
        require_columns(f"{file}: line {number}", wanted, record)
        for name in wanted:
            values[name].append(record[name])
        where.add(number)
    return Columns(str(file), values, where)


def _parquet(file: Path, wanted: list[str]) -> Columns:
    import pyarrow
    from pyarrow import parquet

    try:
        require_columns(str(file), wanted, parquet.read_schema(file).names)
        table = parquet.read_table(file, columns=list(dict.fromkeys(wanted)))
        values = {name: table.column(name).to_pylist() for name in wanted}
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{file}: is not a readable Parquet file: {reason}") from error
    return Columns(str(file), values, RowNames("row", range(1, table.num_rows + 1)))


_READERS: dict[str, Callable[[Path, list[str]], Columns]] = {
    ".tsv": _tsv,
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}

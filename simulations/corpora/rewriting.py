"""Rewriting of a file's columns in blocks of rows: lines, TSV, CSV, JSONL and Parquet. Other columns do not change."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from simulations.corpora import headers, reading
from simulations.corpora.columns import is_text, kind, plain_name
from simulations.corpora.reading import Line
from simulations.errors import UserError, can_be_read, no_file
from simulations.output.atomic import whole

#: Formats by the end of a file's name. Every other file, and a pipe, is one text a line.
FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")
#: A block ends early at this number of characters of its texts, so memory does not depend on the file's size.
_CHARACTERS = 2**22
#: Texts of a row, one of each column that is rewritten.
Cells = tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """Some consecutive rows.

    Attributes:
        texts: Texts of each row in the columns.
        with_texts: Function that returns the rows with other texts, bytes (for Parquet, a record batch).
        others: Names of the columns that pass through.
    """

    texts: list[Cells]
    with_texts: Callable[[Sequence[Cells]], Any]
    others: tuple[str, ...] = ()


def format_of(path: Path | None) -> str:
    """Return one of FORMATS, or "" for lines."""
    suffix = "" if path is None else path.suffix.lower()
    return suffix if suffix in FORMATS else ""


def blocks(path: Path | None, stdin: BinaryIO, columns: Sequence[str], rows: int) -> Iterator[Block]:
    """Yield the rows of a file (None: of stdin, as lines), at most `rows` in each block, in their order.

    .tsv: a header, tabs, no quoting. .csv: a header, commas, double quotes. .jsonl: an object a line; null is an empty
    text. .parquet. Text is UTF-8, and lines are written with a line feed. An empty line is an empty text if it is a
    row of one column, and otherwise no row.

    Args:
        path: File, or None.
        stdin: Standard input.
        columns: Columns by name; none if the file has one, or lines.
        rows: Most rows of a block.

    Raises:
        UserError: There is no such file or column, a row does not fit (with its line), or the file is
            binary or not UTF-8.
    """
    form = format_of(path)
    place = "standard input" if path is None else str(path)
    if path is not None and not can_be_read(path):
        raise no_file(path)
    if path is not None and form == ".parquet":
        yield from _parquet(path, columns, rows)
        return
    stream = stdin if path is None else path.open("rb")
    try:
        lines = reading.decoded(stream, place)
        if form == ".jsonl":
            yield from _jsonl(lines, place, columns, rows)
        elif form:
            yield from _cells(form, lines, place, columns, rows)
        else:
            yield from _blocks(([reading.without_end(line)] for _, line in lines), [0], _tab_line, rows)
    finally:
        if path is not None:
            stream.close()


@contextmanager
def block_writer(path: Path | None, stdout: BinaryIO) -> Iterator[Callable[[Any], object]]:
    """Open a function that writes filled blocks: to stdout at once, or to a file that appears when all is written."""
    if path is None:

        def show(data: bytes) -> None:
            stdout.write(data)
            stdout.flush()

        yield show
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{path}: {'is a folder' if path.is_dir() else 'its folder does not exist'}; name a file")
    with whole(path) as file, _sink(file, format_of(path)) as put:
        yield put


@contextmanager
def _sink(file: BinaryIO, kind: str) -> Iterator[Callable[[Any], object]]:
    if kind != ".parquet":
        yield file.write
        return
    from pyarrow import parquet

    writers: list[Any] = []

    def put(batch: Any) -> None:
        if not writers:
            writers.append(parquet.ParquetWriter(file, batch.schema))
        if batch.num_rows:
            writers[0].write_batch(batch)

    try:
        yield put
    finally:
        for writer in writers:
            writer.close()


def _blocks(
    records: Iterable[Any], keys: Sequence[Any], line_of: Callable[[Any], str], rows: int, others: Iterable[str] = ()
) -> Iterator[Block]:
    """Yield records, lists or dicts, as blocks of the texts under some keys. `line_of` writes a record."""

    def filled(batch: list[Any], texts: Sequence[Cells]) -> bytes:
        for record, new in zip(batch, texts, strict=True):
            for key, text in zip(keys, new, strict=True):
                record[key] = text
        # half of a surrogate pair, in another key of JSON, becomes its escape
        return "".join(map(line_of, batch)).encode("utf-8", "backslashreplace")

    def block(batch: list[Any]) -> Block:
        texts = [tuple(record[key] or "" for key in keys) for record in batch]
        return Block(texts, partial(filled, batch), tuple(others))

    batch: list[Any] = []
    size = 0
    for record in records:
        batch.append(record)
        size += sum(len(record[key] or "") for key in keys)
        if len(batch) == rows or size >= _CHARACTERS:
            yield block(batch)
            batch, size = [], 0
    if batch:
        yield block(batch)


def _places(place: str, names: Sequence[str], columns: Sequence[str], *, declared: bool = False) -> list[int]:
    """Return the places of the columns in a header, or in a schema, which declares them."""
    if columns:
        return [reading.column(names, column, place, declared=declared) for column in columns]
    if len(names) == 1 and (declared or names[0].casefold() in headers.USUAL):
        return [0]
    listing = ", ".join(map(plain_name, names)) if declared else headers.shown_names(names)
    raise UserError(f"{place}: name the column of the texts with --column; there are: {listing}")


def _cells(form: str, lines: Iterator[Line], place: str, columns: Sequence[str], rows: int) -> Iterator[Block]:
    names, table = reading.table(lines, form, place)
    at = _places(place, names, columns)
    line_of = _comma_line if form == ".csv" else _tab_line
    yield Block([], lambda _: line_of(names).encode())
    empty = [""] if len(names) == 1 else []
    records = (cells or list(empty) for _, cells in table if cells or empty)
    yield from _blocks(records, at, line_of, rows, [name for i, name in enumerate(names) if i not in at])


def _tab_line(cells: Sequence[str]) -> str:
    return "\t".join(cells) + "\n"


def _comma_line(cells: Sequence[str]) -> str:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def _jsonl(lines: Iterator[Line], place: str, columns: Sequence[str], rows: int) -> Iterator[Block]:
    if not columns:
        raise UserError(f"{place}: name the key of the texts with --column")
    others: dict[str, None] = {}

    def records() -> Iterator[dict[str, Any]]:
        for number, record in reading.objects(lines, place, columns):
            for column in columns:
                text = "" if record[column] is None else record[column]
                if not isinstance(text, str) or not is_text(text):
                    raise UserError(f'{place}: line {number}: "{column}" is {kind(text)}, not a text')
            others.update(dict.fromkeys(key for key in record if key not in columns))
            yield record

    yield from _blocks(records(), columns, _json_line, rows, others)


def _json_line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _parquet(path: Path, columns: Sequence[str], rows: int) -> Iterator[Block]:
    import pyarrow
    from pyarrow import parquet, types

    with reading.parquet_errors(path), parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        at = _places(str(path), schema.names, columns, declared=True)
        wanted = schema
        for i in at:
            field = schema.field(i)
            inner = field.type.value_type if types.is_dictionary(field.type) else field.type
            if not (types.is_string(inner) or types.is_large_string(inner)):
                raise UserError(f'{path}: column "{field.name}" holds {field.type}, not texts')
            wanted = wanted.set(i, field.with_type(inner).with_nullable(field.nullable))
        others = tuple(name for i, name in enumerate(schema.names) if i not in at)
        yield Block([], lambda _: pyarrow.RecordBatch.from_pylist([], schema=wanted))

        def with_texts(batch: Any, texts: Sequence[Cells]) -> Any:
            for number, i in enumerate(at):
                new = pyarrow.array([cells[number] for cells in texts], wanted.field(i).type)
                batch = batch.set_column(i, wanted.field(i), new)
            return batch

        for batch in file.iter_batches(batch_size=rows):
            read = [[text or "" for text in batch.column(i).to_pylist()] for i in at]
            for i, texts in zip(at, read, strict=True):
                if not all(map(is_text, texts)):
                    raise UserError(f'{path}: column "{schema.names[i]}" holds a NUL; mend the text')
            yield Block(list(zip(*read, strict=True)), partial(with_texts, batch), others)

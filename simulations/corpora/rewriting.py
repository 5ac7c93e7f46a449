"""Rewriting of a file's columns as a stream: lines, TSV, CSV, JSONL and Parquet, the rest unchanged."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from simulations.corpora import headers, reading
from simulations.corpora.columns import is_text, kind, plain_name, require_columns
from simulations.corpora.reading import Line
from simulations.errors import UserError, can_be_read, no_file
from simulations.output.atomic import whole

#: Formats by the end of a file's name. Every other file, and a pipe, is one text a line.
FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")
#: Formats of cells, whose columns may be given by their positions.
CELLS = (".tsv", ".csv")
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

    .tsv: a header, tabs, no quoting. .csv: a header, commas, double quotes; neither has one if columns are positions
    from 1. .jsonl: an object a line; null is an empty text. .parquet. Text is UTF-8. A line that is wholly empty is an
    empty text if there is one column, and passes through if there are several.

    Args:
        path: File, or None.
        stdin: Standard input.
        columns: Columns by name, or all by position; none if the file has one, or lines.
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
            made = (((line[: len(line) - len(end)],), _affixed("", end)) for _, line, end in lines)
            yield from _grouped(made, rows)
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


Row = tuple[Cells | None, Callable[[Cells], bytes]]


def _affixed(before: str, after: str) -> Callable[[Cells], bytes]:
    return lambda texts: f"{before}{''.join(texts)}{after}".encode("utf-8", "replace")


def _grouped(made: Iterable[Row], rows: int, others: Sequence[str] = ()) -> Iterator[Block]:
    """Yield rows as blocks. A row whose text is None holds none, and passes through."""
    held: list[Row] = []
    size = 0
    for row in made:
        held.append(row)
        size += sum(map(len, row[0] or ()))
        if len(held) == rows or size >= _CHARACTERS:
            yield _block(held, tuple(others))
            held, size = [], 0
    if held:
        yield _block(held, tuple(others))


def _block(held: list[Row], others: tuple[str, ...]) -> Block:
    def with_texts(texts: Sequence[Cells]) -> bytes:
        new = iter(texts)
        return b"".join(write(() if text is None else next(new)) for text, write in held)

    return Block([text for text, _ in held if text is not None], with_texts, others)


def _places(place: str, names: Sequence[str], columns: Sequence[str], *, declared: bool = False) -> list[int]:
    """Return the places of the columns in a header, or in a schema, which declares them."""
    if columns:
        return [reading.column(names, column, place, declared=declared) for column in columns]
    if len(names) == 1 and (declared or names[0].casefold() in headers.USUAL):
        return [0]
    if len(names) == 1:
        raise UserError(f"{place}: say whether it has a header: name its column with --column, or give --column 1")
    there = ", ".join(map(plain_name, names)) if declared else headers.told(names)
    raise UserError(f"{place}: name the column of the texts with --column; there are: {there}")


def _opened(read: Iterator[Any], place: str, columns: Sequence[str]) -> tuple[list[str], list[int], Any, Iterator[Any]]:
    """Return the names of the columns, the places of the texts, the header, and the rows, (number, cells, ...) each.

    By positions there is no header, and the first row is a record like all others.
    """
    if headers.by_position(columns):
        held = []
        for row in read:
            held.append(row)
            if row[1]:
                at = reading.places(row, columns, place)
                return [f"column {i + 1}" for i in range(len(row[1]))], at, None, chain(held, read)
        raise UserError(f"{place}: is empty; give it at least one record")
    first = next(read, None)
    if first is None or not first[1]:
        raise UserError(f"{place}: is empty; its first line must name the columns")
    names = reading.header(first[1], place)
    at = _places(place, names, columns)
    return names, at, first, read


def _replaced(cells: Sequence[str], at: Sequence[int], texts: Cells) -> list[str]:
    out = list(cells)
    for place, text in zip(at, texts, strict=True):
        out[place] = text
    return out


def _cells(form: str, lines: Iterator[Line], place: str, columns: Sequence[str], rows: int) -> Iterator[Block]:
    """Yield the rows of TSV or CSV. Every row of CSV ends as the first line does, with the same mark between cells."""
    end, mark = "", "\t"
    if form == ".csv":
        first_line = next(lines, (1, "", ""))
        end, mark = first_line[2] or "\n", reading.separator(first_line[1])
        read: Iterator[Any] = reading.comma_separated(chain([first_line] if first_line[1] else [], lines), place)
    else:
        read = reading.tab_separated(lines)
    write = _csv_line if form == ".csv" else _tsv_line
    names, at, first, read = _opened(read, place, columns)
    if first is not None:
        yield Block([], lambda _: write(first[1], end or first[2], mark))

    def filled(cells: list[str], own_end: str) -> Callable[[Cells], bytes]:
        return lambda texts: write(_replaced(cells, at, texts), own_end, mark)

    def made() -> Iterator[Row]:
        for number, cells, *ends in read:
            own_end = end or ends[0]
            if not cells and len(names) > 1:
                yield None, _affixed("", own_end)
                continue
            cells = reading.fitted(cells or [""], len(names), place, number, named=first is not None)
            yield tuple(cells[i] for i in at), filled(cells, own_end)

    yield from _grouped(made(), rows, _others(names, at))


def _others(names: Sequence[str], at: Sequence[int]) -> list[str]:
    return [name for i, name in enumerate(names) if i not in at]


def _tsv_line(cells: Sequence[str], end: str, mark: str) -> bytes:
    return (mark.join(cells) + end).encode("utf-8", "replace")


def _csv_line(cells: Sequence[str], end: str, mark: str) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=end, delimiter=mark).writerow(cells)
    return out.getvalue().encode("utf-8", "replace")


def _jsonl(lines: Iterator[Line], place: str, columns: Sequence[str], rows: int) -> Iterator[Block]:
    if not columns:
        raise UserError(f"{place}: name the key of the texts with --column")
    others: list[str] = []

    def filled(record: dict[str, Any], end: str) -> Callable[[Cells], bytes]:
        return lambda texts: _json_line(record | dict(zip(columns, texts, strict=True)), end)

    def made() -> Iterator[Row]:
        for number, line, end in lines:
            if not line.strip():
                yield None, _affixed(line, "")
                continue
            record = reading.parsed(line, place, number, columns[0])
            require_columns(f"{place}: line {number}", columns, record)
            for column in columns:
                text = "" if record[column] is None else record[column]
                if not isinstance(text, str) or not is_text(text):
                    raise UserError(f'{place}: line {number}: "{column}" is {kind(text)}, not a text')
            others.extend(key for key in record if key not in columns and key not in others)
            yield tuple(record[column] or "" for column in columns), filled(record, end)

    for block in _grouped(made(), rows):
        yield Block(block.texts, block.with_texts, tuple(others))


def _json_line(record: dict[str, Any], end: str) -> bytes:
    try:
        return (json.dumps(record, ensure_ascii=False) + end).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can express
        return (json.dumps(record) + end).encode()


def _parquet(path: Path, columns: Sequence[str], rows: int) -> Iterator[Block]:
    import pyarrow
    from pyarrow import parquet, types

    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            at = _places(str(path), schema.names, columns, declared=True)
            wanted = schema
            for i in at:
                field = schema.field(i)
                inner = field.type.value_type if types.is_dictionary(field.type) else field.type
                if not (types.is_string(inner) or types.is_large_string(inner)):
                    raise UserError(f'{path}: column "{field.name}" holds {field.type}, not texts')
                wanted = wanted.set(i, field.with_type(inner).with_nullable(field.nullable))
            others = tuple(_others(schema.names, at))
            empty = pyarrow.RecordBatch.from_arrays([pyarrow.array([], f.type) for f in wanted], schema=wanted)
            yield Block([], lambda _: empty)
            for batch in file.iter_batches(batch_size=rows):

                def with_texts(texts: Sequence[Cells], batch: Any = batch) -> Any:
                    filled = list(batch.columns)
                    for number, i in enumerate(at):
                        filled[i] = pyarrow.array([cells[number] for cells in texts], wanted.field(i).type)
                    return pyarrow.RecordBatch.from_arrays(filled, schema=wanted)

                read = [[text or "" for text in batch.column(i).to_pylist()] for i in at]
                for i, texts in zip(at, read, strict=True):
                    if not all(map(is_text, texts)):
                        raise UserError(f'{path}: column "{schema.names[i]}" holds a NUL; mend the text')
                yield Block(list(zip(*read, strict=True)), with_texts, others)
    except UnicodeDecodeError:  # the original error quotes the text
        raise UserError(f"{path}: is not a readable Parquet file: a text is not UTF-8") from None
    except (pyarrow.ArrowException, OverflowError, KeyError, OSError) as error:
        reason = (str(error).splitlines() or ["?"])[0]
        raise UserError(f"{path}: is not a readable Parquet file: {reason}") from error

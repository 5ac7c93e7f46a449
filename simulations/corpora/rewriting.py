"""One column of a file rewritten as it streams by: lines, TSV, CSV, JSONL and Parquet, the rest unchanged."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from simulations.corpora import reading
from simulations.corpora.columns import is_text, require_columns, shown
from simulations.corpora.reading import Line
from simulations.errors import UserError
from simulations.output.atomic import whole

#: Formats by what a file's name ends with; everything else, and a pipe, is one text a line.
FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")
#: A block ends early where its texts have so many characters: what is held does not depend on the file's size.
_CHARACTERS = 2**22


@dataclass(frozen=True)
class Block:
    """Some rows that stand together. texts: the column. with_texts: the rows with others in their place, bytes (of
    Parquet, a record batch). others: names of the columns that pass through."""

    texts: list[str]
    with_texts: Callable[[Sequence[str]], Any]
    others: tuple[str, ...] = ()


def format_of(path: Path | None) -> str:
    """One of FORMATS, or "" for lines."""
    suffix = "" if path is None else path.suffix.lower()
    return suffix if suffix in FORMATS else ""


def blocks(path: Path | None, stdin: BinaryIO, column: str | None, rows: int) -> Iterator[Block]:
    """The rows of a file (None: of stdin, as lines), at most `rows` in each block, in their order.

    .tsv: a header, tabs, no quoting. .csv: a header, commas, double quotes. .jsonl: an object a line; null is an empty
    text. .parquet. Text is UTF-8. A line that is wholly empty is an empty text where there is one column, and passes
    through where there are several. UserError, one line: no such file or column, a row that does not fit, with its
    line, and what is binary or not UTF-8. column: not looked at where there are lines.
    """
    kind = format_of(path)
    place = "standard input" if path is None else str(path)
    if path is not None and not path.is_file():
        raise UserError(f"{path}: there is no such file")
    if path is not None and kind == ".parquet":
        yield from _parquet(path, column, rows)
        return
    stream = stdin if path is None else path.open("rb")
    try:
        lines = reading.decoded(stream, place)
        if kind == ".jsonl":
            yield from _jsonl(lines, place, column, rows)
        elif kind:
            yield from (_tsv if kind == ".tsv" else _csv)(lines, place, column, rows)
        else:
            made = ((line[: len(line) - len(end)], _affixed("", end)) for _, line, end in lines)
            yield from _grouped(made, rows)
    finally:
        if path is not None:
            stream.close()


@contextmanager
def block_writer(path: Path | None, stdout: BinaryIO) -> Iterator[Callable[[Any], None]]:
    """What takes filled blocks and writes them: to stdout at once; to a file that appears when all is written."""
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
def _sink(file: BinaryIO, kind: str) -> Iterator[Callable[[Any], None]]:
    if kind != ".parquet":
        yield lambda data: None if not data else file.write(data) and None
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


Row = tuple[str | None, Callable[[str], bytes]]


def _affixed(before: str, after: str) -> Callable[[str], bytes]:
    return lambda text: f"{before}{text}{after}".encode("utf-8", "replace")


def _grouped(made: Iterable[Row], rows: int, others: Sequence[str] = ()) -> Iterator[Block]:
    """Rows as blocks. A row whose text is None holds none, and passes through."""
    held: list[Row] = []
    size = 0
    for row in made:
        held.append(row)
        size += len(row[0] or "")
        if len(held) == rows or size >= _CHARACTERS:
            yield _block(held, tuple(others))
            held, size = [], 0
    if held:
        yield _block(held, tuple(others))


def _block(held: list[Row], others: tuple[str, ...]) -> Block:
    def with_texts(texts: Sequence[str]) -> bytes:
        new = iter(texts)
        return b"".join(write("" if text is None else next(new)) for text, write in held)

    return Block([text for text, _ in held if text is not None], with_texts, others)


def _place(place: str, names: Sequence[str], column: str | None) -> int:
    """Where the column stands in a header."""
    if column is None:
        if len(names) == 1:
            return 0
        raise UserError(f"{place}: name the column of the texts with --column; there are: {', '.join(names)}")
    return reading.column(names, column, place)


def _tsv(lines: Iterator[Line], place: str, column: str | None, rows: int) -> Iterator[Block]:
    read = reading.tab_separated(lines)
    _, first, end = next(read, (1, [], ""))
    names = _names(first, place)
    at = _place(place, names, column)
    yield Block([], lambda _: ("\t".join(first) + end).encode())

    def made() -> Iterator[Row]:
        for number, cells, end in read:
            if not cells and len(names) > 1:
                yield None, _affixed("", end)
                continue
            cells = reading.fitted(cells or [""], names, place, number)
            before = "".join(cell + "\t" for cell in cells[:at])
            yield cells[at], _affixed(before, "".join("\t" + cell for cell in cells[at + 1 :]) + end)

    yield from _grouped(made(), rows, [*names[:at], *names[at + 1 :]])


def _csv(lines: Iterator[Line], place: str, column: str | None, rows: int) -> Iterator[Block]:
    firsts: list[Line] = []

    def noted() -> Iterator[Line]:
        for line in lines:
            if not firsts:
                firsts.append(line)
            yield line

    read = reading.comma_separated(noted(), place)
    _, first = next(read, (1, []))
    names, (_, line, end) = _names(first, place), firsts[0]
    end, mark = end or "\n", reading.separator(line)
    at = _place(place, names, column)
    yield Block([], lambda _: _csv_line(first, end, mark))

    def made() -> Iterator[Row]:
        for number, cells in read:
            if not cells and len(names) > 1:
                yield None, _affixed("", end)
                continue
            row = reading.fitted(cells or [""], names, place, number)
            yield row[at], lambda text, row=row: _csv_line([*row[:at], text, *row[at + 1 :]], end, mark)

    yield from _grouped(made(), rows, [*names[:at], *names[at + 1 :]])


def _names(first: list[str], place: str) -> list[str]:
    if not first:
        raise UserError(f"{place}: is empty; its first line must name the columns")
    return reading.header(first, place)


def _csv_line(cells: Sequence[str], end: str, mark: str) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=end, delimiter=mark).writerow(cells)
    return out.getvalue().encode("utf-8", "replace")


def _jsonl(lines: Iterator[Line], place: str, column: str | None, rows: int) -> Iterator[Block]:
    if column is None:
        raise UserError(f"{place}: name the key of the texts with --column")
    others: list[str] = []

    def made() -> Iterator[Row]:
        for number, line, end in lines:
            if not line.strip():
                yield None, _affixed(line, "")
                continue
            record = reading.parsed(line, place, number, column)
            require_columns(f"{place}: line {number}", [column], record)
            text = "" if record[column] is None else record[column]
            if not isinstance(text, str) or not is_text(text):
                raise UserError(f'{place}: line {number}: "{column}" is {shown(text)}, not a text')
            others.extend(key for key in record if key != column and key not in others)
            yield text, lambda new, record=record, end=end: _json_line(record | {column: new}, end)

    for block in _grouped(made(), rows):
        yield Block(block.texts, block.with_texts, tuple(others))


def _json_line(record: dict[str, Any], end: str) -> bytes:
    try:
        return (json.dumps(record, ensure_ascii=False) + end).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can say
        return (json.dumps(record) + end).encode()


def _parquet(path: Path, column: str | None, rows: int) -> Iterator[Block]:
    import pyarrow
    from pyarrow import parquet, types

    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            at = _place(str(path), schema.names, column)
            field = schema.field(at)
            inner = field.type.value_type if types.is_dictionary(field.type) else field.type
            if not (types.is_string(inner) or types.is_large_string(inner)):
                raise UserError(f'{path}: column "{field.name}" holds {field.type}, not texts')
            wanted = schema.set(at, field.with_type(inner).with_nullable(field.nullable))
            others = tuple(name for i, name in enumerate(schema.names) if i != at)
            empty = pyarrow.RecordBatch.from_arrays([pyarrow.array([], f.type) for f in wanted], schema=wanted)
            yield Block([], lambda _: empty)
            for batch in file.iter_batches(batch_size=rows):

                def with_texts(texts: Sequence[str], batch: Any = batch) -> Any:
                    columns = list(batch.columns)
                    columns[at] = pyarrow.array(texts, inner)
                    return pyarrow.RecordBatch.from_arrays(columns, schema=wanted)

                texts = [text or "" for text in batch.column(at).to_pylist()]
                if not all(map(is_text, texts)):
                    raise UserError(f'{path}: column "{field.name}" holds a NUL; mend the text')
                yield Block(texts, with_texts, others)
    except (pyarrow.ArrowException, UnicodeDecodeError, OverflowError, KeyError, OSError) as error:
        reason = (str(error).splitlines() or ["?"])[0]
        raise UserError(f"{path}: is not a readable Parquet file: {reason}") from error

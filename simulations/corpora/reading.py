"""Rules of every reader of a file for its lines, cells and objects.

Readers of whole files (`simulations.corpora.files`) and of files rewritten as a stream
(`simulations.corpora.rewriting`) share them. `simulations.corpora.columns` decides what may be a text, a label or a
user. All raise UserError, one line with the file and the line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from simulations.corpora import headers
from simulations.corpora.columns import require_columns
from simulations.errors import UserError, other_encoding

#: Most bytes of a line and characters of a cell; and most levels of nested lists and objects.
LONGEST, DEEPEST = 2**26, 100

#: Number of a line, and the line with its end.
Line = tuple[int, str]


@contextmanager
def parquet_errors(file: Path) -> Iterator[None]:
    """Turn an error of Parquet's reader into UserError. The reason may quote a value, so it is not shown."""
    import pyarrow

    try:
        yield
    except UserError:
        raise
    except (pyarrow.ArrowException, ValueError, OverflowError, KeyError, OSError):
        raise UserError(f"{file}: is not a readable Parquet file") from None


def decoded(stream: BinaryIO, place: str) -> Iterator[Line]:
    """Yield the lines of UTF-8 text, one by one: a file may be larger than memory."""
    number = 0
    while raw := stream.readline(LONGEST):
        number += 1
        if len(raw) == LONGEST:
            raise UserError(f"{place}: line {number}: is longer than {LONGEST >> 20} MiB")
        if number == 1 and (other := other_encoding(raw)):
            raise UserError(f"{place}: is {other}; convert it to UTF-8: iconv -f {other} -t UTF-8")
        if b"\0" in raw:
            raise UserError(f"{place}: line {number}: holds a NUL byte: a binary file, or text that is not UTF-8")
        try:
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{place}: line {number}: is not UTF-8; convert the file to UTF-8") from None


def without_end(line: str) -> str:
    """Return a line without the line feed that ends it, and without a carriage return before that."""
    return line[:-2] if line.endswith("\r\n") else line.removesuffix("\n")


def table(lines: Iterable[Line], kind: str, place: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the names of the columns in the first line of a TSV or CSV file, and the rows below it.

    A row is the number of its first line and its cells, as many as there are names; an empty line has none. Cells of
    TSV are not quoted: a quotation mark is a word of the sentence, as in published files.

    Args:
        lines: Lines of the file.
        kind: ".csv" for commas and double quotes, anything else for tabs.
        place: Name of the file, for errors.
    """
    if kind == ".csv":
        rows = _comma_separated(lines, place)
    else:
        texts = ((number, without_end(line)) for number, line in lines)
        rows = ((number, text.split("\t") if text else []) for number, text in texts)
    names = [name.strip() for name in next(rows, (1, []))[1]]
    if not names:
        raise UserError(f"{place}: is empty; its first line must name the columns")
    if not any(names):
        raise UserError(f"{place}: line 1: names no columns")
    if any("\r" in name or "\n" in name for name in names):
        raise UserError(f"{place}: line 1: a name holds the end of a line; end lines with \\n or \\r\\n")
    if kind == ".csv" and len(names) == 1 and (";" in names[0] or "\t" in names[0]):
        raise UserError(f"{place}: line 1: has no commas; put commas between cells, or name a file of tabs .tsv")
    return names, _fitted(rows, len(names), place)


def _fitted(rows: Iterable[tuple[int, list[str]]], width: int, place: str) -> Iterator[tuple[int, list[str]]]:
    for number, cells in rows:
        if cells and len(cells) != width:
            raise UserError(f"{place}: line {number}: has {len(cells)} cells, and the header names {width}")
        yield number, cells


def column(names: Sequence[str], wanted: str, place: str, *, declared: bool = False) -> int:
    """Return the place of a column in a header, or in a schema if `declared`."""
    require_columns(place, [wanted], names, declared=declared)
    if list(names).count(wanted) > 1:
        raise UserError(f'{place}: line 1: names column "{wanted}" twice; rename one of them')
    return list(names).index(wanted)


def _comma_separated(lines: Iterable[Line], place: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line and the cells of each row, which may run over several lines."""
    csv.field_size_limit(LONGEST)  # a setting of the whole module; its default is shorter than a text of 30,000 words
    reader = csv.reader((line for _, line in lines), strict=True)
    start = 1
    try:
        for row in reader:
            yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        alone = str(error).startswith("new-line character")
        why = "a line ends in \\r alone; end lines with \\n or \\r\\n" if alone else f"is not valid CSV: {error}"
        raise UserError(f"{place}: line {max(start, reader.line_num)}: {why}") from None


def parsed(line: str, place: str, number: int, example: str) -> dict[str, Any]:
    """Return the object of a line of JSON; no key twice, nothing deeper than DEEPEST.

    `example` is a key for the error.
    """
    where = f"{place}: line {number}"
    try:
        record = json.loads(line, object_pairs_hook=_once)
        deep = line.count("[") + line.count("{") > DEEPEST and _deeper(record)
    except _Twice as error:
        raise UserError(f"{where}: names {error} twice; leave one of them") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: is not valid JSON: {error.msg}") from None
    except RecursionError:
        deep = True
    except ValueError:  # Python reads no number of more than 4,300 digits
        raise UserError(f"{where}: holds a number of thousands of digits; write it as a text") from None
    if deep:
        raise UserError(f"{where}: is nested deeper than {DEEPEST} levels; leave out what is not needed")
    if not isinstance(record, dict):
        raise UserError(f'{where}: must be an object such as {{"{example}": "..."}}')
    return record


def objects(lines: Iterable[Line], place: str, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line of JSON that is not empty; each has the wanted keys."""
    for number, line in lines:
        if line.strip():
            record = parsed(line, place, number, wanted[0])
            require_columns(f"{place}: line {number}", wanted, record)
            yield number, record


class _Twice(Exception):
    """Error of a key that an object has twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Twice(f'"{twice}"' if twice in headers.USUAL else "a key")
    return result


def _deeper(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        inner = [item for item in level if isinstance(item, dict | list)]
        level = list(chain.from_iterable(item.values() if isinstance(item, dict) else item for item in inner))
    return bool(level)

"""Rules of every reader of a file for its lines, cells and objects.

Readers of whole files (`simulations.corpora.files`) and of files rewritten as a stream
(`simulations.corpora.rewriting`) share them. `simulations.corpora.columns` decides what may be a text, a label or a
user. All raise UserError, one line with the file and the line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO

from simulations.corpora import headers
from simulations.corpora.columns import require_columns
from simulations.errors import UserError, other_encoding

#: Most bytes of a line and characters of a cell; and most levels of nested lists and objects.
LONGEST, DEEPEST = 2**26, 100

#: Number of a line, the line with its end, its end.
Line = tuple[int, str, str]
#: Number of a row's first line, its cells; and, for tabs, its end.
Row = tuple[Any, ...]


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
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{place}: line {number}: is not UTF-8; convert the file to UTF-8") from None
        yield number, line, "\r\n" if line.endswith("\r\n") else "\n" if line.endswith("\n") else ""


def header(cells: Sequence[str], place: str) -> list[str]:
    """Return the names of columns that a first line holds."""
    names = [name.strip() for name in cells]
    if not any(names):
        raise UserError(f"{place}: line 1: names no columns")
    if any("\r" in name or "\n" in name for name in names):
        raise UserError(f"{place}: line 1: a name holds the end of a line; end lines with \\n or \\r\\n")
    return names


def column(names: Sequence[str], wanted: str, place: str, *, declared: bool = False) -> int:
    """Return the place of a column in a header, or in a schema if `declared`."""
    require_columns(place, [wanted], names, declared=declared)
    if list(names).count(wanted) > 1:
        raise UserError(f'{place}: line 1: names column "{wanted}" twice; rename one of them')
    return list(names).index(wanted)


def places(first: Row, wanted: Sequence[str], place: str) -> list[int]:
    """Return the places of columns given by their positions from 1, in a file without a header.

    `first` is its first row, which determines the number of columns.
    """
    there = [str(position) for position in range(1, len(first[1]) + 1)]
    if missing := [position for position in wanted if position not in there]:
        raise UserError(f"{place}: line {first[0]}: has {len(there)} columns, and no position {missing[0]}")
    return [there.index(position) for position in wanted]


def tab_separated(lines: Iterable[Line]) -> Iterator[tuple[int, list[str], str]]:
    """Yield the number, the cells ([] for an empty line) and the end of each line.

    A quotation mark is a word of the sentence, as in published files.
    """
    for number, line, end in lines:
        said = line[: len(line) - len(end)]
        yield number, said.split("\t") if said else [], end


def comma_separated(lines: Iterable[Line], place: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line and the cells of each row, which may run over several lines.

    An empty line has the cells []. `separator` decides on the mark between them.
    """
    csv.field_size_limit(LONGEST)  # a setting of the whole module; its default is shorter than a text of 30,000 words
    said = (line for _, line, _ in lines)
    first = next(said, "")
    reader = csv.reader(chain([first] if first else [], said), strict=True, delimiter=separator(first))
    start = 1
    try:
        for row in reader:
            yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        alone = str(error).startswith("new-line character")
        why = "a line ends in \\r alone; end lines with \\n or \\r\\n" if alone else f"is not valid CSV: {error}"
        raise UserError(f"{place}: line {max(start, reader.line_num)}: {why}") from None


def separator(first: str) -> str:
    """Return the mark between the cells of a CSV file, by its first line.

    It is a comma. If commas divide nothing, it is a semicolon, as in spreadsheets whose numbers have commas, or a tab.
    A line that is no CSV is left to its reader.
    """
    for mark in (",", ";", "\t"):
        try:
            if len(next(csv.reader([first], delimiter=mark), [])) > 1:
                return mark
        except csv.Error:
            pass
    return ","


def fitted(cells: list[str], width: int, place: str, number: int, *, named: bool = True) -> list[str]:
    """Return the cells after a check that they are as many as in the first line, a header if columns are named."""
    if len(cells) != width:
        first = f"the header names {width}" if named else f"the first row has {width}"
        raise UserError(f"{place}: line {number}: has {len(cells)} cells, and {first}")
    return cells


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

"""HTML that is escaped unless it was made here."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


class Markup(str):
    """HTML as it stands. Any other str is text, and escaped where it meets an element."""

    __slots__ = ()


Part = str | Iterable[str]


def escaped(text: str) -> Markup:
    """Markup as it is, and text with &, <, > and quotes written out."""
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def joined(parts: Iterable[str]) -> Markup:
    """Parts one after the other, each escaped."""
    return Markup("".join(map(escaped, parts)))


def element(name: str, *parts: Part, **attributes: str | bool | None) -> Markup:
    """An element around its parts. attributes: `class_` is class, `data_value` data-value; True has no value, None and
    False are left out."""
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inside = joined(part if isinstance(part, str) else joined(part) for part in parts)
    return Markup(f"<{name}{given}>{inside}</{name}>")


def listed(items: Iterable[str]) -> Markup:
    """A list with points."""
    return element("ul", [element("li", item) for item in items])


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and the number that its column is sorted by, where that is another."""

    shown: str
    value: float | None = None


def table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[str | Cell]], *, sorts: bool = False,
    marked: Mapping[int, str] | None = None,
) -> Markup:  # fmt: skip
    """A table with its caption, whose first column heads the rows; wider than a page it scrolls in itself.

    sorts: by any column, where scripts run. marked: rows by their number, and a class for each."""
    lines = []
    for number, row in enumerate(rows):
        cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
        made = [
            element("td" if at else "th", cell.shown, scope=None if at else "row", data_value=_plain(cell.value))
            for at, cell in enumerate(cells)
        ]
        lines.append(element("tr", made, class_=(marked or {}).get(number)))
    head = element("thead", element("tr", [element("th", heading, scope="col") for heading in headings]))
    whole = element(
        "table", element("caption", caption), head, element("tbody", lines), class_="sorts" if sorts else None
    )
    return element("div", whole, class_="wide", tabindex="0", role="group", aria_label=caption)


def _plain(value: float | None) -> str | None:
    """As JavaScript reads it."""
    return None if value is None else "Infinity" if value == math.inf else f"{value:.12g}"

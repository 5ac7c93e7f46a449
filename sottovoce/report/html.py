"""HTML elements that escape all other text."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


class Markup(str):
    """HTML that is inserted unchanged. Any other str is text, which an element escapes."""

    __slots__ = ()


Part = str | Iterable[str]


def escaped(text: str) -> Markup:
    """Return Markup unchanged, and text with &, <, > and quotes escaped."""
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def joined(parts: Iterable[str]) -> Markup:
    """Return the parts one after the other, each escaped."""
    return Markup("".join(map(escaped, parts)))


def element(name: str, *parts: Part, **attributes: str | bool | None) -> Markup:
    """Return an element around its parts.

    Args:
        name: Name of the element.
        *parts: Its content.
        **attributes: Its attributes: `class_` is class, `data_value` data-value. True has no value; None and False are
            left out.
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inside = joined(part if isinstance(part, str) else joined(part) for part in parts)
    return Markup(f"<{name}{given}>{inside}</{name}>")


def listed(items: Iterable[str]) -> Markup:
    """Return a bulleted list."""
    return element("ul", [element("li", item) for item in items])


@dataclass(frozen=True)
class Cell:
    """Cell of a table.

    Args:
        shown: Text of the cell.
        value: Number by which its column is sorted, if it differs from the text.
    """

    shown: str
    value: float | None = None


def table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[str | Cell]], *, sorts: bool = False,
    marked: Mapping[int, str] | None = None,
) -> Markup:  # fmt: skip
    """Return a table with its caption, whose first column heads the rows; a wide one scrolls by itself.

    Args:
        caption: Caption.
        headings: Headings of the columns.
        rows: Rows of cells.
        sorts: Whether scripts can sort it by any column.
        marked: Class of each marked row, by its number.
    """
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
    """Return a number as JavaScript reads it."""
    return None if value is None else "Infinity" if value == math.inf else f"{value:.12g}"

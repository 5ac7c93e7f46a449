"""Checks of single values of an experiment file. Each returns the value, or raises UserError with its place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from client.policy import Policy
from mechanisms.checks import is_number
from mechanisms.checks import whole as integer
from mechanisms.guarantee import EXPOSURES
from simulations.errors import UserError
from simulations.experiment.names import either, nearest


@dataclass(frozen=True)
class Check:
    """Callable that takes a value and its place, and returns the value or raises UserError.

    Args:
        read: The check itself.
        schema: Accepted values, as far as JSON Schema can express them.
    """

    read: Callable[[Any, str], Any]
    schema: dict[str, Any] = field(hash=False)

    def __call__(self, value: Any, where: str) -> Any:
        """Return the value in its final type, or raise UserError with its place."""
        return self.read(value, where)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: must be a text that is not empty, got {value!r}")
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{where}: must be true or false, got {value!r}")
    return value


def choice(*names: str) -> Check:
    """Return a check for one text out of some."""

    def check(value: Any, where: str) -> str:
        if value not in names:
            raise UserError(f"{where}: must be {either(names)}, got {value!r}{nearest(value, names)}")
        return str(value)

    return Check(check, {"enum": list(names)})


#: Largest whole number of most keys, which floats hold exactly, and largest seed, which torch takes.
MOST, MOST_SEED = 2**53, 2**64 - 1


def whole(least: int, *, most: int = MOST, none: bool = False) -> Check:
    """Return a check for a whole number from `least` to `most`, or also for "none"."""

    def check(value: Any, where: str) -> int | str:
        if none and value == "none":
            return "none"
        number, either = integer(value), '"none" or ' if none else ""
        if number is None or number < least:
            raise UserError(f"{where}: must be {either}a whole number of at least {least}, got {value!r}")
        if number > most:
            raise UserError(f"{where}: must be a whole number from {least} to {most}, got {number}")
        return number

    schema = {"type": "integer", "minimum": least}
    return Check(check, {"anyOf": [{"const": "none"}, schema]} if none else schema)


def _auto_or_wholes(value: Any, where: str) -> tuple[int, ...] | str:
    if value == "auto":
        return "auto"
    entries = tuple(value) if isinstance(value, list | tuple) else (None,)
    numbers = tuple(number for entry in entries if (number := integer(entry)) is not None and number >= 1)
    if len(set(numbers)) < len(entries):
        raise UserError(f'{where}: must be "auto" or a list of different whole numbers of at least 1, got {value!r}')
    return numbers


def _interval(value: Any, where: str) -> tuple[float, float]:
    two = isinstance(value, list | tuple) and len(value) == 2
    if not two or not all(is_number(v) and math.isfinite(v) for v in value) or not value[0] < value[1]:
        raise UserError(f"{where}: must be two finite numbers, the lower first, as [0.0, 5.0], got {value!r}")
    return float(value[0]), float(value[1])


def choices(*allowed: str) -> Check:
    """Return a check for a list of different texts out of some; it may be empty."""

    def check(value: Any, where: str) -> tuple[str, ...]:
        good = isinstance(value, list | tuple) and all(v in allowed for v in value if isinstance(v, str))
        if not good or not all(isinstance(v, str) for v in value) or len(set(value)) < len(value):
            named = ", ".join(f'"{v}"' for v in allowed)
            raise UserError(f"{where}: must be a list of different ones of {named}, got {value!r}")
        return tuple(value)

    return Check(check, {"type": "array", "items": {"enum": list(allowed)}, "uniqueItems": True})


def number(least: float = 0.0, *, above: bool = False, below: float = math.inf, infinite: bool = False) -> Check:
    """Return a check for a float of at least `least` (or above it) and below `below`; inf only means "no limit"."""

    def check(value: Any, where: str) -> float:
        bounds = f"{'above' if above else 'of at least'} {least:g}"
        bounds += f" and below {below:g}" if below < math.inf else ""
        within = is_number(value) and (value > least if above else value >= least)
        if not within or (value >= below and not (infinite and value == math.inf)):
            raise UserError(f"{where}: must be a {'' if infinite else 'finite '}number {bounds}, got {value!r}")
        return float(value)

    schema: dict[str, Any] = {"type": "number", "exclusiveMinimum" if above else "minimum": least}
    return Check(check, schema | ({"exclusiveMaximum": below} if below < math.inf else {}))


def _auto_or_whole(value: Any, where: str) -> int | str:
    if value == "auto":
        return "auto"
    number = integer(value)
    if number is None or not 1 <= number <= MOST:
        raise UserError(f'{where}: must be "auto" or a whole number of at least 1, got {value!r}')
    return number


def _column(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: must be a column's name, got {value!r}; a file without names needs a header line")
    return value


def _reasons(value: Any, where: str) -> tuple[str, ...]:
    """Return a valid `accept_unprotected` of a client's policy."""
    if not isinstance(value, list | tuple):
        raise UserError(f'{where}: must be a list such as ["label: why this is acceptable"], got {value!r}')
    for entry in value:
        try:
            Policy(accept_unprotected=(entry,))
        except ValueError:
            raise UserError(
                f'{where}: each entry must be "label: why", or embedding or text, or one of '
                f"{', '.join(EXPOSURES)}, got {entry!r}"
            ) from None
    return tuple(value)


def _names(value: Any, where: str) -> dict[str, str]:
    """Return a table of different texts, by texts."""
    valid = isinstance(value, dict) and value and all(isinstance(name, str) for name in value.values())
    if not valid or len(set(value.values())) < len(value):
        raise UserError(f'{where}: must be a table such as {{ "0" = "negative", "1" = "positive" }}, got {value!r}')
    return dict(value)


def _descriptions(value: Any, where: str) -> str | dict[str, tuple[str, ...]]:
    """Return "names", "none", or a table of one text or several by class."""
    if value in ("names", "none"):
        return str(value)
    good = isinstance(value, dict) and len(value) >= 2
    table = {
        name: (texts,) if isinstance(texts, str) else tuple(texts) if isinstance(texts, list | tuple) else ()
        for name, texts in (value.items() if good else ())
    }
    if not good or not all(t and all(isinstance(text, str) and text.strip() for text in t) for t in table.values()):
        raise UserError(
            f'{where}: must be "names", "none", or a table of texts by class such as '
            f'{{ "0" = ["terrible", "bad"], "1" = "great" }}, got {value!r}'
        )
    return table


def _mechanism(value: Any, where: str) -> dict[str, Any]:
    """Return a mechanism's table. The catalogue checks names and parameters; this function checks kinds of values."""
    if not isinstance(value, dict):
        raise UserError(f'{where}: must be a table such as {{ mechanism = "identity" }}, got {value!r}')
    text(value.get("mechanism"), f"{where}.mechanism")
    value = {name: entry.item() if isinstance(entry, np.generic) else entry for name, entry in value.items()}
    for name, entry in value.items():
        if name == "dim":
            dims = entry if isinstance(entry, list) else [entry]
            if not dims or not all((integer(d) or 0) >= 2 for d in dims) or len(set(dims)) < len(dims):
                raise UserError(f"{where}.dim: must be a whole number of at least 2, or a list of them, got {entry!r}")
        elif is_number(entry):
            if not math.isfinite(entry) or entry < 0:
                raise UserError(f"{where}.{name}: must be a finite number of at least 0, got {entry!r}")
        elif name != "mechanism" and not isinstance(entry, bool | str):
            raise UserError(f"{where}.{name}: must be a number, a text, true or false, got {entry!r}")
    return dict(value)


text = Check(_text, {"type": "string", "pattern": r"\S"})
flag = Check(_flag, {"type": "boolean"})
auto_or_whole = Check(_auto_or_whole, {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]})
auto_or_wholes = Check(
    _auto_or_wholes,
    {"anyOf": [{"const": "auto"}, {"type": "array", "items": {"type": "integer", "minimum": 1}, "uniqueItems": True}]},
)
reasons = Check(_reasons, {"type": "array", "items": {"type": "string", "pattern": r"^[^:]+:.*\S"}})
column = Check(_column, {"type": "string", "pattern": r"\S"})
interval = Check(_interval, {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2})
names = Check(_names, {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1})
_TEXT = {"type": "string", "pattern": r"\S"}
descriptions = Check(
    _descriptions,
    {
        "anyOf": [
            {"enum": ["names", "none"]},
            {
                "type": "object",
                "minProperties": 2,
                "additionalProperties": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]},
            },
        ]
    },
)
mechanism = Check(
    _mechanism, {"type": "object", "required": ["mechanism"], "properties": {"mechanism": {"type": "string"}}}
)

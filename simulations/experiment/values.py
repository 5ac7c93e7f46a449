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
        must: What a value must be, for errors.
        read: Function that returns the value in its final type, or None for a value that is not accepted.
        schema: Accepted values, as far as JSON Schema can express them.
        near: Names of which an error shows the most similar.
    """

    must: str
    read: Callable[[Any], Any]
    schema: dict[str, Any] = field(hash=False)
    near: tuple[str, ...] = ()

    def __call__(self, value: Any, where: str) -> Any:
        """Return the value in its final type, or raise UserError with its place."""
        result = self.read(value)
        if result is None:
            raise UserError(f"{where}: must be {self.must}, got {value!r}{nearest(value, self.near)}")
        return result


def choice(*names: str) -> Check:
    """Return a check for one text out of some."""
    return Check(either(names), lambda value: str(value) if value in names else None, {"enum": list(names)}, names)


def whole(least: int, *, bits: int = 53) -> Check:
    """Return a check for a whole number of at least `least`, of so many bits: floats hold all of 53 exactly."""

    def read(value: Any) -> int | None:
        number = integer(value)
        return None if number is None or not least <= number < 2**bits else number

    return Check(f"a whole number of at least {least}, below 2^{bits}", read, {"type": "integer", "minimum": least})


def number(least: float = 0.0, *, above: bool = False, below: float = math.inf, infinite: bool = False) -> Check:
    """Return a check for a float of at least `least` (or above it) and below `below`; inf only means "no limit"."""

    def read(value: Any) -> float | None:
        within = is_number(value) and (value > least if above else value >= least)
        return float(value) if within and (value < below or (infinite and value == math.inf)) else None

    bounds = f"{'above' if above else 'of at least'} {least:g}" + (f" and below {below:g}" if below < math.inf else "")
    schema: dict[str, Any] = {"type": "number", "exclusiveMinimum" if above else "minimum": least}
    schema |= {"exclusiveMaximum": below} if below < math.inf else {}
    return Check(f"a {'' if infinite else 'finite '}number {bounds}", read, schema)


def word_or(word: str, check: Check) -> Check:
    """Return a check for a word, as "auto", or for what another check accepts."""
    schema = {"anyOf": [{"const": word}, check.schema]}
    return Check(f'"{word}" or {check.must}', lambda value: word if value == word else check.read(value), schema)


def distinct(must: str, check: Check) -> Check:
    """Return a check for a list of different values, each of which another check accepts; it may be empty."""

    def read(value: Any) -> tuple[Any, ...] | None:
        entries = tuple(map(check.read, value)) if isinstance(value, list | tuple) else (None,)
        return None if None in entries or len(set(entries)) < len(entries) else entries

    return Check(must, read, {"type": "array", "items": check.schema, "uniqueItems": True})


def choices(*names: str) -> Check:
    """Return a check for a list of different texts out of some."""
    return distinct(f"a list of different ones of {either(names)}", choice(*names))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _interval(value: Any) -> tuple[float, float] | None:
    two = isinstance(value, list | tuple) and len(value) == 2
    valid = two and all(is_number(end) and math.isfinite(end) for end in value) and value[0] < value[1]
    return (float(value[0]), float(value[1])) if valid else None


def _reasons(value: Any) -> tuple[str, ...] | None:
    """Return a valid `accept_unprotected` of a client's policy."""
    if not isinstance(value, list | tuple):
        return None
    try:
        return Policy(accept_unprotected=tuple(value)).accept_unprotected
    except ValueError:
        return None


def _names(value: Any) -> dict[str, str] | None:
    """Return a table of different texts, by texts."""
    valid = isinstance(value, dict) and value and all(isinstance(name, str) for name in value.values())
    return dict(value) if valid and len(set(value.values())) == len(value) else None


def _descriptions(value: Any) -> dict[str, tuple[str, ...]] | None:
    """Return a table of one text or several by class."""
    if not isinstance(value, dict) or len(value) < 2:
        return None
    table = {
        name: (texts,) if isinstance(texts, str) else tuple(texts) if isinstance(texts, list | tuple) else ()
        for name, texts in value.items()
    }
    return table if all(texts and all(map(_text, texts)) for texts in table.values()) else None


class _Mechanism(Check):
    """Check of a mechanism's table. The catalogue checks names and parameters; this one checks kinds of values."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        """Return the table, or raise UserError with the place of what is wrong in it."""
        table: dict[str, Any] = super().__call__(value, where)
        text(table.get("mechanism"), f"{where}.mechanism")
        for name, entry in table.items():
            if name == "dim":
                _dims(entry if isinstance(entry, list) and entry else [entry], f"{where}.dim")
            elif is_number(entry):
                _FINITE(entry, f"{where}.{name}")
            elif name != "mechanism" and not isinstance(entry, bool | str):
                raise UserError(f"{where}.{name}: must be a number, a text, true or false, got {entry!r}")
        return table


def _plain(value: Any) -> dict[str, Any] | None:
    """Return a table with Python's numbers in place of NumPy's."""
    if not isinstance(value, dict):
        return None
    return {name: entry.item() if isinstance(entry, np.generic) else entry for name, entry in value.items()}


_FINITE = number()
_TEXT = {"type": "string", "pattern": r"\S"}
text = Check("a text that is not empty", _text, _TEXT)
flag = Check("true or false", lambda value: value if isinstance(value, bool) else None, {"type": "boolean"})
auto_or_whole = word_or("auto", whole(1))
auto_or_wholes = word_or("auto", distinct("a list of different whole numbers of at least 1", whole(1)))
column = Check("a column's name (a file without names needs a header line)", _text, _TEXT)
interval = Check(
    "two finite numbers, the lower first, as [0.0, 5.0]",
    _interval,
    {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
)
reasons = Check(
    f'a list, each entry "label: why this is acceptable", or of embedding or text, or of one of {", ".join(EXPOSURES)}',
    _reasons,
    {"type": "array", "items": {"type": "string", "pattern": r"^[^:]+:.*\S"}},
)
names = Check(
    'a table such as { "0" = "negative", "1" = "positive" }',
    _names,
    {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
)
_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}
_BY_CLASS = Check(
    'a table of texts by class such as { "0" = ["terrible", "bad"], "1" = "great" }',
    _descriptions,
    {"type": "object", "minProperties": 2, "additionalProperties": _TEXTS},
)
descriptions = Check(
    f'"names", "none", or {_BY_CLASS.must}',
    lambda value: value if value in ("names", "none") else _BY_CLASS.read(value),
    {"anyOf": [{"enum": ["names", "none"]}, _BY_CLASS.schema]},
)
_dims = distinct("a whole number of at least 2, or a list of different ones", whole(2))
mechanism = _Mechanism(
    'a table such as { mechanism = "identity" }',
    _plain,
    {"type": "object", "required": ["mechanism"], "properties": {"mechanism": {"type": "string"}}},
)

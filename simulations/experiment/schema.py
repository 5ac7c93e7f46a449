"""JSON Schema of experiment files for editors, and their keys for people, both generated from the sections."""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from mechanisms.catalogue import CATALOGUE, OWN_KINDS
from mechanisms.channels import CHANNELS
from mechanisms.identity import Identity
from mechanisms.plugin import installed
from simulations.experiment.arm import CURATORS, Arm
from simulations.experiment.names import key
from simulations.experiment.sections import SECTIONS, PublicConfig, Section

DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: Keys of the file outside all sections, with their schemas.
_TOP: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "pattern": r"\S", "description": "Name in tables and folders."},
    "seed": {
        "type": "integer",
        "minimum": 0,
        "maximum": 2**64 - 1,
        "default": 1,
        "description": "Seed of everything that is drawn, below 2^64.",
    },
}


#: Tables of the file, in its order.
TABLES: tuple[type[Section], ...] = (*SECTIONS.values(), PublicConfig, Arm)
#: The sweep of an experiment's file, which `simulations.sweep.definition.load_study` checks.
_SWEEP: dict[str, Any] = {
    "type": "object",
    "description": "Keys, values and seeds that `sottovoce sweep` combines; a run ignores them.",
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of an experiment file. `load` alone checks conditions on several keys."""
    tables = {place: _table(section) for place, section in SECTIONS.items()}
    arms = {"type": "array", "items": _table(Arm), "description": "Lines of the results."}
    return {
        "$schema": DIALECT,
        "title": "An experiment of Sottovoce",
        "type": "object",
        "required": ["name"],
        "additionalProperties": False,
        "properties": _TOP | tables | {"arm": arms, "sweep": _SWEEP},
    }


def keys() -> Iterator[tuple[str, str, str, str]]:
    """Yield (key, possible values, default, description) of every key, in the order of the file's tables."""
    for name, entry in _TOP.items():
        yield name, _words(entry), str(entry.get("default", "must be given")), entry["description"]
    for section in TABLES:
        for f in fields(section):
            if "check" in f.metadata:
                value = _value(section, f.name)
                yield f"{section.place}.{key(f.name)}", _words(value), _default(f.default), value["description"]


def _table(section: type[Section]) -> dict[str, Any]:
    properties = {key(f.name): _value(section, f.name) for f in fields(section) if "check" in f.metadata}
    if any(f.name == "public" for f in fields(section)):
        properties["public"] = _table(PublicConfig)
    required = {"required": ["name"]} if section is Arm else {}
    return {
        "type": "object",
        "description": " ".join(about(section)),
        **required,
        "additionalProperties": False,
        "properties": properties,
    }


def _value(section: type[Section], name: str) -> dict[str, Any]:
    field = next(f for f in fields(section) if f.name == name)
    value: dict[str, Any] = field.metadata["check"].schema | {"description": described(section)[key(name)]}
    if section is Arm and name in (*CHANNELS, "curator"):
        places = [] if name == "curator" else [{"type": "string", "pattern": ":"}]  # package.module:Class
        choices = {"enum": [*_mechanisms(name), *(installed() if places else ())]}
        value["properties"] = {"mechanism": {"anyOf": [choices, *places]}}
    if field.default not in (MISSING, None, math.inf):
        value["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
    return value


def _mechanisms(channel: str) -> list[str]:
    """Return the names that a table of the arm may give to "mechanism"."""
    if channel == "curator":
        return [*CURATORS]
    own = {name for name, where in OWN_KINDS if where == channel}
    published = {name for name, kind in CATALOGUE.items() if getattr(kind, "channel", None) == channel}
    return sorted(own | {Identity.name} | published)


def about(section: type[Section]) -> list[str]:
    """Return the lines of the section's docstring above its attributes."""
    return (inspect.getdoc(section) or "").partition("\n\nAttributes:\n")[0].splitlines()


def described(section: type[Section]) -> dict[str, str]:
    """Return the description of each key, from the attributes of the section's docstring."""
    attributes = textwrap.dedent((inspect.getdoc(section) or "").partition("\n\nAttributes:\n")[2])
    entries = (entry.partition(": ") for entry in re.split(r"\n(?=\S)", attributes))
    return {name: " ".join(text.split()) for name, _, text in entries}


def _words(value: dict[str, Any]) -> str:
    """Return the values that a schema allows, in words."""
    if "anyOf" in value:
        return " or ".join(_words(part) for part in value["anyOf"])
    if "enum" in value or "const" in value:
        return ", ".join(f'"{name}"' for name in value.get("enum", [value.get("const")]))
    kind = value["type"]
    if kind == "object":
        named = value.get("properties", {}).get("mechanism", {}).get("anyOf")
        return "a table" if named is None else f"a mechanism: {', '.join(named[0]['enum'])}"
    if kind == "array":
        items = value["items"]
        if "enum" in items:
            return f"a list of {_words(items)}"
        kinds = {"integer": "a list of whole numbers", "number": "two numbers, the lower first"}
        return kinds.get(items["type"], 'a list of "name: reason"')
    if kind in ("integer", "number"):
        least, above, below = (value.get(k) for k in ("minimum", "exclusiveMinimum", "exclusiveMaximum"))
        bounds = f"above {above:g}" if above is not None else f"at least {least:g}"
        bounds += f", below {below:g}" if below is not None else ""
        return f"a {'whole ' if kind == 'integer' else ''}number, {bounds}"
    return {"boolean": "true or false", "string": "a text"}[kind]


def _default(value: Any) -> str:
    if value is None or value is MISSING:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "none" if not value else str(list(value))
    return f'"{value}"' if isinstance(value, str) and value else "must be given" if value == "" else f"{value:g}"

"""JSON Schema of experiment files for editors, and their keys for people, both generated from the sections."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from mechanisms.catalogue import CATALOGUE, OWN_KINDS
from mechanisms.channels import CHANNELS
from mechanisms.identity import Identity
from mechanisms.plugin import installed
from server.training.descent import DESCENTS
from simulations.experiment.arm import Arm
from simulations.experiment.names import key
from simulations.experiment.sections import SECTIONS, Public, Section

DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: Keys of the file outside all sections, with their schemas.
_TOP: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "pattern": r"\S", "description": "What the study is called, in tables and folders."},
    "seed": {"type": "integer", "minimum": 0, "default": 1, "description": "The root of all that is drawn."},
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of an experiment file. `load` alone checks conditions on several keys."""
    tables = {place: _table(section) for place, section in SECTIONS.items()}
    arms = {"type": "array", "items": _table(Arm), "description": "The lines of the table, [[arm]] each."}
    return {
        "$schema": DIALECT, "title": "A study of Sottovoce", "type": "object", "required": ["name"],
        "additionalProperties": False, "properties": _TOP | tables | {"arm": arms},
    }  # fmt: skip


def keys() -> Iterator[tuple[str, str, str]]:
    """Yield (key, possible values, default) of every key, in the order of the file's tables."""
    for name, entry in _TOP.items():
        yield name, _words(entry), str(entry.get("default", "must be given"))
    for section in (*SECTIONS.values(), Public, Arm):
        place = "arm" if section is Arm else section.place
        for f in fields(section):
            if "check" in f.metadata:
                yield f"{place}.{key(f.name)}", _words(_value(section, f.name)), _default(f.default)


def page() -> str:
    """Return all keys as Markdown, each table under the docstring of its section."""
    lines = [
        "# The experiment file, key by key", "",
        "A study is a TOML file; this page is made from what reads it (`sottovoce schema --markdown`), and a test",
        "holds it to that. Editors that know JSON Schema complete and check it:", "",
        "    sottovoce schema > study.schema.json      # then, in the file: #:schema study.schema.json", "",
        "What contradicts what is said in one line when the file is read. –: nothing, or what other keys say.", "",
        *_rows([row for row in keys() if "." not in row[0]]),
    ]  # fmt: skip
    for section in (*SECTIONS.values(), Public, Arm):
        place = "arm" if section is Arm else section.place
        own = [row for row in keys() if row[0].rpartition(".")[0] == place]
        title = "[[arm]]" if section is Arm else f"[{place}]"
        lines += ["", f"## {title}", "", *about(section), "", *_rows(own)]
    return "\n".join(lines) + "\n"


def _table(section: type[Section]) -> dict[str, Any]:
    properties = {key(f.name): _value(section, f.name) for f in fields(section) if "check" in f.metadata}
    if any(f.name == "public" for f in fields(section)):
        properties["public"] = _table(Public)
    required = {"required": ["name"]} if section is Arm else {}
    return {
        "type": "object", "description": " ".join(about(section)), **required, "additionalProperties": False,
        "properties": properties,
    }  # fmt: skip


def _value(section: type[Section], name: str) -> dict[str, Any]:
    field = next(f for f in fields(section) if f.name == name)
    value: dict[str, Any] = dict(field.metadata["check"].schema)
    if section is Arm and name in (*CHANNELS, "curator"):
        places = [] if name == "curator" else [{"type": "string", "pattern": ":"}]  # package.module:Class
        known = {"enum": [*_mechanisms(name), *(installed() if places else ())]}
        value["properties"] = {"mechanism": {"anyOf": [known, *places]}}
    if field.default not in (MISSING, None, math.inf):
        value["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
    return value


def _mechanisms(channel: str) -> list[str]:
    """Return the names that a table of the arm may give to "mechanism"."""
    if channel == "curator":
        return ["gaussian", *DESCENTS]
    own = {name for name, where in OWN_KINDS if where == channel}
    return sorted(own | {Identity.name} | {n for n, kind in CATALOGUE.items() if _sanitizes(kind, channel)})


def _sanitizes(kind: Any, channel: str) -> bool:
    return getattr(kind, "channel", None) == channel


def about(section: type[Section]) -> list[str]:
    """Return the lines of the section's docstring, with field names as they are written in the file."""
    said = inspect.getdoc(section) or ""
    for f in fields(section):
        said = re.sub(rf"\b{f.name}\b", key(f.name), said) if "_" in f.name else said
    return said.splitlines()


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


def _rows(rows: list[tuple[str, str, str]]) -> list[str]:
    cells = [f"| `{name}` | {words} | {default} |" for name, words, default in rows]
    return ["| key | what it may be | where it is not given |", "| --- | --- | --- |", *cells]

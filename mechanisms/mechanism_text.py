"""Mechanism with its parameters in one word of a command line, as privunit:epsilon=3,dim=32."""

from __future__ import annotations

import re
import tomllib
from typing import Any

#: A name, and what follows the colon before the first parameter. The name of a plugin may contain a colon.
_PARTS = re.compile(r"(?P<name>.*?)(?::(?P<rest>[^:=]*=.*))?", re.DOTALL)
#: Between two parameters: a comma outside brackets, before a key.
_BETWEEN = re.compile(r",(?=\s*[\w-]+\s*=)")


def read_mechanism(text: str, option: str = "--mechanism") -> dict[str, Any]:
    """Return the spec {"mechanism": NAME, KEY: value, ...} of NAME:KEY=VALUE,...

    Args:
        text: The word. A value is read as TOML, and as a plain text if it is not valid TOML.
        option: Name of the option, for errors.

    Raises:
        ValueError: It has no name, or a parameter has no value or is given twice.
    """
    match = _PARTS.fullmatch(text)
    name = (match["name"] if match else "").strip()
    if not match or not name:
        raise ValueError(f"{option} {text!r}: the mechanism has no name")
    spec: dict[str, Any] = {"mechanism": name}
    for pair in _BETWEEN.split(match["rest"] or ""):
        if not pair.strip() and match["rest"] is None:
            continue
        key, equals, value = (part.strip() for part in pair.partition("="))
        key = key.replace("-", "_")
        if not equals or not key or not value:
            raise ValueError(f"{option} {text}: write NAME or NAME:key=value,key=value")
        if key in spec:
            raise ValueError(f"{option} {text}: {key} is given twice; leave one of them")
        spec[key] = _value(value)
    return spec


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return float(text)  # .5 is no number of TOML
    except ValueError:
        return text

"""Experiment as a file for people to edit: every key with its possible values, in the words of the schema."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import tomli_w

from simulations.experiment.arm import Arm
from simulations.experiment.experiment import Experiment
from simulations.experiment.names import key
from simulations.experiment.schema import about, keys
from simulations.experiment.sections import SECTIONS, Public, Section

_WIDTH = 116


def commented(experiment: Experiment, why: Mapping[str, str], *, first: str = "") -> str:
    """Return the experiment as TOML that `load` reads back to an equal one. Default values are commented out.

    Args:
        experiment: The experiment.
        why: Comments above keys such as "data.public.fraction", or above all arms ("arm"). A key with such a comment is
            never commented out.
        first: First lines of the file.
    """
    known = {name: _said(words, default) for name, words, default in keys()}
    lines = [line for said in first.splitlines() for line in _comment(said)]
    for name in ("name", "seed"):
        lines += [*_comment(why.get(name, "")), f"{name} = {_value(getattr(experiment, name))}  # {known[name]}"]
    for place, section in SECTIONS.items():
        lines += _table(getattr(experiment, place), section, known, why)
        if place == "data":
            lines += _table(experiment.data.public, Public, known, why)
    lines += ["", *(f"# {line}".rstrip() for line in about(Arm))]
    lines += ["#", *_comment(why["arm"])] if "arm" in why else []
    for arm in experiment.arms:
        lines += ["", "[[arm]]", *_arm(arm)]
    return "\n".join(lines) + "\n"


def _said(words: str, default: str) -> str:
    return words if default in ("–", "must be given") else f"{words}; default {default}"


def _table(section: Section, kind: type[Section], known: Mapping[str, str], why: Mapping[str, str]) -> list[str]:
    lines = ["", *(f"# {line}".rstrip() for line in about(kind)), f"[{kind.place}]"]
    for f in fields(section):
        if "check" not in f.metadata:
            continue
        name, value = f"{kind.place}.{key(f.name)}", getattr(section, f.name)
        lines += _comment(why.get(name, ""))
        if value is None:
            lines.append(f"#{key(f.name)} =  # {known[name]}")
        else:
            mark = "#" if value == f.default and name not in why else ""
            lines.append(f"{mark}{key(f.name)} = {_value(value)}  # {known[name]}")
    return lines


def _arm(arm: Arm) -> Iterator[str]:
    for f in fields(arm):
        if (value := getattr(arm, f.name)) != f.default:
            yield f"{key(f.name)} = {_value(value)}"


def _value(value: Any) -> str:
    """Return a value in one line of TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_value_key(name)} = {_value(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")


def _value_key(name: str) -> str:
    return tomli_w.dumps({name: 0}).rpartition(" = ")[0]


def _comment(said: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(said, _WIDTH, break_long_words=False, break_on_hyphens=False)]

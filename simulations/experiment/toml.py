"""Experiments as TOML: reading of files and bundled ones, with overrides, and writing, for programs and for people."""

from __future__ import annotations

import copy
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import Any

import tomli_w

from mechanisms.channels import CHANNELS
from simulations.errors import UserError, can_be_read, other_encoding
from simulations.experiment.arm import Arm
from simulations.experiment.experiment import Experiment
from simulations.experiment.names import key, nearest
from simulations.experiment.schema import about, keys
from simulations.experiment.sections import SECTIONS, Data, PublicConfig, Section

#: Table of an experiment's file that says how `sottovoce sweep` varies it (`simulations.sweep.definition`).
SWEEP = "sweep"
#: Width of comments.
_WIDTH = 116
BUNDLED = Path(__file__).parents[1] / "experiments"


def bundled() -> tuple[str, ...]:
    """Return the names of the experiment files that come with Sottovoce."""
    return tuple(sorted(p.stem for p in BUNDLED.glob("*.toml")))


def load(
    path: str | Path, overrides: Iterable[str] = (), *, arms: Sequence[dict[str, Any]] | None = None
) -> Experiment:
    """Return the experiment in a TOML file, or the bundled one of that name.

    Args:
        path: The file, or a bundled name.
        overrides: Texts "section.key=value". Arms are addressed by index from 0, as "arm.0.embedding.epsilon=4". A
            value is read as TOML, and as a plain text if it is not valid TOML.
        arms: Tables that replace the file's arms.

    Raises:
        UserError: The file cannot be read, or is not a valid experiment. The message names the file.
    """
    table = document(path)
    if "experiment" in table:
        raise UserError(f"{path}: is a sweep of {table['experiment']}; run it with: sottovoce sweep {quote(str(path))}")
    table.pop(SWEEP, None)  # of `sottovoce sweep`; a run is one experiment
    if arms is not None:
        table["arm"] = copy.deepcopy(list(arms))
    try:
        for override in overrides:
            override_key(table, override)
        return from_table(table)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def document(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file, or of the bundled experiment of that name, not yet checked.

    Raises:
        UserError: There is no such file, or it is no TOML.
    """
    file = Path(path)
    if str(path) in bundled():  # also beside a folder of that name, such as one that `--out demo` has made
        return parsed(BUNDLED / f"{path}.toml", path)
    if not can_be_read(file):
        if file.is_dir() and (inside := sorted(file.glob("*.toml"))):
            raise UserError(f"{path}: is a folder; name the file, as {inside[0]}")
        if file.suffix or len(file.parts) != 1:
            raise UserError(f"{path}: there is no such file")
        raise UserError(f"{path}: neither a file nor a bundled experiment ({', '.join(bundled())})")
    return parsed(file, path)


def parsed(file: Path, path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Args:
        file: The file.
        path: The name that the user gave, for error messages.

    Raises:
        UserError: It cannot be read as TOML.
    """
    data = file.read_bytes()
    if other := other_encoding(data):
        raise UserError(f"{path}: is {other}; convert it to UTF-8: iconv -f {other} -t UTF-8")
    try:
        return tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: is not valid TOML: {error}") from error


def from_table(table: dict[str, Any]) -> Experiment:
    """Return the experiment that a parsed TOML document describes.

    Raises:
        UserError: It is not a valid experiment.
    """
    refuse_unknown(table, {"name", "seed", "arm", *SECTIONS}, "")
    if "name" not in table:
        raise UserError("name: is missing")
    parts: dict[str, Any] = {k: table[k] for k in ("name", "seed") if k in table}
    for place, section in SECTIONS.items():
        if place in table:
            parts[place] = _read(section, table[place], place)
    arms = table.get("arm", [])
    if not isinstance(arms, list):
        raise UserError("arm: write it with two brackets, [[arm]]")
    parts["arms"] = tuple(_read(Arm, arm, f"arm.{i}") for i, arm in enumerate(arms))
    return Experiment(**parts)


def to_toml(experiment: Experiment) -> str:
    """Return the experiment as TOML, with every default, that `load` reads back to an equal one."""
    table: dict[str, Any] = {"name": experiment.name, "seed": experiment.seed}
    table |= {place: _table(getattr(experiment, place)) for place in SECTIONS}
    return tomli_w.dumps(table) + "".join("\n[[arm]]\n" + tomli_w.dumps(_arm_table(a)) for a in experiment.arms)


def _arm_table(arm: Arm) -> dict[str, Any]:
    """Return an arm as TOML: plain keys first, then mechanisms as [arm.embedding] and the like."""
    table = _table(arm)
    nested = {k: table.pop(k) for k in map(key, (*CHANNELS, "curator")) if k in table}
    return table | ({"arm": nested} if nested else {})


def _table(section: Section) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for f in fields(section):
        value = getattr(section, f.name)
        if isinstance(value, Section):
            table[key(f.name)] = _table(value)
        elif value is not None:
            table[key(f.name)] = list(value) if isinstance(value, tuple) else value
    return table


def _read(section: type[Section], table: Any, where: str) -> Any:
    if not isinstance(table, dict):
        raise UserError(f"{where}: must be a table, got {table!r}")
    names = {key(f.name): f.name for f in fields(section)}
    refuse_unknown(table, names, f"{where}.")
    values = {names[k]: v for k, v in table.items()}
    if section is Data and "public" in values:
        values["public"] = _read(PublicConfig, values["public"], "data.public")
    if section is Arm and "name" not in values:
        raise UserError(f"{where}.name: is missing")
    return section(**values)


def refuse_unknown(table: Mapping[str, Any], keys: Iterable[str], prefix: str) -> None:
    """Raise UserError for a key of a table that is none of these."""
    for name in table:
        if name not in keys:
            mend = nearest(name, keys) or f"; known are {', '.join(sorted(keys))}"
            raise UserError(f"{prefix}{name}: unknown key{mend}")


def override_key(table: dict[str, Any], override: str) -> None:
    """Set a key of a parsed TOML document, as in `load`.

    Raises:
        UserError: The override has another form, or names no place in the document.
    """
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"--set {override}: must look like section.key=value")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    place: Any = table
    for step in keys[:-1]:
        if isinstance(place, list):
            if not step.isdecimal() or int(step) >= len(place):
                raise UserError(f"--set {override}: arms are numbered from 0 to {len(place) - 1}, got {step!r}")
            place = place[int(step)]
        elif isinstance(place, dict):
            place = place.setdefault(step, {})
        else:
            raise UserError(f"--set {override}: {step!r} is inside something that is not a table")
    if isinstance(place, list):
        raise UserError(f"--set {override}: number the arm, from 0 to {len(place) - 1}, as arm.0.embedding.epsilon=4")
    if not isinstance(place, dict):
        raise UserError(f"--set {override}: {keys[-2]!r} is not a table")
    place[keys[-1]] = value


def commented(experiment: Experiment, why: Mapping[str, str], *, first: str = "") -> str:
    """Return the experiment as TOML that `load` reads back to an equal one. Default values are commented out.

    Args:
        experiment: The experiment.
        why: Comments above keys such as "data.public.fraction", or above all arms ("arm"). A key with such a comment is
            never commented out.
        first: First lines of the file.
    """
    descriptions = {name: (_allowed(words, default), text) for name, words, default, text in keys()}
    lines = [line for text in first.splitlines() for line in _comment(text)]
    for name in ("name", "seed"):
        allowed, text = descriptions[name]
        lines += [*_comment(why.get(name, text)), f"{name} = {inline(getattr(experiment, name))}  # {allowed}"]
    for place, section in SECTIONS.items():
        lines += _commented(getattr(experiment, place), section, descriptions, why)
        if place == "data":
            lines += _commented(experiment.data.public, PublicConfig, descriptions, why)
    lines += ["", *(f"# {line}".rstrip() for line in about(Arm)), "#"]
    for name, (_, text) in descriptions.items():
        lines += _comment(f"{name.removeprefix('arm.')}: {text}") if name.startswith("arm.") else []
    lines += ["#", *_comment(why["arm"])] if "arm" in why else []
    for arm in experiment.arms:
        lines += ["", "[[arm]]", *_arm(arm)]
    return "\n".join(lines) + "\n"


def _allowed(words: str, default: str) -> str:
    return words if default in ("–", "must be given") else f"{words}; default {default}"


def _commented(
    section: Section, kind: type[Section], known: Mapping[str, tuple[str, str]], why: Mapping[str, str]
) -> list[str]:
    lines = ["", *(f"# {line}".rstrip() for line in about(kind)), f"[{kind.place}]"]
    for f in fields(section):
        if "check" not in f.metadata:
            continue
        name, value = f"{kind.place}.{key(f.name)}", getattr(section, f.name)
        allowed, text = known[name]
        lines += _comment(why.get(name, text))
        if value is None:
            lines.append(f"#{key(f.name)} =  # {allowed}")
        else:
            mark = "#" if value == f.default and name not in why else ""
            lines.append(f"{mark}{key(f.name)} = {inline(value)}  # {allowed}")
    return lines


def _arm(arm: Arm) -> Iterator[str]:
    for f in fields(arm):
        if (value := getattr(arm, f.name)) != f.default:
            yield f"{key(f.name)} = {inline(value)}"


def inline(value: Any) -> str:
    """Return a value in one line of TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_inline_key(name)} = {inline(entry)}" for name, entry in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(inline, value)) + "]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")


def _inline_key(name: str) -> str:
    return tomli_w.dumps({name: 0}).rpartition(" = ")[0]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)]

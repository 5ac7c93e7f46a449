"""Sweep in a TOML file: an experiment, a grid of its keys, seeds and arms, and the runs that these define."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from shlex import quote
from typing import Any

from simulations.errors import UserError
from simulations.experiment import Experiment, load, slug
from simulations.experiment.names import either, nearest
from simulations.experiment.sections import SECTIONS
from simulations.experiment.toml import SWEEP, document, inline, parsed, refuse_unknown

BUNDLED = Path(__file__).parents[1] / "studies"
_KEYS = ("name", "experiment", "seeds", "arms", "arm", "set", "grid")
_OWN = tuple(key for key in _KEYS if key not in ("name", "experiment"))
#: Maximum number of runs: more are a mistake.
MOST = 10_000

#: Values that one step along an axis sets, by key; several if the axis consists of tables.
Step = Mapping[str, Any]


@dataclass(frozen=True)
class SweepRun:
    """One experiment of a sweep.

    Args:
        name: Name of its folder, from the point and the seed.
        point: Values that the grid sets in it, by key.
        experiment: The experiment.
    """

    name: str
    point: Mapping[str, Any]
    experiment: Experiment


@dataclass(frozen=True)
class Study:
    """Sweep: every point of a grid with every seed.

    Args:
        name: Name of the sweep.
        axes: Keys in which runs differ, in the file's order.
        runs: All runs.
    """

    name: str
    axes: tuple[str, ...]
    runs: tuple[SweepRun, ...]


def bundled() -> tuple[str, ...]:
    """Return the names of the sweeps that come with Sottovoce."""
    return tuple(sorted(path.stem for path in BUNDLED.glob("*.toml")))


def load_study(path: str | Path, overrides: Sequence[str] = ()) -> Study:
    """Return the sweep in a TOML file, or the bundled one of that name.

    An experiment's file holds its sweep as the table [sweep], with the keys from seeds on. Keys of another file:

    - experiment: a file, relative to the working directory, or a bundled name.
    - seeds: whole numbers; the default is [1].
    - arms: the names of the arms to keep. [[arm]]: arms that replace those of the experiment.
    - [set]: keys that are the same in every run.
    - [grid]: for each key its values; or, for a name of your own, tables of keys that go together.

    An arm is named or numbered, as in arm.0.vector.epsilon. A key of an arm makes one arm of each value, in one run,
    so that these arms share users and are compared text by text.

    Args:
        path: The file, or a bundled name.
        overrides: Texts "key=value" that are added to [set].

    Raises:
        UserError: One line, which names the file and, if a single point is wrong, the point.
    """
    table = _read(path)
    if "experiment" not in table and (SWEEP in table or not SECTIONS.keys().isdisjoint(table)):
        table = _of_experiment(table, path)
    try:
        return _study(table, overrides)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _read(path: str | Path) -> dict[str, Any]:
    file = Path(path)
    if not file.is_file() and not file.suffix and len(file.parts) == 1:
        file = BUNDLED / f"{path}.toml"
    if not file.is_file():
        raise UserError(f"{path}: neither a file nor a bundled sweep ({', '.join(bundled())})")
    return parsed(file, path)


def _of_experiment(table: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """Return the sweep in the table [sweep] of an experiment's file."""
    own = table.get(SWEEP)
    if not isinstance(own, dict):
        raise UserError(
            f"{path}: is an experiment without [sweep]; add seeds = [1, 2, 3] and [sweep.grid], or run it once with: "
            f"sottovoce simulate {quote(str(path))}"
        )
    refuse_unknown(own, _OWN, f"{path}: sweep.")
    return {"name": f"{table.get('name', '')}-sweep", "experiment": str(path)} | own


def _study(table: dict[str, Any], overrides: Sequence[str]) -> Study:
    refuse_unknown(table, _KEYS, "")
    name, base = table.get("name"), table.get("experiment")
    for key, value in (("name", name), ("experiment", base)):
        if not isinstance(value, str) or not slug(value):
            raise UserError(f"{key}: must be given, as a text")
    assert isinstance(name, str) and isinstance(base, str)
    seeds = table.get("seeds", [1])
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise UserError(f"seeds: must be a list of whole numbers from 0, got {seeds!r}")
    if len(set(seeds)) < len(seeds):
        raise UserError("seeds: one is there twice")
    arms = _arms(base, table)
    steps = {axis: _steps(axis, values, arms) for axis, values in _flat(_table(table, "grid"), lists=True).items()}
    of_arms = {axis: item for axis, item in steps.items() if all(key[:4] == "arm." for step in item for key in step)}
    of_runs = [item for axis, item in steps.items() if axis not in of_arms]
    grid_arms = [variant for arm in range(len(arms)) for variant in _variants(arm, arms[arm], list(of_arms.values()))]
    points = [{key: value for step in chosen for key, value in step.items()} for chosen in product(*of_runs)]
    if len(points) * len(seeds) > MOST:
        raise UserError(f"grid: makes {len(points) * len(seeds):,} runs; {MOST:,} are the most")
    fixed = [*(f"{key}={inline(value)}" for key, value in _flat(_table(table, "set")).items()), *overrides]
    runs = [_run(name, base, fixed, point, seed, grid_arms) for point in points for seed in seeds]
    return Study(name, tuple(dict.fromkeys(key for point in points for key in point)), tuple(runs))


def _table(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    result = table.get(key, {})
    if not isinstance(result, dict):
        raise UserError(f"{key}: must be a table, [{key}]")
    return result


def _arms(base: str, table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arms as tables: the sweep's own, or those of the experiment; only the named ones, if any are named."""
    wanted, own = table.get("arms"), table.get("arm")
    if own is None:
        own = document(base).get("arm", [])
    if not isinstance(own, list) or not all(isinstance(arm, dict) and isinstance(arm.get("name"), str) for arm in own):
        raise UserError("arm: write each as [[arm]], with a name")
    if wanted is None:
        return list(own)
    names = [arm["name"] for arm in own]
    for name in wanted if isinstance(wanted, list) else [wanted]:
        if name not in names:
            raise UserError(f"arms: there is no arm {name!r}{nearest(name, names) or f'; there are {either(names)}'}")
    return [arm for arm in own if arm["name"] in wanted]


def _flat(table: Mapping[str, Any], place: str = "", *, lists: bool = False) -> dict[str, Any]:
    """Return the values of nested tables by dotted keys; with `lists`, down to the lists."""
    entries: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and (value or not lists):
            entries |= _flat(value, f"{place}{key}.", lists=lists)
        else:
            entries[f"{place}{key}"] = value
    return entries


def _steps(axis: str, values: Any, arms: Sequence[Mapping[str, Any]]) -> list[Step]:
    if not isinstance(values, list) or not values:
        raise UserError(f"grid.{axis}: must be a list of values, got {values!r}")
    tables = [isinstance(value, dict) for value in values]
    if any(tables) and not all(tables):
        raise UserError(f"grid.{axis}: must be values, or tables of keys, not both")
    flat = [_flat(value) if isinstance(value, dict) else {axis: value} for value in values]
    steps: list[Step] = [{_numbered(key, arms): value for key, value in step.items()} for step in flat]
    if any(step in steps[:i] for i, step in enumerate(steps)):
        raise UserError(f"grid.{axis}: one value is there twice")
    if any(key.split(".")[0] in ("seed", "name") for step in steps for key in step):
        raise UserError(f"grid.{axis}: give seeds = [1, 2, 3] in its place")
    return steps


def _numbered(key: str, arms: Sequence[Mapping[str, Any]]) -> str:
    """Return an arm's key with the arm's number in place of its name."""
    if not key.startswith("arm."):
        return key
    rest = key.removeprefix("arm.")
    for i, arm in sorted(enumerate(arms), key=lambda pair: -len(pair[1]["name"])):
        for name in (str(i), arm["name"]):
            if rest.startswith(f"{name}."):
                return f"arm.{i}.{rest[len(name) + 1 :]}"
    raise UserError(f"grid.{key}: there is no such arm; there are {either(arm['name'] for arm in arms)}")


def _variants(number: int, arm: Mapping[str, Any], axes: Sequence[Sequence[Step]]) -> Iterator[dict[str, Any]]:
    """Yield the arm with every combination of the axes' values; unchanged if no axis sets anything in it."""
    own = f"arm.{number}."
    mine = [[{k.removeprefix(own): v for k, v in step.items() if k.startswith(own)} for step in axis] for axis in axes]
    for chosen in product(*(axis for axis in mine if any(axis))):
        variant = json.loads(json.dumps(arm))
        for key, value in (pair for step in chosen for pair in step.items()):
            *place, last = key.split(".")
            at = variant
            for part in place:
                at = at.setdefault(part, {})
            at[last] = value
            variant["name"] = _renamed(variant["name"], place, last, value)
        yield variant


def _renamed(name: str, place: Sequence[str], last: str, value: Any) -> str:
    """Return an arm's name with the grid's value. Figures join arms whose names differ in "ε = ..." alone."""
    called = last.replace("_", "-")
    if last in ("epsilon", "central_epsilon"):
        called = "label ε" if place == ["label"] else "ε"
        name = re.sub(rf",? {called} = [0-9.]+", "", name)
    return f"{name}, {called} = {value}"


def _run(
    study: str, base: str, fixed: Sequence[str], point: Mapping[str, Any], seed: int, arms: Sequence[dict[str, Any]]
) -> SweepRun:
    text = ", ".join(f"{key} = {value}" for key, value in point.items())
    try:
        experiment = load(
            base, [*fixed, *(f"{key}={inline(value)}" for key, value in point.items()), f"seed={seed}"], arms=arms
        )
    except UserError as error:
        raise UserError(f"{text or 'every point'}: {error}") from error
    return SweepRun("-".join([*([_place(point)] if point else []), f"seed-{seed}"]), point, experiment)


def _place(point: Mapping[str, Any]) -> str:
    """Return a folder name for a point, readable and unique."""
    shown = {key.rpartition(".")[2]: value for key, value in point.items() if not key.startswith("arm.")}
    words = slug(" ".join(f"{key} {value}" for key, value in shown.items())) or "arms"
    digest = hashlib.sha256(json.dumps(list(point.items())).encode()).hexdigest()[:6]
    return f"{words[:48].strip('-')}-{digest}"

"""Draws the house from its imports, `docs/figures/house.svg`: `make house`, or `python docs/house.py FILE`.

Floors are those of the contracts in pyproject.toml; a package without such a contract has them from its imports: each
module stands on the lowest floor above all that it imports. A room is a folder, or the single files of one floor, or
what imports each other; the number is its lines. An arrow says "imports"; those that follow from others are left out,
and those to one room run together. All point down, or nothing is drawn.
"""

from __future__ import annotations

import sys
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path as FilePath
from statistics import fmean
from typing import Any

import grimp
import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
from matplotlib.path import Path

ROOT = FilePath(__file__).parents[1]
PICTURE = ROOT / "docs" / "figures" / "house.svg"
#: Packages from the top of the house to its ground; those of one row stand side by side.
HOUSE = (("sottovoce",), ("simulations",), ("client", "server"), ("mechanisms",))
COLOURS = {
    "sottovoce": "#8c4a5e", "simulations": "#4c72b0", "client": "#2f8f5b", "server": "#b0632f", "mechanisms": "#6b4c9a",
}  # fmt: skip

WIDTH = 10.0  # inches, as all lengths here
LETTER, LINE, PAD, GAP, LANE = 0.072, 0.15, 0.07, 0.16, 0.1
BETWEEN_FLOORS, BETWEEN_PACKAGES = 0.26, 0.54
SWEEPS = 40


@dataclass(frozen=True)
class Room:
    """A folder, or single files, of a package. names: of modules below the package. lines: of code, all its files."""

    package: str
    names: tuple[str, ...]
    lines: int

    @property
    def label(self) -> list[str]:
        """What stands in the box, line by line."""
        return textwrap.wrap(f"{', '.join(self.names)} · {self.lines:,}".replace(" · ", "\xa0·\xa0"), 36)

    @property
    def size(self) -> tuple[float, float]:
        return max(map(len, self.label)) * LETTER + 2 * PAD, len(self.label) * LINE + 2 * PAD


@dataclass(frozen=True)
class Bend:
    """Where arrows to a room pass a floor."""

    to: Room
    floor: int

    size = (LANE, 0.0)


Stop = Room | Bend
Imports = dict[str, set[str]]


def imports() -> Imports:
    """Which modules one floor below a package ("client.store") import which others of ours."""
    packages = [name for row in HOUSE for name in row]
    graph = grimp.build_graph(*packages, cache_dir=None)
    found: Imports = {_child(module): set() for module in graph.modules if "." in module}
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            if "." in module and "." in other and _child(module) != _child(other):
                found[_child(module)].add(_child(other))
    return found


def _child(module: str) -> str:
    return ".".join(module.split(".")[:2])


def floors(package: str, known: Imports) -> list[list[Room]]:
    """The rooms of a package, floor by floor from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    for contract in settings["contracts"]:
        if contract["type"] == "layers" and contract["containers"] == [package]:
            return [_rooms(package, [{name.strip()} for name in layer.split("|")]) for layer in contract["layers"]]
    own = {name: {other for other in to if other.startswith(f"{package}.")} for name, to in known.items()}
    height: dict[str, int] = {}
    levels: list[list[set[str]]] = []
    for group in _without_circles({name: to for name, to in own.items() if name.startswith(f"{package}.")}):
        level = 1 + max((height[other] for name in group for other in own[name] - group), default=-1)
        height |= dict.fromkeys(group, level)
        levels += [[]] * (level == len(levels))
        levels[level] = [*levels[level], {name.removeprefix(f"{package}.") for name in group}]
    return [_rooms(package, sorted(level, key=min)) for level in reversed(levels)]


def _rooms(package: str, groups: list[set[str]]) -> list[Room]:
    """Those of one floor: a room for each folder, and for what imports each other, and one for all single files."""
    alone = {name for group in groups if len(group) == 1 for name in group}
    single = {name for name in alone if (ROOT / package / f"{name}.py").is_file()}
    rooms = [group for group in groups if not group <= single] + ([single] if single else [])
    return [Room(package, tuple(sorted(names)), sum(_lines(ROOT / package / n) for n in names)) for names in rooms]


def _lines(module: FilePath) -> int:
    files = module.rglob("*.py") if module.is_dir() else [module.with_suffix(".py")]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def _without_circles(to: Imports) -> list[set[str]]:
    """Modules in an order in which each comes after what it imports; those that import each other together."""
    group = {name: {name} for name in to}
    while True:
        key = {name: min(names) for name, names in group.items()}
        edges: Imports = defaultdict(set)
        for name, others in to.items():
            edges[key[name]] |= {key[other] for other in others} - {key[name]}
        try:
            return [group[name] for name in TopologicalSorter(edges).static_order()]
        except CycleError as circle:
            merged = set().union(*(group[name] for name in circle.args[1]))
            group |= dict.fromkeys(merged, merged)


def arrows(house: list[list[Room]], known: Imports) -> dict[Room, set[Room]]:
    """Which rooms import which; what follows from other arrows is left out. ValueError where one points up."""
    of = {f"{room.package}.{name}": room for floor in house for room in floor for name in room.names}
    storey = {room: i for i, floor in enumerate(house) for room in floor}
    to: dict[Room, set[Room]] = {room: set() for room in storey}
    for name, others in known.items():
        to[of[name]] |= {of[other] for other in others} - {of[name]}
    reached: dict[Room, set[Room]] = {}
    for room in sorted(storey, key=storey.__getitem__, reverse=True):
        for other in to[room]:
            if storey[other] <= storey[room]:
                raise ValueError(f"{', '.join(room.names)} imports {', '.join(other.names)}, which is not below it")
        reached[room] = set().union(to[room], *(reached[other] for other in to[room]))
    return {room: {o for o in others if not any(o in reached[p] for p in others)} for room, others in to.items()}


# --- the picture


def storeys(known: Imports) -> list[list[Room]]:
    """All floors of the house; packages of one row share theirs, and stand on the same ground."""
    house: list[list[Room]] = []
    for row in HOUSE:
        each = [floors(package, known) for package in row]
        high = max(map(len, each))
        none: list[Room] = []
        padded = [[none] * (high - len(rooms)) + rooms for rooms in each]
        house += [[room for floor in level for room in floor] for level in zip(*padded, strict=True)]
    return house


def placed(house: list[list[Room]], to: dict[Room, set[Room]]) -> tuple[dict[Stop, float], list[tuple[Stop, Stop]]]:
    """The middle of every room, and of the bends of arrows that pass floors, from left to right; and what joins them.

    Rooms of a floor are pulled towards what they are joined to, and then apart; so are bends."""
    storey = {room: i for i, floor in enumerate(house) for room in floor}
    lines: dict[tuple[Stop, Stop], None] = {}
    stops: list[list[Stop]] = [list(floor) for floor in house]
    for room, others in to.items():
        for other in sorted(others, key=lambda o: o.names):
            bends = [Bend(other, i) for i in range(storey[room] + 1, storey[other])]
            for bend in bends:
                if bend not in stops[bend.floor]:
                    stops[bend.floor].append(bend)
            way: list[Stop] = [room, *bends, other]
            lines |= dict.fromkeys(pairwise(way))
    near: dict[Stop, list[Stop]] = defaultdict(list)
    for start, end in lines:
        near[start].append(end)
        near[end].append(start)
    x: dict[Stop, float] = {s: WIDTH * (i + 1) / (len(f) + 1) for f in stops for i, s in enumerate(f)}
    for sweep in range(SWEEPS):
        for floor in stops if sweep % 2 else reversed(stops):
            wish = {s: sum(x[n] for n in near[s]) / len(near[s]) if near[s] else x[s] for s in floor}
            for part, (low, high) in _parts(floor, wish):
                x |= _apart(part, wish, low, high)
    return x, list(lines)


def _parts(floor: list[Stop], wish: dict[Stop, float]) -> Iterator[tuple[list[Stop], tuple[float, float]]]:
    """The stops of a floor by the package in whose width they stand; a bend stands where it wishes."""
    row = next(row for row in HOUSE for stop in floor if isinstance(stop, Room) and stop.package in row)
    share = WIDTH / len(row)
    for i, package in enumerate(row):
        low, high = i * share, (i + 1) * share
        own = [
            s for s in floor
            if (s.package == package if isinstance(s, Room) else i == min(int(wish[s] / share), len(row) - 1))
        ]  # fmt: skip
        yield own, (low + GAP, high - GAP)


def _apart(stops: list[Stop], wish: dict[Stop, float], low: float, high: float) -> dict[Stop, float]:
    """The stops in the order of their wishes, none over another, between two edges: as near to their wishes as that
    allows, in squares (pool adjacent violators)."""
    order = sorted(stops, key=lambda s: wish[s])
    widths = [stop.size[0] for stop in order]
    offsets = [sum(widths[:i]) + widths[i] / 2 + i * GAP for i in range(len(order))]
    pools: list[list[float]] = []
    for stop, offset in zip(order, offsets, strict=True):
        pools.append([wish[stop] - offset])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    starts = [fmean(pool) for pool in pools for _ in pool]
    room = high - sum(widths) - GAP * (len(order) - 1)
    return {s: max(low, min(room, start)) + o for s, start, o in zip(order, starts, offsets, strict=True)}


def words(known: Imports) -> str:
    """The house in words, but for the numbers of lines: a line for each room, with the rooms that it imports."""
    house = storeys(known)
    to = arrows(house, known)
    return "\n".join(
        f"{room.package}: {', '.join(room.names)} -> "
        + "; ".join(sorted(f"{o.package}: {', '.join(o.names)}" for o in to[room]))
        for floor in house for room in floor
    )  # fmt: skip


def draw(known: Imports) -> Figure:
    """The figure, of the size that it needs."""
    house = storeys(known)
    x, lines = placed(house, arrows(house, known))
    top: list[float] = []
    bottom: list[float] = []
    y = 0.0
    for i, floor in enumerate(house):
        new = i > 0 and {room.package for room in house[i - 1]}.isdisjoint(room.package for room in floor)
        y += (BETWEEN_PACKAGES if new else BETWEEN_FLOORS) if i else 0.0
        top.append(y)
        y += max((room.size[1] for room in floor), default=0.0)
        bottom.append(y)
    matplotlib.rcParams["svg.hashsalt"] = "house"  # the same picture is the same file
    figure = Figure(figsize=(WIDTH, y + 0.6))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, WIDTH), ylim=(y + 0.3, -0.3))
    axes.axis("off")
    storey = {room: i for i, floor in enumerate(house) for room in floor}
    for row in HOUSE:
        for i, package in enumerate(row):
            on = [n for room, n in storey.items() if room.package in row]
            _panel(axes, package, i * WIDTH / len(row), WIDTH / len(row), top[min(on)], bottom[max(on)])

    def level(stop: Stop) -> int:
        return stop.floor if isinstance(stop, Bend) else storey[stop]

    def ends(stop: Stop) -> tuple[float, float]:
        """Top and bottom of a stop: a bend is as high as its floor."""
        n, height = level(stop), stop.size[1]
        centre = (top[n] + bottom[n]) / 2
        return (top[n], bottom[n]) if isinstance(stop, Bend) else (centre - height / 2, centre + height / 2)

    for one, other in lines:
        target = other.to if isinstance(other, Bend) else other
        start, end = _leaves(one, other, lines, x), x[other]
        _line(axes, (start, ends(one)[1]), (end, ends(other)[0]), COLOURS[target.package], isinstance(other, Room))
    for stop in x:
        if isinstance(stop, Bend):
            axes.plot([x[stop]] * 2, ends(stop), color=COLOURS[stop.to.package], linewidth=0.9, zorder=2)
        else:
            _box(axes, stop, x[stop], ends(stop)[0])
    return figure


def _leaves(one: Stop, other: Stop, lines: list[tuple[Stop, Stop]], x: dict[Stop, float]) -> float:
    """Where on a room's lower edge an arrow begins: in the order in which they go, so that none cross at once."""
    if isinstance(one, Bend):
        return x[one]
    going = sorted((x[b], i) for i, (a, b) in enumerate(lines) if a is one)
    at = [lines[i][1] for _, i in going].index(other)
    return x[one] + one.size[0] * 0.8 * ((at + 1) / (len(going) + 1) - 0.5)


def _panel(axes: Any, package: str, left: float, width: float, high: float, low: float) -> None:
    box = FancyBboxPatch(
        (left + 0.06, high - 0.17), width - 0.12, low - high + 0.34, boxstyle="round,pad=0,rounding_size=0.08",
        facecolor=COLOURS[package], alpha=0.07, edgecolor="none", zorder=0,
    )  # fmt: skip
    axes.add_patch(box)
    axes.text(
        left + 0.14, high - 0.12, package, color=COLOURS[package], fontsize=10, fontweight="bold", va="top", zorder=4
    )


def _box(axes: Any, room: Room, middle: float, high: float) -> None:
    width, height = room.size
    box = FancyBboxPatch(
        (middle - width / 2, high), width, height, boxstyle="round,pad=0,rounding_size=0.05", facecolor="white",
        edgecolor=COLOURS[room.package], linewidth=1.1, zorder=3,
    )  # fmt: skip
    axes.add_patch(box)
    for i, line in enumerate(room.label):
        axes.text(middle, high + PAD + (i + 0.5) * LINE, line, ha="center", va="center", fontsize=8.4, zorder=4)


def _line(axes: Any, start: tuple[float, float], end: tuple[float, float], colour: str, arrives: bool) -> None:
    tip = 0.07 if arrives else 0.0
    bend = (end[1] - start[1]) * 0.6
    points = [start, (start[0], start[1] + bend), (end[0], end[1] - tip - bend), (end[0], end[1] - tip)]
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    axes.add_patch(PathPatch(Path(points, codes), facecolor="none", edgecolor=colour, linewidth=0.9, zorder=2))
    if arrives:
        wing = 0.035
        head = [(end[0] - wing, end[1] - tip), (end[0] + wing, end[1] - tip), end]
        axes.add_patch(Polygon(head, closed=True, facecolor=colour, edgecolor="none", zorder=3))


def main(arguments: list[str]) -> None:
    out = FilePath(arguments[0]) if arguments else PICTURE
    known = imports()
    about = {"Description": words(known), "Date": None} if out.suffix == ".svg" else None
    draw(known).savefig(out, metadata=about, dpi=200)
    print(out)


if __name__ == "__main__":
    main(sys.argv[1:])

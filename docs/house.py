"""Draws the house from its imports, `docs/figures/house.svg`: `make house`, or `python docs/house.py FILE`.

Floors are those of the contracts in pyproject.toml. A room is a folder, or the single files of one floor; the number is
its lines. An arrow says "imports"; those that follow from others are left out. All point down, or nothing is drawn.
"""

from __future__ import annotations

import sys
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import grimp
import matplotlib
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "figures" / "house.svg"
#: Packages from the top of the house to its ground; those of one row stand side by side.
HOUSE = (("sottovoce",), ("simulations",), ("client", "server"), ("mechanisms",))
COLOURS = {
    "sottovoce": "#8c4a5e",
    "simulations": "#4c72b0",
    "client": "#2f8f5b",
    "server": "#b0632f",
    "mechanisms": "#6b4c9a",
}
#: Inches: the width of the picture, the height of a floor, and what a package stands apart from the one above it.
WIDTH, FLOOR, APART = 10.0, 0.6, 0.25


@dataclass(frozen=True)
class Room:
    """A folder, or single files, of a package. names: of modules below the package. lines: of code, all its files."""

    package: str
    names: tuple[str, ...]
    lines: int

    @property
    def label(self) -> str:
        """The text in the box."""
        return textwrap.fill(f"{', '.join(self.names)}\xa0·\xa0{self.lines:,}", 36)

    @property
    def half(self) -> float:
        """Half of the box's height."""
        return 0.05 + 0.07 * len(self.label.splitlines())


Imports = dict[str, set[str]]


def imports() -> Imports:
    """Which modules one floor below a package ("client.store") import which others of ours."""
    packages = [name for row in HOUSE for name in row]
    graph = grimp.build_graph(*packages, cache_dir=None)
    modules = {child for package in packages for child in graph.find_children(package)}
    for child in modules:
        graph.squash_module(child)
    return {child: graph.find_modules_directly_imported_by(child) & modules for child in modules}


def floors(package: str) -> list[list[Room]]:
    """The rooms of a package, floor by floor from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = (c["layers"] for c in settings["contracts"] if c.get("containers") == [package])
    return [_rooms(package, [name.strip() for name in layer.split("|")]) for layer in layers]


def _rooms(package: str, names: list[str]) -> list[Room]:
    """Those of one floor: a room for each folder, and one for all single files."""
    single = [name for name in names if (ROOT / package / f"{name}.py").is_file()]
    rooms = [[name] for name in names if name not in single] + ([single] if single else [])
    return [
        Room(package, tuple(sorted(group)), sum(_lines(ROOT / package / name) for name in group)) for group in rooms
    ]


def _lines(module: Path) -> int:
    files = module.rglob("*.py") if module.is_dir() else [module.with_suffix(".py")]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def storeys() -> list[list[Room]]:
    """All floors of the house; packages of one row share theirs, and stand on the same ground."""
    house: list[list[Room]] = []
    for row in HOUSE:
        columns = [floors(package) for package in row]
        high = max(map(len, columns))
        levels = [[[]] * (high - len(rooms)) + rooms for rooms in columns]
        house += [[room for floor in level for room in floor] for level in zip(*levels, strict=True)]
    return house


def arrows(house: list[list[Room]], known: Imports) -> dict[Room, set[Room]]:
    """Which rooms import which; what follows from other arrows is left out. ValueError where one points up."""
    rooms = {f"{room.package}.{name}": room for floor in house for room in floor for name in room.names}
    storey = {room: i for i, floor in enumerate(house) for room in floor}
    edges: dict[Room, set[Room]] = {room: set() for room in storey}
    for name, modules in known.items():
        edges[rooms[name]] |= {rooms[other] for other in modules} - {rooms[name]}
    reach: dict[Room, set[Room]] = {}
    for room in sorted(storey, key=storey.__getitem__, reverse=True):
        for other in edges[room]:
            if storey[other] <= storey[room]:
                raise ValueError(f"{', '.join(room.names)} imports {', '.join(other.names)}, which is not below it")
        reach[room] = set().union(edges[room], *(reach[other] for other in edges[room]))
    return {
        room: {o for o in neighbours if not any(o in reach[p] for p in neighbours)}
        for room, neighbours in edges.items()
    }


def words(known: Imports) -> str:
    """The house in words, but for the numbers of lines: a line for each room, with the rooms that it imports."""
    house = storeys()
    edges = arrows(house, known)
    return "\n".join(
        f"{room.package}: {', '.join(room.names)} -> "
        + "; ".join(sorted(f"{o.package}: {', '.join(o.names)}" for o in edges[room]))
        for floor in house
        for room in floor
    )


def places(house: list[list[Room]], to: dict[Room, set[Room]]) -> dict[Room, tuple[float, float]]:
    """The middle of every room: on each floor, below what imports it, in even steps across its package."""
    middles: dict[Room, tuple[float, float]] = {}
    height = 0.0
    for row in HOUSE:
        height += APART
        for floor in (floor for floor in house if any(room.package in row for room in floor)):
            height += FLOOR
            for i, package in enumerate(row):
                group = [room for room in floor if room.package == package]
                anchors = {room: [middles[a][0] for a, targets in to.items() if room in targets] for room in group}
                group.sort(key=lambda room: fmean(anchors[room] or [WIDTH]))
                offset = 0.2 * (-1) ** house.index(floor) * (len(group) % 2)  # arrows that pass a floor pass beside it
                for j, room in enumerate(group):
                    middles[room] = (
                        WIDTH / len(row) * (i + (j + 1 + offset) / (len(group) + 1)),
                        height - FLOOR / 2,
                    )
    return middles


def draw(known: Imports) -> Figure:
    """The figure: boxes on floors, and behind them arrows in the colour of what is imported."""
    house = storeys()
    edges = arrows(house, known)
    place = places(house, edges)
    bottom = max(y for _, y in place.values()) + FLOOR / 2
    matplotlib.rcParams["svg.hashsalt"] = "house"  # the same picture is the same file
    figure = Figure(figsize=(WIDTH, bottom))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, WIDTH), ylim=(bottom, 0))
    axes.axis("off")
    for row in HOUSE:
        rooms = [y for room, (_, y) in place.items() if room.package in row]
        for i, package in enumerate(row):
            low, left, width = min(rooms) - FLOOR / 2, WIDTH * i / len(row), WIDTH / len(row)
            axes.fill_between([left, left + width], low, max(rooms) + FLOOR / 2, color=COLOURS[package], alpha=0.07)
            axes.text(left + 0.1, low + 0.2, package, color=COLOURS[package], fontsize=10, fontweight="bold")
    for room, (x, y) in place.items():
        axes.text(
            x,
            y,
            room.label,
            ha="center",
            va="center",
            fontsize=8.4,
            zorder=3,
            bbox={"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": COLOURS[room.package]},
        )
        for other in sorted(edges[room], key=place.__getitem__):
            to_x, to_y = place[other]
            bend = 0.12 * (1 if to_x > x else -1) * (to_y - y > 1.5 * FLOOR)
            axes.annotate(
                "",
                (to_x, to_y - other.half),
                (x, y + room.half),
                zorder=2,
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": COLOURS[other.package],
                    "connectionstyle": f"arc3,rad={bend}",
                    "shrinkA": 0,
                    "shrinkB": 0,
                },
            )
    return figure


def main(arguments: list[str]) -> None:
    path = Path(arguments[0]) if arguments else PICTURE
    graph = imports()
    metadata = {"Description": words(graph), "Date": None} if path.suffix == ".svg" else None
    draw(graph).savefig(path, metadata=metadata, dpi=200)
    print(path)


if __name__ == "__main__":
    main(sys.argv[1:])

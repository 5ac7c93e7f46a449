"""Make the measured tables of the pages: `python docs/results.py --data FOLDER [--only NAME]`.

tables.toml lists each table with the sweeps over seeds that it is made from, and cells that name an arm and a split. A
sweep continues where it was stopped, and a finished one is not run again: delete its folder after a change of the code.
Of a table that is put together by hand, tables.toml names the command.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce import Sweep

HERE = Path(__file__).parent
SPLITS = ("sanitized", "on_device")
#: Mean accuracy of an arm on a split, in the first sweep or in that of a number: "{arm|split}", "{1:arm|split}".
CELL = re.compile(r"\{(?:(\d+):)?([^{}|]+)\|([^{}|]+)\}")


@dataclass(frozen=True)
class Table:
    """Table of a page.

    Args:
        name: Name in the marker above it.
        page: Path of the page below docs/.
        hand: Command that measures it, if it is put together by hand.
        sweeps: Of each sweep the experiment, "data" (folder below that of the data), "set" (KEY=VALUE), "seeds" and
            "name" (of its lines in the figure).
        head: Headings.
        rows: Cells, with text and `CELL`s.
        figure: Path below docs/ of the figure of accuracy against ε.
    """

    name: str
    page: str
    hand: str = ""
    sweeps: Sequence[Mapping[str, Any]] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = field(default=())
    figure: str = ""


def manifest(path: Path = HERE / "tables.toml") -> dict[str, Table]:
    """Return the tables by name."""
    tables = [Table(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["table"]]
    return {table.name: table for table in tables}


def marker(name: str) -> str:
    """Return the line above a table in a page."""
    return f"<!-- table: {name} -->"


def replaced(page: str, name: str, rows: Sequence[str]) -> str:
    """Return a page with these rows as its table of that name.

    Raises:
        ValueError: The page has no such table.
    """
    head, separator, below = page.partition(f"{marker(name)}\n\n|")
    if not separator:
        raise ValueError(f"the page has no table below {marker(name)}")
    tail = below.split("\n")
    end = next((i for i, line in enumerate(tail) if i and not line.startswith("|")), len(tail))
    return "\n".join([f"{head}{marker(name)}\n", *rows, *tail[end:]])


def lines(table: Table, sweeps: Sequence[Mapping[tuple[str, str], float]]) -> list[str]:
    """Return the lines of a table; columns of numbers are set to the right.

    Args:
        table: The table.
        sweeps: Mean accuracies of each sweep by arm and split.

    Raises:
        ValueError: A sweep has no such arm.
    """

    def value(cell: re.Match[str]) -> str:
        sweep, arm, split = int(cell[1] or 0), cell[2], cell[3]
        if (arm, split) not in sweeps[sweep]:
            raise ValueError(f"sweep {sweep} has no arm {arm!r} with accuracy {split!r}")
        return f"{sweeps[sweep][arm, split]:.3f}"

    right = [
        all(re.match(r"$|none$|[\d.∞–]", cell) or CELL.search(cell) for cell in column)
        for column in zip(*table.rows, strict=True)
    ]
    cells = [table.head, ["---:" if number else "---" for number in right]]
    cells += [[CELL.sub(value, cell) for cell in row] for row in table.rows]
    return [f"| {' | '.join(row)} |" for row in cells]


def run(table: Table, out: Path, data: Path) -> list[Sweep]:
    """Run or complete the sweeps of a table, and return them."""
    from sottovoce import sweep

    sweeps = []
    for number, entry in enumerate(table.sweeps):
        file = out / f"{table.name}-{number}.toml"
        name, seeds = f"{table.name}-{number}", entry.get("seeds", [1, 2, 3, 4, 5])
        file.write_text(f'name = "{name}"\nexperiment = "{entry["experiment"]}"\nseeds = {seeds}\n', encoding="utf-8")
        path = [f"data.path={data / entry['data']}"] if "data" in entry else []
        sweeps.append(sweep(file, out / name, overrides=[*path, *entry.get("set", ())]))
    return sweeps


def make(table: Table, *, pages: Path, out: Path, data: Path) -> None:
    """Run the sweeps of a table, put it into its page, and draw its figure."""
    out.mkdir(parents=True, exist_ok=True)
    sweeps, means = run(table, out, data), []
    for result in sweeps:
        rows = result.table.query("metric == 'accuracy'")
        means.append({(row["arm"], row["split"]): row["mean"] for row in rows.to_dict("records")})
        errors = rows[["error", "error_by_text"]].max()
        print(f"{table.name}: errors at most {errors['error']:.3f} over seeds, {errors['error_by_text']:.3f} by text")
    page = pages / table.page
    page.write_text(replaced(page.read_text(encoding="utf-8"), table.name, lines(table, means)), encoding="utf-8")
    if table.figure:
        from simulations.output.figures import save
        from simulations.run.figures import frontier_figure
        from simulations.sweep.tables import read

        encoders = {entry["name"]: read(s.out).points[0].results for entry, s in zip(table.sweeps, sweeps, strict=True)}
        save(frontier_figure(encoders), pages / table.figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the tables of the command line, and return 1 if one failed."""
    parser = argparse.ArgumentParser(description="Make the measured tables of docs/.")
    parser.add_argument("--only", action="append", metavar="NAME", help="this table; may be repeated")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder that holds sst2, cr and agnews")
    parser.add_argument("--out", type=Path, default=HERE.parent / "runs" / "results", help="folder of the sweeps")
    options, tables, failed = parser.parse_args(arguments), manifest(), 0
    if strangers := [name for name in options.only or () if name not in tables]:
        parser.error(f"no table {strangers[0]}; known are {', '.join(tables)}")
    for table in (tables[name] for name in options.only or tables):
        if table.hand:
            print(f"{table.name}: by hand: {table.hand}")
            continue
        try:
            make(table, pages=HERE, out=options.out, data=options.data)
        except (ValueError, OSError) as error:
            print(f"{table.name}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())

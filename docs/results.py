"""Makes the measured tables of these pages anew: `make results`, or `python docs/results.py [--only NAME]`.

tables.toml says of every table which commands it comes from, and with which seeds. A job that is finished is kept, with
what it printed and how long it took, and not run again while its command is the same: so this may be stopped at any
time, and goes on where it was; a simulation within its run. A kept job does not know of newer code: `rm -r` its folder.
What `python -m benchmarks.summary` prints takes the place of the table below the marker, in columns of the page's own
where the manifest has `rows`; where `hand` says why neither can be, it lies beside the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SEEDS = (1, 2, 3, 4, 5)

#: In a cell of a table's own: what the summary says in that column of an arm, of the first job or that of the number.
CELL = re.compile(r"\{(?:(\d+):)?([^{}|]+)\|([^{}|]+)\}")

#: Runs a command of `sottovoce`, or `summarize`, by its words, standard output into a file; returns the exit code.
Runner = Callable[[Sequence[str], Path], int]


@dataclass(frozen=True)
class Table:
    """A line of the manifest. jobs: commands, `{seed}` in a command for each of the seeds, `{data}` for the folder that
    holds a folder of that name. runs: the table whose jobs these are. head, rows: a table of columns of its own, with
    `{arm|column}` or `{job:arm|column}` (`CELL`) in cells; none for what the summary prints. together: all jobs'
    runs are summarized as one job's. hand: why neither takes the place of what the page has; None where it does."""

    name: str
    page: str
    runs: str
    jobs: tuple[str, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    together: bool = False
    hand: str | None = None

    def commands(self) -> Iterator[tuple[int, str, list[str]]]:
        """Of each job its number, its name and its words, which may hold `{data}`."""
        for number, line in enumerate(self.jobs):
            for seed in self.seeds if "{seed}" in line else (0,):
                words = [word.replace("{seed}", str(seed)) for word in shlex.split(line)]
                yield number, f"{number}-{seed}" if seed else str(number), words


def manifest(path: Path) -> dict[str, Table]:
    """The tables by name; one with `of = "NAME"` is made of the jobs of that table, which stands before it. ValueError
    on two of one name, and on rows that are not as long as their head."""
    found: dict[str, Table] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["table"]:
        if (of := entry.pop("of", None)) is not None:
            entry |= {"jobs": found[of].jobs, "seeds": found[of].seeds}
        lists = {key: tuple(entry[key]) for key in ("jobs", "seeds", "head") if key in entry}
        rows = tuple(tuple(row) for row in entry.get("rows", ()))
        table = Table(**entry | lists | {"rows": rows, "runs": of or entry["name"]})
        if table.name in found:
            raise ValueError(f"{path}: two tables are called {table.name}")
        if any(len(row) != len(table.head) for row in rows):
            raise ValueError(f"{path}: a row of {table.name} has another number of cells than its head")
        found[table.name] = table
    return found


def marker(name: str) -> str:
    """What stands above a table in a page."""
    return f"<!-- table: {name} -->"


def replaced(page: str, name: str, rows: Sequence[str]) -> str:
    """The page with these rows as its table of that name. ValueError where it has none."""
    lines = page.split("\n")
    try:
        at = lines.index(marker(name)) + 1
        first = next(i for i in range(at, len(lines)) if lines[i])
    except (ValueError, StopIteration):
        raise ValueError(f"no table {name}: the line {marker(name)} is missing") from None
    last = next((i for i in range(first, len(lines)) if not lines[i].startswith("|")), len(lines))
    if last == first:
        raise ValueError(f"no table {name}: its marker stands above something else")
    return "\n".join([*lines[:first], *rows, *lines[last:]])


def first_table(text: str) -> list[str]:
    """The rows of the first table in what a command printed."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("|")), len(lines))
    last = next((i for i in range(first, len(lines)) if not lines[i].startswith("|")), len(lines))
    if first == last:
        raise ValueError("the command printed no table")
    return lines[first:last]


def laid_out(table: Table, said: Mapping[int, str]) -> list[str]:
    """The lines of a table with columns of its own; those of numbers are set to the right. said: what the summary
    printed of each job. ValueError where it has no such arm or column."""
    known: dict[int, dict[tuple[str, str], str]] = {}
    for number, text in said.items():
        head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in first_table(text))
        known[number] = {
            (row[0].removesuffix(" †"), column): cell for row in rows for column, cell in zip(head, row, strict=True)
        }

    def value(cell: re.Match[str]) -> str:
        job, arm, column = int(cell[1] or 0), cell[2].strip(), cell[3].strip()
        try:
            return known[job][arm, column]
        except KeyError:
            raise ValueError(f"job {job} has no column {column!r} of an arm {arm!r}") from None

    columns = list(zip(*table.rows, strict=True))
    numbers = [all(re.match(r"(none)?$|[\d.∞–]", cell) or CELL.search(cell) for cell in column) for column in columns]
    lines = [table.head, ["---:" if right else "---" for right in numbers]]
    lines += [[CELL.sub(value, cell) for cell in row] for row in table.rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def finished(folder: Path, words: Sequence[str]) -> float | None:
    """How many seconds the job took that is finished in the folder; None where it is not, or was another."""
    try:
        done = json.loads((folder / "done.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return float(done["seconds"]) if done["command"] == list(words) else None


def job(folder: Path, words: Sequence[str], data: Path | None, runner: Runner) -> Path:
    """The folder of a job, finished now or before. ValueError where the command fails, or needs data without any."""
    if finished(folder, words) is not None:
        return folder
    if data is None and any("{data}" in word for word in words):
        raise ValueError("needs --data FOLDER, in which folders like sst2 are")
    known = folder / "command.json"
    if folder.exists() and (not known.is_file() or json.loads(known.read_text()) != list(words)):
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps(list(words)))
    full = [word.replace("{data}", str(data)) for word in words]
    if words[0] == "simulate":
        run = folder / "run"
        full += ["--out", str(run)]
        if run.with_name("run.part").is_dir():
            full = ["simulate", "--resume", str(run)]
        elif run.is_dir():  # finished, and this was stopped before it had said so
            full = []
    if words[0] == "sweep":  # which goes on by itself where it is run again
        full += ["--out", str(folder / "study")]
    start = time.monotonic()
    if full and (code := runner(full, folder / "output.txt")) != 0:
        raise ValueError(f"sottovoce {shlex.join(full)} ended with {code}; {folder / 'output.txt'} has what it said")
    took = round(time.monotonic() - start, 1)
    part = folder / "done.json.part"
    part.write_text(json.dumps({"command": list(words), "seconds": took}))
    part.replace(folder / "done.json")
    return folder


def make(table: Table, *, pages: Path, out: Path, data: Path | None, runner: Runner) -> bool:
    """All jobs of a table, then the table; whether its page changed. ValueError, one line, where a thing is missing."""
    runs: dict[int, list[str]] = {}
    for number, name, words in table.commands():
        folder = job(out / table.runs / name, words, data, runner)
        if (folder / "run").is_dir():
            runs.setdefault(0 if table.together else number, []).append(str(folder / "run"))
    said: dict[int, str] = {}
    for number, folders in runs.items():
        path = out / table.runs / f"summary-{number}.md"
        if (code := runner(["summarize", *folders], path)) != 0:
            raise ValueError(f"the summary ended with {code}; {path} has what it said")
        said[number] = path.read_text(encoding="utf-8")
    if table.hand is not None:
        return False
    path = pages / table.page
    before = path.read_text(encoding="utf-8")
    after = replaced(before, table.name, laid_out(table, said) if table.rows else first_table(said[0]))
    if after != before:
        part = path.with_name(f".{path.name}.part")
        part.write_text(after, encoding="utf-8")
        part.replace(path)
    return after != before


def sottovoce(words: Sequence[str], output: Path) -> int:
    """The command in a process of its own."""
    with open(output, "w", encoding="utf-8") as file:
        program = ["benchmarks.summary", *words[1:]] if words[0] == "summarize" else ["sottovoce.cli.main", *words]
        line = [sys.executable, "-m", *program]
        environment = {"PYTHONPATH": str(HERE.parent)} | dict(os.environ)
        return subprocess.run(line, stdout=file, stderr=file, env=environment, check=False).returncode


def listed(tables: Sequence[Table], out: Path) -> Iterator[str]:
    """A line for each table: how many of its jobs are finished, how long they took, and how it gets into its page."""
    for table in tables:
        took = [finished(out / table.runs / name, words) for _, name, words in table.commands()]
        known = [seconds for seconds in took if seconds is not None]
        said = f"{len(known)} of {len(took)} jobs" + (f", {sum(known):,.0f} s" if known else "")
        yield f"{table.page:15} {table.name:26} {said:22} {table.hand or 'by itself'}"


def main(arguments: Sequence[str] | None = None) -> int:
    asked = argparse.ArgumentParser(description="Makes the measured tables of docs/ anew.")
    asked.add_argument("--only", action="append", default=[], metavar="NAME", help="this table; may be repeated")
    asked.add_argument("--list", action="store_true", help="the tables, and what their jobs took")
    asked.add_argument("--data", type=Path, help="a folder that holds sst2, cr, agnews")
    asked.add_argument("--out", type=Path, default=HERE.parent / "runs" / "results", help="where jobs are kept")
    given = asked.parse_args(arguments)
    known = manifest(HERE / "tables.toml")
    if unknown := [name for name in given.only if name not in known]:
        print(f"results: no table {unknown[0]}; known are {', '.join(known)}", file=sys.stderr)
        return 2
    tables = [known[name] for name in given.only] or list(known.values())
    if given.list:
        print("\n".join(listed(tables, given.out)))
        return 0
    missing = 0
    for table in tables:
        start = time.monotonic()
        try:
            changed = make(table, pages=HERE, out=given.out, data=given.data, runner=sottovoce)
        except (ValueError, OSError) as error:
            missing += 1
            print(f"{table.name}: {error}", file=sys.stderr)
            continue
        said = f"by hand: {table.hand}" if table.hand else "changed" if changed else "as it was"
        print(f"{table.name}: {said} ({time.monotonic() - start:,.0f} s)", flush=True)
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())

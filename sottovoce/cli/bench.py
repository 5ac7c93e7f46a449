"""Command `sottovoce dev bench`: its options. The measurements are in benchmarks.run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import MOST_SEED, print_json, show_progress

# This file must not import NumPy or the mechanisms before the command runs, because `--help` must start fast.


def command(
    sections: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SECTION]...",
            show_default=False,
            help="mechanisms, encoder, round, statistic, flower, deployment, pfl (default: all).",
        ),
    ] = None,
    users: Annotated[int, typer.Option("--users", help="Users of the largest round.")] = 1_000_000,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="A folder with SST-2, in place of the built-in corpus.", show_default=False),
    ] = None,
    pfl: Annotated[
        str | None,
        typer.Option(
            "--pfl", metavar="PYTHON", help="The interpreter of an environment that has pfl.", show_default=False
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Little of everything: rough figures.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="Root seed.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the tables.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for bench.json, bench.md and bench.png; new or empty.", show_default=False),
    ] = None,
) -> None:
    """Measure the speed of mechanisms, encoder, rounds and peers."""
    _find_benchmarks()
    from benchmarks import run as bench
    from simulations.output.atomic import staged
    from simulations.output.figures import save

    options = bench.BenchOptions(tuple(sections or ()), users, seed, None if data is None else str(data), pfl, quick)
    bench.check(options)
    show_progress()
    if out is None:
        results = bench.run(options)
    else:
        with staged(out) as part:
            results = bench.run(options)
            (part / "bench.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            (part / "bench.md").write_text(bench.table(results), encoding="utf-8")
            if len(results["sections"].get("round", {}).get("rounds", ())) > 1:
                from benchmarks.figure import growth

                save(growth(results["sections"]["round"]), part / "bench.png")
    if as_json:
        print_json(results)
    else:
        print(bench.table(results))


def _find_benchmarks() -> None:
    """Make the benchmarks of a clone importable; raise UserError if there is no clone."""
    import sottovoce
    from simulations.errors import UserError

    clone = Path(sottovoce.__file__).parents[1]
    if not (clone / "benchmarks" / "run.py").is_file():
        raise UserError("bench: benchmarks are not installed; run this command in a clone of Sottovoce")
    sys.path.insert(0, str(clone))  # before the package of that name which opacus installs

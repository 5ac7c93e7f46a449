"""Measure the speed of mechanisms, encoder, rounds and peers: `python -m benchmarks [SECTION ...]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import run as bench
from simulations.errors import UserError
from simulations.output.atomic import staged
from simulations.output.figures import save
from simulations.output.jsonable import print_json
from simulations.progress import progress_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(bench.SECTIONS)} (default: all)")
    parser.add_argument("--users", type=int, default=1_000_000, help="users of the largest round")
    parser.add_argument("--data", help="a folder with SST-2, in place of the built-in corpus")
    parser.add_argument("--pfl", metavar="PYTHON", help="the interpreter of an environment that has pfl")
    parser.add_argument("--quick", action="store_true", help="little of everything: rough figures")
    parser.add_argument("--seed", type=int, default=1, help="root seed")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the tables")
    parser.add_argument("--out", type=Path, help="folder for bench.json, bench.md and bench.png; new or empty")
    given = parser.parse_args(arguments)
    options = bench.BenchOptions(tuple(given.sections), given.users, given.seed, given.data, given.pfl, given.quick)
    try:
        bench.check(options)
        with progress_lines():
            results = bench.run(options) if given.out is None else _kept(options, given.out)
    except UserError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    if given.json:
        print_json(results)
    else:
        print(bench.table(results))
    return 0


def _kept(options: bench.BenchOptions, out: Path) -> dict[str, object]:
    """Run the sections, and write their results into a new folder."""
    with staged(out) as part:
        results = bench.run(options)
        (part / "bench.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (part / "bench.md").write_text(bench.table(results), encoding="utf-8")
        if len(results["sections"].get("round", {}).get("rounds", ())) > 1:
            from benchmarks.figure import growth

            save(growth(results["sections"]["round"]), part / "bench.png")
    return results


if __name__ == "__main__":
    sys.exit(main())

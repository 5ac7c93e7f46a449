"""The command `sottovoce attack`: its options; the attacks are in simulations.attack and server.attacks."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

# Nothing here may import NumPy or the mechanisms before the command runs: `--help` must answer at once.


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR")],
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="NAME", help="bayes, copy, mask or linkage; may be repeated (default: all)."),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", metavar="NAME", help="Only this arm; may be repeated (default: all that release texts)."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Texts of each arm, at most.")] = 500,
    masked_lm: Annotated[
        Path | None,
        typer.Option(
            "--masked-lm", metavar="FOLDER", show_default=False,
            help="Checkpoint with a masked-LM head, for the attack `mask` (default: the run's own, if it has one).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the table.")] = False,
) -> None:  # fmt: skip
    """Attack what a run's users released, as the server would; attacks.json and attacks.md go into the run folder."""
    from simulations import attack as attacks
    from simulations import report

    start = time.monotonic()

    def progress(line: str) -> None:
        print(f"{time.monotonic() - start:7.1f} s  {line}", file=sys.stderr, flush=True)

    asked = attacks.Attack(run, tuple(attack or ()), tuple(arm or ()), limit, masked_lm)
    results = attacks.run(asked, progress=progress)
    attacks.write(results, run)
    if as_json:
        print(json.dumps(report.json_ready(results), ensure_ascii=False, allow_nan=False))
    else:
        print(attacks.table(results))

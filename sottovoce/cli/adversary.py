"""Commands on a finished run or a mechanism: `sottovoce attack`, `audit` and `report`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from sottovoce.cli.options import AsJson, Set, overrides, print_json, show_progress

# This file must not import NumPy, torch or the mechanisms before a command runs, because `--help` must start fast.


def attack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Its folder.")],
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="NAME", help="Only this one; may be repeated (default: all that apply)."),
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option("--arm", metavar="NAME", help="Only this arm; may be repeated (default: all).")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Texts of each arm, at most.")] = 500,
    masked_lm: Annotated[
        Path | None,
        typer.Option(
            "--masked-lm",
            metavar="FOLDER",
            help="Checkpoint with a masked-LM head, for the attack `mask` (default: the run's own, if it has one).",
        ),
    ] = None,
    shadows: Annotated[
        int | None,
        typer.Option(
            "--shadows",
            help="Models that membership-shadow and -lira train (default: 16; none where that means to train BERT).",
        ),
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute",
            metavar="NAME",
            help="Column that attribute inference guesses; may be repeated (default: what the corpus has).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Attack a run's releases as the server would.

    Write attacks.json and attacks.md into its folder. If a named attack has no result, the others are kept, and the
    exit code is 2.
    """
    from simulations.analysis.attack_results import table
    from sottovoce.adversary.attacks import run as attacks

    show_progress()
    results = attacks.attack(
        run,
        *(attack or ()),
        arms=arm or (),
        limit=limit,
        masked_lm=masked_lm,
        attributes=attribute or (),
        shadows=shadows,
    )
    if as_json:
        print_json(results)
    else:
        print(table(results))
    for line in results["refused"]:
        print(f"sottovoce: {line}", file=sys.stderr)
    if results["refused"]:
        raise typer.Exit(2)


def audit(
    mechanism: Annotated[
        list[str] | None, typer.Option("--mechanism", metavar="NAME", help="Only this one; may be repeated.")
    ] = None,
    program: Annotated[str | None, typer.Option("--command", help="A program that draws, in JSON lines.")] = None,
    draws: Annotated[int, typer.Option("--draws", help="Draws of each of two inputs.")] = 200_000,
    delta: Annotated[float | None, typer.Option("--delta", help="δ of a further comparison: 1e-3.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Root seed: 1; to verify, another.")] = None,
    fixed: Annotated[bool, typer.Option("--fixed", help="Do not stop a program at a violation.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds for an answer of a program.")] = 60.0,
    certificate: Annotated[Path | None, typer.Option("--verify", help="A violation's certificate, to check.")] = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for audit.json; new or empty.")] = None,
) -> None:
    """Test claimed ε by sampling: exit code 1 if a claim is violated.

    NAME: a mechanism of the catalogue, length, text, client or shuffler; or an external mechanism, by its package's
    name for it or as package.module:Class. --verify runs the command that the certificate names, or --command, on new
    draws: exit code 0 if they confirm the violation.
    """
    from sottovoce.adversary.audit.run import audit, audit_command

    if certificate is not None:
        if mechanism or out is not None or delta is not None or fixed:
            raise click.UsageError("--verify takes --command, --seed, --timeout and --json alone")
        _verify(certificate, program, seed, timeout, as_json)
        return
    root = 1 if seed is None else seed
    show_progress()
    if program is not None:
        if mechanism or delta is not None:
            raise click.UsageError("--command takes no --mechanism, and its δ from the program's claim")
        results = audit_command(program, draws=draws, seed=root, fixed=fixed, timeout=timeout, out=out)
    else:
        if fixed:
            raise click.UsageError("--fixed is of --command: mechanisms are always measured with all draws")
        results = audit(*(mechanism or ()), draws=draws, delta=1e-3 if delta is None else delta, seed=root, out=out)
    _print(results, as_json, out)
    if results["violated"]:
        raise typer.Exit(1)


def _print(results: dict[str, Any], as_json: bool, out: Path | None) -> None:
    from sottovoce.adversary.audit.run import table

    if as_json:
        print_json(results)
        return
    print(table(results))
    if results.get("certificates") and out is None:
        print("sottovoce: with --out FOLDER a certificate of each violation is kept, for --verify", file=sys.stderr)


def _verify(path: Path, program: str | None, seed: int | None, timeout: float, as_json: bool) -> None:
    from sottovoce.adversary.audit.run import verify

    result = verify(path, program, seed=seed, timeout=timeout)
    if as_json:
        print_json(result)
    else:
        text = "confirmed" if result["confirmed"] else "not confirmed"
        print(
            f"{text}: {result['draws']:,} new draws multiply a bet against ε = {result['epsilon']:.4g}, δ = "
            f"{result['claimed']:.3g} by 10^{result['log10_wealth']:.1f} (confidence {result['confidence']:g}, "
            f"seed {result['seed']})"
        )
    if not result["confirmed"]:
        raise typer.Exit(1)


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...|FILE.toml", help="Folders of runs and sweeps; or one experiment, before it runs."
        ),
    ],
    set_: Set = None,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="An .html file; the privacy label is written beside it as .json."),
    ] = Path("report.html"),
) -> None:
    """Write an HTML report and a privacy label, for reviewers.

    The report is about finished runs and sweeps, or about an experiment's cost before it runs.
    """
    from simulations.errors import UserError
    from sottovoce.report.write import report, report_of_plan

    if _is_experiment(runs):
        print("\n".join(str(path) for path in report_of_plan(runs[0], out, overrides=overrides(set_, None))))
        return
    if set_:
        raise UserError("report: --set goes with FILE.toml; a run is as it was")
    print("\n".join(str(path) for path in report(list(map(Path, runs)), out)))


def _is_experiment(named: Sequence[str]) -> bool:
    """Return True if one experiment file, or one bundled experiment, is named in place of folders."""
    from simulations.experiment.toml import bundled

    return len(named) == 1 and (
        named[0].lower().endswith(".toml") or (named[0] in bundled() and not Path(named[0]).exists())
    )

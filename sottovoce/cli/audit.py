"""Command `sottovoce audit`: its options. The audit is in sottovoce.adversary.audit.run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from sottovoce.cli.options import MOST_SEED, print_json, show_progress

# This file must not import NumPy or the mechanisms before the command runs, because `--help` must start fast.


def command(
    mechanism: Annotated[
        list[str] | None,
        typer.Option("--mechanism", metavar="NAME", help="Only this one; may be repeated (default: all)."),
    ] = None,
    program: Annotated[
        str | None, typer.Option("--command", help="A program that draws, in JSON lines: anybody's mechanism.")
    ] = None,
    draws: Annotated[int, typer.Option("--draws", help="Draws of each of two inputs.")] = 200_000,
    delta: Annotated[
        float | None, typer.Option("--delta", help="δ at which ε is compared beside the pure one: 1e-3.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, max=MOST_SEED, help="Root seed: 1; to verify, one more.")
    ] = None,
    fixed: Annotated[
        bool, typer.Option("--fixed", help="Measure a program with all draws; do not stop at a violation.")
    ] = False,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that an answer of a program may take.")] = 60.0,
    certificate: Annotated[
        Path | None, typer.Option("--verify", help="A violation's certificate, checked on new draws.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the table.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for audit.json, audit.md, certificates; new or empty.")
    ] = None,
) -> None:
    """Test claimed ε by sampling.

    Exit with code 1 if a claim is violated.
    The table has a lower bound of ε beside each claimed ε.

    NAME: a mechanism of the catalogue, length, text, client or shuffler; or an external mechanism, by
    its package's name for it or as package.module:Class. --verify runs the command that the file names, or --command:
    exit code 0 if new draws confirm it, 1 if they do not.
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

    found = verify(path, program, seed=seed, timeout=timeout)
    if as_json:
        print_json(found)
    else:
        said = "confirmed" if found["confirmed"] else "not confirmed"
        if "log10_wealth" in found:
            print(
                f"{said}: {found['draws']:,} new draws multiply a bet against ε = {found['epsilon']:.4g}, δ = "
                f"{found['claimed']:.3g} by 10^{found['log10_wealth']:.1f} (confidence {found['confidence']:g}, seed "
                f"{found['seed']})"
            )
        else:
            print(
                f"{said}: on {found['draws']:,} new draws of each input the event came {found['hits']:,} and "
                f"{found['misses']:,} times; at ε = {found['epsilon']:.4g} δ is at least {found['measured']:.3g}, "
                f"claimed {found['claimed']:.3g} (confidence {found['confidence']:g}, seed {found['seed']})"
            )
    if not found["confirmed"]:
        raise typer.Exit(1)

"""Commands `sottovoce encoders`: their options. The encoders are in simulations.artifacts.encoders."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import MOST_SEED, AsJson, print_json, show_progress

# This file must not import NumPy or torch before a command runs, because `--help` must start fast.

app = typer.Typer(help="List, download and compare sentence encoders.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the named encoders, and which are on this machine."""
    from simulations.artifacts.encoders import ENCODERS, here

    for name, known in ENCODERS.items():
        print(f"{name:<12} {'here' if here(name) else '-':<5} {known.about} ({known.license})")
    print("\nencoder.model takes a name, a folder, or a model of a hub. To download: sottovoce encoders get NAME")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of the list, or of a model on a hub.")],
    prefix: Annotated[
        str | None, typer.Option(help="Text before every sentence, as 'query: '.", show_default=False)
    ] = None,
) -> None:
    """Download an encoder into the cache, and check its SHA-256."""
    from simulations.artifacts import encoders

    show_progress()
    print(encoders.get(name, prefix=prefix))


@app.command("compare")
def compare(
    data: Annotated[Path, typer.Option("--data", metavar="FILE", help="Your own public texts with labels.")],
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            "--encoder", metavar="NAME", show_default=False, help="Which; again, for more (default: all that are here)."
        ),
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="The column of the texts.", show_default=False)] = None,
    label: Annotated[str | None, typer.Option("--label", help="The column of the labels.", show_default=False)] = None,
    users: Annotated[int, typer.Option(min=1, help="Number of users whose noise is added.")] = 20_000,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="Local ε; again, for more (default: 1, 3, 6).", show_default=False)
    ] = None,
    sample: Annotated[int, typer.Option(min=200, help="Number of texts, at most.")] = 4000,
    precision: Annotated[str, typer.Option(help="fp32, int8 or int4.")] = "fp32",
    seed: Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="Root seed.")] = 1,
    figure: Annotated[
        Path | None,
        typer.Option("--figure", metavar="FILE", help="Draw it too: .pdf, .svg or .png.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare encoders on your own public texts: size, speed, accuracy."""
    from simulations.errors import UserError

    epsilons = epsilon or [1.0, 3.0, 6.0]
    if not all(0 < each < 100 for each in epsilons):
        raise UserError("--epsilon: must be above 0 and below 100")
    if precision not in ("fp32", "int8", "int4"):
        raise UserError(f"--precision: must be fp32, int8 or int4, got {precision}")
    from simulations.output.figures import check_figure, save

    if figure is not None:
        check_figure(figure)
    with redirect_stdout(sys.stderr):  # for libraries that load a checkpoint
        from simulations.analysis import encoders as analysis
        from simulations.artifacts.encoders import ENCODERS, here

        names = encoder or [name for name in ENCODERS if here(name)]
        show_progress()
        found = analysis.compare(
            data,
            names,
            text=text,
            label=label,
            users=users,
            epsilons=epsilons,
            sample=sample,
            precision=precision,
            seed=seed,
        )
    if figure is not None:
        save(analysis.figure(found), figure)
    if as_json:
        print_json(found.to_dict())
        return
    print(analysis.table(found))
    print(f"\n{found.texts:,} texts, {len(found.classes)} classes, five folds; the noise of {found.users:,} users, one")
    print(f"vector each. {found.precision}; a sentence alone on one thread. ± is the standard error over folds.")

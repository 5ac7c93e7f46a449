"""Command `sottovoce reproduce`: a paper's tables, computed here, beside the paper's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import AsJson, print_json, show_progress

# This file must not import NumPy or matplotlib before the command runs, because `--help` must start fast.


def command(
    name: Annotated[
        str, typer.Argument(metavar="PAPER", help="yue-2021, arnold-2023, fu-2024, du-2023 or meisenbacher-2024.")
    ],
    table: Annotated[
        str | None, typer.Option("--table", help="One table by its number, or words of an item's name.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few arms and sentences: minutes, to see that it runs.")
    ] = False,
    users: Annotated[
        int | None,
        typer.Option(
            "--users",
            min=100,
            metavar="N",
            help="Training sentences that users hold, one each; 2,000 take half an hour or more a paper on two cores.",
        ),
    ] = None,
    data: Annotated[Path, typer.Option("--data", help="Folder that contains the data sets: sst2, cola, ...")] = Path(
        "data"
    ),
    out: Annotated[
        Path, typer.Option("--out", help="Where the runs' folders are; finished ones are not run again, others go on.")
    ] = Path("runs"),
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FOLDER", help="Write PAPER.md of all tables there too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiments, and print its numbers beside ours.

    Differences are printed with their reasons.
    """
    from simulations.errors import UserError
    from simulations.output.atomic import whole
    from simulations.papers.definition import USERS, chosen, load_paper
    from simulations.papers.run import reproduce, text
    from simulations.run.simulate import gone_on

    if quick and users is not None:
        raise UserError("--quick: has a size of its own; leave --users out")
    if page is not None and table is not None:
        raise UserError("--page: is made of all tables; leave --table out, since finished runs are not run again")
    paper, users = load_paper(name), users or USERS
    show_progress()
    items = chosen(paper, table)
    if page is not None and not page.is_dir():
        raise UserError(f"--page {page}: there is no such folder")
    out.mkdir(parents=True, exist_ok=True)
    found = reproduce(paper, items, quick=quick, data=data, out=out, users=users, run=gone_on)
    written = text(paper, items, found, quick=quick, users=users)
    if page is not None:
        with whole(page / f"{paper.name}.md") as file:
            file.write(written.encode())
    if as_json:
        keys = ("arm", "paper", "ours", "error")
        shown = {each.item: [dict(zip(keys, row, strict=True)) for row in each.rows] for each in found}
        return print_json({"paper": paper.name, "quick": quick, "items": shown})
    print(written, end="")

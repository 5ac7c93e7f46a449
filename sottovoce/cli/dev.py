"""Commands `sottovoce dev`: measurements for developers of Sottovoce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli import bench
from sottovoce.cli.budget import Delta, check_delta
from sottovoce.cli.ladder_table import number
from sottovoce.cli.options import AsJson, print_json, show_progress

# This file must not import SciPy, matplotlib or the accounting before a command runs, because `--help` must start fast.

app = typer.Typer(help="Measure speed and draw figures, for developers of Sottovoce.", no_args_is_help=True)
app.command("bench")(bench.command)


@app.command("optimal")
def optimal_(
    users: Annotated[int, typer.Option("--users", help="Users delivered, of one crowd.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="The central ε.")],
    dim: Annotated[int, typer.Option("--dim", help="D, coordinates of a vector.")] = 64,
    delta: Delta = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Compare one shuffled vector a user with a trusted curator.

    The comparison covers shapes of the density, and several messages a user.
    """
    from mechanisms import checks
    from mechanisms.privunit import MAX_DIM
    from simulations.analysis.shuffle_optimal import search

    check_delta(delta)
    dim = checks.integer("dev optimal", "--dim", dim, 2, MAX_DIM)
    show_progress()
    answer = search(users=users, dim=dim, epsilon=epsilon, delta=delta)
    if as_json:
        return print_json(answer)
    lines = [
        f"central ε = {epsilon:g} at δ = {delta:g}, {users:,} users of one crowd, D = {dim}; squared error of the mean",
        f"beside a trusted curator's (off by {answer['curator_noise']:.3g}):",
        "",
        f"{'density':<30} {'messages':>8} {'local ε':>8} {'E cos':>7} {'error':>8}",
    ]
    for r in answer["releases"]:
        numbers = f"{r['messages']:>8} {number(r['local_epsilon']):>8} {r['scale']:>7.4f} {r['error']:>7.1f}x"
        lines.append(f"{r['shape']:<30} {numbers}")
    print("\n".join(lines))


@app.command("figures")
def figures_(
    out: Annotated[Path, typer.Option("--out", help="Folder, made where there is none.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="Of Purkayastha.")] = 2.0,
    dim: Annotated[int, typer.Option("--dim", help="m'.")] = 16,
    users: Annotated[int, typer.Option("--users", help="Users delivered.")] = 67_349,
    delta: Delta = 1e-6,
) -> None:
    """Draw ε against δ, rounds and users, and all bounds, as PNG files."""
    from simulations.analysis import budget_figures

    check_delta(delta)
    for path in budget_figures.write(out, epsilon=epsilon, dim=dim, users=users, delta=delta):
        print(path)

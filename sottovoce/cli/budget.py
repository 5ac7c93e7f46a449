"""Commands `sottovoce budget`: current ε, amplification by shuffling, and parameters within a budget."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulations.errors import UserError
from sottovoce.cli.ladder_table import LEGEND, assumptions, number, table
from sottovoce.cli.options import AsJson, Set, print_json, show_progress
from sottovoce.cli.options import overrides as once
from sottovoce.cli.plan_table import lines as plan_lines

if TYPE_CHECKING:
    from simulations.analysis.budget import Release, TextToPlan
    from simulations.analysis.plan import Terms

# This file must not import SciPy, matplotlib or the accounting before a command runs, because `--help` must start fast.

app = typer.Typer(help="What ε do I have, and what does a budget buy?", no_args_is_help=True)

Name = Annotated[str, typer.Option("--mechanism", help="Its name in experiment files, as purkayastha.")]
Epsilon = Annotated[float | None, typer.Option("--epsilon", help="Its ε, in its own metric.", show_default=False)]
Sigma = Annotated[float | None, typer.Option("--sigma", help="Of gaussian, instead of --epsilon.", show_default=False)]
Dim = Annotated[int | None, typer.Option("--dim", help="m', coordinates of an embedding.", show_default=False)]
Classes = Annotated[int, typer.Option("--classes", help="Of a label.")]
Raw = Annotated[bool, typer.Option("--raw", help="planar-laplace without its normalization.")]
LabelEpsilon = Annotated[
    float | None,
    typer.Option("--label-epsilon", help="A label under randomized response beside the embedding.", show_default=False),
]
Users = Annotated[int | None, typer.Option("--users", help="Users delivered by the shuffler.", show_default=False)]
Delta = Annotated[float, typer.Option("--delta", help="δ, of every figure.")]
Records = Annotated[int | None, typer.Option("--records", help="Most records of one user.", show_default=False)]
Stages = Annotated[int, typer.Option("--stages", help="Stages in which one user releases anew.")]


@app.command("local")
def local_(
    mechanism: Name,
    epsilon: Epsilon = None,
    sigma: Sigma = None,
    dim: Dim = None,
    classes: Classes = 2,
    raw: Raw = False,
    label_epsilon: LabelEpsilon = None,
    times: Annotated[int, typer.Option("--times", help="How many releases of one user.")] = 1,
    delta: Delta = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Print the worst case, the exact ε at δ, and compositions of several releases, without a shuffler."""
    from mechanisms import checks
    from simulations.analysis import budget

    _check_delta(delta)
    times = checks.integer("budget local", "--times", times, 1, 10**6)
    release = budget.Release(mechanism, epsilon, sigma, dim, classes, raw, label_epsilon, delta)
    answer = budget.local(release.with_losses(), times=times, delta=delta)
    if as_json:
        return print_json(answer)
    _print(
        [
            *(f"{m}, {times} time{'s' * (times != 1)}" for m in answer["mechanisms"]),
            f"worst case (δ = 0)      ε = {number(answer['worst_case'])}",
            *(f"at δ = {delta:g}, {method:<9} ε = {number(value)}" for method, value in answer["methods"].items()),
        ]
    )


@app.command("compare")
def compare_(
    mechanism: Name,
    epsilon: Epsilon = None,
    sigma: Sigma = None,
    dim: Dim = None,
    classes: Classes = 2,
    raw: Raw = False,
    times: Annotated[int, typer.Option("--times", help="How many releases of one user.")] = 1,
    sampling: Annotated[
        float | None,
        typer.Option("--sampling", help="Of gaussian: the chance to be in a Poisson sample.", show_default=False),
    ] = None,
    delta: Delta = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Compare our ε with that of dp-accounting, and explain differences."""
    from simulations.analysis import budget
    from simulations.analysis.compare import compare

    _check_delta(delta)
    release = budget.Release(mechanism, epsilon, sigma, dim, classes, raw, None, delta)
    answer = compare(release.with_losses(), times=times, delta=delta, sampling=sampling)
    if as_json:
        return print_json(answer)
    lines = [f"{answer['mechanism']}, {times} time{'s' * (times != 1)}, δ = {delta:g}", ""]
    lines.append(f"{'ours, loss distributions':<28} ε = {number(answer['ours'])}")
    for theirs in answer["answers"]:
        lines.append(f"{theirs['accountant']:<28} ε = {number(theirs['epsilon'])}")
    reasons = dict.fromkeys(f"{a['accountant']}: {a['reason']}" for a in answer["answers"] if a["reason"])
    _print([*lines, "", *(reasons or ("the same, to discretization",))])


@app.command("shuffle")
def shuffle_(
    mechanism: Name,
    users: Annotated[int, typer.Option("--users", help="Users delivered by the shuffler.")],
    epsilon: Epsilon = None,
    sigma: Sigma = None,
    dim: Dim = None,
    classes: Classes = 2,
    raw: Raw = False,
    label_epsilon: LabelEpsilon = None,
    honest: Annotated[
        float, typer.Option("--honest", help="Share of them who follow the protocol; the others hide nobody.")
    ] = 1.0,
    delta: Delta = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Print a user's central ε in a shuffled crowd: every valid bound, under its published name."""
    from simulations.analysis import budget

    _check_delta(delta)
    release = budget.Release(mechanism, epsilon, sigma, dim, classes, raw, label_epsilon, delta)
    released = release.with_losses()
    answer = budget.shuffled(released, users=users, honest=honest, delta=delta)
    if as_json:
        return print_json(answer)
    lines = [
        *(budget.described(m) for m in released),
        f"{users:,} users delivered, a crowd of {answer['crowd']:,} honest ones, δ = {delta:g}", "",
    ]  # fmt: skip
    lines.append(f"{'worst case, local (δ = 0)':<28} ε = {number(answer['local_worst_case'])}")
    lines.append(f"{'exact, local':<28} ε = {number(answer['local_epsilon'])}")
    for name, value in answer["bounds"].items():
        lines.append(f"{name:<28} {'no amplification' if value is None else f'ε = {number(value)}'}")
    lines.append(f"{'lower bound (data sets)':<28} ε = {number(answer['lower_bound'])}")
    ratio = "" if answer["ratio"] is None else f"; {answer['ratio']:.3g} times the lower bound"
    lines += ["", f"central ε = {number(answer['epsilon'])}, the least valid of these{ratio}"]
    if answer["reason"]:
        lines.append(f"no amplification: {answer['reason']}")
    _print(lines)


@app.command("ladder")
def ladder_(
    file: Annotated[str | None, typer.Argument(metavar="[FILE.toml]", show_default=False)] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override, as for simulate.")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", help="A client's ledger, a file or its URL: what was charged.", show_default=False),
    ] = None,
    user: Annotated[
        int | None,
        typer.Option("--user", help="With --ledger: this user, not the one who spent most.", show_default=False),
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option("--mechanism", help="Without a file: the mechanism.", show_default=False)
    ] = None,
    epsilon: Epsilon = None,
    sigma: Sigma = None,
    dim: Dim = None,
    classes: Annotated[int | None, typer.Option("--classes", help="Of a label.", show_default=False)] = None,
    raw: Raw = False,
    label_epsilon: LabelEpsilon = None,
    users: Users = None,
    records: Records = None,
    stages: Stages = 1,
    delta: Annotated[float | None, typer.Option("--delta", help="δ, of every rung.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Print ε, rung by rung, of an experiment file, a mechanism, or a ledger."""
    sources = [s for s in (file, ledger, mechanism) if s is not None]
    if len(sources) != 1:
        raise UserError("budget ladder: give one of FILE.toml, --mechanism or --ledger")
    if delta is not None:
        _check_delta(delta)
    if mechanism is None:  # an ignored option would look like one that has an effect
        given = (epsilon, sigma, dim, raw or None, label_epsilon, users, None if stages == 1 else stages)
        names = ("epsilon", "sigma", "dim", "raw", "label-epsilon", "users", "stages")
        if odd := [name for name, value in zip(names, given, strict=True) if value is not None]:
            instead = "; a file says it itself, or --set KEY=VALUE" if file is not None else ""
            raise UserError(f"budget ladder: --{odd[0]} goes with --mechanism{instead}")
    if file is None and set_:
        raise UserError("budget ladder: --set goes with FILE.toml")
    if ledger is not None:
        _ladder_of_ledger(ledger, user, delta or 1e-6, as_json)
    elif mechanism is not None:
        from simulations.analysis.budget import Release

        release = Release(mechanism, epsilon, sigma, dim, classes or 2, raw, label_epsilon, delta or 1e-6)
        _ladder_of_release(release, users, records, stages, as_json)
    else:
        overrides = once(set_, None) + ([] if delta is None else [f"shuffle.delta={delta!r}"])
        _ladder_of_file(str(file), overrides, records, classes, as_json)


def _ladder_of_file(file: str, overrides: list[str], records: int | None, classes: int | None, as_json: bool) -> None:
    from simulations.analysis.budget import ladders_of_experiment
    from simulations.experiment import load

    if records is not None and records < 1:
        raise UserError(f"--records: must be at least 1, got {records}")
    answer = ladders_of_experiment(load(file, overrides), records=records, classes=classes)
    if as_json:
        return print_json(answer)
    lines = [f"{answer['name']}, δ = {answer['delta']:g}, way {answer['way']}"]
    lines += [answer["way_sentence"]] if "way_sentence" in answer else []
    notes: dict[str, None] = {}
    for arm in answer["arms"]:
        mark = ", a reference: not private" if arm["reference"] else ""
        for who, key in (("training users", "ladder"), ("test users", "test_ladder")):
            if arm[key] is not None:
                lines += ["", f'arm "{arm["arm"]}"{mark}, {who}', *table(arm[key])]
                notes |= dict.fromkeys(assumptions(arm[key]))
        lines += [f"  {arm['liars']}"] if arm["liars"] else []
    _print([*lines, "", "What this rests on:", *notes, *LEGEND])


def _ladder_of_release(
    release: Release, users: int | None, records: int | None, stages: int, as_json: bool
) -> None:
    from simulations.analysis.budget import described, ladder_of_release

    released, records = release.mechanisms(), 1 if records is None else records
    answer = ladder_of_release(released, users=users, records=records, stages=stages, delta=release.delta)
    if as_json:
        return print_json(answer)
    rungs = answer["ladder"]
    _print([*(described(m) for m in released), *table(rungs), "", "What this rests on:", *assumptions(rungs), *LEGEND])


def _ladder_of_ledger(place: str, user: int | None, delta: float, as_json: bool) -> None:
    from client.device.statement import describe_account
    from client.node import NODE
    from client.policy import Policy
    from simulations.analysis.ledger import of_ledger
    from simulations.output.remote import here, is_url

    folder, _, name = place.rpartition("/") if is_url(place) else ("", "", place)
    with here(folder or ".", lambda held: held in (name, NODE)) as beside:
        answer = of_ledger(beside / name, user=user, delta=delta)
    if as_json:
        return print_json(answer)
    account = []
    if answer["policy"] is not None:
        held = describe_account(Policy.from_dict(answer["policy"]), answer["account"])
        account = ["", f"What the policy beside it allows user {answer['user']}", *(f"  {line}" for line in held)]
    _print(
        [
            f"{place}: {answer['releases']:,} releases of {answer['users']:,} users; user {answer['user']}",
            *table(answer["ladder"]), "", "What this rests on:", *assumptions(answer["ladder"]), *LEGEND,
            *account,
        ]
    )  # fmt: skip


@app.command("report")
def report_(
    file: Annotated[str, typer.Argument(metavar="FILE.toml", help="An experiment, or the name of a bundled one.")],
    set_: Set = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="An .html file; the privacy label stands beside it as .json.")
    ] = Path("report.html"),
) -> None:
    """Write one HTML file and a privacy label about the cost of an experiment for its users, before it runs."""
    from sottovoce.report.write import report_of_plan

    _print([str(path) for path in report_of_plan(file, out, overrides=once(set_, None))])


CentralEpsilon = Annotated[float, typer.Option("--epsilon", help="The central ε that one user may spend.")]
CentralDelta = Annotated[float, typer.Option("--delta", help="The central δ.")]
Invited = Annotated[
    int | None,
    typer.Option("--users", help="Users invited; a text may be planned without a shuffler.", show_default=False),
]
Planned = Annotated[str, typer.Option("--mechanism", help="Of the embedding, or of a text's words.")]
Tokens = Annotated[
    int | None, typer.Option("--tokens", help="Of a text: its most tokens (default: 64).", show_default=False)
]
Length = Annotated[
    str | None,
    typer.Option("--length", help="Of a text: the ε of its length (default: 1), or kept.", show_default=False),
]
Words = Annotated[
    str | None,
    typer.Option(
        "--words", help="Of a text: word vectors, a file or a checkpoint (default: minilm).", show_default=False
    ),
]
Generator = Annotated[
    str | None,
    typer.Option(
        "--generator", show_default=False,
        help="Of a text that a model generates: its checkpoint, as for sanitize (default: the worst of all models).",
    ),
]  # fmt: skip
Crowd = Annotated[
    int | None,
    typer.Option(
        "--crowd", help="Of a text: how many users delivered at the least share what is public.", show_default=False
    ),
]
Public = Annotated[
    list[str] | None,
    typer.Option("--accept-unprotected", metavar="NAME:WHY", help="Of a text: what it exposes and is public."),
]


@app.command("plan")
def plan_(
    epsilon: CentralEpsilon,
    delta: CentralDelta,
    users: Invited = None,
    label_epsilon: LabelEpsilon = None,
    mechanism: Planned = "purkayastha",
    dim: Annotated[int, typer.Option("--dim", help="m', coordinates of an embedding.")] = 16,
    classes: Classes = 2,
    dropout: Annotated[float, typer.Option("--dropout", help="Share of users who never answer.")] = 0.0,
    records: Annotated[int, typer.Option("--records", help="Most records of one user.")] = 1,
    stages: Stages = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.toml", help="Write an experiment, one arm a split.", show_default=False),
    ] = None,
    tokens: Tokens = None,
    length: Length = None,
    words: Words = None,
    generator: Generator = None,
    accept_unprotected: Public = None,
    crowd: Crowd = None,
    as_json: AsJson = False,
) -> None:
    """Find the largest local ε within a central budget; without --label-epsilon, show how the budget can be split."""
    from simulations.analysis import plan
    from simulations.analysis.budget import TextToPlan
    from simulations.output.atomic import whole

    _check_delta(delta)
    if out is not None and out.exists():
        raise UserError(f"--out {out}: is there already; name another file")
    if out is not None and (records != 1 or stages != 1):
        raise UserError("--out: an experiment file has users of one record and one stage; leave --records and --stages")
    if mechanism == "privunit" and label_epsilon is not None:
        raise UserError("--label-epsilon: the label is in the vector that privunit releases; leave it out")
    labels = plan.LABEL_EPSILONS if label_epsilon is None else (label_epsilon,)
    terms = plan.Terms(epsilon, delta, users, dropout, records, stages, labels, classes)
    text = TextToPlan(tokens, length, words, generator, accept_unprotected, crowd)
    answer = _plan_of(terms, mechanism, dim, text, out)
    if out is not None:
        written = plan.experiment_file(answer, name=out.stem)
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole(out) as file:
            file.write(written.encode())
        answer["file"] = str(out)
    if as_json:
        return print_json(answer)
    hint = [] if out is None else [f"experiment file: {out}; run it with: sottovoce simulate {out}"]
    _print([*plan_lines(answer), *hint])


def _plan_of(terms: Terms, mechanism: str, dim: int, text: TextToPlan, out: Path | None) -> dict[str, Any]:
    """Return the plan of a text, or of an embedding, which takes none of a text's options."""
    from mechanisms.catalogue import admit
    from mechanisms.channels import Domain, domain_of
    from simulations.analysis import plan

    if domain_of(admit(mechanism)) is Domain.TEXT:
        if out is not None:
            raise UserError("--out: experiments are written for embeddings alone; put the ε into a file of your own")
        show_progress()
        with redirect_stdout(sys.stderr):  # for libraries that load a checkpoint
            build, among = text.by_epsilon(mechanism, delta=terms.delta)
        return plan.plan_text(terms, build, public=text.public, crowd=text.crowd) | {"among": among}
    if given := [name for name, value in asdict(text).items() if value is not None]:
        option = f"--{given[0].replace('_', '-')}"
        raise UserError(f"{option}: is about texts, and {mechanism} sanitizes none; leave it out")
    if terms.users is None:
        raise UserError("--users: say how many are invited")
    if mechanism == "privunit":
        if out is not None:
            raise UserError("--out: experiments are written for embeddings alone; put ε and p into a file of your own")
        return plan.plan_privunit(terms, dim=dim)
    show_progress()
    return plan.plan(terms, mechanism=mechanism, dim=dim)


@app.command("optimal")
def optimal_(
    users: Annotated[int, typer.Option("--users", help="Users delivered, of one crowd.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="The central ε.")],
    dim: Annotated[int, typer.Option("--dim", help="D, coordinates of a vector.")] = 64,
    delta: Delta = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Compare one anonymous vector a user with a trusted curator: shapes of the density, and more messages."""
    from mechanisms import checks
    from mechanisms.privunit import MAX_DIM
    from simulations.analysis.shuffle_optimal import search

    _check_delta(delta)
    dim = checks.integer("budget optimal", "--dim", dim, 2, MAX_DIM)
    show_progress()
    answer = search(users=users, dim=dim, epsilon=epsilon, delta=delta)
    if as_json:
        return print_json(answer)
    lines = [
        f"central ε = {epsilon:g} at δ = {delta:g}, {users:,} users of one crowd, D = {dim}; squared error of the mean",
        f"beside a trusted curator's (off by {answer['curator_noise']:.3g}):", "",
        f"{'density':<30} {'messages':>8} {'local ε':>8} {'E cos':>7} {'error':>8}",
    ]  # fmt: skip
    for r in answer["releases"]:
        numbers = f"{r['messages']:>8} {number(r['local_epsilon']):>8} {r['scale']:>7.4f} {r['error']:>7.1f}x"
        lines.append(f"{r['shape']:<30} {numbers}")
    _print(lines)


@app.command("users")
def users_(
    mechanism: Name,
    central: Annotated[float, typer.Option("--central", help="The central ε that one user may spend.")],
    epsilon: Epsilon = None,
    sigma: Sigma = None,
    dim: Dim = None,
    classes: Classes = 2,
    raw: Raw = False,
    label_epsilon: LabelEpsilon = None,
    delta: Delta = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Print the number of users that a mechanism needs for a central ε."""
    from mechanisms.accounting.planner import users_needed
    from simulations.analysis.budget import Release

    _check_delta(delta)
    release = Release(mechanism, epsilon, sigma, dim, classes, raw, label_epsilon, delta)
    if not 0 < central <= 1000:
        raise UserError(f"--central {central:g}: must be above 0 and at most 1000")
    needed = users_needed(release.with_losses(), epsilon=central, delta=delta)
    if as_json:
        return print_json({"central_epsilon": central, "delta": delta, "users": needed})
    none = "no number of users up to 10^10 suffices: raise --central, or take more noise"
    _print([none if needed is None else f"{needed:,} users delivered, of one crowd"])


@app.command("figures")
def figures_(
    out: Annotated[Path, typer.Option("--out", help="Folder, made where there is none.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="Of Purkayastha.")] = 2.0,
    dim: Annotated[int, typer.Option("--dim", help="m'.")] = 16,
    users: Annotated[int, typer.Option("--users", help="Users delivered.")] = 67_349,
    delta: Delta = 1e-6,
) -> None:
    """Draw ε against δ, rounds and users, and all bounds side by side, as PNG files for print."""
    from simulations.analysis import budget_figures

    _check_delta(delta)
    for path in budget_figures.write(out, epsilon=epsilon, dim=dim, users=users, delta=delta):
        print(path)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:  # also rejects NaN
        raise UserError(f"--delta: must be above 0 and below 1, got {delta:g}")


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines))

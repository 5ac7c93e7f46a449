"""Commands `sottovoce budget`: ε of releases, amplification by shuffling, and parameters within a budget."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulations.errors import UserError
from sottovoce.cli.ladder_table import LEGEND, assumptions, number, table
from sottovoce.cli.options import AsJson, print_json, show_progress
from sottovoce.cli.options import overrides as once
from sottovoce.cli.plan_table import lines as plan_lines

if TYPE_CHECKING:
    from simulations.analysis.budget import Release, TextToPlan
    from simulations.analysis.plan import Terms

# This file must not import SciPy, matplotlib or the accounting before a command runs, because `--help` must start fast.

app = typer.Typer(help="Compute ε of mechanisms, experiments and ledgers; plan a budget.", no_args_is_help=True)

Mechanism = Annotated[
    str,
    typer.Option(
        "--mechanism",
        metavar="NAME:KEY=VALUE,...",
        help="Mechanism and its parameters, for example purkayastha:epsilon=4,dim=16.",
    ),
]
Classes = Annotated[int, typer.Option("--classes", help="Number of classes of a label.")]
LabelEpsilon = Annotated[
    float | None,
    typer.Option(
        "--label-epsilon", help="ε of a label that is released too, by randomized response.", show_default=False
    ),
]
Users = Annotated[
    int | None, typer.Option("--users", help="Number of users delivered by the shuffler.", show_default=False)
]
Delta = Annotated[float, typer.Option("--delta", help="δ at which ε is computed.")]
Records = Annotated[
    int | None, typer.Option("--records", help="Maximum number of records of a user.", show_default=False)
]
Stages = Annotated[int, typer.Option("--stages", help="Number of stages in which a user releases anew.")]


@app.command("local")
def local_(
    mechanism: Mechanism,
    classes: Classes = 2,
    label_epsilon: LabelEpsilon = None,
    times: Annotated[int, typer.Option("--times", help="Number of releases of a user.")] = 1,
    delta: Delta = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Print ε of one or several releases, without a shuffler.

    The worst case, the exact ε at δ, and compositions of several releases.
    """
    from mechanisms import checks
    from simulations.analysis import budget

    check_delta(delta)
    times = checks.integer("budget local", "--times", times, 1, 10**6)
    release = budget.Release(mechanism, classes, label_epsilon, delta)
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
    mechanism: Mechanism,
    classes: Classes = 2,
    times: Annotated[int, typer.Option("--times", help="Number of releases of a user.")] = 1,
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

    check_delta(delta)
    release = budget.Release(mechanism, classes, None, delta)
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
    mechanism: Mechanism,
    users: Annotated[int, typer.Option("--users", help="Number of users delivered by the shuffler.")],
    classes: Classes = 2,
    label_epsilon: LabelEpsilon = None,
    honest: Annotated[
        float, typer.Option("--honest", help="Share of them who follow the protocol; the others hide nobody.")
    ] = 1.0,
    delta: Delta = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Print a user's central ε in a shuffled crowd, by every valid bound."""
    from simulations.analysis import budget

    check_delta(delta)
    release = budget.Release(mechanism, classes, label_epsilon, delta)
    released = release.with_losses()
    answer = budget.shuffled(released, users=users, honest=honest, delta=delta)
    if as_json:
        return print_json(answer)
    lines = [
        *(budget.described(m) for m in released),
        f"{users:,} users delivered, a crowd of {answer['crowd']:,} honest ones, δ = {delta:g}",
        "",
    ]
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
        str | None,
        typer.Option(
            "--mechanism",
            metavar="NAME:KEY=VALUE,...",
            show_default=False,
            help="Mechanism and its parameters, instead of a file.",
        ),
    ] = None,
    classes: Annotated[
        int | None, typer.Option("--classes", help="Number of classes of a label.", show_default=False)
    ] = None,
    label_epsilon: LabelEpsilon = None,
    users: Users = None,
    records: Records = None,
    stages: Stages = 1,
    delta: Annotated[float | None, typer.Option("--delta", help="δ, of every rung.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Print the ladder of ε of an experiment, a mechanism or a ledger."""
    sources = [s for s in (file, ledger, mechanism) if s is not None]
    if len(sources) != 1:
        raise UserError("budget ladder: give one of FILE.toml, --mechanism or --ledger")
    if delta is not None:
        check_delta(delta)
    if mechanism is None:  # an ignored option would look like one that has an effect
        given = (label_epsilon, users, None if stages == 1 else stages)
        names = ("label-epsilon", "users", "stages")
        if odd := [name for name, value in zip(names, given, strict=True) if value is not None]:
            instead = "; a file says it itself, or --set KEY=VALUE" if file is not None else ""
            raise UserError(f"budget ladder: --{odd[0]} goes with --mechanism{instead}")
    if file is None and set_:
        raise UserError("budget ladder: --set goes with FILE.toml")
    if ledger is not None:
        _ladder_of_ledger(ledger, user, delta or 1e-6, as_json)
    elif mechanism is not None:
        from simulations.analysis.budget import Release

        release = Release(mechanism, classes or 2, label_epsilon, delta or 1e-6)
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


def _ladder_of_release(release: Release, users: int | None, records: int | None, stages: int, as_json: bool) -> None:
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
            *table(answer["ladder"]),
            "",
            "What this rests on:",
            *assumptions(answer["ladder"]),
            *LEGEND,
            *account,
        ]
    )


CentralEpsilon = Annotated[float, typer.Option("--epsilon", help="The central ε that one user may spend.")]
CentralDelta = Annotated[float, typer.Option("--delta", help="The central δ.")]
Invited = Annotated[
    int | None,
    typer.Option("--users", help="Users invited; a text may be planned without a shuffler.", show_default=False),
]
Planned = Annotated[
    str,
    typer.Option(
        "--mechanism",
        metavar="NAME:KEY=VALUE,...",
        help="Mechanism without ε, for example purkayastha:dim=16, or santext:tokens=64,length=1 for a text.",
    ),
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
        "--generator",
        show_default=False,
        help="Of a text that a model generates: its checkpoint, as for sanitize (default: the worst of all models).",
    ),
]
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
    classes: Classes = 2,
    dropout: Annotated[float, typer.Option("--dropout", help="Share of users who never answer.")] = 0.0,
    records: Annotated[int, typer.Option("--records", help="Maximum number of records of a user.")] = 1,
    stages: Stages = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.toml", help="Write an experiment, one arm a split.", show_default=False),
    ] = None,
    words: Words = None,
    generator: Generator = None,
    accept_unprotected: Public = None,
    crowd: Crowd = None,
    as_json: AsJson = False,
) -> None:
    """Find the largest local ε within a central budget.

    Without --label-epsilon, show how the budget can be split.
    """
    from mechanisms.mechanism_text import read_mechanism
    from simulations.analysis import plan
    from simulations.analysis.budget import TextToPlan
    from simulations.output.atomic import whole

    check_delta(delta)
    if out is not None and out.exists():
        raise UserError(f"--out {out}: is there already; name another file")
    if out is not None and (records != 1 or stages != 1):
        raise UserError("--out: an experiment file has users of one record and one stage; leave --records and --stages")
    spec = read_mechanism(mechanism)
    name = spec.pop("mechanism")
    if name == "privunit" and label_epsilon is not None:
        raise UserError("--label-epsilon: the label is in the vector that privunit releases; leave it out")
    labels = plan.LABEL_EPSILONS if label_epsilon is None else (label_epsilon,)
    terms = plan.Terms(epsilon, delta, users, dropout, records, stages, labels, classes)
    length = None if "length" not in spec else str(spec.pop("length"))
    text = TextToPlan(spec.pop("tokens", None), length, words, generator, accept_unprotected, crowd)
    dim = spec.pop("dim", 16)
    if spec:
        raise UserError(f"--mechanism {mechanism}: a plan takes dim, tokens and length, and no {next(iter(spec))}")
    answer = _plan_of(terms, name, dim, text, out)
    if out is not None:
        written = plan.experiment_file(answer, name=out.stem)
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole(out) as file:
            file.write(written.encode())
        answer["file"] = str(out)
    if as_json:
        return print_json(answer)
    hint = [] if out is None else [f"experiment file: {out}; run it with: sottovoce simulate {quote(str(out))}"]
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
        option = given[0] if given[0] in ("tokens", "length") else f"--{given[0].replace('_', '-')}"
        raise UserError(f"{option}: is about texts, and {mechanism} sanitizes none; leave it out")
    if terms.users is None:
        raise UserError("--users: say how many are invited")
    if mechanism == "privunit":
        if out is not None:
            raise UserError("--out: experiments are written for embeddings alone; put ε and p into a file of your own")
        return plan.plan_privunit(terms, dim=dim)
    show_progress()
    return plan.plan(terms, mechanism=mechanism, dim=dim)


@app.command("users")
def users_(
    mechanism: Mechanism,
    central: Annotated[float, typer.Option("--central", help="The central ε that one user may spend.")],
    classes: Classes = 2,
    label_epsilon: LabelEpsilon = None,
    delta: Delta = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Print the number of users that a central ε needs."""
    from mechanisms.accounting.planner import users_needed
    from simulations.analysis.budget import Release

    check_delta(delta)
    release = Release(mechanism, classes, label_epsilon, delta)
    if not 0 < central <= 1000:
        raise UserError(f"--central {central:g}: must be above 0 and at most 1000")
    needed = users_needed(release.with_losses(), epsilon=central, delta=delta)
    if as_json:
        return print_json({"central_epsilon": central, "delta": delta, "users": needed})
    none = "no number of users up to 10^10 suffices: raise --central, or take more noise"
    _print([none if needed is None else f"{needed:,} users delivered, of one crowd"])


def check_delta(delta: float) -> None:
    """Raise UserError for a δ that is not between 0 and 1."""
    if not 0 < delta < 1:  # also rejects NaN
        raise UserError(f"--delta: must be above 0 and below 1, got {delta:g}")


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines))

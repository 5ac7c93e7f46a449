"""Commands `sottovoce budget`: the ladder of ε, and the parameters or the users that a budget allows."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from simulations.errors import UserError
from simulations.output.streams import in_unicode
from sottovoce.cli.options import AsJson, Data, Set, overrides, print_json, show_progress

if TYPE_CHECKING:
    from simulations.analysis.budget import Texts
    from simulations.analysis.plan import Terms
    from simulations.experiment import Experiment

# This file must not import SciPy, matplotlib or the accounting before a command runs, because `--help` must start fast.

app = typer.Typer(help="Compute ε of mechanisms, experiments and ledgers; plan a budget.", no_args_is_help=True)

Classes = Annotated[int | None, typer.Option("--classes", help="Number of classes of a label.")]
Stages = Annotated[int, typer.Option("--stages", help="Stages in which a user releases anew.")]
Words = Annotated[str | None, typer.Option("--words", help="Word vectors of a text, as for sanitize.")]
Generator = Annotated[
    str | None, typer.Option("--generator", help="Model of a generated text (default: worst of all).")
]
Crowd = Annotated[int | None, typer.Option("--crowd", help="Least users who share what is public.")]
Public = Annotated[
    list[str] | None,
    typer.Option("--accept-unprotected", metavar="NAME:WHY", help="What leaves in clear and is public."),
]


@app.command("ladder", epilog="Example: sottovoce budget ladder demo")
def ladder_(
    file: Annotated[str | None, typer.Argument(metavar="[FILE.toml]")] = None,
    set_: Set = None,
    ledger: Annotated[Path | None, typer.Option("--ledger", help="A client's ledger: what was charged.")] = None,
    user: Annotated[int | None, typer.Option("--user", help="With --ledger, in place of the costliest.")] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option("--mechanism", metavar="SPEC", help="As purkayastha:epsilon=4,dim=16; one of each channel."),
    ] = None,
    classes: Classes = None,
    users: Annotated[int | None, typer.Option("--users", help="Users whom the shuffler delivers.")] = None,
    records: Annotated[int | None, typer.Option("--records", help="Records of a user, at most.")] = None,
    stages: Stages = 1,
    words: Words = None,
    generator: Generator = None,
    accept_unprotected: Public = None,
    crowd: Crowd = None,
    delta: Annotated[float | None, typer.Option("--delta", help="δ, of every rung.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the ladder of ε of an experiment, of mechanisms, or of a ledger."""
    sources = [s for s in (file, ledger, mechanism or None) if s is not None]
    if len(sources) != 1:
        raise UserError("budget ladder: give one of FILE.toml, --mechanism or --ledger")
    if delta is not None:
        check_delta(delta)
    of_mechanisms = {
        "users": users,
        "stages": None if stages == 1 else stages,
        "words": words,
        "generator": generator,
        "accept-unprotected": accept_unprotected or None,
        "crowd": crowd,
    }
    # an ignored option would look like one that has an effect
    if not mechanism and (flags := [name for name, value in of_mechanisms.items() if value is not None]):
        hint = "; a file says it itself, or --set KEY=VALUE" if file is not None else ""
        raise UserError(f"budget ladder: --{flags[0]} goes with --mechanism{hint}")
    if file is None and set_:
        raise UserError("budget ladder: --set goes with FILE.toml")
    if ledger is None and user is not None:
        raise UserError("budget ladder: --user goes with --ledger")
    if ledger is not None:
        _ladder_of_ledger(ledger, user, delta or 1e-6, as_json)
    elif mechanism:
        from simulations.analysis.budget import Texts

        texts = Texts(words, generator, accept_unprotected, crowd)
        options = {"users": users, "records": 1 if records is None else records, "stages": stages}
        _ladder_of_release(mechanism, texts, options | {"classes": classes or 2, "delta": delta or 1e-6}, as_json)
    else:
        changes = overrides(set_, None) + ([] if delta is None else [f"shuffle.delta={delta!r}"])
        _ladder_of_file(str(file), changes, records, classes, as_json)


def _ladder_of_file(file: str, changes: list[str], records: int | None, classes: int | None, as_json: bool) -> None:
    from simulations.analysis.budget import ladders_of_experiment
    from simulations.experiment import load

    if records is not None and records < 1:
        raise UserError(f"--records: must be at least 1, got {records}")
    answer = ladders_of_experiment(load(file, changes), records=records, classes=classes)
    if as_json:
        return print_json(answer)
    lines = [f"{answer['name']}, δ = {answer['delta']:g}, protocol {answer['way']}"]
    lines += [answer["way_sentence"]] if "way_sentence" in answer else []
    notes: dict[str, None] = {}
    for arm in answer["arms"]:
        mark = ", a reference: not private" if arm["reference"] else ""
        for payers, key in (("training users", "ladder"), ("test users", "test_ladder")):
            if arm[key] is not None:
                lines += ["", f'arm "{arm["arm"]}"{mark}, {payers}', *table(arm[key])]
                notes |= dict.fromkeys(assumptions(arm[key]))
        lines += [f"  {arm['liars']}"] if arm["liars"] else []
    _print([*lines, "", "What this rests on:", *notes, *LEGEND])


def _ladder_of_release(mechanisms: Sequence[str], texts: Texts, options: dict[str, Any], as_json: bool) -> None:
    from simulations.analysis.budget import described, ladder_of_release

    with redirect_stdout(sys.stderr):  # for libraries that load a checkpoint
        releases, ladder = ladder_of_release(mechanisms, texts=texts, **options)
    names, rungs = [described(item) for item in releases], [rung.to_dict() for rung in ladder]
    if as_json:
        del options["classes"]
        return print_json({"mechanisms": names} | options | {"ladder": rungs})
    _print([*names, *_with_reasons(rungs)])


def _ladder_of_ledger(place: Path, user: int | None, delta: float, as_json: bool) -> None:
    from client.device.statement import describe_account
    from client.policy import Policy
    from simulations.analysis.ledger import of_ledger

    answer = of_ledger(place, user=user, delta=delta)
    if as_json:
        return print_json(answer)
    lines = [f"{place}: {answer['releases']:,} releases of {answer['users']:,} users; user {answer['user']}"]
    lines += _with_reasons(answer["ladder"])
    if answer["policy"] is not None:
        allowance = describe_account(Policy.from_dict(answer["policy"]), answer["account"])
        lines += ["", f"What the policy beside it allows user {answer['user']}", *(f"  {line}" for line in allowance)]
    _print(lines)


def _with_reasons(rungs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a ladder and the assumptions of its rungs, as lines for people."""
    return [*table(rungs), "", "What this rests on:", *assumptions(rungs), *LEGEND]


@app.command("plan", epilog="Example: sottovoce budget plan --central-epsilon 1 --delta 1e-6 --users 20000")
def plan_(
    epsilon: Annotated[float, typer.Option("--central-epsilon", help="Central ε of one user.")],
    delta: Annotated[float, typer.Option("--delta", help="Central δ.")],
    users: Annotated[int | None, typer.Option("--users", help="Users invited; none: no shuffler.")] = None,
    label_epsilon: Annotated[
        float | None, typer.Option("--label-epsilon", help="ε of a label, by randomized response.")
    ] = None,
    mechanism: Annotated[
        str, typer.Option("--mechanism", metavar="SPEC", help="Without ε, as santext:tokens=64.")
    ] = "purkayastha",
    classes: Classes = 2,
    dropout: Annotated[float, typer.Option("--dropout", help="Share of users who never answer.")] = 0.0,
    records: Annotated[int, typer.Option("--records", help="Records of a user, at most.")] = 1,
    stages: Stages = 1,
    words: Words = None,
    generator: Generator = None,
    accept_unprotected: Public = None,
    crowd: Crowd = None,
    as_json: AsJson = False,
) -> None:
    """Find the largest local ε within a central budget. With an ε: the users needed."""
    from mechanisms.mechanism_text import read_mechanism
    from simulations.analysis import plan
    from simulations.analysis.budget import Texts

    check_delta(delta)
    spec = read_mechanism(mechanism)
    name = spec["mechanism"]
    if name == "privunit" and label_epsilon is not None:
        raise UserError("--label-epsilon: the label is in the vector that privunit releases; leave it out")
    labels = plan.LABEL_EPSILONS if label_epsilon is None else (label_epsilon,)
    terms = plan.Terms(epsilon, delta, users, dropout, records, stages, labels, classes or 2)
    texts = Texts(words, generator, accept_unprotected, crowd)
    if "epsilon" in spec:
        flags = ["--users"] * (users is not None)
        flags += ["--dropout"] * (dropout != 0) + [f"--{key}" for key in _given(texts)]
        if flags:
            raise UserError(f"{flags[0]}: a plan of a mechanism with an ε is its number of users; leave this out")
        answer = plan.plan_users(terms, mechanism, label_epsilon)
    else:
        answer = _plan_of(terms, spec, texts)
    if as_json:
        return print_json(answer)
    _print(plan_lines(answer))


def _plan_of(terms: Terms, spec: dict[str, Any], texts: Texts) -> dict[str, Any]:
    """Return the plan of a text, or of an embedding, which takes none of a text's options."""
    from simulations.analysis import plan
    from simulations.analysis.budget import is_text

    name = spec["mechanism"]
    if is_text(name):
        show_progress()
        with redirect_stdout(sys.stderr):  # for libraries that load a checkpoint
            build, kinds = texts.by_epsilon(spec)
        return plan.plan_text(terms, build, public=texts.public, crowd=texts.crowd) | {"among": kinds}
    if flags := _given(texts):
        raise UserError(f"--{flags[0]}: is about texts, and {name} sanitizes none; leave it out")
    dim = spec.pop("dim", 16)
    if unknown := [key for key in spec if key != "mechanism"]:
        raise UserError(f"--mechanism: a plan of {name} takes dim, and no {unknown[0]}")
    if terms.users is None:
        raise UserError("--users: say how many are invited")
    if name == "privunit":
        return plan.plan_privunit(terms, dim=dim)
    show_progress()
    return plan.plan(terms, mechanism=name, dim=dim)


def _given(texts: Texts) -> list[str]:
    """Return the options about texts that are given."""
    return [name.replace("_", "-") for name, value in asdict(texts).items() if value not in (None, [])]


def check_delta(delta: float) -> None:
    """Raise UserError for a δ that is not between 0 and 1."""
    if not 0 < delta < 1:  # also rejects NaN
        raise UserError(f"--delta: must be above 0 and below 1, got {delta:g}")


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines))


def plan_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return the results of `simulations.analysis.plan` as lines for people."""
    from mechanisms.guarantee import condition

    if "mechanisms" in answer:
        reason = "no number of users up to 10^10 suffices: raise --central-epsilon, or take more noise"
        users = reason if answer["users"] is None else f"{answer['users']:,} users delivered, of one crowd"
        return [
            *answer["mechanisms"],
            f"central budget ε = {answer['epsilon']:g} at δ = {answer['delta']:g}",
            "",
            users,
        ]
    crowd_text, of_text = "no shuffler", "tokens" in answer
    if answer["users"] is not None:
        crowd_text = f"{answer['users']:,} users invited, planned for {answer['delivered']:,} delivered"
        if answer["crowd"] is None:
            crowd_text += " (none hides another: give --crowd)"
        elif answer["crowd"] != answer["delivered"]:
            crowd_text += f", a crowd of {answer['crowd']:,}"
    if "cap_probability" in answer:
        return _privunit_for_people(answer, crowd_text)
    if of_text:
        crowd_text += f"; texts of at most {answer['tokens']} tokens"
    largest = f"largest ε of {answer['mechanism']}"
    lines = [
        f"central budget ε = {answer['epsilon']:g} at δ = {answer['delta']:g}: {crowd_text}",
        "",
        f"{'label ε':>8}  {largest:>28}  {'its worst case':>14}  {'central ε':>9}",
    ]
    for split in answer["splits"]:
        best = split["text_epsilon" if of_text else "embedding_epsilon"]
        lines.append(
            f"{number(split['label_epsilon']):>8}  {'none fits' if best is None else number(best):>28}  "
            f"{number(split['worst_case']):>14}  {number(split['central_epsilon']):>9}"
        )
    if all(split["worst_case"] is None for split in answer["splits"]):
        advice = answer.get("reason", "raise --central-epsilon, or hide among more users.")
        lines.append(f"Nothing fits this budget: {advice}")
    if answer["mechanism"] == "gaussian":
        lines.append(f"The worst cases of Gaussian noise are at δ = {answer['delta']:g}; it has none at 0.")
    lines += [f"Every ε is{clause.removeprefix(',')}."] if (clause := condition(answer.get("public", ()))) else []
    return [*lines, *([f"Drawn among {answer['among']}."] if of_text else [])]


def _privunit_for_people(answer: Mapping[str, Any], shuffled: str) -> list[str]:
    lines = [f"central budget ε = {answer['epsilon']:g} at δ = {answer['delta']:g}: {shuffled}", ""]
    if answer["local_epsilon"] is None:
        return [*lines, "no privunit fits"]
    n, dim = answer["delivered"], answer["dim"]
    return [
        *lines,
        f"privunit of D = {dim}: ε = {answer['local_epsilon']:g}, cap probability p = {answer['cap_probability']:g}",
        f"central ε = {answer['central_epsilon']:.4g}",
        f"E cos = {answer['expected_cosine']:.4g}; a mean of {n:,} draws is off by at most {answer['noise']:.3g} (root",
        f"mean square length); a trusted curator's Gaussian noise at this (ε, δ): {answer['curator_noise']:.3g}",
    ]


# --- ladders as lines


LEGEND = (
    "",
    "ε at δ: least that is proved, from exact loss distributions; worst case: the theorems alone, δ = 0. –: there is",
    "nothing of the kind, or no amplification is shown. Numbers are rounded to the nearest; --json has all digits.",
)


def table(rungs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line a rung: name, ε at δ, δ, worst case, and the neighbours or the reason for a missing number."""
    lines = [f"  {'rung':<10} {'ε at δ':>9}  {'δ':<9} {'worst case':>10}  what it is about"]
    for r in rungs:
        neighbours = r["neighbours"]
        if r["epsilon"] is None:
            neighbours = r["assumption"].partition(" (")[0]
        elif r["unprotected"]:
            neighbours = f"UNPROTECTED: {', '.join(r['unprotected'])}"
        elif r["statement"]:
            neighbours += f"; loss ≤ {r['statement']}"
        elif r["crowd"] is not None:
            neighbours += f"; in a crowd of {r['crowd']:,}"
        delta = "–" if r["epsilon"] is None else f"{r['delta']:.3g}"
        numbers = f"{number(r['epsilon']):>9}  {delta:<9} {number(r['worst_case']):>10}"
        lines.append(f"  {r['rung']:<10} {numbers}  {neighbours}")
    return lines


def assumptions(rungs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the assumptions of each rung with a number, one line each; for unprotected rungs, the reason."""
    rows = [r for r in rungs if r["epsilon"] is not None and (r["epsilon"] != "inf" or r["unprotected"] == [r["rung"]])]
    return [f"  {r['rung']}: {r['assumption']}" for r in rows]


def number(value: Any) -> str:
    """Return a number with four digits, or two decimals from 100 on; – if there is none."""
    if value is None:
        return "–"
    if value in ("inf", float("inf")):
        return "∞"
    return f"{value:,.2f}" if value >= 100 else f"{value:.4g}"


# --- check


def check(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE.toml", help="An experiment, or the name of a bundled one.")
    ] = None,
    data: Data = None,
    set_: Set = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print all keys of experiment files, as JSON Schema for editors.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a run's ε, crowds and warnings, without running it."""
    if schema:
        from simulations.experiment import schema as keys

        print(json.dumps(keys.schema(), indent=1, ensure_ascii=not in_unicode()))
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE.toml', or --schema")
    from simulations.experiment import load
    from simulations.run import check

    show_progress()
    changes = overrides(set_, data)
    findings = check.check(load(file, changes))
    points = [{"point": dict(point)} | check.check(experiment) for point, experiment in _grid(file, changes)]
    if as_json:
        return print_json(findings | ({"sweep": points} if points else {}))
    _print([line for part in (findings, *points) for line in lines(part)])


def _grid(file: str, changes: list[str]) -> list[tuple[Mapping[str, Any], Experiment]]:
    """Return each point of a file's [sweep.grid], with its experiment of the first seed."""
    from simulations.experiment.toml import SWEEP, document
    from simulations.sweep.definition import load_study

    table = document(file).get(SWEEP)
    if not (isinstance(table, dict) and "grid" in table):
        return []
    runs = load_study(file, changes).runs
    return [(run.point, run.experiment) for run in runs if run.experiment.seed == runs[0].experiment.seed]


def lines(findings: Mapping[str, Any]) -> list[str]:
    """Return the results of `check` as lines for people."""
    from server.card import PAYERS, price_of

    output = [f"{findings['name']}, protocol {findings['way']}", ""]
    if "point" in findings:
        point = ", ".join(["sweep", *(f"{key} = {value}" for key, value in findings["point"].items())])
        output = ["", f"{point}: {output[0]}", ""]
    for name, part in findings["parts"].items():
        output.append(f"{name:<8} {part['rows']:>9,} texts: {_classes(part)}")
    if findings["dropped"]:
        output.append(f"{findings['dropped']:,} rows have a text that is in another part, and are left out")
    for payers, crowd in findings["crowds"].items():
        verdict = "met" if crowd["users"] >= crowd["least"] else "NOT met"
        output.append(
            f"{payers} users in a batch: {crowd['users']:,} expected, of at least {crowd['least']:,}: {verdict}"
        )
    for cut in findings["cut"]:
        output.append(
            f"{cut['where']} = {cut['most']}: cuts {cut['share']:.1%} of the texts (median {cut['median']:,.0f} "
            f"{cut['unit']}, longest {cut['longest']:,})"
        )
    for arm in findings["arms"]:
        output += ["", f"{arm['arm']}{' (a reference: not private)' if arm['reference'] else ''}"]
        for key, payer in PAYERS.items():
            if (price := price_of(arm[key], payer)) is not None:
                rungs = [rung for rung in arm[key] if rung["epsilon"] is not None]
                output += [f" All that one {payer} releases: {price}", *table(rungs)]
        output += [f" {arm['liars']}"] if arm["liars"] else []
        output += [f" {_expected(**arm['expected'])}"] if arm["expected"] else []
    output += LEGEND
    return [*output, *(["", *(f"Look at: {line}." for line in findings["warnings"])] if findings["warnings"] else [])]


def _expected(*, share: float, half: int | None) -> str:
    """Return what users should teach, in a sentence."""
    users = (
        "half of it would take more than a billion users"
        if half is None
        else f"half of it takes about {float(f'{half:.2g}'):,.0f} users"
    )
    return f"If the encoder holds the labels, users teach about {share:.0%} of what they would without noise; {users}"


#: Classes that are listed one by one.
_LISTED = 12


def _classes(part: Mapping[str, Any]) -> str:
    """How many texts each class has; of many classes, the most and the fewest."""
    counts = part["classes"]
    descriptions = {label: f"{label} {n:,} ({n / max(1, part['rows']):.0%})" for label, n in counts.items()}
    if len(descriptions) <= _LISTED:
        return ", ".join(descriptions.values())
    most, fewest = (descriptions[pick(counts, key=counts.get)] for pick in (max, min))
    return f"{len(descriptions)} classes, from {most} to {fewest}"

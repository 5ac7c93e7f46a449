"""Report as one HTML file, for readers who judge a run and do not know differential privacy."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from server.declarations import releases
from simulations.analysis.attack_results import figures as attack_figures
from simulations.output.figures import inline
from simulations.output.numbers import count, is_finite, share
from simulations.run import trust
from simulations.run.figures import accuracy_figure, accuracy_said, spent_figure
from simulations.run.frontier import frontier_figure
from simulations.run.references import remarks
from simulations.run.report import notes
from simulations.run.table import beside
from sottovoce.report import facts, glossary, parts
from sottovoce.report.glossary import term
from sottovoce.report.html import Cell, Markup, element, joined, table
from sottovoce.report.reading import Finished
from sottovoce.report.studies import Study, section
from sottovoce.report.style import POLICY, SCRIPT, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def page(runs: Sequence[Finished], studies: Sequence[Study] = ()) -> str:
    """Return the report of runs, and of their studies, as an HTML file. The same runs give the same file.

    Args:
        runs: Finished runs.
        studies: Studies that some of them belong to.
    """
    alone = [run.name for run in runs if not any(run in study.runs for study in studies)]
    names = dict.fromkeys([*(study.found.name for study in studies), *alone])
    return _file(
        f"Privacy report: {'; '.join(names)}", _answers(runs),
        *(_section(f"The study {study.found.name}", section(study)) for study in studies),
        _section("The arms side by side", _overview(runs)),
        _section("What left each device, and what did not", _each(runs, parts.released)),
        _section("What it cost: ε, rung by rung", _COST, _each(runs, parts.ladders)),
        _section("What attacks got", _each(runs, parts.attacks, _attack_figures)),
        _section("Audit, and the devices' ledgers", _each(runs, parts.audit, parts.ledgers)),
        _section("What the models can do", _accuracy(runs), _each(runs, _measures, _figures, _notes)),
        _section("Made by, and how to make it again", _each(runs, _again)),
        _section("The words", glossary.page()),
    )  # fmt: skip


def page_of_plan(plan: Finished) -> str:
    """Return the report of a protocol that has not run (`sottovoce.report.planned`), as an HTML file."""
    return _file(
        f"Privacy report of what has not run: {plan.results['name']}", _answers([plan]),
        _section("The arms side by side", _overview([plan])),
        _section("What would leave each device, and what not", parts.released(plan)),
        _section("What it would cost: ε, rung by rung", _COST, parts.ladders(plan)),
        _section("Made by, and how to run it", _to_run(plan)),
        _section("The words", glossary.page()),
    )  # fmt: skip


def _file(title: str, *sections: Markup) -> str:
    head = element(
        "head", Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title), element("style", Markup(STYLE)),
    )  # fmt: skip
    main = element("main", element("h1", title), *sections)
    return f"<!DOCTYPE html>\n{element('html', head, element('body', main, _script()), lang='en')}\n"


def _script() -> Markup:
    return element("script", Markup(SCRIPT))


def _section(heading: str, *content: Markup) -> Markup:
    return element("section", element("h2", heading), *content)


def _each(runs: Sequence[Finished], *make: Any) -> Markup:
    """Return every run under its own heading."""
    return joined(joined([element("h3", _title(run, runs)), *(part(run) for part in make)]) for run in runs)


def _title(run: Finished, runs: Sequence[Finished]) -> str:
    """Return a run's name, with its folder if others have that name too."""
    same = sum(other.name == run.name for other in runs) > 1
    return f"{run.name} ({run.folder})" if same else run.name


_COST = element(
    "p", "An ", term("ε"), " says how much likelier what left a device may be from one content than from another: 0 is "
    "nothing, 1 is little, and 10 is up to 22,000 times. Each table goes from the smallest unit, a word or a text, to "
    "all that one user has, and to that once a ", term("shuffler"), " has taken off who sent it. The ",
    term("worst case"), " trusts nobody and knows no luck; compare by it.",
)  # fmt: skip


# --- summary

_ASKED = "What left each device?", "What does it cost at worst?", "What did an attacker get?"
_ASKED_BEFORE = "What would leave each device?", "What would it cost at worst?", "What would an attacker get?"
_RAN = (
    "{arms} ways to learn from users' texts (arms) were run, with simulated users unless somebody says otherwise. What "
    "stands here is what would leave, or has left, each user's device."
)
_PLANNED = (
    "{arms} ways to learn from users' texts (arms) are planned, and none has run. What stands here follows from the "
    "experiment's file and the theorems alone, for as many users as it expects to answer."
)

def _answers(runs: Sequence[Finished]) -> Markup:
    """Return the answers to three questions, in a sentence or two each."""
    arms = [arm for run in runs for arm in run.arms]
    private = [arm for arm in arms if not facts.unprotected(arm) and facts.sides(arm)]
    bare = [arm for arm in arms if facts.unprotected(arm)]
    asked = _ASKED if all(run.has_run for run in runs) else _ASKED_BEFORE
    parted = zip(asked, (_left(private, len(arms)), _paid(private), _got(runs, private)), strict=True)
    boxes = [element("section", element("h3", question), element("p", answer)) for question, answer in parted]
    names = ", ".join(dict.fromkeys(f"“{arm.name}”" for arm in bare))
    warned = [] if not bare else [
        element("p", parts.NOT_PROTECTED, f" {names}: nothing, or not everything, that users send is protected there. "
                "These are run to compare with, and are not for use on people.", class_="warn")
    ]  # fmt: skip
    intro = (_RAN if all(run.has_run for run in runs) else _PLANNED).format(arms=len(arms))
    heading = element("h2", "In short")
    return joined([element("p", intro), heading, element("div", boxes, class_="answers"), *warned])


def _left(private: Sequence[Any], arms: int) -> str:
    if not private:
        return "In no arm is everything that leaves protected: see below, arm by arm."
    texts = any(releases(arm.way, "text") for arm in private)
    noisy = "numbers or labels with noise added to them"
    what = "rewritten texts, whose words were drawn at random" if texts else noisy
    rest = " For the others see the warning, and below." if len(private) < arms else ""
    return f"In {len(private)} of {arms} arms no text as it was written, only {what} on the device.{rest}"


def _paid(private: Sequence[Any]) -> str:
    costs = [(facts.worst(arm), arm) for arm in private]
    known = sorted(((cost.epsilon, arm.name, cost) for cost, arm in costs if is_finite(cost.epsilon)),
                   key=lambda found: found[0])  # fmt: skip
    if not known:
        return "No arm promises a finite ε for everything that one user has."
    said = [
        f"{parts.price(cost).shown} (“{name}”, a {cost.whose}: {parts.guess(cost)})"
        for _, name, cost in (known[0], known[-1])
    ]
    most = ", up to ".join(dict.fromkeys(said))
    return f"For everything one user has, with nobody trusted, of the user who pays most: {most}."


def _got(runs: Sequence[Finished], private: Sequence[Any]) -> str:
    if not all(run.has_run for run in runs):
        return "Nothing has run, so nobody was attacked. What is promised holds against every attack."
    if all(run.attacks is None for run in runs):
        return "Not tried. What is promised holds against every attack; what a real one gets was not measured here."
    names = {arm.name for arm in private}
    entries = [entry for run in runs if run.attacks is not None for entry in run.attacks["entries"]]
    best = [entry for name in names if (entry := facts.strongest(entries, name)) is not None]
    if not best:
        return "Only arms without protection were attacked."
    entry = max(best, key=lambda entry: entry["success"] - (entry["baseline"] or 0.0))
    alarms = sum(bool(entry["alarm"]) for entry in entries)
    said = " None got more than is promised, but for chance."
    if alarms:
        said = f" ALARM: {alarms} attacks got more than the theorem allows."
    return f"At most, of protected arms, on “{entry['arm']}”: {_strongest(entry)}.{said}"


def _strongest(entry: Any) -> str:
    bound = "" if entry["bound"] is None else f", and the theorem allows {share(entry['bound'])}"
    of = f" ({entry['attribute']})" if entry.get("attribute") else ""
    return (
        f"{parts.about(entry)}{of}: success {share(entry['success'])}, where a guess without any release has "
        f"{share(entry['baseline'])}{bound}"
    )


def _overview(runs: Sequence[Finished]) -> Markup:
    rows, marked = [], {}
    for run in runs:
        entries = None if run.attacks is None else run.attacks["entries"]
        for arm in run.arms:
            if facts.unprotected(arm):
                marked[len(rows)] = "bad"
            cost, (central, whom) = facts.worst(arm), facts.central(arm)
            strongest = None if entries is None else facts.strongest(entries, arm.name)
            best = "not tried" if strongest is None else _strongest(strongest)
            trusted = f"{parts.price(central).shown}, trusting {whom} (a {central.whose})"
            rows.append([
                parts.named(arm), *([_title(run, runs)] if len(runs) > 1 else []), parts.price(cost),
                cost.whose or "–", parts.guess(cost),
                Cell("nothing further" if whom == "nobody" else trusted, central.epsilon),
                *([Cell(share(arm.accuracy), arm.accuracy), best] if run.has_run else []),
            ])  # fmt: skip
    headings = [
        term("arm"), *(["run"] if len(runs) > 1 else []), term("worst case", "worst case ε of one user"),
        "of which user", "at worst, which of two a user has", term("central ε", "ε if somebody is trusted"),
        *(["accuracy", "strongest attack"] if all(run.has_run for run in runs) else []),
    ]  # fmt: skip
    return table("All arms: what the user risks who pays most, and what it gives", headings, rows, sorts=True,
                 marked=marked)  # fmt: skip


# --- accuracy


def _accuracy(runs: Sequence[Finished]) -> Markup:
    rows, marked = [], {}
    for run in runs:
        for arm in run.arms:
            if facts.unprotected(arm):
                marked[len(rows)] = "bad"
            shown, clean = accuracy_said(arm.score("sanitized")), arm.accuracy_clean_test
            rows.append([
                parts.named(arm), *([_title(run, runs)] if len(runs) > 1 else []), Cell(shown, arm.accuracy),
                Cell(share(clean), clean), parts.price(facts.worst(arm)), Cell(count(arm.delivered), arm.delivered),
                Cell(count(arm.bytes_per_user), arm.bytes_per_user),
            ])  # fmt: skip
    headings = [
        term("arm"), *(["run"] if len(runs) > 1 else []), term("sanitized inference", "accuracy, sanitized"),
        "accuracy, on device", term("worst case ε"), "users delivered", "bytes per user",
    ]  # fmt: skip
    return table("Accuracy on test texts", headings, rows, sorts=True, marked=marked)


def _measures(run: Finished) -> Markup:
    return joined(
        table(f"{title or 'Other measures'}, ± standard error by test text", headings, rows, sorts=True)
        for title, (headings, *rows) in beside([run.results])
    )


def _figures(run: Finished) -> Markup:
    results: Any = run.results
    accuracy = frontier_figure([results]) if trust.anybody(run.arms) else accuracy_figure(results)
    return joined([
        _figure(run, accuracy, "accuracy", "Accuracy against ε; numbers are in the table above."),
        _figure(run, spent_figure(results), "spent", "Worst-case ε of one release, arm by arm."),
    ])  # fmt: skip


def _attack_figures(run: Finished) -> Markup:
    if run.attacks is None:
        return Markup()
    drawn = attack_figures(dict(run.attacks))
    return joined(_figure(run, figure, name, "Success of attacks; numbers are in the table above.")
                  for name, figure in drawn.items())  # fmt: skip


def _figure(run: Finished, figure: Figure, name: str, said: str) -> Markup:
    place = sha256(str(run.folder).encode()).hexdigest()[:8]
    drawn = Markup(inline(figure, said, f"{name}-{place}-"))
    return element("figure", drawn, element("figcaption", said), tabindex="0")


def _notes(run: Finished) -> Markup:
    warned = remarks([run.results])
    said = notes(dict(run.results))
    return joined(element("p", note, class_="warn" if note in warned else "soft") for note in said)


# --- origin


def _to_run(plan: Finished) -> Markup:
    commands = [
        f"sottovoce check {plan.folder}", f"sottovoce simulate {plan.folder} --out run", "sottovoce attack run",
        "sottovoce report run",
    ]  # fmt: skip
    said = ", ".join(f"{name} {version}" for name, version in plan.results["versions"].items())
    return joined([element("p", f"Versions: {said}."), element("pre", "\n".join(commands))])


def _again(run: Finished) -> Markup:
    versions = run.results.get("versions") or {}
    encoder = run.results.get("encoder") or {}
    commands = [f"sottovoce simulate {run.folder}/experiment.toml --out again"]
    commands += ["sottovoce attack again"] if run.attacks is not None else []
    commands += ["sottovoce audit --out again/audit"] if run.audit is not None else []
    commands.append("sottovoce report again")
    said = [f"{name} {version}" for name, version in versions.items()]
    said += [f"models trained on {where}"] if (where := run.results.get("trained_on")) else []
    made = f"Encoder: {encoder.get('model', 'none')}, SHA-256 {encoder.get('sha256') or 'not known'}."
    if not run.has_run:
        commands = [f"sottovoce check {run.folder}", f"sottovoce simulate {run.folder} --out run",
                    "sottovoce attack run", "sottovoce report run"]  # fmt: skip
        return joined([element("p", f"Versions: {', '.join(said)}."), element("p", made),
                       element("pre", "\n".join(commands))])  # fmt: skip
    return joined([
        element("p", f"Versions: {', '.join(said) or 'not known'}."), element("p", made),
        element("p", f"Randomness: {run.results.get('randomness') or 'not known'}."),
        element("pre", "\n".join(commands)),
    ])  # fmt: skip

"""Report as one HTML file, for readers who judge a run and do not know differential privacy.

`templates/` holds the page and its sentences; here are the values, and the sentences that depend on many of them.
"""

from __future__ import annotations

import base64
import math
import shlex
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from server.card import PAYERS, Price
from server.protocols import releases
from server.protocols.declaration import CENTRALISED, PAPER
from simulations.analysis.attack_results import ALLOWED, BELOW, below
from simulations.analysis.attack_results import figures as drawn_attacks
from simulations.experiment.result import ArmResult
from simulations.output.figures import inline
from simulations.output.numbers import count, is_finite, share
from simulations.run.figures import frontier_figure
from simulations.run.remarks import remarks
from simulations.run.report import notes
from simulations.run.table import beside
from sottovoce.report import facts, glossary
from sottovoce.report.reading import Finished
from sottovoce.report.studies import Study, view

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def page(runs: Sequence[Finished], studies: Sequence[Study] = ()) -> str:
    """Return the report of runs, and of their studies, as an HTML file. The same runs give the same file.

    Args:
        runs: Finished runs.
        studies: Studies that some of them belong to.
    """
    single_names = [run.name for run in runs if not any(run in study.runs for study in studies)]
    titles = dict.fromkeys([*(study.found.name for study in studies), *single_names])
    questions = "What left each device?", "What does it cost at worst?", "What did an attacker get?"
    title = f"Privacy report: {'; '.join(titles)}"
    return _rendered("report.html", runs, questions, title=title, studies=[view(study) for study in studies])


def page_of_plan(plan: Finished) -> str:
    """Return the report of a protocol that has not run (`sottovoce.report.write`), as an HTML file."""
    questions = "What would leave each device?", "What would it cost at worst?", "What would an attacker get?"
    return _rendered(
        "plan.html", [plan], questions, title=f"Privacy report of what has not run: {plan.results['name']}"
    )


def _rendered(template: str, runs: Sequence[Finished], asked: Sequence[str], **more: Any) -> str:
    """Return a page of a template that extends base.html, with its script and policy."""
    arms = [arm for run in runs for arm in run.arms]
    private = [arm for arm in arms if not facts.unprotected(arm) and facts.sides(arm)]
    names = dict.fromkeys(f"“{arm.name}”" for arm in arms if facts.unprotected(arm))
    answers = _left(private, len(arms)), _paid(private, len(arms)), _got(runs, private)
    templates = _templates()
    script = Markup(templates.get_template("sort.js").render())
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    return templates.get_template(template).render(
        runs=runs,
        names=[_title(run, runs) for run in runs],
        arms=len(arms),
        bare=", ".join(names),
        answers=list(zip(asked, answers, strict=True)),
        glossary=glossary.entries(),
        script=script,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        **more,
    )


def _templates() -> Environment:
    """Return the templates. Text is escaped, and a name that nobody gave is an error."""
    result = Environment(
        loader=PackageLoader("sottovoce.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    result.filters["quote"] = lambda path: shlex.quote(str(path))
    result.filters["number"] = lambda value: "Infinity" if value == math.inf else f"{value:.12g}"  # for JavaScript
    result.globals |= {
        "facts": facts,
        "meaning": glossary.meaning,
        "count": count,
        "share": share,
        "is_finite": is_finite,
        "infinity": math.inf,
        "guess": _guess,
        "strongest": _strongest_of,
        "why_trusted": _why_trusted,
        "about": _about,
        "attack_notes": _attack_notes,
        "ALLOWED": ALLOWED,
        "attack_figures": _attack_figures,
        "accuracy_figures": _figures,
        "measured": lambda run: beside([run.results]),
        "remarked": _remarked,
        "versions": _versions,
    }
    return result


def _title(run: Finished, runs: Sequence[Finished]) -> str:
    """Return a run's name, with its folder if others have that name too."""
    duplicate = sum(other.name == run.name for other in runs) > 1
    return f"{run.name} ({run.folder})" if duplicate else run.name


# --- costs


def _guess(price: Price | None, *, cell: bool = False) -> str:
    """Return the best success of an adversary's guess between two inputs, rounded up, in words.

    A condition of the price is one of the guess: the two inputs agree in what is public.

    Args:
        price: The price; None: nothing is released.
        cell: Whether the words are a cell below "right guesses of 100, at most".
    """
    chance = None if price is None else facts.best_guess(price)
    if price is None or chance is None:
        return "–"
    if chance > 0.9999:
        return "practically all" if cell else "practically every guess may be right"
    condition, number = ", between such data" if price.public else "", f"{math.ceil(chance * 1e4) / 100:.2f}"
    return number + condition if cell else f"at most {number} in 100 guesses are right{condition}, where a coin has 50"


def _why_trusted(arm: ArmResult) -> str | None:
    """Return why the server must be trusted with everything; None if it need not be."""
    if arm.way == PAPER.name:
        return "gradients depend on the raw text"
    if arm.way == CENTRALISED.name:
        return "it learns from the texts and labels as they are, and adds no noise"
    return "the server adds the noise" if facts.server_is_trusted(arm) else None


# --- summary


def _left(private: Sequence[Any], arms: int) -> str:
    if not private:
        return "In no arm is everything that leaves protected: see below, arm by arm."
    texts = any(releases(arm.way, "text") for arm in private)
    default = "numbers or labels with noise added to them"
    form = "rewritten texts, whose words were drawn at random" if texts else default
    warning = " For the others see the warning, and below." if len(private) < arms else ""
    return f"In {len(private)} of {arms} arms no text as it was written, only {form} on the device.{warning}"


def _paid(private: Sequence[ArmResult], arms: int) -> str:
    training_range, inference_range = (_range(private, payer_kind, alone=arms == 1) for payer_kind in PAYERS.values())
    if not (training_range or inference_range):
        return "No arm promises a finite ε for everything that one user has."
    lines = [f"For everything one user has, with nobody trusted: {training_range}."] if training_range else []
    if inference_range:
        phrase = "For all requests of a user at inference" + ", beside that" * bool(training_range)
        lines.append(f"{phrase}: {inference_range}.")
    if remainder := arms - len(private):
        lines.append(f"{count(remainder)} of {count(arms)} arms {'promises' if remainder == 1 else 'promise'} nothing.")
    return " ".join(lines)


def _range(arms: Sequence[ArmResult], whose: str, *, alone: bool) -> str:
    """Return the least and the largest price of a user, of PAYERS, in words; "" if no arm has a finite one.

    alone: the report is of one arm, which needs no name.
    """
    prices = [(price, arm) for arm in arms if (price := facts.paid(arm, whose)) is not None]
    finite = sorted(
        (entry for entry in prices if is_finite(entry[0].epsilon)), key=lambda entry: entry[0].epsilon or 0.0
    )
    if not finite:
        return ""
    if alone:
        return f"{finite[0][0]}, {_guess(finite[0][0])}"
    ends = finite[:1] if finite[0][0] == finite[-1][0] else (finite[0], finite[-1])
    return " up to ".join(f"{price} (“{arm.name}”: {_guess(price)})" for price, arm in ends)


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
    text = " None got more than is promised, but for chance."
    if alarms:
        text = f" ALARM: {alarms} attacks got more than the theorem allows."
    return f"At most, of protected arms, on “{entry['arm']}”: {_strongest(entry)}.{text}"


def _strongest(entry: Any) -> str:
    bound = "" if entry["bound"] is None else f", and the theorem allows {share(entry['bound'])}"
    attribute = f" ({entry['attribute']})" if entry.get("attribute") else ""
    return (
        f"{_about(entry)}{attribute}: success {share(entry['success'])}, where a guess without any release has "
        f"{share(entry['baseline'])}{bound}"
    )


def _strongest_of(run: Finished, arm: ArmResult) -> str:
    """Return the attack on an arm that got most, in words."""
    entry = None if run.attacks is None else facts.strongest(run.attacks["entries"], arm.name)
    return "not tried" if entry is None else _strongest(entry)


# --- attacks, figures, notes


def _about(entry: Mapping[str, Any]) -> str:
    """Return the goal of an attack."""
    return str(entry.get("about", f"{entry['attack']}: attacks.md describes it"))


def _attack_notes(entry: Mapping[str, Any]) -> str:
    alarm = "ALARM: more than a true theorem allows" * bool(entry["alarm"])
    return "; ".join(filter(None, (alarm, BELOW * below(entry), entry.get("note", ""))))


def _figures(run: Finished) -> list[tuple[Markup, str]]:
    """Return figures as <svg>, with captions."""
    text = "Accuracy against ε; numbers are in the table above."
    return [_figure(run, frontier_figure([run.results]), "accuracy", text)]


def _attack_figures(run: Finished) -> list[tuple[Markup, str]]:
    text = "Success of attacks; numbers are in the table above."
    figures = {} if run.attacks is None else drawn_attacks(dict(run.attacks))
    return [_figure(run, figure, name, text) for name, figure in figures.items()]


def _figure(run: Finished, figure: Figure, name: str, said: str) -> tuple[Markup, str]:
    place = sha256(str(run.folder).encode()).hexdigest()[:8]
    return Markup(inline(figure, said, f"{name}-{place}-")), said  # `inline` escapes


def _remarked(run: Finished) -> list[tuple[str, bool]]:
    """Return notes on a run, and whether each is a warning."""
    warnings = remarks([run.results])
    return [(note, note in warnings) for note in notes(dict(run.results))]


def _versions(run: Finished) -> str:
    lines = [f"{name} {version}" for name, version in (run.results.get("versions") or {}).items()]
    return ", ".join(lines + ([f"models trained on {device}"] if (device := run.results.get("trained_on")) else []))

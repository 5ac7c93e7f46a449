"""Output of a run: a table for people, results.json for programs, and figures for print.

Every function reads the results dict of `simulations.run.run.run` and does not change it. Infinity is ∞ in tables and
"inf" in JSON. Values that do not apply are "–" and null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from server.protocols.statistics import SAME, STATISTICS
from simulations.corpora.classes import listed
from simulations.experiment.result import ArmResult, arms_of
from simulations.output.jsonable import json_ready, print_json
from simulations.output.markdown import table as markdown_table
from simulations.output.numbers import count, plain, share
from simulations.run import trust
from simulations.run.comparison import added, conclusion
from simulations.run.comparison import shown as difference
from simulations.run.figures import REFERENCE_MARK, frontier_figure, title
from simulations.run.remarks import remarks
from simulations.run.table import beside

Results = dict[str, Any]
Row = list[str]


def write(results: Results, folder: Path) -> list[Path]:
    """Write results.json, results.md and the figures into an existing folder, and return their paths."""
    readable = json.dumps(json_ready(results), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    paths = []
    for name, text in (("results.json", readable), ("results.md", markdown(results))):
        (folder / name).write_text(text, encoding="utf-8")
        paths.append(folder / name)
    frontier_figure([results]).savefig(folder / "accuracy.png")
    return [*paths, folder / "accuracy.png"]


def say(results: Results, out: Path | str, holds: str, *, as_json: bool) -> None:
    """Print the results of a command: one JSON object, or the table and the place of the other files.

    `holds` describes the contents of the folder `out`.
    """
    if as_json:
        print_json(results)
        print(f"results: {out}", file=sys.stderr)
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    print_table(results, console)
    console.print(f"{holds}: {out}", markup=False, soft_wrap=True)


# --- the table


def print_table(results: Results, console: Console) -> None:
    """Print the table and its footnotes."""
    if results.get("way_sentence"):
        console.print(Text(results["way_sentence"], style="bold"))
    # A narrow terminal omits the last two columns, so that names stay readable; results.md has all.
    headings, *rows = table(results)
    left_out = 0 if console.width >= 100 else 2
    styles = ["dim" if arm.reference else "" for arm in arms_of(results)]
    _print_rows(console, title(results), headings[: len(headings) - left_out], rows, styles)
    for heading, (names, *item) in beside([results]):
        if not heading:  # tables of groups are in the HTML report
            _print_rows(console, _OTHERS, names, item, [""] * len(item))
    for note in notes(results):
        console.print(Text(note))
    if sentence := conclusion(results):
        console.print(Text(sentence, style="bold"))


def _print_rows(console: Console, heading: str, names: Row, rows: Iterable[Row], styles: Iterable[str]) -> None:
    shown = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i, name in enumerate(names):
        # Long names fold, numbers do not.
        shown.add_column(name, justify="right" if i else "left", no_wrap=bool(i))
    for row, style in zip(rows, styles, strict=True):
        shown.add_row(*map(Text, row[: len(names)]), style=style or None)
    console.print(shown)


def table(results: Results) -> list[list[str]]:
    """Return headings, and a row for each arm.

    If an arm has a baseline, the accuracies are followed by what users added. If an arm's users trust the server, there
    are columns for central ε and the trusted party.
    """
    arms = arms_of(results)
    entries = {
        "arm": [arm.name + (f" {REFERENCE_MARK}" if trust.unprotected(arm) else "") for arm in arms],
        "accuracy,\nsanitized": [share(arm.accuracy, arm.accuracy_se) for arm in arms],
        "accuracy,\non device": [share(arm.accuracy_clean_test) for arm in arms],
    }
    if gains := added(results):
        entries["users\nadded"] = [difference(gains.get(arm.name)) for arm in arms]
    priced = trust.columns([(arm,) for arm in arms])
    entries |= {heading.replace(" ", "\n"): item for heading, item in priced.items()}
    entries |= trust.central_columns([(arm,) for arm in arms]) if trust.anybody(arms) else {}
    entries |= {
        "users": [count(arm.delivered) for arm in arms],
        "bytes\nper user": [count(arm.bytes_per_user) for arm in arms],
        "seconds": ["–" if arm.seconds is None else f"{arm.seconds:.1f}" for arm in arms],
    }
    return [[*entries], *map(list, zip(*entries.values(), strict=True))]


_OTHERS = "Other measures, ± standard error by test text"


def notes(results: Results) -> list[str]:
    """Return the footnotes: the meaning of columns, arms that are not private, and losses of rows and nodes."""
    lines = [
        "Accuracy on sanitized test sentences ± standard error, by the distinct texts that arrived; on device: on "
        "clean ones, by the user's own device. "
        f"Chance is {results['chance']:.3f}, of {len(results['classes'])} classes."
    ]
    if added(results):
        lines.append(
            "Users added: accuracy (on the device, if no request is sent) less that of the public-only arm with the "
            "same inference, paired by test text."
        )
    lines += data_notes(results.get("corpus") or {})
    arms = arms_of(results)
    statistics = [arm for arm in arms if arm.way == STATISTICS.name]
    if any(rung["rung"] == "answer" for arm in arms for rung in arm.test_ladder or []):
        lines.append(_ANSWERS)
    lines += [f"{trust.PAID_NOTE} Users: delivered and validated.", *trust.conditions([results])]
    lines += [trust.NOTE] if trust.anybody(arms) else []
    encoder = results.get("encoder") or {}
    if encoder.get("precision") not in (None, "fp32"):
        lines.append(f"Encoder: {encoder['model']} in {encoder['precision']}, another public function than in fp32.")
    if (student := encoder.get("student", SAME)) != SAME:
        lines.append(f"Encoder of the trained models: {student}, from public text that {encoder['model']} labelled.")
    if any(map(trust.unprotected, arms)):
        lines.append(f"{REFERENCE_MARK} {trust.UNPROTECTED}")
    lines += remarks([results])
    lines += [
        f"{arm.name}: no model comes of it: what {arm.delivered:,} users released says nothing (ε = 0), and no "
        "public text has a label that could."
        for arm in statistics
        if arm.delivered and arm.accuracy_clean_test is None
    ]
    lines += [
        f"{arm.name}: none of its {arm.users:,} users was queried: if the class names are right, they would add next "
        "to nothing (training.least-gain; 0 always queries). Without users, wrong names are not detected."
        for arm in arms
        if not arm.queried
    ]
    if any(arm.perturbed for arm in arms):
        lines.append(f"Words replaced or removed: {'; '.join(_perturbed(arm) for arm in arms if arm.perturbed)}.")
    others = (arm for arm in arms if not _asked_in_vain(arm))
    lines += [f"{arm.name}: {lost}." for arm in others if (lost := _lost(arm))]
    return lines + [f"{line}." for line in undelivered(arms_of(results))]


def _perturbed(arm: ArmResult) -> str:
    """Return the share of the words that an arm's users had replaced or removed."""
    whose = {"train": "in training", "test": "to ask"}
    counts = arm.perturbed.items()
    return f"{arm.name}: " + ", ".join(
        f"{item['perturbed'] / max(1, item['words']):.1%} of {item['words']:,} {whose[split]}" for split, item in counts
    )


def undelivered(arms: Iterable[ArmResult]) -> list[str]:
    """Return a line for each arm with users none of whom reached the server."""
    return [
        f"{arm.name}: none of {arm.users:,} users was delivered ({_lost(arm) or 'nothing came back'})"
        for arm in arms
        if _asked_in_vain(arm)
    ]


def _asked_in_vain(arm: ArmResult) -> bool:
    return arm.users > 0 and arm.delivered == 0 and arm.queried


def _lost(arm: ArmResult) -> str:
    """Return the number of lost rows and nodes by reason; "" if there are none."""
    kinds = {"dropped": arm.dropped, "errors": arm.errors}
    return ", ".join(f"{n} {reason} ({kind})" for kind, lost in kinds.items() for reason, n in lost.items() if n)


def data_notes(corpus: dict[str, Any]) -> list[str]:
    """Return notes on the data: matched public classes, classes without test rows, overlaps, repetitions."""
    lines = []
    if untested := corpus.get("untested"):
        lines.append(
            "Classes without a row under data.test-limit, of which accuracy says nothing; raise it: "
            f"{listed(untested)}."
        )
    if classes := corpus.get("classes"):
        text = ", ".join(f"{data_name} is {public_name}" for data_name, public_name in classes.items())
        lines.append(f"Classes of the data, and of the public part: {text}.")
    for where, counts in (corpus.get("overlap") or {}).items():
        of, within = where.split(" in ")
        texts, users = counts["texts"], counts["users"]
        if texts or users:
            both = f"; {users:,} users are in both" if users else ""
            why = f" Accepted: {reason}." if (reason := corpus.get("overlap_reason")) else ""
            lines.append(f"Overlap: of {counts['rows']:,} {of} texts {texts:,} are also in {within}{both}.{why}")
    if repeated := {name: n for name, n in (corpus.get("repeated") or {}).items() if n}:
        rows = ", ".join(f"{n:,} of {corpus[name]:,} in {name}" for name, n in repeated.items())
        lines.append(f"Texts that stand in their part before, but for punctuation and case: {rows}.")
    return lines


_ANSWERS = (
    "Asked by answer: a user's device runs the whole model on a sentence and releases the class alone, between any two "
    "sentences; sanitized accuracy is that of the released classes."
)


def markdown(results: Results) -> str:
    """Return the table with the columns that do not fit a terminal: mechanism, m', and the guarantee in words."""
    headings, *rows = table(results)
    names = [name.replace("\n", " ").replace("- ", "-") for name in headings]
    more = [[plain(arm.mechanism), count(arm.dim), plain(arm.budget.statement)] for arm in arms_of(results)]
    cells = [[*row, *item] for row, item in zip(rows, more, strict=True)]
    lines = [f"# {title(results)}", ""]
    if results.get("way_sentence"):
        lines += [f"**{results['way_sentence']}**", ""]
    lines += [markdown_table([*names, "mechanism", "m'", "guarantee"], cells)]
    for heading, (names, *others) in beside([results]):
        if not heading:
            lines += ["", f"## {_OTHERS}", "", markdown_table(names, others)]
    lines += ["", "![Accuracy against ε](accuracy.png)", "", *(f"{note}\n" for note in notes(results)), _MORE]
    if sentence := conclusion(results):
        lines += ["", f"**{sentence}**"]
    return "\n".join(lines) + "\n"


_MORE = (
    "results.json has each arm's ladder, what dishonest users can do, and the differences of all arms, paired by test "
    "text; `sottovoce report` also shows accuracies by class and user. answers/ holds what each arm got right, by text."
)

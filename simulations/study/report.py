"""What a run says: a table for people, results.json for machines, figures for print, in a whole folder.

Everything here reads the results dict of `simulations.study.run.run` and changes nothing. Infinity is ∞ to people
and "inf" in JSON; what does not apply is "–" and null.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulations.experiment import PUBLIC_ONLY, STATISTICS
from simulations.output.figures import COLOURS, MARKERS, new_figure
from simulations.output.jsonable import json_ready
from simulations.study import trust

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = dict[str, Any]
Arm = dict[str, Any]

#: What one unit of the metric is, as ε is multiplied by it.
DISTANCES = {"angular": "angle", "euclidean": "dist.", "words, euclidean": "Σdist.", "words, discrete": "token"}
REFERENCE_MARK = "†"

def write(results: Results, folder: Path) -> list[Path]:
    """results.json, results.md and the figures, in a folder that is there. Returns their paths."""
    readable = json.dumps(json_ready(results), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    paths = []
    for name, text in (("results.json", readable), ("results.md", markdown(results))):
        (folder / name).write_text(text, encoding="utf-8")
        paths.append(folder / name)
    for name, draw in (("accuracy.png", accuracy_figure), ("spent.png", spent_figure)):
        draw(results).savefig(folder / name)
        paths.append(folder / name)
    return paths


def say(results: Results, out: Path, holds: str, *, as_json: bool) -> None:
    """What a command says of its results on stdout: one JSON object, or the table and where to find the rest. holds:
    what there is in the folder `out`."""
    if as_json:
        print(json.dumps(json_ready(results), ensure_ascii=False, allow_nan=False))
        print(f"results: {out}", file=sys.stderr)
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    print_table(results, console)
    console.print(f"{holds}: {out}", markup=False, soft_wrap=True)


# --- the table


def print_table(results: Results, console: Console) -> None:
    """The table, and below it what must not be read without it."""
    if results.get("way_sentence"):
        console.print(Text(results["way_sentence"], style="bold"))
    # A narrow terminal does without the last two columns, so that names stay readable; results.md has all.
    headings = headings_of(results)
    shown = len(headings) if console.width >= 100 else len(headings) - 2
    table = Table(title=title(results), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i, heading in enumerate(headings[:shown]):
        # Names fold where they are long; a number never does.
        table.add_column(heading, justify="right" if i else "left", no_wrap=bool(i))
    for arm in results["arms"]:
        row = (Text(cell) for cell in cells(arm, trusted=trust.anybody(results["arms"]))[:shown])
        table.add_row(*row, style="dim" if arm.get("reference") else None)
    console.print(table)
    for note in notes(results):
        console.print(Text(note))


HEADINGS = (
    "arm",
    "accuracy,\nsanitized",
    "accuracy,\non device",
    "metric ε",
    "worst\ncase ε",
    "label ε",
    "users",
    "bytes\nper user",
    "seconds",
)


def headings_of(results: Results) -> tuple[str, ...]:
    """The columns of a table; whom users trust stands before their number, where an arm's users trust the server."""
    return _with_trust(HEADINGS, trust.COLUMNS) if trust.anybody(results["arms"]) else HEADINGS


def _with_trust(columns: tuple[str, ...], told: tuple[str, ...]) -> tuple[str, ...]:
    at = HEADINGS.index("users")
    return (*columns[:at], *told, *columns[at:])


def title(results: Results) -> str:
    return f"{results['name']}, seed {results['seed']}, way {results['way']}"


def cells(arm: Arm, *, trusted: bool = False) -> tuple[str, ...]:
    """One row, a text for each of HEADINGS, and of `trust.COLUMNS` where somebody is trusted."""
    budget = arm.get("budget") or {}
    metric = _epsilon(budget.get("metric_epsilon"))
    if budget.get("metric") in DISTANCES and budget.get("metric_epsilon") not in (None, math.inf):
        metric += f"·{DISTANCES[budget['metric']]}"
    row = (
        arm["name"] + (f" {REFERENCE_MARK}" if arm.get("reference") else ""),
        _share(arm.get("accuracy"))
        + (f" ± {arm['accuracy_se']:.3f}" if _is_finite(arm.get("accuracy_se")) else ""),
        _share(arm.get("accuracy_clean_test")),
        metric,
        _worst_said(budget)
        + (f", {_epsilon(asking)} to ask" if (asking := budget.get("asking_epsilon")) is not None else ""),
        _epsilon(budget.get("label_epsilon")),
        _count(arm.get("delivered")),
        _count(arm.get("bytes_per_user")),
        f"{arm['seconds']:.1f}" if _is_finite(arm.get("seconds")) else "–",
    )
    epsilon, who = trust.central(arm)
    return _with_trust(row, (_epsilon(epsilon), who)) if trusted else row


def notes(results: Results) -> list[str]:
    """Footnotes: how to read the columns, what is not private, what was lost on the way."""
    lines = [
        "Accuracy ± standard error on sanitized test sentences; on device: on clean ones, "
        f"{'the whole model' if _on_text(results) else 'the last step'} run by the user. "
        f"Chance is {results['chance']:.3f}, of {len(results['classes'])} classes.",
    ]
    lines += data_notes(results.get("corpus") or {})
    statistics = [arm for arm in results["arms"] if arm.get("way") == STATISTICS]
    lines += [_STATISTICS] if statistics else []
    if any(rung["rung"] == "answer" for arm in results["arms"] for rung in arm.get("test_ladder") or []):
        lines.append(_ANSWERS)
    if len(statistics) < len(results["arms"]):
        lines.append(
            f"{_METRIC['text' if _on_text(results) else 'embedding']} bounds the loss; worst case: any two, "
            "at δ = 0 where none is said. Label ε –: none sent, or declared public. Users: delivered and validated."
        )
    lines += [trust.NOTE] if trust.anybody(results["arms"]) else []
    encoder = results.get("encoder") or {}
    if encoder.get("precision") not in (None, "fp32"):
        lines.append(f"Encoder: {encoder['model']} in {encoder['precision']}, another public function than in fp32.")
    if any(arm.get("reference") for arm in results["arms"]):
        lines.append(
            f"{REFERENCE_MARK} a reference: not private, its users send what no policy should accept."
        )
    others = (arm for arm in results["arms"] if not _asked_in_vain(arm))
    lines += [f"{arm['name']}: {lost}." for arm in others if (lost := _lost(arm))]
    return lines + [f"{line}." for line in undelivered(results)]


def undelivered(results: Mapping[str, Any]) -> list[str]:
    """A line for each arm whose users were asked and of whom nobody reached the server: it teaches nothing."""
    return [
        f"{arm['name']}: none of {arm['users']:,} users was delivered ({_lost(arm) or 'nothing came back'})"
        for arm in results["arms"]
        if _asked_in_vain(arm)
    ]


def _asked_in_vain(arm: Arm) -> bool:
    return bool(arm.get("users")) and arm.get("delivered") == 0


def _lost(arm: Arm) -> str:
    """How many rows and nodes came to nothing, by the reason; "" where none did."""
    kinds = {"dropped": arm.get("dropped") or {}, "errors": arm.get("errors") or {}}
    return ", ".join(f"{n} {reason} ({kind})" for kind, lost in kinds.items() for reason, n in lost.items() if n)


def data_notes(corpus: dict[str, Any]) -> list[str]:
    """What must be known of the data: which of its classes is which of the public part's, what two parts
    share, what one repeats."""
    lines = []
    if classes := corpus.get("classes"):
        said = ", ".join(f"{ours} is {theirs}" for ours, theirs in classes.items())
        lines.append(f"Classes of the data, and of the built-in public reviews: {said}.")
    for where, counts in (corpus.get("overlap") or {}).items():
        of, within = where.split(" in ")
        texts, near, users = (counts[name] for name in ("texts", "near", "users"))
        said = [f"of {counts['rows']:,} {of} texts {texts:,} are also in {within}, {near:,} nearly"]
        said += [f"{users:,} users are in both"] if users else []
        if texts or near or users:
            why = f" Accepted: {reason}." if (reason := corpus.get("overlap_reason")) else ""
            lines.append(f"Overlap: {'; '.join(said)}.{why}")
    if repeated := {name: n for name, n in (corpus.get("repeated") or {}).items() if n}:
        said = [f"{n:,} of {corpus[name]:,} in {name}" for name, n in repeated.items()]
        lines.append(f"Texts that stand in their part before, but for punctuation and case: {', '.join(said)}.")
    return lines


_METRIC = {
    "embedding": "Metric ε times the distance of two mapped embeddings (angle, or Euclidean)",
    "text": "Metric ε times the sum of the words' distances (or the number of tokens), and what a length costs,",
}


_STATISTICS = (
    "Way statistics: ε is of one vector a user, between any two users' data, texts, labels and number of records "
    "together; to ask: worst case of a sanitized embedding of one's own sentence, or of an answer."
)
_ANSWERS = (
    "Asked by answer: a user's device runs the whole model on a sentence and releases the class alone, between any two "
    "sentences; sanitized accuracy is that of the released classes."
)


def _on_text(results: Results) -> bool:
    return results["way"] == "sanitized-text"


def markdown(results: Results) -> str:
    """The table with the columns that do not fit a terminal: mechanism, m', and the guarantee in words."""
    columns, trusted = headings_of(results), trust.anybody(results["arms"])
    headings = [h.replace("\n", " ").replace("- ", "-") for h in columns] + ["mechanism", "m'", "guarantee"]
    rows = [headings, ["---", *["---:"] * (len(columns) - 1), "---", "---:", "---"]]
    for arm in results["arms"]:
        statement = (arm.get("budget") or {}).get("statement")
        rows.append([
            *cells(arm, trusted=trusted), _plain(arm.get("mechanism")), _count(arm.get("dim")), _plain(statement)
        ])  # fmt: skip
    lines = [f"# {title(results)}", ""]
    if results.get("way_sentence"):
        lines += [f"**{results['way_sentence']}**", ""]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    lines += ["", *(f"{note}\n" for note in notes(results)), *_ladders(results["arms"])]
    lines += ["![Accuracy against ε](accuracy.png)", "", "![What each user spent](spent.png)"]
    return "\n".join(lines) + "\n"


#: Columns of the ladders' table: heading, whose ladder, rung.
RUNGS = (
    ("token", "ladder", "token"),
    ("text", "ladder", "text"),
    ("embedding", "ladder", "embedding"),
    ("label", "ladder", "label"),
    ("statistic", "ladder", "statistic"),
    ("record", "ladder", "record"),
    ("user", "ladder", "user"),
    ("shuffled", "ladder", "shuffled"),
    ("test user", "test_ladder", "user"),
    ("test user, shuffled", "test_ladder", "shuffled"),
)


#: Rungs that are left out where no arm has any of these.
_SOMETIMES = {"token": {"token", "text"}, "text": {"token", "text"}, "statistic": {"statistic"}}


def _ladders(arms: list[Arm]) -> list[str]:
    """What one user spent, rung by rung; results.json and the model cards say on what it rests."""
    known = [r for arm in arms for r in arm.get("ladder") or arm.get("test_ladder") or []]
    if not known:
        return []
    lines = ["## What it cost one user: ε (δ), rung by rung", ""]
    released = {r["rung"] for r in known if r["epsilon"] is not None}
    columns = [c for c in RUNGS if c[2] not in _SOMETIMES or released & _SOMETIMES[c[2]]]
    lines.append("| arm | " + " | ".join(heading for heading, _, _ in columns) + " |")
    lines.append("| --- |" + " ---: |" * len(columns))
    for arm in arms:
        row = [arm["name"].replace("|", "\\|") + (f" {REFERENCE_MARK}" if arm.get("reference") else "")]
        for _, whose, name in columns:
            rung = next((r for r in arm.get(whose) or [] if r["rung"] == name), None)
            row.append(_spent_on(rung))
        lines.append("| " + " | ".join(row) + " |")
    return [
        *lines,
        "",
        "Least proved ε, each with the δ it is proved at (the samplers' numeric δ apart) and, shuffled, the crowd: how "
        "many users at the least send the same in clear. –: no such release, declared public, or no amplification; "
        "results.json and the model cards say what each rests on.",
        "",
    ]


def _spent_on(rung: dict[str, Any] | None) -> str:
    """ε with its δ, "∞" alone, and how large a crowd it was among."""
    if rung is None or rung["epsilon"] is None:
        return "–"
    if rung["epsilon"] in ("inf", math.inf):
        return "∞"
    among = f", crowd {rung['crowd']:,}" if rung.get("crowd") is not None else ""
    return f"{_epsilon(rung['epsilon'])} ({rung['delta']:.3g}{among})"


def _plain(value: Any) -> str:
    return "–" if value is None else str(value)


def _share(value: Any) -> str:
    return f"{value:.3f}" if _is_finite(value) else "–"


def _count(value: Any) -> str:
    return f"{value:,.0f}" if _is_finite(value) else "–"


def _epsilon(value: Any) -> str:
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else f"{value:.4g}"


def _worst_said(budget: dict[str, Any]) -> str:
    """The worst-case ε of what an arm releases, with its δ where that is above 0."""
    worst, delta = budget.get("worst_case_epsilon"), budget.get("delta")
    return _epsilon(worst) + (f" (δ {delta:g})" if delta and _is_finite(worst) else "")


def _is_finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)


# --- the figures


def accuracy_figure(results: Results) -> Figure:
    """Accuracy on sanitized (filled) and clean (hollow) test sentences against ε; without a finite ε, a line.

    The axis is the embedding's metric ε, or the label's ε where that is what the arms differ in.
    """
    arms, channel = results["arms"], _varied(results["arms"])
    figure, axes = new_figure(7.2, 4.0)
    points = [a for a in arms if _is_point(a, channel)]
    if len(public := [a for a in points if a.get("way") == PUBLIC_ONLY]) == 1:
        points.remove(public[0])  # what public data achieve alone is a line to compare with
    series: dict[str, list[Arm]] = {}
    for arm in points:
        series.setdefault(_series(arm, channel), []).append(arm)
    scale = _scale(axes, [_spent(a)[channel] for a in points])
    for i, (name, members) in enumerate(series.items()):
        members = sorted(members, key=lambda a: _spent(a)[channel])
        # Mechanisms of equal ε stand side by side, or one would hide the other.
        x = np.array([_spent(a)[channel] for a in members], dtype=float)
        x = scale(x, i - (len(series) - 1) / 2)
        style: dict[str, Any] = {"color": COLOURS[i % 6], "marker": MARKERS[i % 6], "markersize": 6, "linewidth": 1.4}
        y = [a["accuracy"] if _is_finite(a.get("accuracy")) else np.nan for a in members]
        error = [a["accuracy_se"] if _is_finite(a.get("accuracy_se")) else 0.0 for a in members]
        axes.errorbar(x, y, yerr=error, capsize=3, label=name, **style)
        clean = [
            a["accuracy_clean_test"] if _is_finite(a.get("accuracy_clean_test")) else np.nan for a in members
        ]
        axes.plot(x, clean, linestyle=":", markerfacecolor="white", **style)
    if points:
        hollow: dict[str, Any] = {"marker": "o", "markerfacecolor": "white", "linestyle": ":"}
        axes.plot([], [], color="#555555", label="(hollow) on device", **hollow)
    styles = iter(["-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2))] * len(arms))
    for arm in arms:
        level = arm["accuracy"] if _is_finite(arm.get("accuracy")) else arm.get("accuracy_clean_test")
        if arm not in points and _is_finite(level):
            label = arm["name"] + (" (not private)" if arm.get("reference") else "")
            axes.axhline(level, color="#333333", linewidth=1.2, linestyle=next(styles), label=label)
    axes.axhline(results["chance"], color="#999999", linewidth=2.2, linestyle=(0, (1, 2)), label="chance")
    of = "a text's words" if _on_text(results) else "the embedding"
    axis = f"metric ε of {of} (each in its own metric)"
    if results["way"] == STATISTICS:
        axis = "ε of a user's one vector (any two users' data)"
    axes.set_xlabel("label ε" if channel == "label" else axis)
    axes.set_ylabel("test accuracy")
    axes.set_title(_heading(results), loc="left", fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i] not in series)  # curves first, then lines
    handles, labels = [handles[i] for i in order], [labels[i] for i in order]
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False, handlelength=3.2)
    return figure


def spent_figure(results: Results) -> Figure:
    """Bars of the worst-case ε by channel, for each arm; a hatched bar to the edge is ∞, nothing promised."""
    arms = results["arms"]
    figure, axes = new_figure(7.2, 1.3 + 0.5 * len(arms))
    first = "text" if _on_text(results) else "embedding"
    channels = (("embedding", f"{first} (worst case)", COLOURS[0]), ("label", "label", COLOURS[1]))
    to_ask = "asking", "to ask (worst case)"
    if results["way"] == STATISTICS:
        channels = (("embedding", "one vector, to teach", COLOURS[0]), (*to_ask, COLOURS[1]))
    elif any(_worst(arm)["asking"] is not None for arm in arms):
        channels += ((*to_ask, COLOURS[2]),)
    width = 0.76 / len(channels)
    finite = [v for a in arms for v in _worst(a).values() if _is_finite(v)]
    edge = 1.15 * max(finite, default=0.0) or 1.0
    for row, arm in enumerate(arms):
        for k, (channel, _, colour) in enumerate(channels):
            value, y = _worst(arm)[channel], row + (k - (len(channels) - 1) / 2) * width
            if value is None:
                none = (
                    "none sent"
                    if channel in ("embedding", "asking") or arm.get("way") == PUBLIC_ONLY
                    else "declared public"
                )
                axes.text(edge * 0.008, y, none, va="center", fontsize=7, color="#555555")
            elif math.isinf(value):
                axes.barh(
                    y,
                    edge * 1.2,
                    height=0.9 * width,
                    facecolor="white",
                    edgecolor=colour,
                    hatch="////",
                    linewidth=0.8,
                )
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
                axes.text(edge * 0.55, y, "∞", va="center", ha="center", fontsize=9, bbox=box)
            else:
                axes.barh(y, value, height=0.9 * width, color=colour)
                said = _worst_said(arms[row].get("budget") or {}) if channel == "embedding" else _epsilon(value)
                axes.text(value + edge * 0.008, y, said, va="center", fontsize=8)
    for _, label, colour in channels:
        axes.barh([0], [0], color=colour, label=label)
    axes.barh([0], [0], facecolor="white", edgecolor="#555555", hatch="////", label="∞: nothing promised")
    axes.set_yticks(
        range(len(arms)), [a["name"] + (f" {REFERENCE_MARK}" if a.get("reference") else "") for a in arms]
    )
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_xlim(0, edge)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("worst-case ε that one user spent")
    axes.set_title(_heading(results), loc="left", fontsize=9)
    figure.legend(loc="outside lower right", ncols=3, fontsize=8, frameon=False)
    return figure


def _is_point(arm: Arm, channel: str) -> bool:
    scored = _is_finite(arm.get("accuracy")) or _is_finite(arm.get("accuracy_clean_test"))
    return not arm.get("reference") and _is_finite(_spent(arm)[channel]) and scored


def _heading(results: Results) -> str:
    """Folded to fit above the axes, beside a legend."""
    parts = [title(results), results.get("way_sentence") or ""]
    return "\n".join(line for part in parts for line in textwrap.wrap(part, 62))


def _spent(arm: Arm) -> dict[str, Any]:
    budget = arm.get("budget") or {}
    return {"embedding": budget.get("metric_epsilon"), "label": budget.get("label_epsilon")}


def _worst(arm: Arm) -> dict[str, Any]:
    budget = arm.get("budget") or {}
    return {
        "embedding": budget.get("worst_case_epsilon"), "label": budget.get("label_epsilon"),
        "asking": budget.get("asking_epsilon"),
    }  # fmt: skip


def _varied(arms: list[Arm]) -> str:
    """The channel whose finite ε takes more values among the arms; the embedding where they tie."""
    values = {c: {_spent(a)[c] for a in arms if _is_finite(_spent(a)[c])} for c in ("embedding", "label")}
    return "label" if len(values["label"]) > len(values["embedding"]) else "embedding"


def _series(arm: Arm, channel: str) -> str:
    """Arms that differ in nothing but the ε of the axis share a line."""
    spent = _spent(arm)
    if channel == "label":
        return str(arm.get("label_mechanism") or f"randomized labels, {arm['mechanism']}")
    public = "public-only, " if arm.get("way") == PUBLIC_ONLY else ""
    labels = f", label ε = {_epsilon(spent['label'])}" if _is_finite(spent["label"]) else ""
    return f"{public}{arm['mechanism']}{labels}"


def _scale(axes: Axes, values: list[float]) -> Any:
    """Set the ε axis: logarithmic, linear where a value is 0. Returns how to move points aside by marks."""
    ticks = sorted(set(values))
    if not ticks:
        axes.set_xticks([])
        return lambda x, places: x
    if ticks[0] > 0:
        axes.set_xscale("log")
        axes.set_xlim(ticks[0] / 1.5, ticks[-1] * 1.5)
        step = (ticks[-1] / ticks[0] * 2.25) ** 0.02
        shift = lambda x, places: x * step**places  # noqa: E731
    else:
        step = 0.02 * (ticks[-1] or 1.0)
        shift = lambda x, places: x + step * places  # noqa: E731
    shown: list[float] = []
    for tick in ticks:  # labels that would stand in each other are left out
        if not shown or tick >= shift(shown[-1], 3):
            shown.append(tick)
    axes.set_xticks(shown, [f"{t:g}" for t in shown])
    axes.minorticks_off()
    return shift

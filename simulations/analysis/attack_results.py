"""Table and figures of attacks: success beside the baseline and the bound of the theorem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulations.output import markdown
from simulations.output.figures import COLOURS, MARKERS, folded, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Largest probability of any alarm in a run whose theorems hold.
FAMILY = 1e-3
#: Figures by file name: first parts of the names of their attacks, and the measure of success.
GROUPS = {
    "words": (("bayes", "copy", "mask", "context", "strongest"), "share of released words guessed"),
    "inversion": (("inversion",), "F1 of the content words guessed"),
    "attributes": (("attribute",), "share of texts whose attribute is guessed"),
    "vectors": (("vector",), "share of vectors guessed right (membership: balanced accuracy)"),
    "linkage": (("linkage",), "share of releases matched"),
    "membership": (("membership",), "balanced accuracy"),
    "poison": (("poison",), "share of test texts that the model gets wrong"),
}
_LINES = 0.16


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    """Return one figure for each group of attacks that the results have, by the stem of its file name."""
    plots = {}
    for name, (prefixes, measure) in GROUPS.items():
        entries = [e for e in results["entries"] if e["attack"].split("-")[0] in prefixes]
        if entries:
            plots[f"attacks-{name}"] = _figure(entries, measure, results["name"])
    return plots


def _figure(entries: list[dict[str, Any]], measure: str, title: str) -> Figure:
    """Draw success for each arm: a mark with its 95 % interval for each attack.

    A thin bar is the baseline, and a triangle the bound of the theorem.
    """
    arms = list(dict.fromkeys(e["arm"] for e in entries))
    series = list(dict.fromkeys(_series(e) for e in entries))
    height = max(0.36, _LINES * (len(series) + 1))
    figure, axes = new_figure(7.2, 1.5 + height * len(arms))
    for e in entries:
        i = series.index(_series(e))
        y = arms.index(e["arm"]) + (i - (len(series) - 1) / 2) * _LINES / height
        low, high = e["interval"]
        bars = [[max(0, e["success"] - low)], [max(0, high - e["success"])]]
        axes.errorbar([e["success"]], [y], xerr=bars, markersize=5, linewidth=1.2, capsize=2, zorder=3, **_mark(i))
        for name, style in _OTHERS.values():
            if e[name] is not None:
                axes.plot([e[name]], [y], clip_on=False, zorder=2, **style)
    for i, name in enumerate(series):
        axes.plot([], [], linestyle="none", label=name, **_mark(i))
    for label, (_, style) in _OTHERS.items():
        axes.plot([], [], label=label, **style)
    for edge in range(1, len(arms)):
        axes.axhline(edge - 0.5, color="#dddddd", linewidth=0.6)
    axes.grid(axis="y", visible=False)
    axes.set_yticks(range(len(arms)), [folded(arm, most=2) for arm in arms])
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_xlabel(measure)
    axes.set_title(f"{title}: success of attacks (bars: 95 % intervals)", loc="left", fontsize=9)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


#: Marks beside an attack's success, by their labels: the key of the entry, and their style.
_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    label: (name, {"color": "black", "linestyle": "none", "markerfacecolor": "white"} | style)
    for label, name, style in (
        ("guess without any release", "baseline", {"marker": "|", "markersize": 8}),
        ("what the theorem allows", "bound", {"marker": "<", "markersize": 5}),
    )
}


def _mark(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % 6], "marker": MARKERS[i % 6]}


def _series(e: dict[str, Any]) -> str:
    return e["attack"] + (f" of {e['attribute']}" if "attribute" in e else "")


#: Note on a row for which `below` holds.
BELOW = "below a guess without any release: this attack does not work here, and that says nothing of protection"


def below(entry: Mapping[str, Any]) -> bool:
    """Return True if an attack did worse than its baseline, with its whole interval."""
    return entry["baseline"] is not None and bool(entry["interval"][1] < entry["baseline"])


HEADINGS = (
    "arm",
    "attack",
    "success",
    "95 % interval",
    "baseline",
    "best possible",
    "the theorem allows",
    "who knows the counts",
    "worst-case ε",
    "of",
    "note",
)


#: Notes on the columns of all kinds of attacks.
ALLOWED = (
    "Intervals are exact, each for itself. The theorem allows: to an adversary who knows the mechanism and how "
    "frequent each value is, and guesses from one release at a time, as these attacks do; who knows the counts: to one "
    "who looks at all releases together, and knows how many there are of each value, but not whose. ALARM: success "
    f"that a true theorem allows with a probability below {FAMILY:g}, shared among all rows of the run."
)


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown, with notes on the columns."""
    rows = []
    for e in results["entries"]:
        of = f"{e['texts']:,} texts" if e["tokens"] is None else f"{e['tokens']:,} tokens"
        within = "{} to {}".format(*(markdown.number(end) for end in e["interval"]))
        figures = (markdown.number(e[k]) for k in ("baseline", "best", "bound", "bound_counts"))
        worst = markdown.number(e["worst_case_epsilon"])
        marks = ("ALARM" * e["alarm"], BELOW * below(e), e.get("note", ""))
        note = "; ".join(mark for mark in marks if mark)
        rows.append([e["arm"], e["attack"], markdown.number(e["success"]), within, *figures, worst, of, note])
    attacks = [f"{name}: {about}" for name, about in {e["attack"]: e["about"] for e in results["entries"]}.items()]
    notes = ["Attacks: " + "; ".join(attacks) + ".", *results["reading"], ALLOWED, *_left_out(results["skipped"])]
    return "\n".join([markdown.table(HEADINGS, rows), "", *notes])


def _left_out(skipped: list[str]) -> list[str]:
    """Return one sentence for each reason to leave out attacks."""
    names: dict[str, list[str]] = {}
    for line in skipped:
        name, why = line.split(" on ", 1)
        names.setdefault(why, []).append(name)
    return [f"Left out: {', '.join(those)} on {why}." for why, those in names.items()]

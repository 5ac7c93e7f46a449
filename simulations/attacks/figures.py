"""Figures of attacks: how far each gets on each arm, beside a guess without releases and what the theorem allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulations.output.figures import COLOURS, MARKERS, folded, new_figure, tell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Figures by file name: the attacks in them by the first part of their names, and what their success is.
GROUPS = {
    "words": (("bayes", "copy", "mask", "context", "strongest"), "share of released words guessed"),
    "inversion": (("inversion",), "F1 of the content words guessed"),
    "attributes": (("attribute",), "share of texts whose attribute is guessed"),
    "vectors": (("vector",), "share of vectors guessed right (membership: balanced accuracy)"),
    "linkage": (("linkage",), "share of releases matched"),
    "membership": (("membership",), "balanced accuracy"),
}
_LINES = 0.16


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    """By the stem of their file names; one for each group of attacks that the results have."""
    made = {}
    for name, (prefixes, measure) in GROUPS.items():
        entries = [e for e in results["entries"] if e["attack"].split("-")[0] in prefixes]
        if entries:
            made[f"attacks-{name}"] = _figure(entries, measure, results["name"])
    return made


def _figure(entries: list[dict[str, Any]], measure: str, title: str) -> Figure:
    """Arms from top to bottom, success to the right: a mark for each attack with its 95 % interval,
    a thin bar at its baseline, a triangle at what the theorem allows."""
    arms = list(dict.fromkeys(e["arm"] for e in entries))
    series = list(dict.fromkeys(_series(e) for e in entries))
    height = max(0.36, _LINES * (len(series) + 1))
    figure, axes = new_figure(7.2, 1.5 + height * len(arms))
    for e in entries:
        i = series.index(_series(e))
        y = arms.index(e["arm"]) + (i - (len(series) - 1) / 2) * _LINES / height
        low, high = e["interval"]
        axes.errorbar(
            [e["success"]], [y], xerr=[[max(0, e["success"] - low)], [max(0, high - e["success"])]],
            color=COLOURS[i % 6], marker=MARKERS[i % 6], markersize=5,
            linewidth=1.2, capsize=2, zorder=3,
        )  # fmt: skip
        if e["baseline"] is not None:
            axes.plot([e["baseline"]], [y], color="black", marker="|", markersize=8, linestyle="none", zorder=2)
        if e["bound"] is not None:
            axes.plot(
                [e["bound"]], [y], color="black", marker="<", markersize=5, markerfacecolor="white", linestyle="none",
                clip_on=False, zorder=2,
            )  # fmt: skip
        allowed = "" if e["bound"] is None else f", the theorem allows {e['bound']:.3f}"
        said = f"{e['success']:.3f} ({low:.3f} to {high:.3f}){allowed}"
        tell(axes, [e["success"]], [y], f"{e['arm']}, {_series(e)}: {said}")
    for i, name in enumerate(series):
        axes.plot([], [], color=COLOURS[i % 6], marker=MARKERS[i % 6], linestyle="none", label=name)
    axes.plot([], [], color="black", marker="|", markersize=8, linestyle="none", label="guess without any release")
    axes.plot(
        [], [], color="black", marker="<", markerfacecolor="white", linestyle="none", label="what the theorem allows"
    )
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


def _series(e: dict[str, Any]) -> str:
    return e["attack"] + (f" of {e['attribute']}" if "attribute" in e else "")

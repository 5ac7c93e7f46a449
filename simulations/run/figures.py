"""Figures of a run: accuracy against ε, and what each user spent."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.channels import EMBEDDING, LABEL
from server.protocols import releases
from server.protocols.public_only import PROTOCOL as PUBLIC_ONLY
from simulations.experiment.guarantees import Promise
from simulations.experiment.result import SPLITS, ArmResult, Score, arms_of
from simulations.output.figures import COLOURS, MARKERS, folded, new_figure, tell
from simulations.output.numbers import epsilon, is_finite, plain, share
from simulations.run import trust

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = dict[str, Any]

REFERENCE_MARK = "†"


def title(results: Results) -> str:
    """Return the title of a run."""
    return f"{results['name']}, seed {results['seed']}, way {results['way']}"


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the title of a figure of several runs: the name, and the number of runs or the seed."""
    of = f"seed {runs[0]['seed']}" if len(runs) == 1 else f"mean ± standard error over {len(runs)} seeds"
    return f"{runs[0]['name']}: {of}"


def on_text(results: Results) -> bool:
    """Return True if users release texts."""
    return releases(results["way"], "text") and not releases(results["way"], "embedding")


def texts_beside(results: Results) -> bool:
    """Return True if users of some arms release texts, and users of the experiment's protocol do not."""
    return not releases(results["way"], "text") and any(releases(arm.way, "text") for arm in arms_of(results))


def worst_said(budget: Promise) -> str:
    """Return the worst-case ε of an arm's releases, with its δ if that is above 0."""
    worst, delta = budget.worst_case_epsilon, budget.delta
    return epsilon(worst) + (f" (δ {delta:g})" if delta and is_finite(worst) else "")


def accuracy_said(score: Score | None) -> str:
    """Return an accuracy, ± its standard error if that is known."""
    if score is None:
        return share(None)
    return share(score.accuracy) + ("" if score.error is None else f" ± {score.error:.3f}")


def accuracy_figure(results: Results) -> Figure:
    """Draw accuracy on sanitized (filled) and clean (hollow) test sentences against ε; without finite ε, a line.

    The axis is the metric ε of embeddings, or the label ε if the arms differ in that. It is the worst case if arms
    release texts beside vectors, which have no metric in common.
    """
    arms = arms_of(results)
    if beside := texts_beside(results):
        worst = [arm.budget.worst_case_epsilon for arm in arms]
        rounded = [None if each is None else float(f"{each:.3g}") for each in worst]  # ticks are at these
        budgets = [replace(arm.budget, metric_epsilon=each) for arm, each in zip(arms, rounded, strict=True)]
        arms = [replace(arm, budget=budget) for arm, budget in zip(arms, budgets, strict=True)]
    channel = _varied(arms)
    figure, axes = new_figure(7.2, 4.0)
    points = [a for a in arms if _is_point(a, channel)]
    if len(public := [a for a in points if a.way == PUBLIC_ONLY.name]) == 1:
        points.remove(public[0])  # public data alone are a horizontal line
    series: dict[str, list[ArmResult]] = {}
    for arm in points:
        series.setdefault(_series(arm, channel, points), []).append(arm)
    scale = _scale(axes, [_spent(a)[channel] for a in points])
    for i, (name, members) in enumerate(series.items()):
        members = sorted(members, key=lambda a: _spent(a)[channel])
        # Mechanisms of equal ε are drawn side by side, or one would hide the other.
        x = np.array([_spent(a)[channel] for a in members], dtype=float)
        x = scale(x, i - (len(series) - 1) / 2)
        style: dict[str, Any] = {"color": COLOURS[i % 6], "marker": MARKERS[i % 6], "markersize": 6, "linewidth": 1.4}
        sanitized, clean = ([a.score(split) or Score(np.nan, None) for a in members] for split in SPLITS)
        y, error = [score.accuracy for score in sanitized], [score.error or 0.0 for score in sanitized]
        axes.errorbar(x, y, yerr=error, capsize=3, label=name, **style)
        axes.plot(x, [score.accuracy for score in clean], linestyle=":", markerfacecolor="white", **style)
        for place, arm in zip(x, members, strict=True):
            _tell(axes, place, arm)
    if points:
        axes.plot(
            [], [], color="#555555", marker="o", markerfacecolor="white", linestyle=":", label="(hollow) on device"
        )
    styles = iter(["-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2))] * len(arms))
    for arm in arms:
        score = arm.score("sanitized") or arm.score("on_device")
        if arm not in points and score is not None:
            level = score.accuracy
            axes.axhline(level, color="#333333", linewidth=1.2, linestyle=next(styles), label=trust.marked(arm))
            said = f"{trust.marked(arm)}: accuracy {share(level)}"
            tell(axes, [0, 1], [level, level], said, transform=axes.get_yaxis_transform())
    axes.axhline(results["chance"], color="#999999", linewidth=2.2, linestyle=(0, (1, 2)), label="chance")
    of = "a text's words" if on_text(results) else "the embedding"
    axis = f"metric ε of {of} (each in its own metric)"
    if beside:
        axis = "worst-case ε, of inputs that agree in what is public"
    elif releases(results["way"], "statistic"):
        axis = "ε of a user's one vector (any two users' data)"
    axes.set_xlabel("label ε" if channel == LABEL.name else axis)
    axes.set_ylabel("test accuracy")
    axes.set_title(_heading(results), loc="left", fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i] not in series)  # curves first, then lines
    handles, labels = [handles[i] for i in order], [folded(labels[i]) for i in order]
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False, handlelength=3.2)
    return figure


def spent_figure(results: Results) -> Figure:
    """Draw bars of the worst-case ε by channel, for each arm. A hatched bar to the edge is ∞: no guarantee."""
    arms = arms_of(results)
    figure, axes = new_figure(7.2, 1.3 + 0.5 * len(arms))
    first = "text" if on_text(results) else "embedding"
    channels = (("embedding", f"{first} (worst case)", COLOURS[0]), ("label", "label", COLOURS[1]))
    to_ask = "asking", "to ask (worst case)"
    if releases(results["way"], "statistic"):
        taught = "one vector, or a text, in training" if texts_beside(results) else "one vector, in training"
        channels = (("embedding", taught, COLOURS[0]), (*to_ask, COLOURS[1]))
    elif any(_worst(arm)["asking"] is not None for arm in arms):
        channels += ((*to_ask, COLOURS[2]),)
    width = 0.76 / len(channels)
    finite = [v for a in arms for v in _worst(a).values() if is_finite(v)]
    edge = 1.15 * max(finite, default=0.0) or 1.0
    for row, arm in enumerate(arms):
        for k, (channel, label, colour) in enumerate(channels):
            value, y = _worst(arm)[channel], row + (k - (len(channels) - 1) / 2) * width
            if value is None:
                none = "declared public" if channel == LABEL.name and trust.public_labels(arm) else "none sent"
                axes.text(edge * 0.008, y, none, va="center", fontsize=7, color="#555555")
            elif math.isinf(value):
                axes.barh(
                    y, edge * 1.2, height=0.9 * width, facecolor="white", edgecolor=colour, hatch="////", linewidth=0.8
                )
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
                axes.text(edge * 0.55, y, "∞", va="center", ha="center", fontsize=9, bbox=box)
            else:
                axes.barh(y, value, height=0.9 * width, color=colour)
                said = worst_said(arm.budget) if channel == EMBEDDING.name else epsilon(value)
                tell(axes, [0, value], [y, y], f"{arm.name}, {label}: ε = {said}")
                axes.text(value + edge * 0.008, y, said, va="center", fontsize=8)
    for _, kind, colour in channels:
        axes.barh([0], [0], color=colour, label=kind)
    axes.barh([0], [0], facecolor="white", edgecolor="#555555", hatch="////", label="∞: nothing promised")
    axes.set_yticks(
        range(len(arms)), [folded(a.name) + (f" {REFERENCE_MARK}" if trust.unprotected(a) else "") for a in arms]
    )
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_xlim(0, edge)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("worst-case ε of one release")
    axes.set_title(_heading(results), loc="left", fontsize=9)
    figure.legend(loc="outside lower right", ncols=3, fontsize=8, frameon=False)
    return figure


def _tell(axes: Axes, place: float, arm: ArmResult) -> None:
    """Show an arm's name and accuracy under the pointer at its two points."""
    for split in SPLITS:
        if (score := arm.score(split)) is not None:
            said = f"{arm.name}: accuracy {accuracy_said(score)}, {split.replace('_', ' ')}"
            tell(axes, [place], [score.accuracy], said)


def _is_point(arm: ArmResult, channel: str) -> bool:
    scored = any(arm.score(split) is not None for split in SPLITS)
    return not arm.reference and is_finite(_spent(arm)[channel]) and scored


def _heading(results: Results) -> str:
    """Return the heading, folded to fit above the axes, beside a legend."""
    parts = [title(results), results.get("way_sentence") or ""]
    return "\n".join(line for part in parts for line in textwrap.wrap(part, 62))


def _spent(arm: ArmResult) -> dict[str, Any]:
    return {"embedding": arm.budget.metric_epsilon, "label": arm.budget.label_epsilon}


def _worst(arm: ArmResult) -> dict[str, Any]:
    budget = arm.budget
    return {"embedding": budget.worst_case_epsilon, "label": budget.label_epsilon, "asking": budget.asking_epsilon}


def _varied(arms: Sequence[ArmResult]) -> str:
    """Return the channel whose finite ε takes more values among the arms; the embedding in a tie."""
    values = {c: {_spent(a)[c] for a in arms if is_finite(_spent(a)[c])} for c in ("embedding", "label")}
    return "label" if len(values["label"]) > len(values["embedding"]) else "embedding"


def _series(arm: ArmResult, channel: str, points: Sequence[ArmResult]) -> str:
    """Return the name of an arm's line. Arms that differ only in the ε of the axis share a line.

    Other differences between points of one name are appended.
    """
    name = _kind(arm, channel)
    found = [_others(other, channel) for other in points if _kind(other, channel) == name]
    ours = _others(arm, channel)
    varied = [
        key
        for key in dict.fromkeys(key for other in found for key in other)
        if any(other.get(key) != ours.get(key) for other in found)
    ]
    return ", ".join([name, *(f"{_PARAMETERS.get(key, key)} = {plain(ours.get(key))}" for key in varied)])


#: Shorter names of parameters beside a curve.
_PARAMETERS = {"embedding.dim": "m'", "statistic.dim": "features", "way": "way"}


def _others(arm: ArmResult, channel: str) -> dict[str, Any]:
    """Return an arm's parameters, without the ε on the axis and those that its name shows."""
    given = arm.parameters
    if channel == LABEL.name:
        axis: tuple[str, ...] = ("label",)
    else:
        axis = ("statistic",) if any(key.startswith("statistic.") for key in given) else ("text", "embedding")
    left_out = {f"{table}.{key}" for table in axis for key in ("mechanism", "epsilon", "central_epsilon")}
    return {"way": arm.way} | {key: value for key, value in given.items() if key not in left_out}


def _kind(arm: ArmResult, channel: str) -> str:
    spent = _spent(arm)
    if channel == LABEL.name:
        return arm.label_mechanism or f"randomized labels, {arm.mechanism}"
    public = "public-only, " if arm.way == PUBLIC_ONLY.name else ""
    labels = f", label ε = {epsilon(spent['label'])}" if is_finite(spent["label"]) else ""
    return f"{public}{arm.mechanism}{labels}"


def _scale(axes: Axes, values: list[float]) -> Any:
    """Set the ε axis, logarithmic, or linear if a value is 0. Return a function that moves points aside by marks."""
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
    for tick in ticks:  # labels that would overlap are left out
        if not shown or tick >= shift(shown[-1], 3):
            shown.append(tick)
    axes.set_xticks(shown, [f"{t:g}" for t in shown])
    axes.minorticks_off()
    return shift

"""Figure of accuracy against what users pay, for arms with different trust: central ε, and beside it local ε."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.experiment.result import ArmResult, arms_of
from simulations.output.figures import COLOURS, MARKERS, folded, new_figure
from simulations.run import trust
from simulations.run.table import accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
#: Largest ε of the runs, mean accuracy, its standard error over runs, and that by test text.
Point = tuple[float, float, float, float]
#: Price of an arm, factor between arms of one price, or one would hide the other, and title of the axis.
Panel = tuple[Callable[..., float | None], float, str]
#: Least height of the axis of accuracy, so that small differences look small, and its ticks of ε.
_HEIGHT, _TICKS = 0.1, tuple(float(f"{step}e{power}") for power in range(-3, 6) for step in (1, 2, 5))
_PANELS: tuple[Panel, ...] = (
    (lambda *same: trust.central(*same)[0], 1.025, "central ε, if the party in the legend is trusted"),
    (trust.local, 1.0, "local ε of a training user, trusting nobody"),
)
#: Prices within this factor are the same. An ε at which a guarantee is too weak to draw.
_ALIKE, _NO_PRICE = 1.1, 100.0
REFERENCE_MARK = "†"
_SAYS_EPSILON = re.compile(r",? (?:label )?ε = (?:[0-9.]+(?:e-?[0-9]+)?|∞)")


def title(results: Results) -> str:
    """Return the title of a run."""
    return f"{results['name']}, seed {results['seed']}, protocol {results['way']}"


def frontier_figure(runs: Sequence[Results]) -> Figure:
    """Draw the arms of one experiment, over its runs with different seeds (`priced_figure`)."""
    of = f"seed {runs[0]['seed']}" if len(runs) == 1 else f"mean ± standard error over {len(runs)} seeds"
    parts = (f"{runs[0]['name']}: {of}", runs[0].get("way_sentence") or "")
    heading = "\n".join(line for part in parts for line in textwrap.wrap(part, 62))
    return priced_figure(list(zip(*map(arms_of, runs), strict=True)), heading)


def priced_figure(arms: Sequence[Sequence[ArmResult]], title: str, *, front: bool = False) -> Figure:
    """Draw mean accuracy on the device over the results of each arm, with both errors: over runs, and by test text.

    The first panel has the central ε, with the trusted party in the legend. The second has the worst-case ε of all
    releases, labels included, of users who trust nobody. A price that no arm has, or that is the same for all arms, has
    no panel, unless no other has one. Arms whose names differ only in ε share a line. Horizontal lines are arms without
    any ε: references and public text alone. `front` adds the Pareto front over the private arms of each panel.
    """
    prices = {panel: _prices(arms, panel[0]) for panel in _PANELS}
    panels = [panel for panel, paid in prices.items() if paid and max(paid) > _ALIKE * min(paid)]
    panels = panels or [panel for panel, paid in prices.items() if paid] or [_PANELS[1]]
    figure, _ = new_figure(3.6 * max(2, len(panels)), 3.9)
    figure.clear()
    every = list(figure.subplots(1, len(panels), sharey=True, squeeze=False).flat)
    names = list(dict.fromkeys(_series(same[0]) for same in arms if _paid(same)))
    for axes, (price, apart, label) in zip(every, panels, strict=True):
        _draw(axes, arms, names, price, 1.0 if front else apart)
        _set_ticks(axes, _prices(arms, price))
        if front:
            _draw_front(axes, arms, price)
        axes.set_xlabel(label, fontsize=9)
    every[0].set_ylabel("test accuracy, on the device", fontsize=9)
    low, high = every[0].get_ylim()
    if high - low < _HEIGHT:
        every[0].set_ylim((low + high - _HEIGHT) / 2, (low + high + _HEIGHT) / 2)
    every[0].set_title(f"{title}; pale bars: by test text", loc="left", fontsize=9)
    shown = [axes.get_legend_handles_labels() for axes in every]
    marks = {label: mark for handles, labels in shown for mark, label in zip(handles, labels, strict=True)}
    order = sorted(marks, key=lambda label: label not in names)
    captions = [f"{label} ({_trusts(arms, label)})" if label in names else label for label in order]
    figure.legend(
        [marks[label] for label in order],
        [folded(item, 52) for item in captions],
        loc="outside lower center",
        ncols=2,
        fontsize=8,
        frameon=False,
    )
    return figure


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points (ε, accuracy) that no other point dominates, by ascending ε.

    A point dominates another if its ε is not larger, its accuracy not smaller, and one of them is better.
    """
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1] or points[i] == points[front[-1]]:
            front.append(i)
    return front


def _prices(arms: Sequence[Sequence[ArmResult]], price: Callable[..., float | None]) -> list[float]:
    return [cost for same in arms if (cost := price(*same)) is not None and _paid(same)]


def _set_ticks(axes: Axes, paid: Sequence[float]) -> None:
    """Set ticks of `_TICKS` between the prices; the smallest and largest price if they would be fewer than two."""
    axes.minorticks_off()
    if not paid:
        return
    if min(paid) == max(paid):  # a single value gives no axis
        axes.set_xlim((paid[0] or 1.0) / 2, 2 * (paid[0] or 1.0))
    low, high = axes.get_xlim()
    shown = [tick for tick in _TICKS if low <= tick <= high]
    if len(shown) < 2:
        shown = sorted({float(f"{end(paid):.2g}") for end in (min, max)})
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])


def _draw(
    axes: Axes,
    arms: Sequence[Sequence[ArmResult]],
    names: Sequence[str],
    price: Callable[..., float | None],
    apart: float,
) -> None:
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.set_xscale("log")
    points: dict[str, list[Point]] = {}
    for same in arms:
        result, paid = accuracy(same, "on_device"), price(*same)
        if result is not None and paid is not None and _paid(same):
            by_text = result.by_text or 0.0
            error = by_text if result.error is None else result.error
            points.setdefault(_series(same[0]), []).append((paid, result.value, error, by_text))
    for name, line in points.items():
        i = names.index(name)
        x, y, errors, text_errors = map(np.array, zip(*sorted(line), strict=True))
        colours, marks = (*COLOURS, "#555555"), (*MARKERS, "X")
        style: dict[str, Any] = {
            "color": colours[i % 7],
            "marker": marks[i % 7],
            "markersize": 5,
            "linewidth": 1.2,
        }
        aside = apart ** (i - (len(points) - 1) / 2)
        axes.vlines(x * aside, y - text_errors, y + text_errors, color=style["color"], alpha=0.25, linewidth=3.5)
        axes.errorbar(x * aside, y, yerr=errors, capsize=2, label=name, **style)
    dashes = iter(["--", ":", "-.", (0, (5, 1, 1, 1))] * len(arms))
    for same in arms:
        if not _paid(same) and (result := accuracy(same, "on_device")) is not None:
            style = {"color": "#333333", "linewidth": 1.0, "linestyle": next(dashes)}
            axes.axhline(result.value, label=trust.marked(*same), **style)


def _draw_front(axes: Axes, arms: Sequence[Sequence[ArmResult]], price: Callable[..., float | None]) -> None:
    points = [
        (paid, result.value)
        for same in arms
        if not same[0].reference and (paid := price(*same)) is not None and (result := accuracy(same, "on_device"))
    ]
    if points:
        x, y = zip(*(points[i] for i in pareto(points)), strict=True)
        axes.step(x, y, where="post", color="#999999", linewidth=4.0, alpha=0.5, zorder=0, label="Pareto front")


def _paid(same: Sequence[ArmResult]) -> bool:
    """Return True if an arm has a price to draw; one next to _NO_PRICE or above has none."""
    central = trust.central(*same)[0]
    return trust.local(*same) is not None or (central is not None and central < _NO_PRICE)


def _series(arm: ArmResult) -> str:
    name = _SAYS_EPSILON.sub("", arm.name).rstrip(": ")
    public = trust.public(arm)
    return f"{name}, {' and '.join(public)} public" if public else name


def _trusts(arms: Sequence[Sequence[ArmResult]], name: str) -> str:
    """Return the trusted parties of the central ε of a line's arms."""
    lines = [trust.central(*same) for same in arms if _series(same[0]) == name]
    whom = dict.fromkeys(who for epsilon, who in lines if epsilon is not None)
    return f"central ε: trusting {' or '.join(whom)}" if whom else "no central ε"

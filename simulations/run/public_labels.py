"""Accuracy against the number of public labels, over runs that differ in it: what users add to public labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from server.protocols.public_only import PROTOCOL as PUBLIC_ONLY
from simulations.experiment.result import ArmResult, arms_of
from simulations.output.figures import COLOURS, MARKERS, new_figure
from simulations.output.markdown import table as markdown_table
from simulations.run import trust
from simulations.run.comparison import gap
from simulations.run.figures import over_seeds
from simulations.run.over_runs import accuracies, mean_accuracy, mean_difference, moments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
#: Runs by their number of public labels, None for all; in this order in tables and figures.
Groups = Mapping[int | None, Sequence[Results]]

_DEVICE = "on_device"


def by_labels(runs: Sequence[Results]) -> Groups:
    """Return runs by their "labelled", fewest first, all last."""
    numbers = sorted({run["labelled"] for run in runs}, key=lambda n: math.inf if n is None else n)
    return {number: [run for run in runs if run["labelled"] == number] for number in numbers}


def labels_table(groups: Groups) -> str:
    """Return a Markdown table with a row for each number of public labels.

    It has each arm's mean accuracy on the device ± standard error over seeds, in brackets by test text, and the
    difference from the public-only arm, paired by seed and text.
    """
    first = next(iter(groups.values()))[0]
    arms = [arm.name for arm in arms_of(first)]
    alone = next((arm.name for arm in arms_of(first) if arm.way == PUBLIC_ONLY.name), None)
    added = [] if alone is None else [name for name in arms if name != alone]
    shown = [arm.name + (" †" if trust.unprotected(arm) else "") for arm in arms_of(first)]
    rows = [["public labels", *shown, *(f"{name}: users added" for name in added)]]
    for number, runs in groups.items():
        accuracies = [mean_accuracy(_arm(runs, name), _DEVICE) for name in arms]
        gains = [mean_difference([gap(run, name, alone, _DEVICE) for run in runs]) for name in added]
        rows.append([_number(number), *accuracies, *gains])
    seeds = ", ".join(str(run["seed"]) for run in next(iter(groups.values())))
    said = f"{first['name']}, seeds {seeds}: accuracy on the device, mean ± standard error over seeds (and by text)"
    lines = [said, "", markdown_table(rows[0], rows[1:])]
    return "\n".join(lines + (["", f"† {trust.UNPROTECTED}"] if shown != arms else []))


def labels_figure(groups: Groups) -> Figure:
    """Draw the same as lines. There is no point where an arm has no model, for want of labels and users."""
    figure, axes = new_figure(7.2, 3.6)
    first = next(iter(groups.values()))[0]
    numbers, at = list(groups), range(len(groups))
    arms = arms_of(first)
    for i, arm in enumerate(arms):
        every = (accuracies(_arm(runs, arm.name), _DEVICE) for runs in groups.values())
        found = [moments(values) or (math.nan, math.nan) for values in every]
        means, errors = zip(*((mean, error or 0.0) for mean, error in found), strict=True)
        label = trust.marked(arm)
        style: dict[str, Any] = {"color": COLOURS[i % 6], "marker": MARKERS[i % 6], "markersize": 5, "linewidth": 1.4}
        aside = 0.06 * (i - (len(arms) - 1) / 2)  # or one would hide the other
        axes.errorbar([x + aside for x in at], means, yerr=errors, capsize=2, label=label, **style)
    axes.set_xticks(list(at), [_number(number) for number in numbers])
    axes.set_xlabel("public texts with a label")
    axes.set_ylabel("test accuracy, on the device")
    axes.set_title(over_seeds(next(iter(groups.values()))), loc="left", fontsize=9)
    axes.legend(loc="lower right", fontsize=8, frameon=False)
    return figure


def _number(number: int | None) -> str:
    return "all" if number is None else f"{number:,}"


def _arm(runs: Sequence[Results], name: str) -> list[ArmResult]:
    """Return one arm in each run."""
    return [next(arm for arm in arms_of(run) if arm.name == name) for run in runs]

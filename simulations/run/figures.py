"""Figures of a run: accuracy against ε, and what each user spent."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from server.protocols import releases
from simulations.experiment.result import Score, arms_of
from simulations.output.figures import COLOURS, folded, new_figure
from simulations.output.numbers import is_finite, share
from simulations.run import trust

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = dict[str, Any]

REFERENCE_MARK = "†"


def title(results: Results) -> str:
    """Return the title of a run."""
    return f"{results['name']}, seed {results['seed']}, protocol {results['way']}"


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the title of a figure of several runs: the name, and the number of runs or the seed."""
    of = f"seed {runs[0]['seed']}" if len(runs) == 1 else f"mean ± standard error over {len(runs)} seeds"
    return f"{runs[0]['name']}: {of}"


def headline(text: str, results: Mapping[str, Any]) -> str:
    """Return the heading of a figure, folded, with the warning of a protocol that is not private."""
    return "\n".join(line for part in (text, results.get("way_sentence") or "") for line in textwrap.wrap(part, 62))


def on_text(results: Results) -> bool:
    """Return True if users release texts."""
    return releases(results["way"], "text") and not releases(results["way"], "embedding")


def texts_beside(results: Results) -> bool:
    """Return True if users of some arms release texts, and users of the experiment's protocol do not."""
    return not releases(results["way"], "text") and any(releases(arm.way, "text") for arm in arms_of(results))


def accuracy_said(score: Score | None) -> str:
    """Return an accuracy, ± its standard error if that is known."""
    if score is None:
        return share(None)
    return share(score.accuracy) + ("" if score.error is None else f" ± {score.error:.3f}")


def spent_figure(results: Results) -> Figure:
    """Draw bars of what a user pays, in training and in inference, for each arm (`trust.paid`).

    A hatched bar to the edge is ∞: no guarantee.
    """
    arms = arms_of(results)
    figure, axes = new_figure(7.2, 1.3 + 0.5 * len(arms))
    paid = {heading: [trust.paid(whose, arm) for arm in arms] for whose, heading in trust.PAID.items()}
    width = 0.76 / len(paid)
    epsilons = [price.epsilon or 0.0 for prices in paid.values() for price in prices if price]
    edge = 1.15 * max(filter(is_finite, epsilons), default=0.0) or 1.0
    for k, (heading, prices) in enumerate(paid.items()):
        for row, price in enumerate(prices):
            y = row + (k - (len(paid) - 1) / 2) * width
            if price is None or price.epsilon is None:
                none = "nothing released" if price is None else "not known"
                axes.text(edge * 0.008, y, none, va="center", fontsize=7, color="#555555")
            elif math.isinf(price.epsilon):
                style: dict[str, Any] = {"edgecolor": COLOURS[k], "hatch": "////", "linewidth": 0.8}
                axes.barh(y, edge * 1.2, height=0.9 * width, facecolor="white", **style)
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
                axes.text(edge * 0.55, y, "∞", va="center", ha="center", fontsize=9, bbox=box)
            else:
                axes.barh(y, price.epsilon, height=0.9 * width, color=COLOURS[k])
                axes.text(price.epsilon + edge * 0.008, y, trust.cell(price), va="center", fontsize=8)
        axes.barh([0], [0], color=COLOURS[k], label=heading)
    axes.barh([0], [0], facecolor="white", edgecolor="#555555", hatch="////", label="∞: nothing promised")
    axes.set_yticks(
        range(len(arms)), [folded(a.name) + (f" {REFERENCE_MARK}" if trust.unprotected(a) else "") for a in arms]
    )
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_xlim(0, edge)
    axes.grid(axis="y", visible=False)
    text = "worst-case ε of all that one user releases"
    if trust.conditions([results]):
        text += f"\n{trust.CONDITION_MARK}: between data that agree in what is declared public; else ∞"
    axes.set_xlabel(text)
    axes.set_title(headline(title(results), results), loc="left", fontsize=9)
    figure.legend(loc="outside lower right", ncols=3, fontsize=8, frameon=False)
    return figure

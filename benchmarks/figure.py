"""Figure of a round's time by its users."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from simulations.output.figures import COLOURS, new_figure


def growth(found: dict[str, Any]) -> Figure:
    """Draw seconds of a round as bars, with the rate of users.

    Args:
        found: The section "round" of `bench.run`, of two sizes or more.
    """
    rounds = [(int(r["users"]), float(r["seconds"]["round"])) for r in found["rounds"]]
    figure, axes = new_figure(4.2, 0.9 + 0.36 * len(rounds))
    axes.barh(range(len(rounds)), [seconds for _, seconds in rounds], color=COLOURS[0], height=0.55)
    for y, (users, seconds) in enumerate(rounds):
        rate = float(f"{users / seconds:.2g}")
        axes.annotate(
            f"{seconds:.2g} s, {rate:,.0f} users/s",
            (seconds, y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(rounds)), [f"{users:,} users" for users, _ in rounds], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.9 * max(seconds for _, seconds in rounds))
    axes.tick_params(labelsize=8)
    axes.set_xlabel("seconds for one round (sample, ledger, shuffle, collect)", fontsize=8)
    return figure

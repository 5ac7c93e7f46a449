"""Figure of a round's time against its users."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from simulations.output.figures import COLOURS, new_figure


def growth(found: dict[str, Any]) -> Figure:
    """Draw seconds of a round against users, on logarithmic axes.

    Args:
        found: The section "round" of `bench.run`, of two sizes or more.
    """
    users = np.array([r["users"] for r in found["rounds"]], dtype=float)
    seconds = np.array([r["seconds"]["round"] for r in found["rounds"]], dtype=float)
    figure, axes = new_figure(5.2, 3.6)
    axes.loglog(users, seconds, "o-", color=COLOURS[0], linewidth=1, markersize=7, label="one round, cached embeddings")
    for x, y in zip(users, seconds, strict=True):
        axes.annotate(f"{y:.2f} s", (x, y), xytext=(6, -12), textcoords="offset points", fontsize=8)
    axes.set_ylim(10 ** np.floor(np.log10(seconds.min())), 10 ** np.ceil(np.log10(seconds.max())))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("users")
    axes.set_ylabel("seconds (sample, ledger, shuffle, collect)")
    axes.legend(frameon=False, fontsize=8)
    return figure

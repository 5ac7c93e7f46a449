"""Figures of deniability for print: N_x and S_x, parts of speech before and after, distances of substitutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.vocabulary import TAGS
from simulations.output.figures import COLOURS, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Share of the draws that must change the word for a density of distances.
SOME = 0.005
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write deniability.png, tags.png and distances.png into a folder, and return their paths."""
    figures = {"deniability": deniability, "tags": tags, "distances": distances}
    paths = []
    for name, draw in figures.items():
        paths.append(folder / f"{name}.png")
        figure = draw(results)
        if name == "tags":  # its shades are more colours than `save` keeps
            figure.savefig(paths[-1])
        else:
            save(figure, paths[-1])
    return paths


def deniability(results: dict[str, Any]) -> Figure:
    """Draw histograms of N_x and S_x over the words: a column for each ε, a line for each mechanism."""
    columns = _columns(results)
    figure, axes = _panels(2, len(columns))
    shown = (
        ("stays_by_word", 1.0, "$N_x$: how often a word stays"),
        ("distinct_by_word", results["draws"], f"$S_x$: distinct outputs of {results['draws']} draws"),
    )
    for row, (key, top, name) in enumerate(shown):
        bins = np.linspace(0, top, 26)
        for column, (heading, runs) in enumerate(columns):
            panel = axes[row][column]
            for run in runs:
                share = np.histogram(run[key], bins=bins)[0] / len(run[key])
                _steps(panel, bins, share, results, run)
            panel.set_xlabel(name)
            if row == 0:
                panel.set_title(heading, loc="left", fontsize=9)
            if column == 0:
                panel.set_ylabel("share of the words")
    return _legend(figure)


def tags(results: dict[str, Any]) -> Figure:
    """Draw parts of speech before (rows) and after (columns), in shares of the row: a panel for each run.

    Mechanisms are rows of panels and ε are columns. If each mechanism has one ε, three panels stand in a row.
    """
    columns = _columns(results)
    rows = [[run for _, runs in columns for run in runs if run["mechanism"] == name] for name in _names(results)]
    if len(columns) == 1:
        flat = [run for row in rows for run in row]
        rows = [flat[at : at + 3] for at in range(0, len(flat), 3)]
    confusions = [np.asarray(run["confusion"]) for run in results["runs"]]
    used = [i for i in range(len(TAGS)) if any(c[i].sum() for c in confusions)]
    figure, axes = _panels(len(rows), max(map(len, rows)), width=2.9, height=2.9, share=False)
    image = None
    for panels, runs in zip(axes, rows, strict=True):
        for panel in panels[len(runs) :]:
            panel.set_axis_off()
        for panel, run in zip(panels, runs, strict=False):
            counts = np.asarray(run["confusion"])[used]
            shares = counts[:, used] / np.maximum(counts.sum(axis=1), 1)[:, None]
            image = panel.imshow(shares, cmap="Blues", vmin=0, vmax=1)
            for i, j in zip(*np.nonzero(shares > 0.005), strict=True):
                colour = "white" if shares[i, j] > 0.55 else "black"
                panel.text(j, i, f"{100 * shares[i, j]:.0f}", ha="center", va="center", fontsize=6, color=colour)
            panel.set_xticks(range(len(used)), [TAGS[i] for i in used], rotation=90, fontsize=7)
            panel.set_yticks(range(len(used)), [TAGS[i] for i in used], fontsize=7)
            panel.grid(visible=False)
            epsilon = "" if run["epsilon"] is None else f"ε = {run['epsilon']:.3g}, "
            panel.set_title(f"{run['mechanism']}\n{epsilon}kept {100 * run['tag_kept']:.1f} %", loc="left", fontsize=8)
        panels[0].set_ylabel("before", fontsize=8)
    for panel in axes[-1]:
        panel.set_xlabel("after", fontsize=8)
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 1.6 / len(rows)), pad=0.01)
    bar.set_label("share of the row (numbers: %)", fontsize=8)
    return figure


def distances(results: dict[str, Any]) -> Figure:
    """Draw densities of the distances of substitutes: a column for each ε, a line for each mechanism.

    A mechanism that changes a smaller share than SOME of its draws has no line, since a few words give only spikes.
    """
    columns = _columns(results)
    figure, axes = _panels(1, len(columns))
    far = 0.0
    for column, (heading, runs) in enumerate(columns):
        panel = axes[0][column]
        for run in runs:
            counts = np.asarray(run["distances"], dtype=float)
            edges = np.linspace(0, run["distances_up_to"], len(counts) + 1)
            if counts.sum() >= SOME * results["sample"] * results["draws"]:
                _steps(panel, edges, counts / counts.sum() / np.diff(edges), results, run)
                far = max(far, edges[1:][counts > 0].max())
        panel.set_title(heading, loc="left", fontsize=9)
        panel.set_xlabel(f"distance of word and substitute\n(where at least {100 * SOME:g} % of draws change)")
    for panel in axes[0]:
        panel.set_xlim(0, far or 1.0)
    axes[0][0].set_ylabel("density")
    return _legend(figure)


def _columns(results: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return headings and their runs: a column for each given ε, or one if each mechanism has its own."""
    runs = results["runs"]
    if results["target"] is not None:
        return [(f"quantile {results['quantile']:g} of $N_x$ = {results['target']:g}", runs)]
    epsilons = sorted({r["epsilon"] for r in runs if r["epsilon"] is not None})
    if not epsilons:
        return [("", runs)]
    return [(f"ε = {e:g}", [r for r in runs if r["epsilon"] in (e, None)]) for e in epsilons]


def _names(results: dict[str, Any]) -> list[str]:
    """Return the mechanisms in the order in which they were given."""
    return list(dict.fromkeys(run["mechanism"] for run in results["runs"]))


def _steps(panel: Axes, edges: np.ndarray, heights: np.ndarray, results: dict[str, Any], run: dict[str, Any]) -> None:
    i = _names(results).index(run["mechanism"])
    name = run["mechanism"]
    if results["target"] is not None and run["epsilon"] is not None:
        name += f", ε = {run['epsilon']:.3g}"
    style: dict[str, Any] = {"color": COLOURS[i % 6], "linestyle": STYLES[i % 6], "linewidth": 1.4}
    panel.stairs(heights, edges, label=name, **style)


def _panels(rows: int, columns: int, *, width: float = 2.6, height: float = 2.3, share: bool = True) -> Any:
    """Return a figure outside matplotlib's global state, and its axes [row][column]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (max(5.0, width * columns + 0.6), height * rows + 0.6)
    figure = Figure(figsize=size, dpi=300, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharey="row" if share else False)
    for panel in axes.flat:
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        if share:
            panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
        panel.xaxis.label.set_size(8)
        panel.yaxis.label.set_size(8)
    return figure, axes


def _legend(figure: Figure) -> Figure:
    """Add one legend below all panels, start their axes at 0, and return the figure."""
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        panel.set_ylim(bottom=0)
        handles |= {name: handle for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)}
    columns = 1 if figure.get_figwidth() < 7 else 2
    style = {"ncols": columns, "fontsize": 8, "frameon": False, "handlelength": 3.0}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", **style)
    return figure

"""Figures drawn from the measured tables of these pages: `python docs/table_figures.py [FOLDER]`.

A figure holds what its table holds, and is drawn again in seconds after the table has changed. Each is 4.2 inches wide,
so that its letters can be read on a telephone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figure import growth
from simulations.output.figures import COLOURS, MARKERS, new_figure, save

HERE = Path(__file__).parent
WIDTH = 4.2
_NUMBER = re.compile(r"[+-]?(?:\d[\d,]*)?\.?\d+|∞")


def table(name: str) -> list[list[str]]:
    """Return the cells of a table of the pages, the head first."""
    for page in sorted(HERE.rglob("*.md")):
        lines = page.read_text(encoding="utf-8").split("\n")
        if (marker := f"<!-- table: {name} -->") in lines:
            rest = lines[lines.index(marker) + 2 :]
            rows = rest[: next((i for i, line in enumerate(rest) if not line.startswith("|")), len(rest))]
            return [[cell.strip() for cell in row.split("|")[1:-1]] for row in (rows[0], *rows[2:])]
    raise ValueError(f"no page has a table {name}")


def numbers(cell: str) -> list[float]:
    """Return the numbers in a cell."""
    return [float(found.replace(",", "").replace("∞", "inf")) for found in _NUMBER.findall(cell)]


def finished(figure: Any, axes: Any, x: str, y: str, *, columns: int) -> Any:
    """Return a figure of one panel with the names of its axes, its ticks and its legend."""
    axes.tick_params(labelsize=8)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    figure.legend(loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return figure


def words() -> Any:
    """Draw accuracy of word mechanisms against the worst case between texts of equal length."""
    figure, axes = new_figure(WIDTH, 3.9)
    _, *rows = table("sst2-words")
    for i, (name, sanitized, device, worst) in enumerate(row for row in rows if row[3] != "∞"):
        short, at = re.sub(r", ε.*", "", name), numbers(worst)[0]
        if name.startswith("TEM, ε"):  # or it would hide SanText, which has the same worst case
            short, at = "TEM (drawn 10 % to the right)", 1.1 * at
        style: dict[str, Any] = {"color": COLOURS[i], "markersize": 5, "capsize": 2}
        for cell, face in ((sanitized, None), (device, "white")):
            mean, error, *_ = numbers(cell)
            axes.errorbar(
                [at],
                [mean],
                yerr=error,
                marker=MARKERS[i],
                markerfacecolor=face or style["color"],
                label=short if face is None else None,
                linestyle="none",
                **style,
            )
    clear = next(numbers(row[2])[0] for row in rows if row[3] == "∞")
    axes.axhline(clear, color="#333333", linewidth=1, linestyle="--", label="no noise, on device")
    axes.set_xscale("log")
    axes.set_xticks((500, 1000, 2000, 4000), ("500", "1,000", "2,000", "4,000"))
    axes.minorticks_off()
    x, y = (
        "worst case: ε between texts of equal length (less is better)",
        "accuracy (filled: sanitized; hollow: on device)",
    )
    return finished(figure, axes, x, y, columns=2)


def labels() -> Any:
    """Draw accuracy against the number of public labels."""
    figure, axes = new_figure(WIDTH, 3.6)
    head, *rows = table("labels-worth")
    for i, name in enumerate(head[1:4]):
        points = [(x, *numbers(row[i + 1])[:2]) for x, row in enumerate(rows) if numbers(row[i + 1])]
        x, mean, error = zip(*points, strict=True)
        axes.errorbar(
            [each + 0.06 * (i - 1) for each in x],
            mean,
            yerr=error,
            color=COLOURS[i],
            marker=MARKERS[i],
            capsize=2,
            markersize=5,
            linewidth=1.3,
            label=name.replace(" †", " (not private)"),
        )
    axes.set_xticks(range(len(rows)), [row[0] for row in rows], fontsize=8)
    return finished(figure, axes, "public texts with a label", "accuracy on the device", columns=1)


def composition() -> Any:
    """Draw accuracy against the part of a budget that labels have."""
    figure, axes = new_figure(WIDTH, 3.4)
    head, *rows = table("study-composition")
    parts = [numbers(cell)[-1] for cell in head[2:]]
    for i, (users, rounds, *cells) in enumerate(rows):
        device = [numbers(cell.split("(")[1])[0] for cell in cells]
        said = f"{users} users, {rounds} round{'s' if rounds != '1' else ''}"
        axes.plot(parts, device, color=COLOURS[i], marker=MARKERS[i], markersize=5, linewidth=1.3, label=said)
    axes.set_xticks(parts)
    x = "ε of the label (central ε = 4 for all releases together)"
    return finished(figure, axes, x, "accuracy on the device", columns=2)


def time() -> Any:
    """Draw the time of a round."""
    _, *rows = table("bench-round")
    return growth({"rounds": [{"users": numbers(row[0])[0], "seconds": {"round": numbers(row[2])[0]}} for row in rows]})


def bounded_successes() -> dict[str, list[tuple[float, float]]]:
    """Return for each mechanism pairs of the success that a theorem allows an attack, and the attack's own."""
    found: dict[str, list[tuple[float, float]]] = {}
    _, *rows = table("attack-vector")
    found["PrivUnit"] = [
        (numbers(cell)[-1], numbers(cell)[0]) for row in rows for cell in row[1:] if "(" in cell and "ε" in row[0]
    ]
    columns = ((1, 4), (2, 4), (5, 8), (6, 8))
    pairs = [("attack-embeddings", success, bound) for success, bound in columns]
    pairs += [("membership-releases", success, 4) for success in (1, 2, 3)]
    pairs += [("membership-texts", success, 4) for success in (1, 3)]
    for name, success, bound in pairs:
        for row in table(name)[1:]:
            mechanism = row[0].split(",")[0]
            if "ε" in row[0] and numbers(row[success]) and numbers(row[bound]):
                found.setdefault(mechanism, []).append((numbers(row[bound])[0], numbers(row[success])[0]))
    return found


def attacks() -> Any:
    """Draw success of attacks against the theorem's bound."""
    figure, axes = new_figure(WIDTH, 4.4)
    axes.plot([0, 1], [0, 1], color="#333333", linewidth=1, linestyle="--", label="the theorem's bound")
    for i, (name, points) in enumerate(bounded_successes().items()):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=COLOURS[i], marker=MARKERS[i], markersize=5, linestyle="none", alpha=0.8, label=name)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    return finished(figure, axes, "success that the theorem allows", "success of the attack", columns=2)


#: Figures by the stem of their file.
FIGURES: dict[str, Callable[[], Any]] = {
    "sst2-words": words,
    "labels-worth": labels,
    "composition": composition,
    "round": time,
    "attacks": attacks,
}


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "figures"
    for stem, draw in FIGURES.items():
        save(draw(), out / f"{stem}.png")

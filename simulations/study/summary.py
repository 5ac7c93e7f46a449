"""Several runs of one study, of different seeds, as one table and one figure of means."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from simulations.errors import UserError
from simulations.experiment import PUBLIC_ONLY
from simulations.study.journal import refuse_unfinished

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = dict[str, Any]


def summarize(folders: Sequence[Path | str]) -> str:
    """A Markdown table: for each arm, mean ± standard error over the runs (standard deviation / √runs).

    "users added" is the sanitized accuracy above that of the public-only arm of the same mechanism and ε in the same
    run. The error says how much seeds differ (users drawn, public split, noise); the test sentences are the same in
    every run, and what another test set would change comes on top. One run has no error.

    Raises UserError where a folder holds no results, or the runs are not of the same study and different seeds.
    """
    runs = read(folders)
    seeds = ", ".join(str(run["seed"]) for run in runs)
    lines = [
        f"{runs[0]['name']}, seeds {seeds}: mean ± standard error over {len(runs)} run{'s' * (len(runs) > 1)}",
        "",
        "| arm | accuracy, sanitized | users added | accuracy, on device | m' | worst-case ε | label ε | users |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arms in zip(*(run["arms"] for run in runs), strict=True):
        first = arms[0]
        budget = first["budget"]
        lines.append(
            f"| {first['name']}{' †' if first['reference'] else ''} | {_mean(arms, 'accuracy')} | "
            f"{_added(runs, first['name'])} | {_mean(arms, 'accuracy_clean_test')} | {_range(arms, 'dim')} | "
            f"{_worst(budget)} | {_epsilon(budget['label_epsilon'])} | "
            f"{_range(arms, 'delivered')} |"
        )
    if any(arm["reference"] for arm in runs[0]["arms"]):
        lines += ["", "† a reference: not private."]
    if runs[0].get("way_sentence"):
        lines += ["", runs[0]["way_sentence"]]
    return "\n".join(lines)


def read(folders: Sequence[Path | str]) -> list[Results]:
    """The results of runs of one study. Raises UserError as `summarize` does."""
    runs = [_results(Path(folder)) for folder in folders]
    names = {tuple(arm["name"] for arm in run["arms"]) for run in runs}
    if len({run["name"] for run in runs}) > 1 or len(names) > 1:
        raise UserError(f"{folders[0]} and the others are not runs of one study with the same arms")
    if len({run["seed"] for run in runs}) < len(runs):
        raise UserError(f"{folders[0]} and the others: two runs have the same seed; a mean needs different ones")
    return runs


def figure(folders: Sequence[Path]) -> Figure:
    """Each arm's mean accuracy with its standard error: sanitized (filled) and on the device (hollow)."""
    from simulations.output.figures import COLOURS, new_figure

    runs = read(folders)
    drawn, axes = new_figure(7.2, 0.9 + 0.32 * len(runs[0]["arms"]))
    rows = range(len(runs[0]["arms"]))
    kinds = (
        ("accuracy", "sanitized", COLOURS[0], "o", COLOURS[0]),
        ("accuracy_clean_test", "on device", COLOURS[1], "s", "white"),
    )
    for key, label, colour, marker, face in kinds:
        means, errors, shown = [], [], []
        for row, arms in enumerate(zip(*(run["arms"] for run in runs), strict=True)):
            values = [arm[key] for arm in arms]
            if all(value is not None for value in values):
                means.append(fmean(values))
                errors.append(stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0)
                shown.append(row - 0.12 if key == "accuracy" else row + 0.12)  # or one would hide the other
        style = {"fmt": marker, "color": colour, "markerfacecolor": face, "markersize": 6, "capsize": 3}
        axes.errorbar(means, shown, xerr=errors, label=label, **style)
    axes.set_yticks(rows, [a["name"] + (" (not private)" if a["reference"] else "") for a in runs[0]["arms"]])
    axes.invert_yaxis()
    axes.set_xlabel("test accuracy")
    axes.set_title(f"{runs[0]['name']}: mean ± standard error over {len(runs)} seeds", loc="left", fontsize=9)
    drawn.legend(loc="outside right upper", fontsize=8, frameon=False)
    return drawn


def _added(runs: Sequence[Results], name: str) -> str:
    """Mean ± standard error of an arm's sanitized accuracy less its baseline's in the same run; "–" without one."""
    gains = []
    for run in runs:
        arm = next(a for a in run["arms"] if a["name"] == name)
        alone = [a for a in run["arms"] if a.get("way") == PUBLIC_ONLY]
        same = [a for a in alone if (a["mechanism"], a["epsilon"]) == (arm.get("mechanism"), arm.get("epsilon"))]
        if not same or arm.get("way") == PUBLIC_ONLY or None in (arm["accuracy"], same[0]["accuracy"]):
            return "–"
        gains.append(arm["accuracy"] - same[0]["accuracy"])
    error = f" ± {stdev(gains) / math.sqrt(len(gains)):.3f}" if len(gains) > 1 else ""
    return f"{fmean(gains):+.3f}{error}"


def _results(folder: Path) -> dict[str, Any]:
    refuse_unfinished(Path(folder))
    path = Path(folder) / "results.json"
    try:
        results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {key: results.get(key) for key in ("name", "seed", "arms", "way_sentence")}
    except (OSError, ValueError, AttributeError):
        raise UserError(f"{folder}: holds no readable results.json; name the folder of a finished run") from None


def _mean(arms: Sequence[dict[str, Any]], key: str) -> str:
    values = [arm[key] for arm in arms]
    if any(value is None for value in values):
        return "–"
    error = f" ± {stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{error}"


def _range(arms: Sequence[dict[str, Any]], key: str) -> str:
    values = sorted({arm[key] for arm in arms})
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,}–{values[-1]:,}"


def _worst(budget: dict[str, Any]) -> str:
    """The worst-case ε, with its δ where that is above 0."""
    delta = budget.get("delta")
    return _epsilon(budget["worst_case_epsilon"]) + (f" (δ {delta:g})" if delta else "")


def _epsilon(value: float | str | None) -> str:
    return "–" if value is None else "∞" if value == "inf" else f"{value:.4g}"

"""Several runs of one study, of different seeds, as one table of means."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from simulations.errors import UserError


def summarize(folders: Sequence[Path]) -> str:
    """A Markdown table: for each arm, mean ± standard error over the runs (standard deviation / √runs).

    The error says how much seeds differ (users drawn, public split, noise); the test sentences are the same in
    every run, and what another test set would change comes on top. One run has no error.

    Raises UserError where a folder holds no results, or the runs are not of the same study and different seeds.
    """
    runs = [_results(folder) for folder in folders]
    names = {tuple(arm["name"] for arm in run["arms"]) for run in runs}
    if len({run["name"] for run in runs}) > 1 or len(names) > 1:
        raise UserError(f"{folders[0]} and the others are not runs of one study with the same arms")
    if len({run["seed"] for run in runs}) < len(runs):
        raise UserError(f"{folders[0]} and the others: two runs have the same seed; a mean needs different ones")
    seeds = ", ".join(str(run["seed"]) for run in runs)
    lines = [
        f"{runs[0]['name']}, seeds {seeds}: mean ± standard error over {len(runs)} run{'s' * (len(runs) > 1)}",
        "",
        "| arm | accuracy, sanitized | accuracy, on device | m' | worst-case ε | label ε | users delivered |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arms in zip(*(run["arms"] for run in runs), strict=True):
        first = arms[0]
        budget = first["budget"]
        lines.append(
            f"| {first['name']}{' †' if first['reference'] else ''} | {_mean(arms, 'accuracy')} | "
            f"{_mean(arms, 'accuracy_clean_test')} | {_range(arms, 'dim')} | "
            f"{_epsilon(budget['worst_case_epsilon'])} | {_epsilon(budget['label_epsilon'])} | "
            f"{_range(arms, 'delivered')} |"
        )
    if any(arm["reference"] for arm in runs[0]["arms"]):
        lines += ["", "† a reference: not private."]
    if runs[0].get("way_sentence"):
        lines += ["", runs[0]["way_sentence"]]
    return "\n".join(lines)


def _results(folder: Path) -> dict[str, Any]:
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


def _epsilon(value: float | str | None) -> str:
    return "–" if value is None else "∞" if value == "inf" else f"{value:.4g}"

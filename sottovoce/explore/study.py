"""Accuracy of each arm of a finished run, at its ε, for the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechanisms.channels import CHANNELS
from sottovoce.explore.settings import MECHANISMS, Settings
from sottovoce.report.reading import read


@dataclass(frozen=True)
class Study:
    """Accuracies of a finished run.

    Args:
        first: First values of the sliders, of the first arm that the page can show.
        told: {"name", "arms": [{"name", "mechanism", "channel", "epsilon", "accuracy", "error", "dim"}]}.
    """

    first: Settings
    told: Mapping[str, Any]


def read_study(run: Path) -> Study:
    """Read the accuracies of a finished run.

    Raises:
        UserError: The folder holds no finished run. The message is one line.
    """
    finished = read(run)
    arms = []
    for arm in finished.arms:
        channel = next((c for c, names in MECHANISMS.items() if arm.mechanism in names), None)
        if (score := arm.score("sanitized")) is None:
            continue
        arms.append(
            {
                "name": arm.name,
                "mechanism": arm.mechanism,
                "channel": channel,
                "epsilon": arm.epsilon,
                "label_epsilon": arm.label_epsilon,
                "accuracy": score.accuracy,
                "error": score.error,
                "dim": arm.dim,
                "reference": arm.reference,
            }
        )
    return Study(_first(arms), {"name": finished.name, "arms": arms})


def _first(arms: list[dict[str, Any]]) -> Settings:
    for arm in arms:
        if arm["channel"] is not None and isinstance(arm["epsilon"], int | float):
            given = {"channel": arm["channel"], "mechanism": arm["mechanism"], "epsilon": float(arm["epsilon"])}
            if CHANNELS[arm["channel"]].domain.vectors and 2 <= (arm["dim"] or 0) <= 64:
                given["dim"] = arm["dim"]
            return Settings.of(given)
    return Settings()

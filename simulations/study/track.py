"""A finished run, told to a tracker of experiments: one tracked run for each arm, so that they can be compared there.

Trackers are what a simulation's owner uses, who has the truth anyway; a deployment has none. What is told are settings
and figures of results.json, and nothing of a text.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simulations.errors import UserError
from simulations.experiment import slug
from simulations.experiment.names import nearest
from simulations.output.numbers import is_finite
from simulations.study import trust

Results = Mapping[str, Any]


class Tracker(Protocol):
    """Where runs are told of."""

    def run(self, study: str, name: str, *, settings: Mapping[str, str], figures: Mapping[str, float]) -> None:
        """One run of a study, with what was set and what came of it, whole."""
        ...


@dataclass(frozen=True)
class _MLflow:
    uri: str

    def run(self, study: str, name: str, *, settings: Mapping[str, str], figures: Mapping[str, float]) -> None:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        known = client.get_experiment_by_name(study)
        experiment = client.create_experiment(study) if known is None else known.experiment_id
        made = client.create_run(experiment, run_name=name).info.run_id
        for key, value in settings.items():
            client.log_param(made, key, value)
        for key, number in figures.items():
            client.log_metric(made, key, number)
        client.set_terminated(made)


@dataclass(frozen=True)
class _TensorBoard:
    folder: str

    def run(self, study: str, name: str, *, settings: Mapping[str, str], figures: Mapping[str, float]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(f"{self.folder}/{slug(study)}/{slug(name)}") as writer:
            writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in settings.items()))
            for key, number in figures.items():
                writer.add_scalar(key, number, 0)


#: By the word before the colon: what makes it of the rest, and the package that it needs.
TRACKERS: dict[str, tuple[Callable[[str], Tracker], str]] = {
    "mlflow": (_MLflow, "mlflow"), "tensorboard": (_TensorBoard, "tensorboard"),
}  # fmt: skip


def tracker(where: str) -> Tracker:
    """The tracker of "mlflow:URI" or "tensorboard:FOLDER". Raises UserError, in one line, for anything else, and where
    its package is not installed: to be asked before a run is begun."""
    kind, _, place = where.partition(":")
    if kind not in TRACKERS or not place:
        known = " or ".join(f"{name}:PLACE" for name in TRACKERS)
        raise UserError(f"--track {where}: must be {known}{nearest(kind, TRACKERS) if kind not in TRACKERS else ''}")
    make, package = TRACKERS[kind]
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            f"--track {where}: needs the package {package}: pip install 'sottovoce[tracking]'"
        ) from error
    return make(place)


def track(trackers: Sequence[Tracker], results: Results) -> None:
    """Tell of every arm of a run. Raises UserError, in one line, where a tracker does not take it."""
    for arm in results["arms"]:
        name, settings, figures = f"{arm['name']}, seed {results['seed']}", _settings(results, arm), _figures(arm)
        for each in trackers:
            try:
                each.run(str(results["name"]), name, settings=settings, figures=figures)
            except Exception as error:  # of many kinds: a server's, a disk's, a library's own
                said = " ".join(f"{error}".split())[:200]
                raise UserError(f"--track: the results are kept, but {each} does not take them: {said}") from error


def _settings(results: Results, arm: Mapping[str, Any]) -> dict[str, str]:
    """What tells the arm from others; `protected` says whether all that its users release is."""
    about = {
        "arm": arm["name"], "seed": results["seed"], "way": arm["way"], "reference": bool(arm["reference"]),
        "protected": not trust.unprotected(arm), "mechanism": arm.get("mechanism"),
        "encoder": (results.get("encoder") or {}).get("model"),
    }  # fmt: skip
    return {key: str(value) for key, value in {**about, **(arm.get("parameters") or {})}.items() if value is not None}


def _figures(arm: Mapping[str, Any]) -> dict[str, float]:
    """Those that are finite; an ε that is infinite is none, and `protected` says so."""
    prices = {
        "local_epsilon": trust.local(arm), "central_epsilon": trust.central(arm)[0],
        "metric_epsilon": trust.metric(arm),
    }  # fmt: skip
    names = (
        "accuracy", "accuracy_se", "accuracy_clean_test", "accuracy_clean_test_se", "users", "delivered",
        "bytes_per_user", "seconds",
    )  # fmt: skip
    every = {**{name: arm.get(name) for name in names}, **prices}
    return {key: float(value) for key, value in every.items() if value is not None and is_finite(value)}

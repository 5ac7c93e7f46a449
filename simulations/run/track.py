"""Export of a finished run to experiment trackers, as one tracked run for each arm.

Only the owner of a simulation uses trackers, who has the true data anyway; a deployment has none. The export has
settings and figures of results.json, and no text.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simulations.errors import UserError
from simulations.experiment import slug
from simulations.experiment.names import nearest
from simulations.experiment.result import ArmResult, arms_of
from simulations.output.numbers import is_finite
from simulations.run import trust
from simulations.run.table import estimates

Results = Mapping[str, Any]


class Tracker(Protocol):
    """Tracker of experiments."""

    def run(self, study: str, name: str, *, settings: Mapping[str, str], figures: Mapping[str, float]) -> None:
        """Record one complete run of an experiment, with its settings and figures."""
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


@dataclass(frozen=True)
class _WandB:
    """Write into the folder `wandb` or $WANDB_DIR for `wandb sync`, or upload at once if $WANDB_MODE is "online"."""

    project: str

    def __post_init__(self) -> None:
        if len(self.project) > 128 or set(self.project.rpartition("/")[2]) & set("/\\#?%:"):
            raise UserError(f"--track wandb:{self.project}: is no project's name; leave out / \\ # ? % and :")

    def run(self, study: str, name: str, *, settings: Mapping[str, str], figures: Mapping[str, float]) -> None:
        import wandb

        entity, _, project = self.project.rpartition("/")
        # By default it also reports the machine, its user, the command, the code and the packages.
        bare = wandb.Settings(
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            save_code=False,
            console="off",
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
            silent=True,
        )
        mode = "online" if os.environ.get("WANDB_MODE") == "online" else "offline"
        with wandb.init(
            entity=entity or None,
            project=project,
            group=study,
            name=name,
            config=dict(settings),
            mode=mode,
            reinit="create_new",
            settings=bare,
        ) as made:
            made.log(dict(figures))


#: Constructor, required package and extra of each tracker, by the word before the colon.
TRACKERS: dict[str, tuple[Callable[[str], Tracker], str, str]] = {
    "mlflow": (_MLflow, "mlflow", "tracking"),
    "tensorboard": (_TensorBoard, "tensorboard", "tracking"),
    "wandb": (_WandB, "wandb", "wandb"),
}

#: Set before the import, when MLflow reads it: nothing is reported to the makers. A value that the user has set stays.
_SILENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}


def tracker(where: str) -> Tracker:
    """Return the tracker of "mlflow:URI", "tensorboard:FOLDER" or "wandb:PROJECT". Call it before a run starts.

    Raises:
        UserError: The text has another form, or the tracker's package is not installed.
    """
    kind, _, place = where.partition(":")
    if kind not in TRACKERS or not place:
        *names, last = (f"{name}:PLACE" for name in TRACKERS)
        known = f"{', '.join(names)} or {last}"
        raise UserError(f"--track {where}: must be {known}{nearest(kind, TRACKERS) if kind not in TRACKERS else ''}")
    make, package, extra = TRACKERS[kind]
    made = make(place)
    for name, told in _SILENT.items():
        os.environ.setdefault(name, told)
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"--track {where}: needs the package {package}: pip install 'sottovoce[{extra}]'") from error
    return made


def track(trackers: Sequence[Tracker], results: Results) -> None:
    """Export every arm of a run.

    Raises:
        UserError: A tracker fails.
    """
    for arm in arms_of(results):
        name, settings, figures = f"{arm.name}, seed {results['seed']}", _settings(results, arm), _figures(arm)
        for each in trackers:
            try:
                each.run(str(results["name"]), name, settings=settings, figures=figures)
            except Exception as error:  # a server, a disk or the library may fail
                said = " ".join(f"{error}".split())[:200]
                raise UserError(f"--track: the results are kept, but {each} does not take them: {said}") from error


def _settings(results: Results, arm: ArmResult) -> dict[str, str]:
    """Return the settings that distinguish the arm. `protected` says if all of its users' releases are protected."""
    about = {
        "arm": arm.name,
        "seed": results["seed"],
        "way": arm.way,
        "reference": arm.reference,
        "protected": not trust.unprotected(arm),
        "mechanism": arm.mechanism,
        "encoder": (results.get("encoder") or {}).get("model"),
    }
    return {key: str(value) for key, value in {**about, **arm.parameters}.items() if value is not None}


def _figures(arm: ArmResult) -> dict[str, float]:
    """Return the finite figures. An infinite ε is left out, and `protected` shows it."""
    found: dict[str, float | None] = {}
    for metric, split, value, error, _ in estimates(arm):
        name = metric + "_clean_test" * (split == "on_device")
        found |= {name: value, f"{name}_se": error}
    return {name: value for name, value in found.items() if value is not None and is_finite(value)}

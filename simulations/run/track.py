"""Export of a finished run to experiment trackers: one tracked run for each arm, with settings and figures, no text."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from simulations.errors import UserError, in_short
from simulations.experiment import slug
from simulations.experiment.names import nearest
from simulations.experiment.result import arms_of
from simulations.output.numbers import is_finite
from simulations.run.table import estimates
from simulations.run.trust import unprotected

#: Function that records one run: its experiment's name, its own name, its settings and its figures.
Tracker = Callable[[str, str, dict[str, str], dict[str, float]], None]
#: Set before the import, unless the user has set it: makers are told nothing, and a server that is gone is given up.
_ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
_ENVIRONMENT |= {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
_ENVIRONMENT |= {"WANDB_ERROR_REPORTING": "false", "WANDB_MODE": "offline"}
#: By default W&B also reports the machine, its user, the command, the code and the packages.
_BARE = ("disable_code", "disable_git", "disable_job_creation", "x_disable_machine_info", "x_disable_meta")


def _mlflow(uri: str) -> Tracker:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    client.search_experiments(max_results=1)

    def log(experiment: str, name: str, settings: dict[str, str], figures: dict[str, float]) -> None:
        entry = client.get_experiment_by_name(experiment)
        place = client.create_experiment(experiment) if entry is None else entry.experiment_id
        run = client.create_run(place, run_name=name).info.run_id
        for key, value in settings.items():
            client.log_param(run, key, value)
        for key, number in figures.items():  # a class's name in it may hold characters that MLflow refuses
            client.log_metric(run, re.sub(r"[^\w .:-]", "_", key)[:250], number)
        client.set_terminated(run)

    return log


def _tensorboard(folder: str) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    def log(experiment: str, name: str, settings: dict[str, str], figures: dict[str, float]) -> None:
        # TensorBoard shows all that one folder holds as one run.
        numbered = (f"{folder}/{slug(experiment)}/{slug(name)}{f'-{n}' * (n > 1)}" for n in count(1))
        with SummaryWriter(next(place for place in numbered if not os.path.exists(place))) as writer:
            writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in settings.items()))
            for key, number in figures.items():
                writer.add_scalar(key, number, 0)

    return log


def _wandb(place: str) -> Tracker:
    """Write into the folder `wandb` or $WANDB_DIR for `wandb sync`, or upload at once if $WANDB_MODE is "online"."""
    import wandb

    if os.environ["WANDB_MODE"] == "online" and not wandb.login(timeout=20, verify=True):
        raise ValueError("W&B has no key of yours; log in with: wandb login")
    entity, _, project = place.rpartition("/")
    bare = dict.fromkeys((*_BARE, "x_disable_stats", "silent"), True) | {"save_code": False, "console": "off"}

    def log(experiment: str, name: str, settings: dict[str, str], figures: dict[str, float]) -> None:
        about = {"entity": entity or None, "project": project, "group": experiment, "name": name, "config": settings}
        how = wandb.Settings(**bare, x_save_requirements=False)
        with wandb.init(**about, reinit="create_new", settings=how) as run:
            run.log(figures)

    return log


#: Function that reaches a tracker, and the extra that installs its package.
TRACKERS = {"mlflow": (_mlflow, "tracking"), "tensorboard": (_tensorboard, "tracking"), "wandb": (_wandb, "wandb")}


def tracker(where: str) -> Tracker:
    """Reach the tracker of "mlflow:URI", "tensorboard:FOLDER" or "wandb:PROJECT". Call it before a run starts.

    Raises:
        UserError: The text has another form, the tracker's package is not installed, or the tracker does not answer.
    """
    kind, _, place = where.partition(":")
    if kind not in TRACKERS or not place:
        choices = "mlflow:PLACE, tensorboard:PLACE or wandb:PLACE"
        raise UserError(f"--track {where}: must be {choices}{'' if kind in TRACKERS else nearest(kind, TRACKERS)}")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    reach, extra = TRACKERS[kind]
    try:
        return reach(place)
    except ImportError as error:
        package = f"'sottovoce[{extra}]'" if error.name == kind else error.name
        raise UserError(f"--track {where}: needs the package {error.name}: pip install {package}") from error
    except Exception as error:
        raise UserError(f"--track {where}: {in_short(error)}") from error


def track(trackers: Sequence[Tracker], results: Mapping[str, Any]) -> None:
    """Export every arm of a run. `protected` says if all of its users' releases are protected.

    An infinite ε is no figure, and left out.

    Raises:
        UserError: A tracker fails.
    """
    encoder = (results.get("encoder") or {}).get("model")
    for arm in arms_of(results):
        about = {"arm": arm.name, "seed": results["seed"], "way": arm.way, "reference": arm.reference}
        about |= {"protected": not unprotected(arm), "mechanism": arm.mechanism, "encoder": encoder, **arm.parameters}
        settings = {key: str(value) for key, value in about.items() if value is not None}
        figures: dict[str, Any] = {}
        for metric, split, value, error, _ in estimates(arm):
            name = metric + "_clean_test" * (split == "on_device")
            figures |= {key: it for key, it in ((name, value), (f"{name}_se", error)) if is_finite(it)}
        for log in trackers:
            try:
                log(str(results["name"]), f"{arm.name}, seed {results['seed']}", settings, figures)
            except Exception as error:
                again = "the results are kept; export them with --resume RUN and --track"
                raise UserError(f"--track: {in_short(error)}; {again}") from error

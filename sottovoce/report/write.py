"""Report of finished runs and studies, or of protocols that have not run, with its privacy label."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulations.analysis.budget import ladders_of_experiment
from simulations.errors import UserError
from simulations.experiment import ArmSetup, load
from simulations.experiment.guarantees import Promise
from simulations.experiment.result import ArmResult
from simulations.output.atomic import whole
from simulations.run.journal import versions
from sottovoce.report.label import label
from sottovoce.report.page import page, page_of_plan
from sottovoce.report.reading import Finished, read
from sottovoce.report.studies import Study, is_study, read_study


def report(folders: Sequence[Path | str], out: Path | str = "report.html") -> list[Path]:
    """Write the report of runs and studies as one HTML file, with its privacy label beside it.

    The label has the suffix .json. Existing files are replaced.

    Args:
        folders: Folders of runs and studies.
        out: HTML file to write.

    Returns:
        Both paths.

    Raises:
        UserError: A folder holds no finished run or study, the same is named twice, or out is no .html file in an
            existing folder. The message is one line.
    """
    out = _file(out)
    places = [Path(folder) for folder in folders]
    if len({place.resolve() for place in places}) < len(places):
        raise UserError("report: a folder is named twice; name each once")
    read_ones = [read_study(place) if is_study(place) else read(place) for place in places]
    studies = [item for item in read_ones if isinstance(item, Study)]
    runs = [run for item in read_ones for run in (item.runs if isinstance(item, Study) else [item])]
    return _written(out, page(runs, studies), label(runs, studies))


def report_of_plan(file: Path | str, out: Path | str = "report.html", *, overrides: Sequence[str] = ()) -> list[Path]:
    """Write the report of an experiment that has not run.

    Args:
        file: TOML file, or the name of a bundled experiment.
        out: HTML file to write.
        overrides: Changes to its keys.

    Returns:
        Both paths.

    Raises:
        UserError: The experiment is invalid, or out is no .html file in an existing folder.
    """
    out = _file(out)
    plan = planned(file, list(overrides))
    return _written(out, page_of_plan(plan), label([plan]))


def _file(out: Path | str) -> Path:
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: must end in .html")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it first")
    return out


def _written(out: Path, html: str, about: dict[str, Any]) -> list[Path]:
    text_of_label = json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    paths = [out, out.with_suffix(".json")]
    for path, text in zip(paths, (html, text_of_label), strict=True):
        with whole(path) as file:
            file.write(text.encode())
    return paths


# --- a protocol that has not run


def planned(file: Path | str, overrides: list[str]) -> Finished:
    """Return an experiment as a run without results.

    The crowd is that of the users whom the experiment expects. It reads the data if arms release texts.

    Args:
        file: TOML file, or the name of a bundled experiment.
        overrides: Changes to its keys.

    Raises:
        UserError: The experiment is invalid.
    """
    experiment = load(file, overrides)
    ladders = ladders_of_experiment(experiment, records=None, classes=None)
    arms = [_line(setup, entry).to_dict() for setup, entry in zip(experiment.setups, ladders["arms"], strict=True)]
    results = {
        "name": experiment.name,
        "seed": experiment.seed,
        "way": experiment.training.way,
        "way_sentence": ladders.get("way_sentence"),
        "arms": arms,
        "versions": versions(),
        "policy": experiment.allowed(),
        "encoder": {"model": experiment.encoder.model, "precision": experiment.encoder.precision, "sha256": None},
    }
    return Finished(Path(file), results, None, None, None, has_run=False)


def _line(setup: ArmSetup, entry: dict[str, Any]) -> ArmResult:
    """Return an arm's results, as far as it is known before a run."""
    arm = setup.arm
    spec = arm.statistic or arm.embedding or arm.text or arm.answer or {}
    budget = Promise()
    if arm.curator is not None:
        budget = Promise(central_epsilon=arm.curator["epsilon"], central_delta=arm.curator["delta"])
    return ArmResult(
        name=arm.name,
        way=entry["way"],
        reference=arm.reference,
        ladder=entry["ladder"],
        test_ladder=entry["test_ladder"],
        liars=entry["liars"],
        budget=budget,
        mechanism=spec.get("mechanism"),
        label_mechanism=(arm.label or {}).get("mechanism"),
        users=0 if arm.public_only else setup.users,
    )

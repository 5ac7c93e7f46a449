"""Items of the papers, their experiments, and a report with the published numbers and ours side by side."""

from __future__ import annotations

import json
import logging
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mechanisms.channels import CHANNELS, EMBEDDING, TEXT
from mechanisms.guarantee import EXPOSURES
from simulations.errors import UserError
from simulations.experiment import BOTH, Experiment, from_table, slug
from simulations.experiment.result import arms_of as run_arms
from simulations.experiment.toml import override_key
from simulations.output.markdown import table as markdown_table
from simulations.output.numbers import is_finite, share

log = logging.getLogger(__name__)

#: Runs an experiment into a folder; returns its results.
Runner = Callable[[Experiment, Path], Mapping[str, Any]]
_FOLDER = Path(__file__).parent
#: Default numbers of training sentences (one for each user) and test sentences, then those of a quick run. With the
#: defaults, a paper's tables take half an hour or more on two cores.
ROWS, TESTS = 2000, 600
QUICK_ROWS, QUICK_TESTS = 400, 150
#: Folder of each task in the data folder, and its columns (shared/data/README.md).
_TASKS: dict[str, dict[str, Any]] = {
    "sst2": {"path": "sst2", "text": "sentence", "label": "label"},
    "cola": {"path": "cola", "text": "sentence", "label": "label"},
    "rte": {"path": "rte", "text": "sentence1", "second-text": "sentence2", "label": "label"},
    "stsb": {
        "path": "stsb",
        "text": "sentence1",
        "second-text": "sentence2",
        "label": "score",
        "label-range": [0.0, 5.0],
        "levels": 26,
    },
}
_GLOVE = "glove/glove.840B.300d.sst2.txt.gz"


@dataclass(frozen=True)
class Item:
    """Table or figure, or a part of one.

    Args:
        name: Name in the paper.
        arms: Arms of a run: each has a name, the paper's number ("theirs") and its tables of an experiment. "quick"
            marks those of a quick run, "encoder" those of one encoder alone.
        task: Name of the task.
        differences: Reasons why our numbers differ from the paper's.
        words: Source of the vocabulary: "checkpoint" or "glove".
        protocol: Training protocol.
        measure: Measure that is compared.
        hours: Reason why its arms take so long that a run of the whole paper leaves them out; "" if it includes them.
        changes: Overrides of its experiment, as "text.pretrain=true" (`toml.load`).
    """

    name: str
    arms: Sequence[Mapping[str, Any]]
    task: str
    differences: Sequence[str]
    words: str = "checkpoint"
    protocol: str = "sanitized-text"
    measure: str = "accuracy"
    hours: str = ""
    changes: Sequence[str] = ()


@dataclass(frozen=True)
class Size:
    """Size of a run.

    Args:
        rows: Number of training sentences, one for each user; fewer if the file is smaller. None: as many as there are
            beside the public part, and all test sentences.
        quick: Whether to run few arms for one epoch, on QUICK_ROWS.
        changes: Overrides of the items' experiments, as "encoder.model=mpnet" (`toml.load`).
    """

    rows: int | None = ROWS
    quick: bool = False
    changes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the size in a folder's: a run of another size or other keys is not mistaken for it."""
        size = "quick" if self.quick else str(self.rows or "all")
        return "-".join([size, *map(slug, self.changes)])

    def __str__(self) -> str:
        if self.quick:
            text = (
                f"a quick run of {QUICK_ROWS} training sentences, {QUICK_TESTS} test sentences, one epoch and one seed"
            )
            return f"{text}, which shows that it runs"
        size = f"{self.rows:,} training and {TESTS} test sentences, or what there are" if self.rows else "all sentences"
        return ", ".join([f"a run of {size}", "three epochs unless changed, one seed", *self.changes])


@dataclass(frozen=True)
class Paper:
    """One paper and its items.

    Args:
        name: Name of its file.
        title: Title and authors.
        items: Its items.
    """

    name: str
    title: str
    items: tuple[Item, ...]


def papers() -> tuple[str, ...]:
    """Return the names of the available papers."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.toml")))


def load_paper(name: str) -> Paper:
    """Return a paper by name.

    Raises:
        UserError: There is no paper of that name.
    """
    if name not in papers():
        raise UserError(f"{name}: is none of the papers, which are {', '.join(papers())}")
    table = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    items = tuple(Item(**item) for item in table["item"])
    return Paper(name, table["title"], items)


def chosen(paper: Paper, table: str | None) -> list[Item]:
    """Return the items whose name contains the number or words of `table`; all items if it is None.

    Raises:
        UserError: No item matches.
    """
    if table is None:
        return list(paper.items)
    wanted = f"table {table}" if table.isdigit() else table.casefold()
    results = [item for item in paper.items if wanted in item.name.casefold()]
    if not results:
        raise UserError(f"--table {table}: {paper.name} has {'; '.join(item.name for item in paper.items)}")
    return results


def arms_of(item: Item, size: Size) -> list[Mapping[str, Any]]:
    """Return the arms of a run: those of a quick run alone, and of the encoder that it names."""
    arms = [arm for arm in item.arms if arm.get("quick", False) or not size.quick]
    return [arm for arm in arms if "encoder" not in arm or f"encoder.model={arm['encoder']}" in size.changes]


def experiment_of(paper: Paper, item: Item, size: Size, *, data: Path, rows: int) -> Experiment:
    """Return the experiment of an item.

    Args:
        paper: The paper.
        item: The item.
        size: Size of the run.
        data: Folder of the data.
        rows: Rows of the item's training file.

    Raises:
        UserError: The experiment is not valid.
    """
    task = dict(_TASKS[item.task])
    folder = data / task.pop("path")
    measures = [] if item.measure == "accuracy" else [item.measure]
    users = int(rows * (0.9 if size.rows else 0.94))  # the rest is public: 5 %, and phrases on both sides
    users = min(QUICK_ROWS if size.quick else size.rows or users, users)
    tests = {"test-limit": QUICK_TESTS if size.quick else TESTS} if size.quick or size.rows else {}
    why = "as published: the paper's mechanism, with what it shows"
    table: dict[str, Any] = {
        "name": f"{paper.name} {item.name}",
        "data": task
        | {
            "source": "files",
            "path": str(folder),
            "train": "train.tsv",
            "test": "dev.tsv",
            "measures": measures,
            "overlap": "the data as published",
            "public": {"fraction": 0.05, "labels": False},
        }
        | tests,
        "population": {"users": users},
        "encoder": {"max-length": 128 if "second-text" in task else 64},
        "training": {
            "protocol": item.protocol,
            "epochs": 1 if size.quick else 3,
            "acknowledge-not-private": item.protocol == "paper",
            **({"train-encoder": True} if item.protocol == "sanitized-text" else {}),
        },
        "text": {"words": str(data / _GLOVE) if item.words == "glove" else "checkpoint", "masked-lm": "minilm"},
        "shuffle": {"enabled": False},
        "policy": {
            "text": math.inf,
            "embedding": math.inf,
            "label": math.inf,
            "total-delta": 1e-3,  # of both sides' words, whose sampler has a δ of its own
            "accept-unprotected": [f"{name}: {why}" for name in ("label", *EXPOSURES)],
        },
        "arm": [_arm(arm) for arm in arms_of(item, size)],
    }
    for change in (*item.changes, *size.changes):
        override_key(table, change)
    return from_table(table)


def _arm(arm: Mapping[str, Any]) -> dict[str, Any]:
    channel = (TEXT if TEXT.name in arm else EMBEDDING).name
    spec = dict(arm[channel])
    if CHANNELS[channel] is TEXT:
        spec |= {"tokens": 32, "length": "kept"}  # no published mechanism hides it
    perturb = arm.get("perturb", BOTH)
    clear = spec["mechanism"] == "identity" or perturb != BOTH
    return {"name": arm["name"], channel: spec, "perturb": perturb, "reference": clear}


@dataclass(frozen=True)
class Comparison:
    """Our numbers of an item beside the paper's.

    Args:
        item: Name of the item.
        rows: For each arm its name, the paper's number, our number and its standard error.
        why: Reason if it was not run.
        chance: Accuracy of always guessing the most frequent class of our test sentences.
    """

    item: str
    rows: list[tuple[str, float, float | None, float | None]] = field(default_factory=list)
    why: str = ""
    chance: float | None = None


def reproduce(
    paper: Paper, items: Sequence[Item], size: Size, *, data: Path, out: Path, run: Runner
) -> list[Comparison]:
    """Run each item in its own folder under `out`. A finished item is not run again.

    An item without its data is reported as such. An item that takes hours is left out, unless it is the only one or
    finished.

    Args:
        paper: The paper.
        items: Its items to run.
        size: Size of the runs.
        data: Folder of the data.
        out: Folder for the runs.
        run: Function that runs one experiment.

    Raises:
        UserError: A run fails.
    """

    def compared(item: Item) -> Comparison:
        file = data / str(_TASKS[item.task]["path"]) / "train.tsv"
        folder = out / f"{slug(paper.name)}-{slug(item.name)}-{size.name}"
        if not arms_of(item, size):
            return Comparison(item.name, why="not a part of a quick run")
        if not file.is_file():
            return Comparison(item.name, why=f"{file} is not here; name the folder of the data with --data")
        if (folder / "results.json").is_file():
            return _beside(item, json.loads((folder / "results.json").read_text(encoding="utf-8")), size)
        if item.hours and len(items) > 1:
            return Comparison(item.name, why=f'{item.hours}; it is run by itself, with --table "{item.name}"')
        with file.open("rb") as lines:
            rows = sum(1 for _ in lines) - 1
        log.info(f"{paper.name}, {item.name}: {len(arms_of(item, size))} arms")
        return _beside(item, run(experiment_of(paper, item, size, data=data, rows=rows), folder), size)

    return list(map(compared, items))


def _beside(item: Item, results: Mapping[str, Any], size: Size) -> Comparison:
    entries = {arm.name: arm for arm in run_arms(results)}
    rows = []
    for arm in arms_of(item, size):
        if arm["name"] not in entries:
            raise UserError(f"{item.name}: the run has no arm {arm['name']}; remove its folder and run it again")
        estimate = entries[arm["name"]].estimate(item.measure, "sanitized")
        rows.append((arm["name"], arm["theirs"], estimate and estimate.value, estimate and estimate.standard_error))
    return Comparison(item.name, rows, chance=results["chance"])


def text(paper: Paper, items: Sequence[Item], comparisons: Sequence[Comparison], size: Size) -> str:
    """Return the paper's numbers beside ours in Markdown, with the reasons why they differ."""
    lines = [f"# {paper.title}"]
    by_name = {item.name: item for item in items}
    for comparison in comparisons:
        item = by_name[comparison.item]
        lines += ["", f"## {comparison.item}: {item.measure}", ""]
        if comparison.why:
            lines.append(f"Not run: {comparison.why}.")
            continue
        none = any(value is None or not is_finite(value) for _, _, value, _ in comparison.rows)
        rows = [
            [name, f"{paper_value:.3f}", share(value, error)] for name, paper_value, value, error in comparison.rows
        ]
        lines += [markdown_table(["arm", "paper", "ours"], rows), ""]
        if item.measure == "accuracy":
            lines += [
                f"Always guessing the commonest class of our test sentences is right of {comparison.chance:.3f}.",
                "",
            ]
        lines += ["Why they differ:", ""]
        lines += [f"- {reason}" for reason in (*item.differences, size)]
        lines += ["- –: all guesses are of one class, of which there is no correlation"] if none else []
    return "\n".join(lines) + "\n"

"""A paper's items as a file names them, and the experiments that those with arms become."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mechanisms.guarantee import EXPOSURES
from simulations.errors import UserError
from simulations.experiment import BOTH, Experiment, from_table

_FOLDER = Path(__file__).parent
#: Training sentences that are held by users where nobody says how many, and test sentences; then those of a run that
#: only shows that it runs. A paper's tables take half an hour or more so on two cores.
USERS, TESTS = 2000, 600
QUICK_USERS, QUICK_TESTS = 400, 150
#: Where each task's files lie in the data folder, and what they hold (shared/data/README.md).
_TASKS: dict[str, dict[str, Any]] = {
    "sst2": {"path": "sst2", "text": "sentence", "label": "label"},
    "cola": {"path": "cola", "text": "sentence", "label": "label"},
    "rte": {"path": "rte", "text": "sentence1", "second-text": "sentence2", "label": "label"},
    "stsb": {
        "path": "stsb", "text": "sentence1", "second-text": "sentence2", "label": "score", "label-range": [0.0, 5.0],
        "levels": 26,
    },
}  # fmt: skip
_GLOVE = "glove/glove.840B.300d.sst2.txt.gz"


@dataclass(frozen=True)
class Item:
    """A table or a figure, or a part of one.

    name: as the paper calls it. what: what it shows. arms: (name, the paper's number, its tables of an experiment),
    of those that a run takes; quick: which of them a quick one takes. command: what else shows it; cannot: why nothing
    does; missing: what is not built yet; one of the four is there. differences: why numbers are not the paper's. note:
    words about the command. training: keys of an experiment's table of that name, where they are not the usual ones.
    measured: the page of docs/ that has the same of more users and seeds. hours: why its arms take so long that a run
    of the whole paper leaves them out; "" where it takes them.
    """

    name: str
    what: str
    arms: tuple[Mapping[str, Any], ...] = ()
    task: str = ""
    words: str = "checkpoint"
    way: str = "sanitized-text"
    measure: str = "accuracy"
    differences: tuple[str, ...] = ()
    command: str = ""
    note: str = ""
    cannot: str = ""
    missing: str = ""
    measured: str = ""
    hours: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """In a word."""
        kinds = {
            "runs": self.arms, "by a command": self.command, "cannot be": self.cannot, "not built yet": self.missing
        }  # fmt: skip
        return next(kind for kind, there in kinds.items() if there)


@dataclass(frozen=True)
class Paper:
    """name: of its file; title: the paper's, and who wrote it."""

    name: str
    title: str
    items: tuple[Item, ...]


def papers() -> tuple[str, ...]:
    """The names of the papers that are here."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.toml")))


def load_paper(name: str) -> Paper:
    """Raises UserError where there is none of that name."""
    if name not in papers():
        raise UserError(f"{name}: is none of the papers, which are {', '.join(papers())}")
    table = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    items = [
        Item(**{**item, "arms": tuple(item.get("arms", ())), "differences": tuple(item.get("differences", ()))})
        for item in table["item"]
    ]
    return Paper(name, table["title"], tuple(items))


def chosen(paper: Paper, table: str | None) -> list[Item]:
    """The items whose name has the number or words of `table` in it; all where it is None. Raises UserError."""
    if table is None:
        return list(paper.items)
    wanted = f"table {table}" if table.isdigit() else table.casefold()
    found = [item for item in paper.items if wanted in item.name.casefold()]
    if not found:
        raise UserError(f"--table {table}: {paper.name} has {'; '.join(item.name for item in paper.items)}")
    return found


def arms_of(item: Item, *, quick: bool) -> list[Mapping[str, Any]]:
    """Those of a run: all, or, of a quick one, those that say so."""
    return [arm for arm in item.arms if not quick or arm.get("quick", False)]


def experiment_of(
    paper: Paper, item: Item, *, quick: bool, data: Path, rows: int, users: int = USERS
) -> Experiment:
    """The study of an item with arms. rows: of its training file, of which so many `users` hold one each, or, of a
    smaller file, as many as there are; a quick run has its own number. Raises UserError."""
    task, arms = dict(_TASKS[item.task]), arms_of(item, quick=quick)
    folder = data / task.pop("path")
    measures = [] if item.measure == "accuracy" else [item.measure]
    users = min(QUICK_USERS if quick else users, int(rows * 0.9))
    why = "as published: the paper's mechanism, with what it shows"
    return from_table({
        "name": f"{paper.name} {item.name}",
        "data": task | {
            "source": "files", "path": str(folder), "train": "train.tsv", "test": "dev.tsv", "measures": measures,
            "test-limit": QUICK_TESTS if quick else TESTS, "overlap": "the data as published",
            "public": {"fraction": 0.05, "labels": False},
        },
        "population": {"users": users},
        "encoder": {"max-length": 128 if "second-text" in task else 64},
        "training": {
            "way": item.way, "epochs": 1 if quick else 3, "acknowledge-not-private": item.way == "paper",
            **item.training,
        },
        "text": {"words": str(data / _GLOVE) if item.words == "glove" else "checkpoint", "masked-lm": "bundled"},
        "shuffle": {"enabled": False},
        "policy": {
            "text": math.inf, "embedding": math.inf, "label": math.inf,
            "total-delta": 1e-3,  # of both sides' words, whose sampler has a δ of its own
            "accept-unprotected": [f"{name}: {why}" for name in ("label", *EXPOSURES)],
        },
        "arm": [_arm(arm) for arm in arms],
    })  # fmt: skip


def _arm(arm: Mapping[str, Any]) -> dict[str, Any]:
    channel = "text" if "text" in arm else "embedding"
    spec = dict(arm[channel])
    if channel == "text":
        spec |= {"tokens": 32, "length": "kept"}  # no published mechanism hides it
    perturb = arm.get("perturb", BOTH)
    clear = spec["mechanism"] == "identity" or perturb != BOTH
    return {"name": arm["name"], channel: spec, "perturb": perturb, "reference": clear}


def training_file(item: Item, data: Path) -> Path:
    """Where the item's training data lie."""
    return data / str(_TASKS[item.task]["path"]) / "train.tsv"

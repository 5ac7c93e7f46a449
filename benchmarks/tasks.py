"""Measure what users teach beyond class names, with one record and with many: table of docs/results/users.md.

    python -m benchmarks.tasks DATA [--task NAME ...] [--seeds 5] [--model minilm] [--out FILE]

DATA holds the folders popquorn, banking77, clinc150, emotion, trec, cr, subj, agnews, sst2 and cola. The protocol is
that of the product (`server.protocols.statistics`), with PrivUnit's own draws. Users are in this process, without
Flower, shuffler and ledgers. Records of a user are drawn with replacement, except where people of the data hold their
own (popquorn). A task's cells under a seed are kept in FILE, a line of JSON each, and not measured again. The table is
printed at the end: the mean over seeds, ± its standard error.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.in_process import released
from mechanisms.gaussian import Gaussian
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.messages.request import Request
from mechanisms.privunit import PrivUnit
from server.protocols.drive import Collected, Driver
from server.protocols.models import Model
from server.protocols.protocol import Channels, Encoding, Public, Training
from server.protocols.statistics import statistics
from server.training.class_names import prototypes_of, sentences_of
from simulations.artifacts.encoder import encoder_folder
from simulations.artifacts.public import CachedEncoder
from simulations.corpora.corpus import Corpus
from simulations.experiment import EncoderConfig
from simulations.output.markdown import table as markdown
from simulations.run.measures import Guesses, own_labels

Array = np.ndarray
LAYERS = {"minilm": (4, 6), "mpnet": (7, 9, 11, 12)}
EPSILONS = (3.0, 6.0)
#: Public texts without labels, and test texts at most.
PUBLIC, TESTS = 2_000, 2_000
#: Users and records of each, where the data name no users.
SIZES = ((2_000, 1), (20_000, 1), (300, 20), (1_240, 51))
#: Of these annotators of popquorn, so many teach; the others are tested. So many comments are public.
TEACHERS, COMMENTS = 200, 500


@dataclass(frozen=True)
class Task:
    """Data set, the column of its labels, and what a newcomer would say of each class; none of an opaque class."""

    folder: str
    names: Mapping[str, Sequence[str]] | None
    column: str = "label"


def _of(text: str) -> dict[str, list[str]]:
    """Return {label: descriptions} of "label: first; second | label: ..."."""
    pairs = (part.split(":", 1) for part in text.split("|"))
    return {label.strip(): [name.strip() for name in names.split(";")] for label, names in pairs}


TASKS = {
    "POPQUORN, offensive to me": Task("popquorn", _of("0: not offensive; harmless | 1: offensive; an insult")),
    "banking77, queues by topic": Task("banking77", None, "queue_topic"),
    "banking77, queues mixed": Task("banking77", None, "queue_mixed"),
    "CLINC150, queues by topic": Task("clinc150", None, "queue_topic"),
    "CLINC150, queues mixed": Task("clinc150", None, "queue_mixed"),
    "emotion": Task("emotion", _of("anger: anger | joy: joy | optimism: optimism | sadness: sadness")),
    "TREC": Task(
        "trec",
        _of(
            "ABBR: abbreviation | DESC: description or reason | ENTY: thing, animal or product | HUM: person | "
            "LOC: place | NUM: number or date"
        ),
    ),
    "CR": Task("cr", _of("0: negative review; bad | 1: positive review; good")),
    "Subj": Task("subj", _of("0: opinion of a film; subjective review | 1: plot of a film; objective fact")),
    "AG News": Task("agnews", {}),
    "SST-2": Task("sst2", _of("0: bad film; negative | 1: good film; positive")),
    "banking77, 77 classes": Task("banking77", {}),
    "CoLA": Task("cola", _of("0: ungrammatical sentence | 1: grammatical sentence")),
}


def rows_of(file: Path) -> list[dict[str, str]]:
    """Return the rows of a table with tabs and no quoting."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def sentence_of(row: Mapping[str, str]) -> str:
    """Return the text of a row."""
    return row.get("sentence") or row["content"]


@dataclass(frozen=True, eq=False)
class _Users:
    """Users of a world in this process (`server.protocols.drive.Users`): rows of training records, and their starts."""

    world: World
    rows: Array
    starts: Array

    def collect(self, request: Request) -> Collected:
        """Return the vectors of all users."""
        own, numbers = self.world.embedded[0][self.rows], np.arange(len(self.starts) - 1)
        return released(request, own, self.world.labels[self.rows], self.starts, numbers, self.world.seed)

    def publish(self, encoder: Path, splits: Sequence[str]) -> Encoding:
        """Refuse an encoder: no task trains one."""
        raise ValueError("tasks: users receive no encoder")


class World:
    """Public text, users' records and tests of a task under one seed.

    Args:
        task: Task.
        data: Folder of the data.
        seed: Seed of the parts, of users and of their draws.
        encoder: EncoderConfig.
    """

    def __init__(self, task: Task, data: Path, seed: int, encoder: CachedEncoder) -> None:
        self.task, self.seed, self.encoder = task, seed, encoder
        rng = np.random.default_rng([seed, 56])
        people = task.folder == "popquorn"
        public, train, test, self.classes = (self._popquorn if people else self._split)(data / task.folder, rng)
        self.texts, (self.train, self.labels, self.owners), (self.test, self.truth, self.testers) = public, train, test
        self.public, self.names = encoder.embed(public), None
        if task.names is not None:
            names = [task.names.get(c, [c.replace("_", " ")]) for c in self.classes]
            self.names = prototypes_of([encoder.embed(sentences) for sentences in sentences_of(names)])

    def _split(self, folder: Path, rng: np.random.Generator) -> Any:
        train = rows_of(folder / "train.tsv")
        test = rows_of(next(file for name in ("test.tsv", "dev.tsv") if (file := folder / name).exists()))
        queues = {}
        if self.task.column != "label":
            queues = {row["intent"]: row[self.task.column] for row in rows_of(folder / "queues.tsv")}
        labels = [[queues.get(row["label"], row["label"]) for row in part] for part in (train, test)]
        classes = sorted({label for part in labels for label in part})
        number = {label: k for k, label in enumerate(classes)}
        texts, where = [sentence_of(row) for row in train], rng.permutation(len(train))
        if folder.name == "sst2":  # phrases of a sentence would be in both parts
            where = where[:22_000]
        tests = rng.permutation(len(test))[:TESTS]
        public, private = where[:PUBLIC], where[PUBLIC:]
        y = [np.array([number[label] for label in part]) for part in labels]
        none = np.zeros(0, np.int64)
        return (
            [texts[i] for i in public],
            ([texts[i] for i in private], y[0][private], none),
            ([sentence_of(test[i]) for i in tests], y[1][tests], none),
            tuple(classes),
        )

    def _popquorn(self, folder: Path, rng: np.random.Generator) -> Any:
        rows = rows_of(folder / "offensiveness.tsv")
        comments = rng.permutation(sorted({row["comment"] for row in rows}))
        text = {row["comment"]: row["sentence"] for row in rows}
        public = set(comments[:COMMENTS].tolist())
        people = rng.permutation(sorted({row["annotator"] for row in rows}))
        teachers = {name: k for k, name in enumerate(people[:TEACHERS].tolist())}
        testers = {name: k for k, name in enumerate(people[TEACHERS:].tolist())}
        parts = []
        for group in (teachers, testers):
            kept = [row for row in rows if row["annotator"] in group and row["comment"] not in public]
            kept.sort(key=lambda row: group[row["annotator"]])
            owners = np.array([group[row["annotator"]] for row in kept])
            judged = np.array([float(row["offensiveness"]) > 1 for row in kept], np.int64)
            parts.append(([row["sentence"] for row in kept], judged, owners))
        return [text[c] for c in sorted(public)], *parts, ("0", "1")

    @cached_property
    def embedded(self) -> tuple[Array, Array]:
        """Return the embeddings of training records and of test texts."""
        return self.encoder.embed(self.train), self.encoder.embed(self.test)

    def users(self, users: int, records: int) -> tuple[Array, Array]:
        """Return rows of training records and starts of users."""
        if len(self.owners):
            return np.arange(len(self.owners)), np.searchsorted(self.owners, np.arange(self.owners.max() + 2))
        rng = np.random.default_rng([self.seed, users, records])
        n = len(self.labels)
        rows = rng.permutation(n)[:users] if records == 1 and users <= n else rng.integers(n, size=users * records)
        return rows, np.arange(0, len(rows) + 1, records)

    def model(self, users: int, records: int, mechanism: Any, assumed: int, curator: Gaussian | None = None) -> Model:
        """Return the model that the protocol trains.

        Args:
            users: Number of users; 0 for none.
            records: Records of each.
            mechanism: Function from D to the mechanism of vectors.
            assumed: Records that the server assumes.
            curator: Noise of a trusted server on the sum of vectors in clear.
        """
        public = Public(self.texts, None, self.classes, self.encoder, self.public, names=self.names)
        channels = Channels(
            arm="tasks",
            classes=len(self.classes),
            label=Identity("label", len(self.classes)),
            statistic=mechanism if users else None,
            users=users,
            teaching=users > 0,
            asking=False,
            one_record=records == 1,
            curator=curator,
        )
        training = Training(seed=self.seed, options={"least_gain": 0.0, "records": assumed})
        people = _Users(self, *self.users(max(users, 1), records))  # nobody is asked if there are none
        with tempfile.TemporaryDirectory() as folder:
            model = Driver(people).train(statistics(public, channels, training, folder=Path(folder)))
        assert model is not None
        return model

    def accuracy(self, model: Model) -> float:
        """Return the accuracy on test texts."""
        return float((self._logits(model).argmax(axis=1) == self.truth).mean())

    def own_labels(self, model: Model) -> float | None:
        """Return the accuracy where testers' devices correct the model by their labels; None without testers."""
        if not len(self.testers):
            return None
        texts = np.arange(len(self.truth))
        guesses = Guesses(self._logits(model), self.truth, texts, self.testers, self.classes, None, self.seed)
        return own_labels(guesses).value

    def _logits(self, model: Model) -> Array:
        return model.maps.logits(model.maps.project(self.embedded[1]))

    def centrally(self) -> float:
        """Return the accuracy of logistic regression on all training labels."""
        x = self.embedded[0].astype(np.float64)
        mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-9
        fitted = LogisticRegression(C=0.01, max_iter=400).fit((x - mean) / scale, self.labels)
        return float(fitted.score((self.embedded[1] - mean) / scale, self.truth))

    def by_names(self) -> float:
        """Return the accuracy of class names alone; 1/K where they are opaque."""
        return 1 / len(self.classes) if self.names is None else self.accuracy(self.model(0, 1, None, 1))

    def majority(self) -> float:
        """Return the accuracy of the commonest class of the training labels."""
        return float((self.truth == np.bincount(self.labels).argmax()).mean())


def frozen_encoder(model: str) -> CachedEncoder:
    """Return an encoder of LAYERS by its name, with its cache."""
    settings, none = EncoderConfig(model=model, layers=LAYERS[model]), Corpus((), np.zeros(0, np.int64), ("0", "1"))
    return CachedEncoder(encoder_folder(settings, none, batch_size=32, seed=1))


def in_clear(size: int) -> Mechanism:
    """Return the identity of a vector."""
    return Identity("statistic", size)


def cells(name: str, data: Path, seed: int, encoder: CachedEncoder) -> Iterator[dict[str, Any]]:
    """Yield the measured cells of a task under a seed."""
    world = World(TASKS[name], data, seed, encoder)

    def cell(arm: str, accuracy: float, size: tuple[int, int] = (0, 0), own: float | None = None) -> dict[str, Any]:
        return {"task": name, "seed": seed, "arm": arm, "size": size, "accuracy": accuracy, "own": own}

    yield cell("majority", world.majority())
    yield cell("names", world.by_names())
    yield cell("all labels", world.centrally())
    for size in ((TEACHERS, 33),) if len(world.owners) else SIZES:
        arms = {f"ε = {e:g}": (partial(PrivUnit, epsilon=e), size[1]) for e in EPSILONS} | {
            "no noise": (in_clear, size[1])
        }
        if size[1] > 1:
            arms |= {f"ε = {e:g}, unclipped": (partial(PrivUnit, epsilon=e), 1) for e in EPSILONS}
        for arm, (mechanism, assumed) in arms.items():
            model = world.model(*size, mechanism, assumed)
            yield cell(arm, world.accuracy(model), size, world.own_labels(model))


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the table in Markdown: a row for each task and size, with what a task's rows share in the first."""
    columns = ["ε = 3", "ε = 6", "no noise"]
    head = ["task", "users × records", "majority", "class names", *columns, "added at ε = 3", "all labels"]
    rows, last = [], ""
    for task, size in dict.fromkeys((line["task"], tuple(line["size"])) for line in lines if line["size"][0]):
        seeds = sorted({line["seed"] for line in lines if line["task"] == task})
        accuracies = {(c["arm"], tuple(c["size"]), c["seed"]): c["accuracy"] for c in lines if c["task"] == task}
        base = {
            arm: np.array([accuracies[arm, (0, 0), seed] for seed in seeds])
            for arm in ("majority", "names", "all labels")
        }
        best = max(base["majority"], base["names"], key=np.mean)
        trained = {arm: np.array([accuracies[arm, size, seed] for seed in seeds]) for arm in columns}
        shown = [base["majority"], base["names"], *trained.values(), trained["ε = 3"] - best, base["all labels"]]
        cells = [task, f"{size[0]:,} × {size[1]}"]
        cells += [f"{v.mean():.3f}" + (f" ± {v.std(ddof=1) / len(v) ** 0.5:.3f}" if len(v) > 1 else "") for v in shown]
        rows.append(["" if task == last and i in (0, 2, 3, 8) else cell for i, cell in enumerate(cells)])
        last = task
    return markdown(head, rows)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--task", action="append", choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--model", choices=list(LAYERS), default="minilm")
    parser.add_argument("--out", type=Path, default=Path("tasks.jsonl"))
    given = parser.parse_args()
    encoder = frozen_encoder(given.model)
    lines = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    done = {(line["task"], line["seed"], line["model"]) for line in lines}
    for seed, name in product(range(1, given.seeds + 1), given.task or TASKS):
        if (name, seed, given.model) not in done:
            new = [cell | {"model": given.model} for cell in cells(name, given.data, seed, encoder)]
            with given.out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in new)
            lines += new
            print(f"{name}, seed {seed}: done", flush=True)
    print(table([line for line in lines if line["model"] == given.model]))


if __name__ == "__main__":
    main()

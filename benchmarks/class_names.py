"""Class names alone, users alone and both, over corpora, numbers of users and ε: tables of docs/results/class-names.md.

    python -m benchmarks.class_names FOLDER [--seeds 5] [--draws 4] [--model minilm] [--corpus NAME] [--out FILE]

FOLDER holds cr, sst2, agnews and banking77; the genres are built in. A measured cell is kept in FILE, a line of JSON
each, and not measured again, so the program may be stopped at any time. Heads are those of the protocol `statistics`.
The noise of a mean is drawn from a normal distribution, which approximates PrivUnit's under many users.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms.privunit import PrivUnit
from mechanisms.projection import statistic_vectors
from server.protocols.statistics import LEAST_GAIN
from server.training.class_names import name_probabilities
from server.training.principal import pca_maps
from server.training.statistic_head import (
    Prospects,
    covering_features,
    expected_gain,
    head_with_names,
    linear_head,
    mean_noise,
    of_names,
    of_users,
    simplex_codes,
    wide_features,
)
from simulations.experiment import load
from simulations.run.prepare import prepare

Array = np.ndarray
EPSILONS = (3.0, 6.0)
ENCODERS = {"minilm": (4, 6), "mpnet": (7, 9, 11, 12)}


@dataclass(frozen=True)
class Corpus:
    """Experiment, its folder below the data's or None if it is built in, and the numbers of users to measure."""

    experiment: str
    folder: str | None
    users: tuple[int, ...]


CORPORA = {
    "CR": Corpus("cr-statistics", "cr", (300, 2_000)),
    "SST-2": Corpus("sst2-statistics", "sst2", (300, 2_000, 20_000)),
    "AG News": Corpus("agnews-statistics", "agnews", (300, 2_000, 4_500)),
    "twelve genres": Corpus("builtin-genre-answers", None, (300, 2_000, 20_000)),
    "banking77": Corpus("banking77-statistics", "banking77", (300, 2_000, 9_000)),
}


@lru_cache
def noise_of(size: int, epsilon: float, users: int) -> float:
    """Return the noise variance in each coordinate of the mean of user vectors."""
    return 0.0 if math.isinf(epsilon) else mean_noise(PrivUnit(size, epsilon), users=users)


class World:
    """Public text, users and test texts of one seed, in principal components of public text."""

    def __init__(self, corpus: Corpus, data: Path, seed: int, model: str) -> None:
        layers = list(ENCODERS[model])
        path = [] if corpus.folder is None else [f"data.path={json.dumps(str(data / corpus.folder))}"]
        experiment = load(
            corpus.experiment,
            [
                *path,
                f"seed={seed}",
                "shuffle.enabled=false",
                f"population.users={max(corpus.users)}",
                f"encoder.model={model}",
                f"encoder.layers={layers}",
            ],
        )
        public, held, _ = prepare(experiment)
        assert public.embeddings is not None and public.names is not None and held.train_embeddings is not None
        self.seed, self.labels, self.truth = seed, held.train.labels, held.test.labels
        self.codes = simplex_codes(len(public.classes))
        self.likely = name_probabilities(public.names, public.embeddings)
        self.widest = wide_features(public.embeddings)
        maps = pca_maps(public.embeddings, dim=self.widest, classes=len(public.classes))
        self.public, self.users, self.test = (
            (np.asarray(h, np.float64) - maps.mean) @ maps.m1.astype(np.float64)
            for h in (public.embeddings, held.train_embeddings, held.test_embeddings)
        )

    @cached_property
    def covering(self) -> int:
        """Return the least number of features with class names."""
        return covering_features(self.public, self.likely, self.codes)

    def features(self, epsilon: float, users: int, least: int = 0) -> int:
        """Return the number of features of users' vectors."""
        noise = lambda size: noise_of(size, epsilon, users)  # noqa: E731
        return Prospects(self.public, self.codes).best(noise, users=users, least=least)[0]

    def accuracy(self, dim: int, head: tuple[Array, Array]) -> float:
        """Return the accuracy of a head for so many features on the test texts."""
        return float(np.mean((unit(self.test, dim) @ head[0] + head[1]).argmax(axis=1) == self.truth))

    def evidence(self, dim: int, epsilon: float, users: int, draw: int) -> Any:
        """Return what users, drawn anew, say of so many features."""
        rng = np.random.default_rng([self.seed, users, draw, int(min(epsilon, 100) * 100)])
        rows = rng.permutation(len(self.labels))[:users]
        mean = statistic_vectors(unit(self.users[rows], dim), self.labels[rows], self.codes).mean(axis=0)
        noise = noise_of(len(mean), epsilon, users)
        return of_users(mean + rng.normal(scale=noise**0.5, size=len(mean)), noise, users=users, codes=self.codes)

    def names(self) -> float:
        """Return the accuracy of class names alone."""
        dim = self.features(math.inf, len(self.public))
        public = unit(self.public, dim)
        return self.accuracy(dim, linear_head(public, self.codes, labels=of_names(public, self.likely, self.codes)))

    def alone(self, epsilon: float, users: int, draw: int) -> float:
        """Return the accuracy of users alone."""
        dim = self.features(epsilon, users)
        said = self.evidence(dim, epsilon, users, draw)
        return self.accuracy(dim, linear_head(unit(self.public, dim), self.codes, users=said))

    def both(self, epsilon: float, users: int, draw: int) -> float:
        """Return the accuracy of class names and users."""
        dim = self.features(epsilon, users, self.covering)
        said, widest = self.evidence(dim, epsilon, users, draw), max(dim, self.widest)
        return self.accuracy(widest, head_with_names(unit(self.public, widest), self.likely, self.codes, said))

    def expected(self, epsilon: float, users: int) -> float:
        """Return what users are expected to add, as a share of what class names explain."""
        dim = self.features(epsilon, users, self.covering)
        noise = noise_of(self.codes.shape[1] * (dim + 1), epsilon, users)
        return expected_gain(unit(self.public, dim), self.likely, self.codes, noise, users=users)


def unit(components: Array, dim: int) -> Array:
    """Return the first components of each row, of unit length."""
    rows = components[:, :dim]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def measured(world: World, users: int, epsilon: float, draws: int) -> dict[str, float]:
    """Return one cell: accuracies, mean over draws of users and their noise."""
    times = range(1 if math.isinf(epsilon) else draws)
    return {
        "names": world.names(),
        "alone": float(np.mean([world.alone(epsilon, users, draw) for draw in times])),
        "both": float(np.mean([world.both(epsilon, users, draw) for draw in times])),
        "expected": world.expected(epsilon, users),
    }


def cells(data: Path, names: Sequence[str], seeds: int, draws: int, model: str, kept: Path) -> list[dict[str, Any]]:
    """Return all cells, measured now or kept before."""
    key = ("model", "corpus", "seed", "users", "epsilon", "draws")
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.is_file() else []
    known = {tuple(cell[name] for name in key): cell for cell in map(json.loads, lines)}
    found = []
    for seed in range(1, seeds + 1):
        for name in names:
            world = None
            for users in CORPORA[name].users:
                for epsilon in (*EPSILONS, math.inf):
                    at = (model, name, seed, users, str(epsilon), draws)
                    if at not in known:
                        world = world or World(CORPORA[name], data, seed, model)
                        classes = world.codes.shape[0]
                        known[at] = dict(zip(key, at, strict=True)) | {"classes": classes}
                        known[at] |= measured(world, users, epsilon, draws)
                        kept.parent.mkdir(parents=True, exist_ok=True)
                        with open(kept, "a", encoding="utf-8") as file:
                            file.write(json.dumps(known[at]) + "\n")
                    found.append(known[at])
    return found


def table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table: means over seeds, and the standard error of what users add to class names."""
    head = ["corpus", "classes", "users", "ε", "names", "users alone", "both", "added", "no noise †", "expected"]
    head += ["best"]
    yield f"| {' | '.join(head)} |"
    yield f"| --- |{' ---: |' * (len(head) - 2)} --- |"
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for cell in found:
        groups.setdefault((cell["corpus"], cell["users"], cell["epsilon"]), []).append(cell)
    for (corpus, users, epsilon), group in groups.items():
        if epsilon == "inf":
            continue
        names, alone, both, expected = (np.array([c[k] for c in group]) for k in ("names", "alone", "both", "expected"))
        bound = np.mean([cell["both"] for cell in groups[corpus, users, "inf"]])
        added, share = both - names, float(expected.mean())
        error = added.std(ddof=1) / len(added) ** 0.5 if len(added) > 1 else math.nan
        means = {"names": names.mean(), "users": alone.mean(), "both": both.mean()}
        best = "not queried" if share < LEAST_GAIN.default else max(means, key=lambda name: means[name])
        yield (
            f"| {corpus} | {group[0]['classes']} | {users:,} | {float(epsilon):g} | {names.mean():.3f} | "
            f"{alone.mean():.3f} | {both.mean():.3f} | {added.mean():+.3f} ± {error:.3f} | {bound:.3f} | {share:.3f} | "
            f"{best} |"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    asked = argparse.ArgumentParser(description="Class names alone, users alone and both.")
    asked.add_argument("data", type=Path, help="folder that holds cr, sst2, agnews and banking77")
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--draws", type=int, default=4, help="draws of users and noise for each seed")
    asked.add_argument("--model", choices=ENCODERS, default="minilm")
    asked.add_argument("--corpus", choices=CORPORA, action="append", help="this corpus; may be repeated")
    asked.add_argument("--out", type=Path, default=Path("runs/class-names.jsonl"), help="where cells are kept")
    given = asked.parse_args(arguments)
    found = cells(given.data, given.corpus or list(CORPORA), given.seeds, given.draws, given.model, given.out)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()

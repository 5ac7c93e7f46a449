"""Numbers of features and sets of layers: accuracy of one user vector on the device, with and without noise.

    python -m benchmarks.features dims EXPERIMENT FOLDER [--set KEY=VALUE ...] [--epsilons 1 3 6.19]
    python -m benchmarks.features layers EXPERIMENT FOLDER --set encoder.layers=[7,9,11,12] --sets 12 9,11,12 7,9,11,12

dims: for each number of features, the head of the product (its shrinkage is estimated from the users' mean) beside
plain ridge regression. layers: for each subset of the experiment's layers, as they are and with each layer scaled to
unit variance on public text, the product's number of features. Every accuracy is the mean over draws of the noise,
which is normal, as that of many users is. The last column is without noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mechanisms.privunit import PrivUnit
from mechanisms.projection import statistic_vectors
from server.training.principal import pca_maps
from server.training.statistic_head import CANDIDATES, Prospects, linear_head, mean_noise, of_users, simplex_codes
from simulations.artifacts.encoder import layers_of
from simulations.experiment import load
from simulations.progress import progress_lines
from simulations.run.prepare import prepare

Array = np.ndarray
#: Ridge of plain regression, in mean eigenvalues.
RIDGE = 0.1


@dataclass(frozen=True, eq=False)
class Sample:
    """Embeddings, or principal components, of public, users' and test texts, with the labels of the latter two."""

    public: Array
    users: Array
    labels: Array
    test: Array
    truth: Array
    classes: int

    def of_layers(self, known: Sequence[int], chosen: Sequence[int], scaled: bool) -> Sample:
        """Return the sample with some of its layers, each scaled to unit variance on public text or not."""
        width = self.public.shape[1] // len(known)
        columns = np.concatenate([np.arange(width) + width * known.index(layer) for layer in chosen])
        variances = self.public[:, columns].var(axis=0).reshape(len(chosen), width).mean(axis=1)
        by = np.repeat(variances**-0.5 if scaled else np.ones(len(chosen)), width).astype(np.float32)
        public, users, test = (part[:, columns] * by for part in (self.public, self.users, self.test))
        return replace(self, public=public, users=users, test=test)

    def components(self, most: int) -> Sample:
        """Return the sample with principal components of public text, `most` or as many as there are."""
        maps = pca_maps(self.public, dim=min(most, *self.public.shape), classes=self.classes)
        public, users, test = ((part - maps.mean) @ maps.m1 for part in (self.public, self.users, self.test))
        return replace(self, public=public, users=users, test=test)


def noise_of(sample: Sample, epsilon: float, size: int) -> float:
    """Return the variance of PrivUnit's noise in each coordinate of the users' mean; 0 if ε is infinite."""
    return 0.0 if np.isinf(epsilon) else mean_noise(PrivUnit(size, epsilon), users=len(sample.users))


def accuracy(sample: Sample, dim: int, epsilon: float, *, ridge: bool, draws: int) -> float:
    """Return the mean accuracy on test sentences over draws of the noise.

    Args:
        sample: Principal components, `dim` or more.
        dim: Number of features.
        epsilon: Local ε of a user vector; inf for none.
        ridge: Whether the head is plain ridge regression on the noisy mean.
        draws: Number of draws of the noise.
    """
    codes = simplex_codes(sample.classes)
    parts = (part[:, :dim].astype(np.float64) for part in (sample.public, sample.users, sample.test))
    public, users, test = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts)
    mean = statistic_vectors(users, sample.labels, codes).mean(axis=0)
    noise, right = noise_of(sample, epsilon, len(mean)), []
    for draw in range(draws if noise else 1):
        seen = mean + np.random.default_rng([1, draw]).normal(scale=noise**0.5, size=len(mean))
        evidence = of_users(seen, noise, users=len(users), codes=codes)
        if ridge:
            centre, scatter = public.mean(axis=0), np.cov(public, rowvar=False)
            cross = (evidence.cross - np.outer(evidence.constant, centre)).T
            weight = np.linalg.solve(scatter + RIDGE * np.trace(scatter) / dim * np.eye(dim), cross) @ codes.T
            bias = -centre @ weight
        else:
            weight, bias = linear_head(public, codes, users=evidence)
        right.append(np.mean((test @ weight + bias).argmax(axis=1) == sample.truth))
    return float(np.mean(right))


def dims(sample: Sample, epsilons: Sequence[float], *, most: int, draws: int) -> Iterator[list[str]]:
    """Yield the rows of the table of numbers of features."""
    sample = sample.components(most)
    yield ["features", *(f"{how}, {named(each)}" for how in ("shrunk", "ridge") for each in epsilons)]
    for dim in [d for d in CANDIDATES if d <= sample.public.shape[1]]:
        yield [
            str(dim),
            *(
                f"{accuracy(sample, dim, each, ridge=ridge, draws=draws):.3f}"
                for ridge in (False, True)
                for each in epsilons
            ),
        ]


def layers(
    sample: Sample, epsilons: Sequence[float], *, known: Sequence[int], sets: Sequence[Sequence[int]], draws: int
) -> Iterator[list[str]]:
    """Yield the rows of the table of layers; in brackets the number of features that is chosen."""
    yield ["layers", "scaled", *map(named, epsilons)]
    for chosen in sets:
        for scaled in (False, True)[: 1 + (len(chosen) > 1)]:
            part = sample.of_layers(known, chosen, scaled).components(CANDIDATES[-1])
            cells, codes = list[str](), simplex_codes(sample.classes)
            for each in epsilons:
                dim = Prospects(part.public, codes).best(partial(noise_of, part, each), users=len(part.users))[0]
                cells.append(f"{accuracy(part, dim, each, ridge=False, draws=draws):.3f} ({dim})")
            yield [", ".join(map(str, chosen)), "yes" if scaled else "no", *cells]


def named(epsilon: float) -> str:
    """Return the heading of a column."""
    return "no noise" if np.isinf(epsilon) else f"ε = {epsilon:g}"


def sample_of(name: str, folder: str, overrides: Sequence[str]) -> tuple[Sample, tuple[int, ...]]:
    """Return the sample of an experiment, and its layers."""
    experiment = load(name, [*([f"data.path={folder}"] if folder != "-" else []), *overrides])
    with progress_lines(clock=False):
        public, held, _ = prepare(experiment)
    assert public.embeddings is not None and held.train_embeddings is not None and held.test_embeddings is not None
    users = np.asarray(held.train_embeddings)
    return Sample(
        public.embeddings, users, held.train.labels, held.test_embeddings, held.test.labels, len(public.classes)
    ), layers_of(experiment.encoder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.features", description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("dims", "layers"))
    parser.add_argument("experiment")
    parser.add_argument("folder", help="folder of its data, or - for an experiment without one")
    parser.add_argument("--set", action="append", default=[], help="key of the experiment")
    parser.add_argument("--epsilons", nargs="+", type=float, default=[3.0, 6.19])
    parser.add_argument("--sets", nargs="+", default=[], help="sets of layers, each with commas")
    parser.add_argument("--most", type=int, default=CANDIDATES[-1], help="largest number of features")
    parser.add_argument("--draws", type=int, default=10)
    given = parser.parse_args(arguments)
    sample, known = sample_of(given.experiment, given.folder, given.set)
    epsilons: Any = [*given.epsilons, np.inf]
    if given.what == "dims":
        rows = dims(sample, epsilons, most=given.most, draws=given.draws)
    else:
        sets = [tuple(map(int, each.split(","))) for each in given.sets]
        rows = layers(sample, epsilons, known=known, sets=sets, draws=given.draws)
    for number, row in enumerate(rows):
        print(f"| {' | '.join(row)} |", flush=True)
        if number == 0:
            print("|" + "---:|" * len(row))


if __name__ == "__main__":
    main()

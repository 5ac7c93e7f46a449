"""Experiments beside one user vector that were left out, on SST-2 or another folder of its form.

They take seconds to an hour:

    python -m benchmarks.teaching draws FOLDER [--seed 1] [--users 20000] [--draws 12]
    python -m benchmarks.teaching gradients FOLDER [--seed 1] [--users 37000] [--sample 2000] [--dim 64]

draws: users of the folder beside labelled built-in reviews (the experiment sst2-statistics-other-domain). It measures
how the accuracy of one vector, ε = 3, varies with its noise alone, and with the best threshold.

gradients: a head trained on 20,000 users, and then rounds of other users. Each sends one PrivUnit vector of the loss
gradient by the weights of MiniLM's layers 4 to 6, in the span of the principal gradients of public text. Only a sample
of a round's users is computed. Its uncertainty replaces an equal part of the noise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from mechanisms.privunit import PrivUnit
from mechanisms.projection import statistic_vectors
from server.checkpoint import load as load_checkpoint
from server.maps import Maps
from server.text_batches import collate, tokenize
from server.training.principal import pca_maps
from server.training.rescale import factored
from server.training.statistic_head import (
    SHARED,
    Prospects,
    linear_head,
    mean_noise,
    of_labels,
    of_users,
    shared_codes,
    simplex_codes,
)
from simulations.experiment import load
from simulations.progress import progress_lines
from simulations.run.prepare import Prepared, prepare

LAYERS, GRADIENTS, ROUNDS, RIDGES, BATCH = (3, 4, 5), 256, 4, (0.003, 0.01, 0.03, 0.1, 0.3), 16
#: Local ε at which 20,000 users, and a quarter of 37,000, have a central ε of 1 (64 features, δ = 1e-6).
FIRST, ROUND = 6.34, 5.57
Array = np.ndarray


def prepared(name: str, folder: str, seed: int, *overrides: str) -> tuple[str, Prepared]:
    """Return the checkpoint of an experiment's encoder, and its data."""
    experiment = load(name, [f"data.path={folder}", f"seed={seed}", *overrides])
    with progress_lines(clock=False):
        return experiment.encoder.model, prepare(experiment)


def noisy_mean(
    features: Array, labels: Array, codes: Array, epsilon: float, seed: Sequence[int]
) -> tuple[Array, float]:
    """Return the mean of users' vectors, of one record each, under PrivUnit's noise, and the variance of the noise.

    The noise is drawn from a normal distribution, which approximates that of many users.
    """
    mean = statistic_vectors(features, labels, codes).mean(axis=0)
    noise = mean_noise(PrivUnit(len(mean), epsilon), users=len(labels))
    return mean + np.random.default_rng(list(seed)).normal(scale=noise**0.5, size=len(mean)), noise


def draws(folder: str, seed: int, users: int, times: int) -> None:
    """Print the accuracy over several draws of the noise."""
    _, (public, held, _) = prepared(
        "sst2-statistics-other-domain", folder, seed, f"population.users={users}", "shuffle.enabled=false"
    )
    embeddings, known, codes = public.embeddings, public.labels, shared_codes(len(public.classes))
    own = simplex_codes(len(public.classes))
    dim, _ = Prospects(embeddings, own).best(
        lambda size: mean_noise(PrivUnit(2 * size, 3.0), users=users) / (1 - SHARED), users=users
    )
    frame = pca_maps(embeddings, dim=dim, classes=len(own))
    features, labels = frame.project(embeddings), held.train.labels
    believed = of_labels(features, known, own)
    theirs, asked, truth = frame.project(held.train_embeddings), frame.project(held.test_embeddings), held.test.labels
    found = []
    for draw in range(times):
        mean, noise = noisy_mean(theirs, labels, codes, 3.0, [seed, draw])
        said = of_users(mean, noise, users=users, codes=codes)
        weight, bias = linear_head(features, own, users=said, labels=believed)
        margin = (asked @ weight + bias) @ np.array([-1.0, 1.0])
        cuts = np.quantile(margin, np.linspace(0.02, 0.98, 97))
        found.append((np.mean((margin > 0) == truth), max(np.mean((margin > cut) == truth) for cut in cuts)))
    ours, best = np.array(found).T
    weight, bias = linear_head(features, own, labels=believed)
    alone = np.mean((asked @ weight + bias).argmax(axis=1) == truth)
    print(
        f"seed {seed}, {users:,} users, {dim} features: {times} draws {ours.mean():.4f}, sd {ours.std(ddof=1):.4f}, "
        f"worst {ours.min():.3f}; best threshold {best.mean():.4f}, sd {best.std(ddof=1):.4f}; labels alone {alone:.4f}"
    )


class Tangent:
    """MiniLM with a head of two classes: scores of texts (log-odds of the second class), and gradients of the scores.

    Gradients are by the weights of some layers' linear maps, text by text.

    Args:
        checkpoint: Checkpoint of the encoder.
        maps: Maps and head.
        layers: Numbers of the layers.
    """

    def __init__(self, checkpoint: str, maps: Maps, layers: Sequence[int] = LAYERS) -> None:
        self.model, self.tokenizer = load_checkpoint(checkpoint)
        self.mean, self.m1 = torch.tensor(maps.mean), torch.tensor(maps.m1)
        weight, bias = maps.folded()
        self.weight, self.bias = torch.tensor(weight[:, 1] - weight[:, 0]), float(bias[1] - bias[0])
        self.linear = [
            part
            for layer in layers
            for part in self.model.encoder.layer[layer].modules()
            if isinstance(part, torch.nn.Linear)
        ]
        self.model.requires_grad_(False)
        self._into: dict[int, torch.Tensor] = {}
        self._back: dict[int, torch.Tensor] = {}
        for number, part in enumerate(self.linear):
            part.weight.requires_grad_(True)
            part.register_forward_hook(self._watch(number))
        self.size = sum(part.weight.numel() for part in self.linear)

    def _watch(self, number: int) -> Any:
        def hook(_: Any, given: Any, out: torch.Tensor) -> None:
            self._into[number] = given[0].detach()
            out.register_hook(lambda gradient: self._back.__setitem__(number, gradient.detach()))

        return hook

    def gradients(self, texts: Sequence[Any]) -> Iterator[tuple[Array, Array, torch.Tensor]]:
        """Yield rows (n,), their scores (n,) and gradients (n, size), batch by batch, the shortest texts first."""
        rows = tokenize(self.tokenizer, texts, 128)
        order = np.argsort([len(row["input_ids"]) for row in rows], kind="stable")
        for at in (order[start : start + BATCH] for start in range(0, len(rows), BATCH)):
            inputs = collate(self.tokenizer, [rows[i] for i in at])
            there = inputs["attention_mask"].unsqueeze(-1).float()
            pooled = (self.model(**inputs).last_hidden_state * there).sum(1) / there.sum(1)
            mapped = (pooled - self.mean) @ self.m1
            score = mapped / mapped.norm(dim=1, keepdim=True) @ self.weight + self.bias
            score.sum().backward()
            pairs = [(self._back[i], self._into[i]) for i in range(len(self.linear))]
            each = [torch.einsum("nto,nti->noi", *pair).flatten(1) for pair in pairs]
            for part in self.linear:
                part.weight.grad = None
            yield at, score.detach().numpy(), torch.cat(each, dim=1)

    def subspace(self, texts: Sequence[Any], dim: int) -> torch.Tensor:
        """Return an orthonormal basis (dim, size) of the principal gradients of these texts, each of length 1."""
        each = torch.empty(len(texts), self.size)
        for at, _, gradients in self.gradients(texts):
            each[at] = gradients / gradients.norm(dim=1, keepdim=True)
        values, vectors = torch.linalg.eigh(each @ each.T)
        return (vectors[:, -dim:] / values[-dim:].sqrt()).T @ each

    def features(self, texts: Sequence[Any], basis: torch.Tensor) -> tuple[Array, Array]:
        """Return gradients along the basis (n, dim), and scores (n,)."""
        found, scores = np.empty((len(texts), len(basis))), np.empty(len(texts))
        for at, score, gradients in self.gradients(texts):
            found[at], scores[at] = (gradients @ basis.T).numpy(), score
        return found, scores

    def move(self, step: torch.Tensor) -> None:
        """Add a step (size,) to the weights."""
        with torch.no_grad():
            for part, own in zip(self.linear, step.split([p.weight.numel() for p in self.linear]), strict=True):
                part.weight += own.view_as(part.weight)


def private_gradient(
    found: Array, scores: Array, labels: Array, *, users: int, epsilon: float, seed: Sequence[int]
) -> tuple[Array, Array]:
    """Return the mean gradient of the log loss along unit features (n, d), and its estimate from PrivUnit vectors.

    Only n users are known. The uncertainty of their mean is subtracted from the noise.

    Args:
        found: Unit features (n, d).
        scores: Scores (n,).
        labels: Labels (n,).
        users: Number of users.
        epsilon: Local ε.
        seed: Seed of the noise.
    """
    gap = labels - 1 / (1 + np.exp(-scores))
    gradient = (gap[:, None] * found).mean(axis=0)
    noise = mean_noise(PrivUnit(found.shape[1], epsilon), users=users)
    left = max(noise - (gap**2).mean() / found.shape[1] * (1 / len(found) - 1 / users), 0.0)
    return gradient, gradient + np.random.default_rng(list(seed)).normal(scale=left**0.5, size=len(gradient))


def gradients(folder: str, seed: int, users: int, sample: int, dim: int) -> None:
    """Print the accuracy after each round of gradients."""
    first = min(20_000, users)
    model, (public, held, _) = prepared(
        "sst2-statistics",
        folder,
        seed,
        f"population.users={first + users}",
        "encoder.layers=[6]",
        "shuffle.enabled=false",
    )
    codes = simplex_codes(2)
    chosen, _ = Prospects(public.embeddings, codes).best(
        lambda size: mean_noise(PrivUnit(size, FIRST), users=first), users=first
    )
    frame = pca_maps(public.embeddings, dim=chosen, classes=2)
    taught, labels = frame.project(held.train_embeddings[:first]), held.train.labels[:first]
    said = of_users(*noisy_mean(taught, labels, codes, FIRST, [seed]), users=first, codes=codes)
    head = linear_head(frame.project(public.embeddings), codes, users=said)
    tangent = Tangent(model, factored(frame.mean, frame.m1, *head))
    size, truth = users // ROUNDS, held.test.labels
    mixed = np.random.default_rng(1).permutation(len(public.texts))
    seen, other = ([public.texts[i] for i in at] for at in (mixed[:GRADIENTS], mixed[GRADIENTS : 3 * GRADIENTS]))
    for number in range(ROUNDS):
        began = time.perf_counter()
        basis = tangent.subspace(seen, dim)
        rows = range(first + number * size, first + number * size + min(sample, size))
        (found, scores), (theirs, their_scores), (asked, start) = (
            tangent.features(texts, basis)
            for texts in ([held.train.texts[i] for i in rows], other, list(held.test.texts))
        )
        length = np.linalg.norm(theirs, axis=1).mean()
        found, theirs, asked = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (found, theirs, asked))
        sure = 1 / (1 + np.exp(-their_scores))
        fisher = (theirs * (sure * (1 - sure))[:, None]).T @ theirs / len(theirs)
        both = private_gradient(found, scores, held.train.labels[rows], users=size, epsilon=ROUND, seed=[seed, number])
        said = [f"round {number + 1}: {np.mean((start > 0) == truth):.4f}"]
        for name, gradient in zip(("no noise", "private"), both, strict=True):
            steps = [np.linalg.solve(fisher + ridge * np.eye(dim), gradient) for ridge in RIDGES]
            right = [np.mean((start + asked @ step > 0) == truth) for step in steps]
            said.append(f"{name} " + ", ".join(f"{value:.4f}" for value in right))
        tangent.move(torch.tensor(steps[3] / length, dtype=torch.float32) @ basis)
        print("; ".join(said), f"({time.perf_counter() - began:.0f} s)", flush=True)
    _, last = tangent.features(list(held.test.texts), basis)
    print(f"at last: {np.mean((last > 0) == truth):.4f}")


def main() -> None:
    """Run one of the experiments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draws", "gradients"))
    parser.add_argument("folder")
    for name, default in (("seed", 1), ("users", None), ("draws", 12), ("sample", 2000), ("dim", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    if given.what == "draws":
        draws(given.folder, given.seed, given.users or 20_000, given.draws)
    else:
        gradients(given.folder, given.seed, given.users or 37_000, given.sample, given.dim)


if __name__ == "__main__":
    main()

"""Comparison of sentence encoders on a labelled public sample: size, speed, and accuracy under local privacy."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from client.models.encoder import FILES, Encoder
from mechanisms.privunit import PrivUnit
from mechanisms.projection import statistic_vectors
from server.sentence_layout import read
from server.training.principal import pca_maps
from server.training.statistic_head import best_features, linear_head, mean_noise, of_users, simplex_codes
from simulations.artifacts.cache import embed
from simulations.artifacts.encoder import encoder_folder
from simulations.corpora.cleaned import chosen, cleaned
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import Encoder as EncoderSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

#: Folds of the sample, draws of the noise in each, texts that are timed, and tokens of a text, at most.
FOLDS, DRAWS, TIMED, LENGTH = 5, 10, 100, 128
#: Fewest texts of a sample: a fold's features need more rows than coordinates.
_LEAST = 200


@dataclass(frozen=True)
class Compared:
    """Measurements of one encoder.

    Attributes:
        name: Name of the encoder, as in an experiment file.
        parameters: Number of weights, without those that no embedding depends on.
        bundle: Bytes of the files that a device needs.
        milliseconds: Milliseconds a sentence takes on one thread.
        accuracy: Accuracy at each ε; infinity is without noise.
        error: Standard error of these by folds.
    """

    name: str
    parameters: int
    bundle: int
    milliseconds: float
    accuracy: dict[float, float]
    error: dict[float, float]


@dataclass(frozen=True)
class Comparison:
    """Measurements of several encoders on one sample.

    Attributes:
        texts: Number of texts of the sample.
        classes: Names of its classes.
        users: Number of users whose noise the accuracies have.
        precision: Precision of the encoders, "fp32", "int8" or "int4".
        encoders: Measurements, one for each encoder.
    """

    texts: int
    classes: tuple[str, ...]
    users: int
    precision: str
    encoders: tuple[Compared, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-ready values; ε = ∞ is "inf"."""
        rows = []
        for each in self.encoders:
            row = asdict(each)
            for name in ("accuracy", "error"):
                row[name] = {str(epsilon): value for epsilon, value in row[name].items()}
            rows.append(row)
        return asdict(self) | {"classes": list(self.classes), "encoders": rows}


def compare(
    file: Path,
    names: Sequence[str],
    *,
    text: str | None,
    label: str | None,
    users: int,
    epsilons: Sequence[float],
    sample: int,
    precision: str,
    seed: int,
) -> Comparison:
    """Return what each encoder costs, and what a head on its embeddings reaches on a labelled public sample.

    The head is that of the protocol `statistics`: one vector a user, in closed form. Each of five folds is scored by a
    head from the other four. Their records stand for the users, with the noise of `users` users at ε: as many users
    would have that noise and less error of sampling.

    Args:
        file: Table of texts and labels.
        names: Encoders, as in an experiment file.
        text: Column of the texts; None to find it by its name.
        label: Column of the labels; None to find it by its name.
        users: Number of users whose noise the mean has.
        epsilons: Local ε of a user vector.
        sample: Number of texts, at most.
        precision: "fp32", "int8" or "int4".
        seed: Seed of the sample, the folds and the noise.

    Raises:
        UserError: The table cannot be used. ValueError: An encoder cannot be read.
    """
    table = cleaned(file, chosen(file, text=text, label=label, user=None))
    order = np.random.default_rng([seed, 0]).permutation(len(table.texts))[:sample]
    texts, labels = [table.texts[i] for i in order], table.labels[order]
    if len(texts) < _LEAST or len(np.unique(labels)) < len(table.classes):
        raise UserError(f"{file}: {len(texts)} usable texts; a comparison needs {_LEAST}, and some of each class")
    corpus = Corpus(texts, labels, table.classes)
    made = []
    for name in names:
        log.info(f"{name}: preparing")
        length = min(LENGTH, read(name).max_length or LENGTH)
        settings = EncoderSettings(model=name, precision=precision, max_length=length)
        folder = encoder_folder(settings, corpus, batch_size=1, seed=seed)  # is not fine-tuned
        encoder = Encoder(folder, threads=1)
        milliseconds = _milliseconds(encoder, texts[:TIMED])
        embeddings = np.asarray(embed(Encoder(folder), texts))
        scores = {
            epsilon: _folded(embeddings, labels, len(table.classes), epsilon, users=users, seed=seed)
            for epsilon in (*sorted(epsilons), np.inf)
        }
        error = {epsilon: float(folds.std(ddof=1) / FOLDS**0.5) for epsilon, folds in scores.items()}
        made.append(
            Compared(
                name,
                _parameters(name),
                sum((folder / each).stat().st_size for each in FILES),
                milliseconds,
                {epsilon: float(folds.mean()) for epsilon, folds in scores.items()},
                error,
            )
        )
    return Comparison(len(texts), table.classes, users, precision, tuple(made))


def _parameters(name: str) -> int:
    from server.checkpoint import load as load_checkpoint

    model, _ = load_checkpoint(name)
    return sum(value.numel() for key, value in model.named_parameters() if not key.startswith("pooler."))


def _milliseconds(encoder: Encoder, texts: Sequence[str]) -> float:
    """Return the median processor time of one text alone, as a device encodes it."""
    encoder.encode(texts[:2])
    spent = []
    for text in texts:
        start = time.process_time()
        encoder.encode([text])
        spent.append(time.process_time() - start)
    return float(np.median(spent) * 1000)


def _folded(
    embeddings: NDArray[np.float32], labels: NDArray[np.int64], classes: int, epsilon: float, *, users: int, seed: int
) -> NDArray[np.float64]:
    """Return the accuracy on each fold, (FOLDS,), of heads from the other folds' user vectors."""
    codes, fold = simplex_codes(classes), np.arange(len(labels)) % FOLDS

    def noise(size: int) -> float:
        return 0.0 if np.isinf(epsilon) else mean_noise(PrivUnit(size, epsilon), users=users)

    found = np.empty(FOLDS)
    for each in range(FOLDS):
        known, asked = embeddings[fold != each], embeddings[fold == each]
        dim = best_features(known, codes, noise, users=len(known))
        frame = pca_maps(known, dim=dim, classes=classes)
        features, queries = frame.project(known), frame.project(asked)
        mean = statistic_vectors(features, labels[fold != each], codes).mean(axis=0)
        variance, right = noise(len(mean)), []
        for draw in range(1 if variance == 0 else DRAWS):
            rng = np.random.default_rng([seed, 1, each, draw])
            noisy = mean + rng.normal(scale=variance**0.5, size=len(mean))
            weight, bias = linear_head(
                features, codes, users=of_users(noisy, variance, users=len(features), codes=codes)
            )
            right.append(np.mean((queries @ weight + bias).argmax(axis=1) == labels[fold == each]))
        found[each] = np.mean(right)
    return found


def table(found: Comparison) -> str:
    """Return the comparison as a Markdown table."""
    epsilons = list(found.encoders[0].accuracy)
    heads = ["no noise" if np.isinf(epsilon) else f"ε = {epsilon:g}" for epsilon in epsilons]
    lines = [
        f"| encoder | parameters | bundle | ms a sentence | {' | '.join(heads)} |",
        "|---|---:|---:|---:|" + "---:|" * len(heads),
    ]
    for each in found.encoders:
        scores = " | ".join(f"{each.accuracy[e]:.3f} ± {each.error[e]:.3f}" for e in epsilons)
        cost = f"{each.parameters / 1e6:.0f} M | {each.bundle / 1e6:.0f} MB | {each.milliseconds:.1f}"
        lines.append(f"| {each.name} | {cost} | {scores} |")
    return "\n".join(lines)


def figure(found: Comparison) -> Figure:
    """Return accuracy against ε, a line for each encoder; without noise at the right."""
    from simulations.output.figures import COLOURS, MARKERS, new_figure

    drawn, axes = new_figure(5.6, 3.6)
    places = np.arange(len(found.encoders[0].accuracy))
    for number, each in enumerate(found.encoders):
        axes.errorbar(
            places,
            list(each.accuracy.values()),
            yerr=list(each.error.values()),
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            capsize=2,
            label=f"{each.name}: {each.bundle / 1e6:.0f} MB, {each.milliseconds:.0f} ms",
        )
    names = ["no noise" if np.isinf(epsilon) else f"{epsilon:g}" for epsilon in found.encoders[0].accuracy]
    axes.set_xticks(places, names)
    axes.set_xlabel(f"local ε of a user vector, {found.users:,} users")
    axes.set_ylabel("accuracy")
    axes.legend(frameon=False, fontsize=8)
    return drawn

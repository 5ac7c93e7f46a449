"""Measures beside accuracy, each a function of n predictions with weights.

Weights allow to bootstrap over distinct texts: all predictions of one text, of several users or repeats, are drawn
together, as in `simulations.run.evaluation`. A measure is one entry of MEASURES. An entry of
`simulations.experiment.result.SHOWN` shows it in every table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from client.own_labels import own_label_correction
from simulations.experiment.sections import Data
from simulations.run.accuracy import Counts, score

if TYPE_CHECKING:
    from simulations.run.prepare import Held

# scikit-learn is imported where it is called: it takes a second.

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

#: Number of bootstrap samples of texts or users: the error of an error is 5 %.
_SAMPLES = 200
#: Least number of predictions of a user, and of such users, for measures over users.
RECORDS, USERS = 2, 20


class Value(NamedTuple):
    """Measure, its standard error over distinct texts or users, and its number of predictions or users."""

    value: float
    error: float
    n: int


@dataclass(frozen=True, eq=False)
class Guesses:
    """Predictions of a model for n test texts, beside the true labels.

    Attributes:
        scores: Scores (n, K), a larger one for a likelier class.
        labels: True classes (n,).
        texts: Number of the distinct text of each guess, (n,).
        users: User who holds the text, (n,); the user who asked if each record is a user's own.
        classes: Names of the K classes.
        numbers: Numbers (K,) that the classes stand for; None if they stand for none. A model then expects their mean
            under the probabilities that its scores give.
        seed: Seed of the samples by which errors are estimated.
        groups: Group of the user or record, (n,), by the column `data.group`; None without one.
        owned: True if users hold several texts. Their texts are then no independent draws.
    """

    scores: FloatArray
    labels: IntArray
    texts: IntArray
    users: IntArray
    classes: Sequence[str]
    numbers: Sequence[float] | None
    seed: int
    groups: NDArray[np.str_] | None = None
    owned: bool = False

    @property
    def guessed(self) -> IntArray:
        """Return the likeliest class of each text, (n,)."""
        classes: IntArray = self.scores.argmax(axis=1)
        return classes

    def of(self, rows: NDArray[np.bool_]) -> Guesses:
        """Return the guesses of a group, given as a mask (n,)."""
        arrays = {name: getattr(self, name)[rows] for name in ("scores", "labels", "texts", "users")}
        return replace(self, **arrays, groups=None if self.groups is None else self.groups[rows])

    def accuracy(self) -> Value:
        """Return the accuracy, with its error over users if they hold several texts, and over texts otherwise."""
        cluster = np.unique(self.users if self.owned else self.texts, return_inverse=True)[1]
        right = np.bincount(cluster, self.guessed == self.labels).astype(np.int64)
        result = score(Counts(np.bincount(cluster), right))
        assert result is not None
        return Value(result.accuracy, math.nan if result.error is None else result.error, len(self.labels))

    def value(self, measure: Callable[[FloatArray], float]) -> Value:
        """Return a measure, a function of weights (n,), with its error over distinct texts (bootstrap)."""
        again = np.array([measure(weights) for weights in self._samples])
        again = again[np.isfinite(again)]
        error = float(again.std(ddof=1)) if len(again) > 1 else math.nan
        return Value(measure(np.ones(len(self.labels))), error, len(self.labels))

    @cached_property
    def _samples(self) -> list[FloatArray]:
        distinct, text = np.unique(self.texts, return_inverse=True)
        drawn = np.random.default_rng([self.seed, 11]).multinomial(
            len(distinct), np.full(len(distinct), 1 / len(distinct)), size=_SAMPLES
        )
        return [often[text].astype(np.float64) for often in drawn]


@dataclass(frozen=True)
class Measure:
    """Column of results.

    Attributes:
        compute: Function that returns the measure of guesses, or its values by group.
        wanted: Function that says whether data and held test texts need it although the experiment does not request it.
        on_device: Whether only a device can have it, because it takes a user's own labels.
    """

    compute: Callable[[Guesses], Value | Mapping[str, Value]]
    wanted: Callable[[Data, Held], bool] = lambda data, held: False
    on_device: bool = False


def measured(names: Sequence[str], guesses: Guesses | None) -> dict[str, dict[str, float] | None]:
    """Return each measure's "value" and "error"; None where there is nothing to score.

    The values of a measure by group are "measure: group", each with its "n".
    """
    if guesses is None or not len(guesses.labels):
        return dict.fromkeys(names)
    values: dict[str, dict[str, float] | None] = {}
    for name in names:
        value = MEASURES[name].compute(guesses)
        if isinstance(value, Value):
            values[name] = {"value": value.value, "error": value.error}
        else:
            values |= {f"{name}: {group}": entry._asdict() for group, entry in value.items()}
    return values


# --- of classes


def matthews(guesses: Guesses, weights: FloatArray) -> float:
    """Return the correlation of guesses and truth (Matthews 1975), of K classes as Gorodkin 2004 has it.

    It lies from -1 to 1, and is 0 of guesses that know nothing. Not a number where guesses or truth are of one class.
    """
    from sklearn.metrics import matthews_corrcoef

    mask = weights > 0
    labels, guessed = guesses.labels[mask], guesses.guessed[mask]
    if len(np.unique(labels)) < 2 or len(np.unique(guessed)) < 2:
        return math.nan
    return float(matthews_corrcoef(labels, guessed, sample_weight=weights[mask]))


def macro_f1(guesses: Guesses, weights: FloatArray) -> float:
    """Return the mean over classes, those that occur or are guessed, of the harmonic mean of precision and recall."""
    from sklearn.metrics import f1_score

    mask = weights > 0  # a class without weight does not count
    labels, guessed = guesses.labels[mask], guesses.guessed[mask]
    return float(f1_score(labels, guessed, average="macro", sample_weight=weights[mask]))


# Ranks are by NumPy, since scikit-learn takes twenty times as long: 2 ms for each class of each of the 200 samples.


def auroc(guesses: Guesses, weights: FloatArray) -> float:
    """Return the probability that a text of the class has the higher score than one of another, ties counted half.

    Of two classes it is that of the second, of more the mean over classes, each against the rest.
    """
    return _each(_area, guesses, weights)


def auprc(guesses: Guesses, weights: FloatArray) -> float:
    """Return the average precision: the precision at each score, weighted by the recall that is gained there.

    Classes are as for `auroc`. A guess at random has the share of the class.
    """
    return _each(_average_precision, guesses, weights)


def _each(of: Callable[[FloatArray, FloatArray], float], guesses: Guesses, weights: FloatArray) -> float:
    """Return the mean over classes of a function of the weights of the class and of the rest, the best score first."""
    scores, classes = guesses.scores, range(guesses.scores.shape[1])
    if len(classes) == 2:
        scores, classes = scores - scores[:, ::-1], range(1, 2)
    else:  # scores of one text relative to another's
        scores = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    values = []
    for k in classes:
        _, at = np.unique(-scores[:, k], return_inverse=True)
        inside = guesses.labels == k
        own_weights, others = (np.bincount(at, weights * part).astype(np.float64) for part in (inside, ~inside))
        values.append(of(own_weights, others))
    return float(np.mean(values))


def _area(ours: FloatArray, others: FloatArray) -> float:
    pairs = ours.sum() * others.sum()
    above = np.cumsum(ours) - ours / 2
    return float(above @ others / pairs) if pairs > 0 else math.nan


def _average_precision(ours: FloatArray, others: FloatArray) -> float:
    if not ours.sum():
        return math.nan
    hit, seen = np.cumsum(ours), np.cumsum(ours + others)
    return float((ours * np.divide(hit, seen, out=np.zeros_like(hit), where=seen > 0)).sum() / ours.sum())


# --- of numbers


def pearson(expected: FloatArray, truth: FloatArray, weights: FloatArray) -> float:
    """Return the correlation of two numbers, (n,) each; not a number where one of them never changes."""
    total = weights.sum()
    a, b = (values - weights @ values / total for values in (expected, truth))
    spread = math.sqrt((weights @ (a * a)) * (weights @ (b * b)))
    return float(weights @ (a * b) / spread) if spread > 0 else math.nan


def spearman(expected: FloatArray, truth: FloatArray, weights: FloatArray) -> float:
    """Return the correlation of their ranks; equal ones have the mean of theirs."""
    return pearson(_ranks(expected, weights), _ranks(truth, weights), weights)


def _ranks(values: FloatArray, weights: FloatArray) -> FloatArray:
    _, at = np.unique(values, return_inverse=True)
    often = np.bincount(at, weights)
    ranks: FloatArray = (np.cumsum(often) - often / 2)[at]
    return ranks


def _by_weights(of: Callable[[Guesses, FloatArray], float]) -> Callable[[Guesses], Value]:
    return lambda guesses: guesses.value(partial(of, guesses))


def _numeric(of: Callable[[FloatArray, FloatArray, FloatArray], float]) -> Callable[[Guesses], Value]:
    """Compare the number that a model expects with the true one."""

    def compute(guesses: Guesses) -> Value:
        assert guesses.numbers is not None
        values = np.asarray(guesses.numbers, dtype=np.float64)
        return guesses.value(partial(of, softmax(guesses.scores, axis=1) @ values, values[guesses.labels]))

    return compute


# --- of groups of texts or users


def by_class(guesses: Guesses) -> dict[str, Value]:
    """Return the accuracy of the texts of each class (its recall)."""
    return {guesses.classes[k]: guesses.of(guesses.labels == k).accuracy() for k in np.unique(guesses.labels)}


def by_group(guesses: Guesses) -> dict[str, Value]:
    """Return the accuracy of the texts of each group of the column `data.group`."""
    if guesses.groups is None:
        return {}
    return {str(name): guesses.of(guesses.groups == name).accuracy() for name in np.unique(guesses.groups)}


def by_user(guesses: Guesses) -> dict[str, Value]:
    """Return the mean and the variance of the accuracies of users with `RECORDS` predictions or more.

    Each user counts once. The variance is that between users, without what chance adds to each accuracy (analysis of
    variance); it may be negative. Errors are by bootstrap over users.
    """
    people = np.unique(guesses.users, return_inverse=True)[1]
    often = np.bincount(people)
    right = np.bincount(people, guesses.guessed == guesses.labels)[often >= RECORDS]
    often = often[often >= RECORDS]
    if len(often) < USERS:
        return {}
    drawn = np.random.default_rng([guesses.seed, 13]).integers(len(often), size=(_SAMPLES, len(often)))
    accuracies = right / often
    within = accuracies * (1 - accuracies) / (often - 1)  # unbiased for the variance of one user's accuracy
    means, variances = (
        [float(accuracies[rows].mean()) for rows in (slice(None), *drawn)],
        [float(accuracies[rows].var(ddof=1) - within[rows].mean()) for rows in (slice(None), *drawn)],
    )
    values = {"mean": means, "variance": variances}
    return {name: Value(v[0], float(np.std(v[1:], ddof=1)), len(often)) for name, v in values.items()}


def own_labels(guesses: Guesses) -> Value:
    """Return the accuracy where each user's device corrects the model by the user's labels of their other texts."""
    probabilities, truth = softmax(guesses.scores, axis=1), np.eye(guesses.scores.shape[1])[guesses.labels]
    user = np.unique(guesses.users, return_inverse=True)[1]
    text = np.unique(np.stack([user, guesses.texts]), axis=1, return_inverse=True)[1]

    def others(values: FloatArray) -> FloatArray:
        """Return the sum (n, K) over a user's other texts: a repeat of a text must not tell its label."""
        return _sums(user, values)[user] - _sums(text, values)[text]

    scores = guesses.scores + own_label_correction(others(truth), others(probabilities))
    return replace(guesses, scores=scores).accuracy()


def _sums(rows: IntArray, values: FloatArray) -> FloatArray:
    """Return the sums of the values (n, K) with each number in `rows` (n,)."""
    sums = np.zeros((int(rows.max()) + 1, values.shape[1]))
    np.add.at(sums, rows, values)
    return sums


def dominates(share: float, classes: int) -> bool:
    """Return True if a class with this share makes accuracy uninformative: more than halfway from an equal share to 1.

    That is .75 of two classes, .67 of three, and .54 of twelve.
    """
    return share > (1 + 1 / classes) / 2


def chance(labels: IntArray) -> float:
    """Return the accuracy of always guessing the most frequent label."""
    return float(np.bincount(labels).max() / len(labels))


def _one_dominates(data: Data, held: Held) -> bool:
    return data.numbers is None and dominates(chance(held.test.labels), len(held.test.classes))


def _users_have_records(data: Data, held: Held) -> bool:
    """Return whether enough users have enough test records, of classes."""
    often = np.zeros(0) if held.owners is None or data.numbers is not None else np.bincount(held.owners)
    return int((often >= RECORDS).sum()) >= USERS


MEASURES: dict[str, Measure] = {
    "matthews": Measure(_by_weights(matthews)),
    "macro-f1": Measure(_by_weights(macro_f1), _one_dominates),
    "auroc": Measure(_by_weights(auroc)),
    "auprc": Measure(_by_weights(auprc)),
    "pearson": Measure(_numeric(pearson)),
    "spearman": Measure(_numeric(spearman)),
    "by-class": Measure(by_class, lambda data, held: data.numbers is None),
    "by-group": Measure(by_group, lambda data, held: data.group is not None),
    "by-user": Measure(by_user, _users_have_records),
    "own-labels": Measure(own_labels, _users_have_records, on_device=True),
}


def measures_of(data: Data, held: Held) -> tuple[str, ...]:
    """Return the names of the measures that the experiment requests, and of those that data and test texts need."""
    wanted = [name for name, measure in MEASURES.items() if measure.wanted(data, held)]
    return tuple(dict.fromkeys([*data.measures, *wanted]))

"""Measures beside accuracy, for tasks whose classes are not equally frequent, or whose papers give others.

Each is of n guesses with weights, so that its error can be had by drawing the distinct texts anew: the guesses of one
text, of several users or repeats, stand or fall together, as in `simulations.run.evaluation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from simulations.run.over_runs import mean_said, moments

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

#: Samples of the texts by which errors are estimated: an error of an error of 5 %.
_SAMPLES = 200


def matthews(scores: FloatArray, labels: IntArray, weights: FloatArray) -> float:
    """The correlation of guesses and truth (Matthews 1975), of K classes as Gorodkin 2004 has it; from -1 to 1, 0 of
    guesses that know nothing, and not a number where guesses or truth are all of one class."""
    table = _confusion(scores, labels, weights)
    total, true, guessed = table.sum(), table.sum(axis=1), table.sum(axis=0)
    spread = math.sqrt(max(0.0, total**2 - true @ true)) * math.sqrt(max(0.0, total**2 - guessed @ guessed))
    return float((np.trace(table) * total - true @ guessed) / spread) if spread > 0 else math.nan


def macro_f1(scores: FloatArray, labels: IntArray, weights: FloatArray) -> float:
    """The mean over classes, those that occur or were guessed, of the harmonic mean of precision and recall."""
    table = _confusion(scores, labels, weights)
    sums = table.sum(axis=0) + table.sum(axis=1)
    return float(np.mean(2 * np.diag(table)[sums > 0] / sums[sums > 0]))


def auroc(scores: FloatArray, labels: IntArray, weights: FloatArray) -> float:
    """The probability that a text of the class has the higher score than one of another, ties counted half; of two
    classes that of the second, of more the mean over classes, each against the rest."""
    return _each(_area, scores, labels, weights)


def auprc(scores: FloatArray, labels: IntArray, weights: FloatArray) -> float:
    """Average precision: the precision at each score, weighted by the recall that is gained there; classes as for
    `auroc`. A guess at random has the share of the class."""
    return _each(average_precision, scores, labels, weights)


def pearson(expected: FloatArray, truth: FloatArray, weights: FloatArray) -> float:
    """The correlation of two numbers, (n,) each; not a number where one of them never changes."""
    total = weights.sum()
    a, b = (values - weights @ values / total for values in (expected, truth))
    spread = math.sqrt((weights @ (a * a)) * (weights @ (b * b)))
    return float(weights @ (a * b) / spread) if spread > 0 else math.nan


def spearman(expected: FloatArray, truth: FloatArray, weights: FloatArray) -> float:
    """The correlation of their ranks; equal ones have the mean of theirs."""
    return pearson(_ranks(expected, weights), _ranks(truth, weights), weights)


#: Of the number that a model expects, and of the true one.
NUMERIC: dict[str, Callable[[FloatArray, FloatArray, FloatArray], float]] = {
    "pearson": pearson, "spearman": spearman,
}  # fmt: skip
MEASURES: dict[str, Callable[[FloatArray, IntArray, FloatArray], float]] = {
    "matthews": matthews, "macro-f1": macro_f1, "auroc": auroc, "auprc": auprc,
}  # fmt: skip


def measured(
    names: Sequence[str], scores: FloatArray | None, labels: IntArray, texts: IntArray, *, seed: int,
    numbers: Sequence[float] | None = None,
) -> dict[str, dict[str, float] | None]:
    """Each measure's "value" and "error", its standard error over distinct texts (bootstrap); None where there is
    nothing to score.

    scores: (n, K), a larger one for a likelier class; None where no model is. labels, texts: (n,), the truth, and which
    distinct text each is. numbers: (K,) what the classes stand for, where they do: a model then expects their mean
    under the probabilities that its scores give.
    """
    if scores is None or not len(scores):
        return dict.fromkeys(names)
    distinct, text = np.unique(texts, return_inverse=True)
    drawn = np.random.default_rng([seed, 11]).multinomial(
        len(distinct), np.full(len(distinct), 1 / len(distinct)), size=_SAMPLES
    )
    found: dict[str, dict[str, float] | None] = {}
    for name in names:
        of = partial(MEASURES[name], scores, labels) if name in MEASURES else _numeric(name, scores, labels, numbers)
        value = of(np.ones(len(labels)))
        again = np.array([of(often[text].astype(np.float64)) for often in drawn])
        again = again[np.isfinite(again)]
        found[name] = {"value": value, "error": float(again.std(ddof=1)) if len(again) > 1 else math.nan}
    return found


def _numeric(
    name: str, scores: FloatArray, labels: IntArray, numbers: Sequence[float] | None
) -> Callable[[FloatArray], float]:
    assert numbers is not None
    values = np.asarray(numbers, dtype=np.float64)
    return partial(NUMERIC[name], softmax(scores, axis=1) @ values, values[labels])


def _ranks(values: FloatArray, weights: FloatArray) -> FloatArray:
    _, at = np.unique(values, return_inverse=True)
    often = np.bincount(at, weights)
    found: FloatArray = (np.cumsum(often) - often / 2)[at]
    return found


def rows(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Headings, and a row for each arm, of runs of one study: the mean over runs of each measure, ± its standard error:
    over seeds, and of one run by test text. Nothing where the study asks for no measure."""
    names = runs[0].get("measures") or ()
    if not names:
        return []
    columns = [(name, where) for name in names for where in ("sanitized", "on_device")]
    found = [["arm", *(f"{name}, {where.replace('_', ' ')}" for name, where in columns)]]
    for same in zip(*(run["arms"] for run in runs), strict=True):
        of = [[(arm["measures"].get(where) or {}).get(name) or {} for arm in same] for name, where in columns]
        means = [moments([each.get("value") for each in every], every[0].get("error")) for every in of]
        found.append([same[0]["name"], *map(mean_said, means)])
    return found


def _confusion(scores: FloatArray, labels: IntArray, weights: FloatArray) -> FloatArray:
    """(K, K) weights by truth and guess."""
    classes = scores.shape[1]
    cells = labels * classes + scores.argmax(axis=1)
    return np.bincount(cells, weights, minlength=classes * classes).reshape(classes, classes)


def _each(of: Callable[..., float], scores: FloatArray, labels: IntArray, weights: FloatArray) -> float:
    classes = scores.shape[1]
    if classes == 2:
        return of(scores[:, 1] - scores[:, 0], labels == 1, weights)
    shifted = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)  # one text's beside another's
    return float(np.mean([of(shifted[:, k], labels == k, weights) for k in range(classes)]))


def _by_score(score: FloatArray, inside: NDArray[Any], weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weights of the class and of the rest at each distinct score, the highest first."""
    _, at = np.unique(-score, return_inverse=True)
    return np.bincount(at, weights * inside), np.bincount(at, weights * ~inside)


def _area(score: FloatArray, inside: NDArray[Any], weights: FloatArray) -> float:
    ours, others = _by_score(score, inside, weights)
    pairs = ours.sum() * others.sum()
    above = np.cumsum(ours) - ours / 2
    return float(above @ others / pairs) if pairs > 0 else math.nan


def average_precision(score: FloatArray, inside: NDArray[Any], weights: FloatArray) -> float:
    """The precision at each distinct score (n,), weighted by the recall that is gained there; not a number of none
    inside."""
    ours, others = _by_score(score, inside, weights)
    if not ours.sum():
        return math.nan
    hit, seen = np.cumsum(ours), np.cumsum(ours + others)
    return float((ours * np.divide(hit, seen, out=np.zeros_like(hit), where=seen > 0)).sum() / ours.sum())

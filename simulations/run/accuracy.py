"""Accuracies and their differences from counts of predictions, with errors.

Counts are kept by distinct test text or by user, so that errors and differences can be computed later. A text that
several users hold, or that occurs twice in the test part, is one draw from the population of texts, however often it is
answered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulations.experiment.result import Score

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Counts:
    """Number of predictions and number of right ones for each of g distinct texts, or other clusters, (g,) each."""

    guesses: IntArray
    right: IntArray


@dataclass(frozen=True)
class Difference:
    """Difference of two accuracies, paired by distinct text, and its standard error."""

    difference: float
    error: float


def score(counts: Counts) -> Score | None:
    """Return the accuracy with its standard error over texts; None if there are no predictions.

    Predictions of one text are a cluster: their residuals are added before they are squared. The error is NaN for a
    single text. It is that of these texts and four more, two of them right (Agresti and Coull 1998), each predicted as
    often as the others on average. So an accuracy of 1 has an error too. With one prediction for each of g texts it is
    sqrt(p'(1 - p')/(g + 3)), p' = (right + 2)/(g + 4).
    """
    if not counts.guesses.sum():
        return None
    more = np.array([1.0, 1.0, 0.0, 0.0])
    return Score(_accuracy(counts), _error(_residuals(counts, more), counts.guesses > 0))


def difference(one: Counts, other: Counts) -> Difference | None:
    """Return the first accuracy less the second, paired by text; None if either has no prediction.

    The contributions of a text to both are subtracted before they are squared, so a text that is hard for both adds
    nothing. The error is that of these texts and two more, of which each arm alone has one right (Bonett and Price
    2012): arms that agree on every text need not be equal.
    """
    if not one.guesses.sum() or not other.guesses.sum():
        return None
    more = np.array([1.0, 0.0])
    residuals = _residuals(one, more) - _residuals(other, 1 - more)
    return Difference(_accuracy(one) - _accuracy(other), _error(residuals, (one.guesses > 0) | (other.guesses > 0)))


def _accuracy(counts: Counts) -> float:
    return float(counts.right.sum() / counts.guesses.sum())


def _residuals(counts: Counts, more: FloatArray) -> FloatArray:
    """Return the contribution of each text to the deviation of the accuracy, to first order in the counts, (g + k,).

    `more` (k,) is the share of right predictions of each added text.
    """
    often = float(counts.guesses[counts.guesses > 0].mean())
    guesses = np.concatenate([counts.guesses, np.full(len(more), often)])
    right = np.concatenate([counts.right, often * more])
    result: FloatArray = (right - right.sum() / guesses.sum() * guesses) / guesses.sum()
    return result


def _error(residuals: FloatArray, there: NDArray[np.bool_]) -> float:
    """Return the standard error; `there` (g,) tells which texts were predicted. All added texts count."""
    texts = int(there.sum())
    if texts < 2:
        return math.nan
    n = texts + len(residuals) - len(there)
    return math.sqrt(n / (n - 1) * float(np.sum(residuals**2)))

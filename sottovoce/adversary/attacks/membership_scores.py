"""Where the truth, who was a member, meets what membership attacks guessed."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from simulations.run.measures import average_precision
from sottovoce.adversary.attacks.scores import Rate

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def balanced(guesses: BoolArray, members: BoolArray) -> Rate:
    """The mean of how many members and how many others are told right, (n,) each. ValueError unless there are both."""
    right = guesses == members
    inside, outside = _shares(right, members)
    error = math.sqrt(sum(share * (1 - share) / n for share, n in (inside, outside))) / 2
    n, least = inside[1] + outside[1], min(inside[1], outside[1])
    return Rate((inside[0] + outside[0]) / 2, error, n, 2 * least / n)


def area(evidence: FloatArray, members: BoolArray) -> Rate:
    """The probability that a member's evidence is above another's (area under the ROC curve; equal ones count half),
    with the standard error of DeLong, DeLong and Clarke-Pearson 1988."""
    inside, outside = evidence[members], evidence[~members]
    wins = (inside[:, None] > outside[None]) + 0.5 * (inside[:, None] == outside[None])
    spread = wins.mean(axis=1).var() / len(inside) + wins.mean(axis=0).var() / len(outside)
    return Rate(float(wins.mean()), math.sqrt(spread), min(len(inside), len(outside)))


def precision(evidence: FloatArray, members: BoolArray) -> float:
    """Average precision of the evidence (area under the precision-recall curve); a guess has the share of members."""
    return average_precision(evidence, members, np.ones(len(members)))


def macro_precision(guesses: BoolArray, members: BoolArray) -> float:
    """The mean of how many that are taken for members are, and how many that are taken for others; 0 of what is never
    guessed. (The mean of the recalls is `balanced`.)"""
    right = guesses == members
    return float(np.mean([right[guess].mean() if guess.any() else 0.0 for guess in (guesses, ~guesses)]))


def found_at(evidence: FloatArray, members: BoolArray, rate: float) -> float:
    """The share of members found where at most that share of the others is taken for one."""
    outside = np.sort(evidence[~members])[::-1]
    return float((evidence[members] > outside[int(rate * len(outside))]).mean())


def _shares(right: BoolArray, members: BoolArray) -> tuple[tuple[float, int], tuple[float, int]]:
    parts = [right[members], right[~members]]
    if not all(len(part) for part in parts):
        raise ValueError("balanced accuracy: members and others are needed")
    (a, n), (b, m) = ((float(part.mean()), len(part)) for part in parts)
    return (a, n), (b, m)

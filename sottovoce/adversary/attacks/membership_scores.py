"""Scores of membership attacks: their guesses compared with the true members."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sottovoce.adversary.attacks.scores import Rate

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def balanced(guesses: BoolArray, members: BoolArray) -> Rate:
    """Return balanced accuracy: the mean of the shares of members and of others that are guessed right.

    Args:
        guesses: Guesses (n,).
        members: Truth (n,).

    Raises:
        ValueError: Members or others are missing.
    """
    right = guesses == members
    inside, outside = _shares(right, members)
    error = math.sqrt(sum(share * (1 - share) / n for share, n in (inside, outside))) / 2
    n, least = inside[1] + outside[1], min(inside[1], outside[1])
    return Rate((inside[0] + outside[0]) / 2, error, n, 2 * least / n)


def area(evidence: FloatArray, members: BoolArray) -> Rate:
    """Return the probability that a member's evidence is above another's; ties count half.

    It is the area under the ROC curve, with the standard error of DeLong, DeLong and Clarke-Pearson 1988.
    """
    inside, outside = evidence[members], evidence[~members]
    wins = (inside[:, None] > outside[None]) + 0.5 * (inside[:, None] == outside[None])
    spread = wins.mean(axis=1).var() / len(inside) + wins.mean(axis=0).var() / len(outside)
    return Rate(float(wins.mean()), math.sqrt(spread), min(len(inside), len(outside)))


def precision(evidence: FloatArray, members: BoolArray) -> float:
    """Return the average precision of the evidence (area under the precision-recall curve).

    A random guess has the share of members.
    """
    from sklearn.metrics import average_precision_score  # a second, for these attacks alone

    return float(average_precision_score(members, evidence))


def found_at(evidence: FloatArray, members: BoolArray, rate: float) -> float:
    """Return the share of members found if at most a share `rate` of the others is taken for members."""
    outside = np.sort(evidence[~members])[::-1]
    return float((evidence[members] > outside[int(rate * len(outside))]).mean())


def _shares(right: BoolArray, members: BoolArray) -> tuple[tuple[float, int], tuple[float, int]]:
    parts = [right[members], right[~members]]
    if not all(len(part) for part in parts):
        raise ValueError("balanced accuracy: members and others are needed")
    (a, n), (b, m) = ((float(part.mean()), len(part)) for part in parts)
    return (a, n), (b, m)

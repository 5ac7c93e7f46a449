"""Where the truth meets what attacks on a run's releases guessed: the counterpart of `simulations.run.evaluation`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.vocabulary import NOTHING

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: The weight of observations that are shares, at most: 1 says that each is right or wrong, and its tail the binomial.
_SHARES = 1 - 1e-9


@dataclass(frozen=True)
class Rate:
    """A success rate and its standard error; one text, or one user, is one observation, however many tokens it has.

    observations, weight: n and c of `adversary.attacks.intervals`. Where all observations are alike, so that they
    show no spread, the error is that of a rate with one half more right and one half more wrong.
    """

    success: float
    error: float
    observations: int = 1
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.error < 1e-9:  # nothing but rounding
            p = (self.success * self.observations + 0.5) / (self.observations + 1)
            object.__setattr__(self, "error", math.sqrt(p * (1 - p) / (self.observations * self.weight)))

    @property
    def shown(self) -> dict[str, Any]:
        """What an entry says of it."""
        names = ("success", "error", "observations", "weight")
        return {name: getattr(self, name) for name in names}


def scored(released: IntArray, truth: IntArray, size: int) -> NDArray[np.bool_]:
    """Which tokens are scored, (n, L): a word of the vocabulary (of V = size) that was released as some word."""
    return (truth != NOTHING) & (truth < size) & (released != NOTHING)


def frequencies(truth: IntArray, where: NDArray[np.bool_], size: int) -> FloatArray:
    """(V + 1,): how often each word is the truth among the tokens that are scored."""
    counts = np.bincount(truth[where], minlength=size + 1).astype(np.float64)
    return counts / counts.sum()


def rate(guesses: IntArray, truth: IntArray, where: NDArray[np.bool_]) -> Rate:
    """How many of the scored tokens are guessed; guesses (n, L), or (n, L, k) of which one must be right."""
    right = (guesses == truth) if guesses.ndim == 2 else (guesses == truth[:, :, None]).any(axis=2)
    hits, tokens = (right & where).sum(axis=1), where.sum(axis=1)
    success = hits.sum() / tokens.sum()
    error = float(math.sqrt(((hits - success * tokens) ** 2).sum()) / tokens.sum())
    alike = float(tokens.mean() / tokens.max())
    return Rate(float(success), error, len(tokens), alike if tokens.max() == 1 else min(alike, _SHARES))


def chosen_by_the_other_half(
    guesses: dict[str, IntArray], truth: IntArray, where: NDArray[np.bool_]
) -> tuple[IntArray, tuple[str, str]]:
    """Of several attacks' guesses (n, L) at one truth those, in each half of the texts, of the attack that did best on
    the other half, and the names of the two. The largest of several successes is larger than that of the best attack,
    by chance alone; what is chosen on other texts is not."""
    halves = np.arange(len(truth)) % 2
    chosen = []
    out = np.full(truth.shape, NOTHING, dtype=np.int64)
    for half in (0, 1):
        other = where & (halves != half)[:, None]
        right = {name: int(((each == truth) & other).sum()) for name, each in guesses.items()}
        chosen.append(max(right, key=lambda name: right[name]))
        out[halves == half] = guesses[chosen[-1]][halves == half]
    return out, (chosen[0], chosen[1])


@dataclass(frozen=True)
class Words:
    """Of guessed sets of words, over all texts together: precision, recall, F1, where one text is one observation."""

    precision: float
    recall: float
    f1: Rate


def words(guesses: NDArray[np.bool_], truth: NDArray[np.bool_], beyond: IntArray) -> Words:
    """guesses, truth: (n, V). beyond: (n,) how many more true words each text has that nobody could have guessed."""
    hits, guessed = (guesses & truth).sum(axis=1), guesses.sum(axis=1)
    true = truth.sum(axis=1) + beyond
    f1 = 2 * hits.sum() / max(1, guessed.sum() + true.sum())
    away, both = 2 * hits - f1 * (guessed + true), guessed + true
    error = float(math.sqrt((away**2).sum()) / max(1, both.sum()))
    return Words(
        float(hits.sum() / max(1, guessed.sum())), float(hits.sum() / max(1, true.sum())),
        Rate(float(f1), error, len(both), min(_SHARES, float(both.mean() / max(1, both.max())) or 1.0)),
    )  # fmt: skip


def guesses_right(guesses: IntArray, truth: IntArray) -> Rate:
    """How many of n guesses are right."""
    right = (guesses == truth).astype(np.float64)
    return Rate(float(right.mean()), _error(right), len(right))


def matched(evidence: FloatArray) -> Rate:
    """How many first releases are matched with the second of their own text, row i with column i; where several look
    best, one of these is taken by chance."""
    best = evidence == evidence.max(axis=1, keepdims=True)
    return _shares(np.diagonal(best) / best.sum(axis=1))


def area(evidence: FloatArray) -> Rate:
    """The probability that a release looks nearer to its own text's than to another's (area under the ROC curve)."""
    own = np.diagonal(evidence)[:, None]
    others = ~np.eye(len(evidence), dtype=bool)
    wins = ((own > evidence) + 0.5 * (own == evidence)).mean(axis=1, where=others)
    return _shares(wins)


def _shares(values: FloatArray) -> Rate:
    """The mean of what n texts got, each from 0 to 1: coins where every one is right or wrong. Halves may add up to a
    whole number, and are none all the same."""
    whole = bool(np.isin(values, (0.0, 1.0)).all())
    return Rate(float(values.mean()), _error(values), len(values), 1.0 if whole else _SHARES)


def _error(values: FloatArray) -> float:
    return float(values.std() / math.sqrt(len(values)))

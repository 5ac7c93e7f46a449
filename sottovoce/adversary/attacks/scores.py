"""Scores of attacks on a run's releases, compared with the truth, with exact intervals and alarms above a bound.

Success is Σ w_i·x_i / Σ w_i of n texts (users, records) whose x_i lie between 0 and 1. If all weights are equal and x_i
is a right or wrong guess, its tail is the binomial one (Clopper and Pearson 1934). It holds also for guesses with
different probabilities (Hoeffding 1956). Otherwise let a_i = w_i / max w and c their mean. If the mean is b < s,
success is s with probability at most exp(-n·KL(c·s, c·b)). This follows from e^(λ·a·x) <= 1 + a·x·(e^λ - 1), whose
geometric mean over i is below the arithmetic one, with Chernoff's choice of λ. Neither bound needs a large sample.

A row *alarms* if its success, under its theorem, would have a probability below FAMILY, divided by the rows that have a
bound (Bonferroni). So a run of a sound mechanism alarms at all with probability at most FAMILY.

The x_i are assumed independent, given the texts. Rows of a linkage share the releases that they choose from, and the
weights of F1 include guessed words. For these two the level is approximate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, rel_entr

from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.vocabulary import NOTHING
from simulations.analysis.attack_results import FAMILY
from sottovoce.adversary.estimators.audit import high, low
from sottovoce.adversary.estimators.membership import threshold

#: Confidence level of the intervals beside results, each by itself.
_LEVEL = 0.95
#: Largest weight of observations that are shares. Weight 1 means that each is right or wrong, with a binomial tail.
_SHARES = 1 - 1e-9


@dataclass(frozen=True)
class Rate:
    """Success rate with its standard error. One text, or one user, is one observation, whatever its number of tokens.

    If all observations are equal, they show no spread. The error is then that of a rate with one half more right and
    one half more wrong.

    Args:
        success: Success rate.
        error: Standard error.
        observations: n.
        weight: c; 1 if all weights are equal and each guess is right or wrong.
    """

    success: float
    error: float
    observations: int = 1
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.error < 1e-9:  # rounding errors alone
            p = (self.success * self.observations + 0.5) / (self.observations + 1)
            object.__setattr__(self, "error", math.sqrt(p * (1 - p) / (self.observations * self.weight)))


def scored(released: IntArray, truth: IntArray, size: int) -> BoolArray:
    """Return the tokens to score, of released and true words (n, L): words of the V that were released as some word."""
    return (truth != NOTHING) & (truth < size) & (released != NOTHING)


def frequencies(truth: IntArray, where: BoolArray, size: int) -> FloatArray:
    """Return the share of each word, (V + 1,), among the true words (n, L) at the scored tokens (n, L)."""
    counts = np.bincount(truth[where], minlength=size + 1).astype(np.float64)
    return counts / counts.sum()


def rate(guesses: IntArray, truth: IntArray, where: BoolArray) -> Rate:
    """Return the success rate of guesses (n, L) of true words (n, L) at the scored tokens (n, L)."""
    hits, tokens = ((guesses == truth) & where).sum(axis=1), where.sum(axis=1)
    success = hits.sum() / tokens.sum()
    error = float(math.sqrt(((hits - success * tokens) ** 2).sum()) / tokens.sum())
    share = float(tokens.mean() / tokens.max())
    return Rate(float(success), error, len(tokens), share if tokens.max() == 1 else min(share, _SHARES))


def chosen_by_the_other_half(
    guesses: dict[str, IntArray], truth: IntArray, where: BoolArray
) -> tuple[IntArray, tuple[str, str]]:
    """Return, for each half of the texts, the guesses of the attack that is best on the other half.

    The largest of several successes exceeds that of the best attack by chance alone. A choice on other texts does not.
    Guesses of each attack, true words and tokens to score are (n, L). The names of the two attacks follow.
    """
    halves = np.arange(len(truth)) % 2
    names = []
    result = np.full(truth.shape, NOTHING, dtype=np.int64)
    for half in (0, 1):
        other = where & (halves != half)[:, None]
        right = {name: int(((item == truth) & other).sum()) for name, item in guesses.items()}
        names.append(max(right, key=lambda name: right[name]))
        result[halves == half] = guesses[names[-1]][halves == half]
    return result, (names[0], names[1])


def words(guesses: BoolArray, truth: BoolArray, beyond: IntArray) -> tuple[Rate, float, float]:
    """Return F1, precision and recall of guessed sets of words, over all texts together; one text is one observation.

    Guesses and truth are (n, V). Each text holds `beyond` other words, (n,), which no attack could guess.
    """
    hits, guess_sizes = (guesses & truth).sum(axis=1), guesses.sum(axis=1)
    truth_sizes = truth.sum(axis=1) + beyond
    f1 = 2 * hits.sum() / max(1, guess_sizes.sum() + truth_sizes.sum())
    residuals, sizes = 2 * hits - f1 * (guess_sizes + truth_sizes), guess_sizes + truth_sizes
    error = float(math.sqrt((residuals**2).sum()) / max(1, sizes.sum()))
    rate = Rate(float(f1), error, len(sizes), min(_SHARES, float(sizes.mean() / max(1, sizes.max())) or 1.0))
    return rate, float(hits.sum() / max(1, guess_sizes.sum())), float(hits.sum() / max(1, truth_sizes.sum()))


def guesses_right(guesses: IntArray, truth: IntArray) -> Rate:
    """Return the share of right guesses."""
    right = (guesses == truth).astype(np.float64)
    return Rate(float(right.mean()), _error(right), len(right))


def matched(evidence: FloatArray) -> Rate:
    """Return the share of first releases that are matched with the second release of their own text.

    Row i of the evidence (n, n) belongs to column i. Of several best columns, one is taken by chance.
    """
    best = evidence == evidence.max(axis=1, keepdims=True)
    return _shares(np.diagonal(best) / best.sum(axis=1))


def area_of_pairs(evidence: FloatArray) -> Rate:
    """Return the probability that a release looks nearer to its own text's release than to another's.

    It is the area under the ROC curve.
    """
    diagonal = np.diagonal(evidence)[:, None]
    mask = ~np.eye(len(evidence), dtype=bool)
    wins = ((diagonal > evidence) + 0.5 * (diagonal == evidence)).mean(axis=1, where=mask)
    return _shares(wins)


def _shares(values: FloatArray) -> Rate:
    """Return the mean of values from 0 to 1: coins if every value is 0 or 1.

    Halves may add up to a whole number, and are not coins.
    """
    coins = bool(np.isin(values, (0.0, 1.0)).all())
    return Rate(float(values.mean()), _error(values), len(values), 1.0 if coins else _SHARES)


def _error(values: FloatArray) -> float:
    return float(values.std() / math.sqrt(len(values)))


# --- membership


def balanced(guesses: BoolArray, members: BoolArray) -> Rate:
    """Return balanced accuracy (n,): the mean of the shares of members and of others that are guessed right."""
    right = guesses == members
    kinds = [right[members], right[~members]]
    error = math.sqrt(sum(kind.var() / len(kind) for kind in kinds)) / 2
    return Rate(
        float(np.mean([kind.mean() for kind in kinds])), error, len(right), 2 * min(map(len, kinds)) / len(right)
    )


def area(evidence: FloatArray, members: BoolArray) -> Rate:
    """Return the probability that a member's evidence is above another's; ties count half.

    It is the area under the ROC curve, with the standard error of DeLong, DeLong and Clarke-Pearson 1988.
    """
    member_scores, nonmember_scores = evidence[members], evidence[~members]
    wins = (member_scores[:, None] > nonmember_scores[None]) + 0.5 * (member_scores[:, None] == nonmember_scores[None])
    spread = wins.mean(axis=1).var() / len(member_scores) + wins.mean(axis=0).var() / len(nonmember_scores)
    return Rate(float(wins.mean()), math.sqrt(spread), min(len(member_scores), len(nonmember_scores)))


def found_at(evidence: FloatArray, members: BoolArray, rate: float) -> float:
    """Return the share of members found if at most a share `rate` of the others is taken for members."""
    nonmember_scores = np.sort(evidence[~members])[::-1]
    return float((evidence[members] > nonmember_scores[int(rate * len(nonmember_scores))]).mean())


def of_members(
    evidence: FloatArray, members: BoolArray, cut: float | None = None
) -> tuple[Rate, str, dict[str, float | int]]:
    """Return the balanced accuracy of "evidence > cut" for evidence (n,), a note, and further entries.

    Without a cut, every second record of each kind chooses it, and the others are scored.
    """
    mask = np.ones(len(members), dtype=bool)
    if cut is None:
        for kind in (members, ~members):
            mask[np.flatnonzero(kind)[1::2]] = False
        cut = threshold(evidence[~mask], members[~mask])
    auc, share = area(evidence, members), found_at(evidence, members, 0.01)
    note = f"AUC {auc.success:.3f} ± {auc.error:.3f}; {share:.3f} found at 1% false alarms"
    details = {
        "auc": auc.success,
        "auc_error": auc.error,
        "found_at_1_percent": share,
        "scored": int(mask.sum()),
    }
    return balanced(evidence[mask] > cut, members[mask]), note, details


# --- intervals and alarms


def beyond(success: float, observations: int, weight: float, bound: float) -> float:
    """Return an upper bound of the probability of this success or a larger one, if its mean is at most `bound`.

    The first three arguments are those of a `Rate`.
    """
    if success <= bound:
        return 1.0
    if bound <= 0:
        return 0.0
    if _counts(success, observations, weight):
        right = round(success * observations)
        return float(betainc(right, observations - right + 1, bound))  # binomial probability of at least as many
    return math.exp(-observations * _apart(success * weight, bound * weight))


def interval(success: float, observations: int, weight: float, level: float = _LEVEL) -> tuple[float, float]:
    """Return the smallest and the largest mean that fit this success, with (1 - level)/2 on each side.

    The first three arguments are those of a `Rate`.
    """
    side = (1 - level) / 2
    if _counts(success, observations, weight):
        right = round(success * observations)
        return float(low(right, observations, side)), float(high(right, observations, side))
    return _lowest(success, observations, weight, side), 1 - _lowest(1 - success, observations, weight, side)


def judged(entries: Sequence[dict[str, Any]], family: float = FAMILY) -> list[dict[str, Any]]:
    """Return the entries, each with its `interval`, and with `alarm` if its success is above `bound` beyond chance."""
    bounded = [e for e in entries if e["bound"] is not None and e["bound"] < 1]
    results = []
    for e in entries:
        counts = e["success"], e["observations"], e["weight"]
        alarm = any(e is item for item in bounded) and beyond(*counts, e["bound"]) < family / len(bounded)
        results.append(e | {"interval": list(interval(*counts)), "alarm": alarm})
    return results


def _counts(success: float, observations: int, weight: float) -> bool:
    """Return True if all weights are equal, and guesses are right or wrong."""
    right = success * observations
    return weight == 1 and abs(right - round(right)) < 1e-6


def _apart(s: float, b: float) -> float:
    """Return the KL divergence of coins of s and b."""
    return float(rel_entr(s, b) + rel_entr(1 - s, 1 - b))


def _lowest(success: float, observations: int, weight: float, side: float) -> float:
    s, limit = success * weight, -math.log(side) / observations
    if s <= 0:
        return 0.0
    if _apart(s, s * 1e-12) < limit:
        return 0.0
    return float(brentq(lambda b: _apart(s, b) - limit, s * 1e-12, s)) / weight

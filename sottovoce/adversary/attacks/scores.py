"""Scores of attacks on a run's releases, compared with the truth: the counterpart of `simulations.run.evaluation`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.vocabulary import NOTHING
from sottovoce.adversary.estimators.membership import threshold

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

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
        observations: n of `adversary.attacks.intervals`.
        weight: c of `adversary.attacks.intervals`.
    """

    success: float
    error: float
    observations: int = 1
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.error < 1e-9:  # rounding errors alone
            p = (self.success * self.observations + 0.5) / (self.observations + 1)
            object.__setattr__(self, "error", math.sqrt(p * (1 - p) / (self.observations * self.weight)))


def scored(released: IntArray, truth: IntArray, size: int) -> NDArray[np.bool_]:
    """Return the tokens to score, (n, L): words of the vocabulary that were released as some word.

    Args:
        released: Released words (n, L).
        truth: True words (n, L).
        size: V.
    """
    return (truth != NOTHING) & (truth < size) & (released != NOTHING)


def frequencies(truth: IntArray, where: NDArray[np.bool_], size: int) -> FloatArray:
    """Return the share of each word among the scored tokens, (V + 1,).

    Args:
        truth: True words (n, L).
        where: Tokens to score (n, L).
        size: V.
    """
    counts = np.bincount(truth[where], minlength=size + 1).astype(np.float64)
    return counts / counts.sum()


def rate(guesses: IntArray, truth: IntArray, where: NDArray[np.bool_]) -> Rate:
    """Return the success rate on the scored tokens.

    Args:
        guesses: Guesses (n, L), or (n, L, k) of which one must be right.
        truth: True words (n, L).
        where: Tokens to score (n, L).
    """
    right = (guesses == truth) if guesses.ndim == 2 else (guesses == truth[:, :, None]).any(axis=2)
    hits, tokens = (right & where).sum(axis=1), where.sum(axis=1)
    success = hits.sum() / tokens.sum()
    error = float(math.sqrt(((hits - success * tokens) ** 2).sum()) / tokens.sum())
    share = float(tokens.mean() / tokens.max())
    return Rate(float(success), error, len(tokens), share if tokens.max() == 1 else min(share, _SHARES))


def chosen_by_the_other_half(
    guesses: dict[str, IntArray], truth: IntArray, where: NDArray[np.bool_]
) -> tuple[IntArray, tuple[str, str]]:
    """Return, for each half of the texts, the guesses of the attack that is best on the other half.

    The largest of several successes exceeds that of the best attack by chance alone. A choice on other texts does not.

    Args:
        guesses: Guesses (n, L) of each attack.
        truth: True words (n, L).
        where: Tokens to score (n, L).

    Returns:
        The guesses (n, L), and the names of the two attacks.
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


@dataclass(frozen=True)
class Words:
    """Scores of guessed sets of words, over all texts together; one text is one observation.

    Args:
        precision: Precision.
        recall: Recall.
        f1: F1.
    """

    precision: float
    recall: float
    f1: Rate


def words(guesses: NDArray[np.bool_], truth: NDArray[np.bool_], beyond: IntArray) -> Words:
    """Return the scores of guessed sets of words.

    Args:
        guesses: Guesses (n, V).
        truth: Truth (n, V).
        beyond: Number of other true words in each text, (n,), which no attack could guess.
    """
    hits, guess_sizes = (guesses & truth).sum(axis=1), guesses.sum(axis=1)
    truth_sizes = truth.sum(axis=1) + beyond
    f1 = 2 * hits.sum() / max(1, guess_sizes.sum() + truth_sizes.sum())
    residuals, sizes = 2 * hits - f1 * (guess_sizes + truth_sizes), guess_sizes + truth_sizes
    error = float(math.sqrt((residuals**2).sum()) / max(1, sizes.sum()))
    return Words(
        float(hits.sum() / max(1, guess_sizes.sum())),
        float(hits.sum() / max(1, truth_sizes.sum())),
        Rate(float(f1), error, len(sizes), min(_SHARES, float(sizes.mean() / max(1, sizes.max())) or 1.0)),
    )


def guesses_right(guesses: IntArray, truth: IntArray) -> Rate:
    """Return the share of right guesses."""
    right = (guesses == truth).astype(np.float64)
    return Rate(float(right.mean()), _error(right), len(right))


def matched(evidence: FloatArray) -> Rate:
    """Return the share of first releases that are matched with the second release of their own text.

    Row i belongs to column i. Of several best columns, one is taken by chance.

    Args:
        evidence: Evidence (n, n).
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
    kinds = [right[members], right[~members]]
    if not all(map(len, kinds)):
        raise ValueError("balanced accuracy: members and others are needed")
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


def precision(evidence: FloatArray, members: BoolArray) -> float:
    """Return the average precision of the evidence (area under the precision-recall curve).

    A random guess has the share of members.
    """
    from sklearn.metrics import average_precision_score  # a second, for these attacks alone

    return float(average_precision_score(members, evidence))


def found_at(evidence: FloatArray, members: BoolArray, rate: float) -> float:
    """Return the share of members found if at most a share `rate` of the others is taken for members."""
    nonmember_scores = np.sort(evidence[~members])[::-1]
    return float((evidence[members] > nonmember_scores[int(rate * len(nonmember_scores))]).mean())


#: Share of the other records that may be taken for members in `found_at`.
FALSE_ALARMS = 0.01


def of_members(
    evidence: FloatArray, members: BoolArray, cut: float | None = None
) -> tuple[Rate, str, dict[str, float | int]]:
    """Return the balanced accuracy of "evidence > cut", a note, and further entries.

    Without a cut, every second record of each kind chooses it, and the others are scored.

    Args:
        evidence: Evidence (n,).
        members: Truth (n,).
        cut: Threshold.
    """
    mask = np.ones(len(members), dtype=bool)
    if cut is None:
        for kind in (members, ~members):
            mask[np.flatnonzero(kind)[1::2]] = False
        cut = threshold(evidence[~mask], members[~mask])
    auc, auprc = area(evidence, members), precision(evidence, members)
    share = found_at(evidence, members, FALSE_ALARMS)
    note = (
        f"AUC {auc.success:.3f} ± {auc.error:.3f}, AUPRC {auprc:.3f}; {share:.3f} found at {FALSE_ALARMS:.0%} false "
        "alarms"
    )
    details = {
        "auc": auc.success,
        "auc_error": auc.error,
        "auprc": auprc,
        "found_at_1_percent": share,
        "scored": int(mask.sum()),
    }
    return balanced(evidence[mask] > cut, members[mask]), note, details

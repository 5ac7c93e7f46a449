"""Plausible deniability of a word mechanism: frequency of unchanged words, and numbers of outputs and of origins.

N_x = Pr[M(x) = x]; S_x is the effective support of M(x); S*_y is the number of x from which y may come (Bindschaedler
et al. 2017; Feyisetan et al. 2020; Yue et al. 2021, section 5). These describe a mechanism on given words and are no
guarantee. S_x has two definitions in the literature, and both are here. One is the number of distinct outputs of n
draws, as is usually measured, in expectation Σ_y 1 - (1 - p_y)^n. The other is the least number of outputs that hold a
given share of the probability.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms import checks
from mechanisms.arrays import FloatArray, IntArray
from mechanisms.mechanism import Uniforms

#: Probabilities held at once: 32 MB.
_CELLS = 2**22
#: Share of the probability that the core of a word's outputs holds.
_MASS = 0.95


@dataclass(frozen=True, eq=False)
class Deniability:
    """Deniability of n distinct words of a vocabulary of V, in as many draws of each.

    Attributes:
        stays: (n,) N_x, 0 for the unknown word, which is never an output.
        distinct: (n,) S_x as the expected number of distinct outputs of the draws.
        core: (n,) S_x as the least number of outputs that hold a share `_MASS` of the probability. From draws it is
            that of the empirical distribution, which is too small with few draws.
        origins: (V,) S*_y, the expected number of the n words from which y comes within the draws of each.
        exact: Whether the figures are computed from probabilities, not from draws.
    """

    stays: FloatArray
    distinct: FloatArray
    core: IntArray
    origins: FloatArray
    exact: bool


def exact(mechanism: Any, word_ids: NDArray[Any], *, draws: int = 100) -> Deniability:
    """Compute the deniability from log_probs, in blocks of bounded memory.

    Raises:
        ValueError: The mechanism has no closed probabilities, or an argument is invalid.
    """
    word_ids, draws = _checked(mechanism, word_ids, draws)
    if not has_probabilities(mechanism):
        raise ValueError(f"{mechanism.name}: has no closed probabilities; sample it")
    size = len(mechanism.vocabulary)
    stays, distinct, core = np.zeros(len(word_ids)), np.zeros(len(word_ids)), np.zeros(len(word_ids), dtype=np.int64)
    origins = np.zeros(size)
    rows = max(1, _CELLS // size)
    for at in range(0, len(word_ids), rows):
        part = slice(at, at + rows)
        p = np.exp(mechanism.log_probs(word_ids[part]))
        positions = np.flatnonzero(word_ids[part] < size)
        stays[at + positions] = p[positions, word_ids[part][positions]]
        with np.errstate(divide="ignore"):  # log 0 where an output is certain
            seen = -np.expm1(draws * np.log1p(-np.minimum(p, 1.0)))
        distinct[part] = seen.sum(axis=1)
        origins += seen.sum(axis=0)
        core[part] = _core(p)
    return Deniability(stays, distinct, core, origins, exact=True)


def tallied(mechanism: Any, word_ids: NDArray[Any], outputs: IntArray) -> Deniability:
    """Compute the deniability from the outputs (n, draws) of `draw`."""
    word_ids, draws = _checked(mechanism, word_ids, outputs.shape[1])
    stays = (outputs == word_ids[:, None]).mean(axis=1)
    ordered = np.sort(outputs, axis=1)
    first = np.ones(ordered.shape, dtype=bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    last = np.ones(ordered.shape, dtype=bool)
    last[:, :-1] = first[:, 1:]
    run_starts = first & (ordered >= 0)  # NOTHING is no output
    # lengths of the runs of equal outputs are their counts: zeros fill the places that begin no run
    begins, ends = np.nonzero(first), np.nonzero(last)
    counts = np.zeros(ordered.shape)
    counts[begins] = ends[1] - begins[1] + 1
    counts[ordered < 0] = 0
    return Deniability(
        stays=stays,
        distinct=run_starts.sum(axis=1).astype(np.float64),
        core=_core(counts / draws),
        origins=np.bincount(ordered[run_starts], minlength=len(mechanism.vocabulary)).astype(np.float64),
        exact=False,
    )


def draw(mechanism: Any, word_ids: IntArray, *, draws: int, rng: Uniforms) -> IntArray:
    """Draw (n, draws) outputs for n words; the rows of rng are the words.

    Raises:
        ValueError: The mechanism reads a text.
    """
    if mechanism.reads:
        raise ValueError(f"{mechanism.name}: reads {', '.join(mechanism.reads)} of a text, which a word alone has not")
    drawn: IntArray = mechanism.sample(np.repeat(word_ids[:, None], draws, axis=1), rng=rng)
    return drawn


def stays(
    mechanism: Any, word_ids: NDArray[Any], *, draws: int = 100, rng: Callable[[], Uniforms] | None = None
) -> FloatArray:
    """Return N_x of each word (n,): exact if there are probabilities, else from draws of rng().

    Raises:
        ValueError: Draws are needed and `rng` is None.
    """
    if has_probabilities(mechanism):
        x = np.asarray(word_ids, dtype=np.int64)
        size, out = len(mechanism.vocabulary), np.zeros(len(x))
        positions = np.flatnonzero(x < size)
        out[positions] = np.exp(mechanism.log_prob(x[positions], x[positions]))
        return out
    if rng is None:
        raise ValueError(f"{mechanism.name}: has no closed probabilities; give streams to sample it")
    x, draws = _checked(mechanism, word_ids, draws)
    shares: FloatArray = (draw(mechanism, x, draws=draws, rng=rng()) == x[:, None]).mean(axis=1)
    return shares


def has_probabilities(mechanism: Any) -> bool:
    """Return True if log_probs(x) works. A field of the mechanism may disable it, so it is called for one word."""
    try:
        mechanism.log_probs(np.zeros(1, dtype=np.int64))
    except (AttributeError, NotImplementedError):
        return False
    return True


def calibrate(
    level: Callable[[float], float],
    target: float,
    *,
    low: float = 1e-3,
    high: float = 1000.0,
    relative: float = 1e-4,
    slack: float = 0.0,
) -> float:
    """Return the largest ε, to a relative precision, with level(ε) at most `target`, for a level that rises with ε.

    `level` is, for example, a quantile of `stays` over given words. It rises with ε for the exponential mechanism,
    where 1/N_x = Σ_y exp(-ε·d(x, y)/2) falls. It rises for MADLIB too: the set of points nearest to x is convex and
    holds x, so a draw that stays at one ε stays at every larger one (draw by draw, on the same uniforms). Every
    evaluated value is checked.

    Raises:
        ValueError: The level falls by more than `slack`, or the target is not between level(low) and level(high).
    """
    checks.real("calibrate", "low", low, 0, high)
    seen = {low: level(low), high: level(high)}
    if not seen[low] <= target < seen[high]:
        raise ValueError(
            f"calibrate: {target:g} is not reached: the figure is {seen[low]:.4g} at ε = {low:g} and "
            f"{seen[high]:.4g} at ε = {high:g}"
        )
    first, last = math.log(low), math.log(high)
    while last - first > relative:
        middle = (first + last) / 2
        value = seen[math.exp(middle)] = level(math.exp(middle))
        first, last = (middle, last) if value <= target else (first, middle)
    values = [seen[epsilon] for epsilon in sorted(seen)]
    if any(later < earlier - slack for earlier, later in itertools.pairwise(values)):
        raise ValueError("calibrate: the figure does not rise with ε, so no ε can be singled out")
    return math.exp(first)


def _core(p: FloatArray) -> IntArray:
    """Return the number of the largest probabilities of each row that make `_MASS` of its sum, (n,)."""
    sums = np.cumsum(-np.sort(-p, axis=1), axis=1)
    share = _MASS * sums[:, -1:] * (1 - 1e-12)  # a sum that should be the mass exactly may round below it
    needed: IntArray = (sums < share).sum(axis=1).astype(np.int64) + (sums[:, -1] > 0)
    return needed


def _checked(mechanism: Any, word_ids: NDArray[Any], draws: int) -> tuple[IntArray, int]:
    x = checks.word_ids(mechanism.name, word_ids, mechanism.vocabulary)
    if x.ndim != 1 or (x.size and x.min() < 0) or len(np.unique(x)) != len(x):
        raise ValueError("deniability: words must be a row of distinct word ids")
    return x, checks.integer("deniability", "draws", draws, 1, 10**6)

"""A vocabulary, and what tables of probabilities must keep."""

import numpy as np
from scipy import stats

from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import Vocabulary

ALARM = 1e-6
STOPS = ("the", "of", "and", "to", "in", "is", "it", "that", "was", "for")


def vocabulary(size=200, dim=16, seed=0, shift=0.0, counts=True):
    """Words in clusters, so that some lie near and most far; two at one place; the first few are stop words."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(max(2, size // 10), dim))
    vectors = centres[rng.integers(0, len(centres), size)] + 0.3 * rng.normal(size=(size, dim)) + shift
    vectors[-1] = vectors[0]
    words = tuple(STOPS[i] if i < len(STOPS) and size > 20 else f"word{i}" for i in range(size))
    counted = np.sort(rng.integers(0, 60, size))[::-1].copy() if counts else None
    return Vocabulary(words, vectors.astype(np.float32), counted)


WORDS = vocabulary()
ALL = np.arange(len(WORDS) + 1)
POINTS = WORDS.points.astype(np.float64)
APART = np.linalg.norm(POINTS[:, None] - POINTS[None], axis=2)


def streams(n, seed=1, offset=0):
    users = np.arange(offset, offset + n)
    return SimulationStreams(seed).rows(users, np.zeros(n, np.int64), stage="test", channel="text")


def largest_ratio(table):
    """Of all pairs of rows (inputs, outputs): the largest log-ratio, (inputs, inputs); inf where supports differ."""
    largest = np.zeros((len(table), len(table)))
    for a, row in enumerate(table):
        with np.errstate(invalid="ignore"):
            difference = np.abs(row - table)
        difference[np.isneginf(row) & np.isneginf(table)] = 0.0
        largest[a] = difference.max(axis=1)
    return largest


def sums_to_one(table):
    return np.abs(np.exp(table).sum(axis=-1) - 1).max() <= 1e-12


def fits(draws, log_probs):
    """Chi-square of draws of one distribution, (n,) against (V,); outcomes expected less than 8 times in one bin."""
    counts, expected = np.bincount(draws, minlength=len(log_probs)), np.exp(log_probs) * len(draws)
    if counts[expected == 0].any():
        return False
    often = expected >= 8
    seen = np.append(counts[often], counts[~often].sum())
    due = np.append(expected[often], expected[~often].sum())
    if due[-1] < 1e-3:
        if seen[-1]:
            return False
        seen, due = seen[:-1], due[:-1]
    return len(due) == 1 or stats.chisquare(seen, due * seen.sum() / due.sum()).pvalue > ALARM

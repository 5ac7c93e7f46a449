"""Scores that are learned from draws of two inputs, beside those of `adversary.estimators.audit`: trees,
neighbours, a network.

Each is a frozen value that can be written down and read again (`stated`, `score_of`), so that whoever doubts what it
found can look at the test itself. Rows of features (n, f) in, scores (n,) out; a high one speaks for the first input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from sottovoce.adversary.estimators.audit import Fit, Linear, Outputs, Score, Table, as_rows, learned

FloatArray = NDArray[np.float64]

#: Outputs of each input that trees and the network learn on, at most, and those that neighbours are looked for among.
_LEARNT, _REFERENCE = 8192, 4096
#: Cells that a tree's feature is cut into.
_BINS = 32


@dataclass(frozen=True, eq=False)
class Trees:
    """Gradient boosting (Friedman 2001) of trees of one depth, each level of which asks one question of all rows.

    columns, cuts, (trees, depth): a row's answer is whether its feature is above the cut. leaves (trees, 2^depth).
    """

    columns: NDArray[np.int64]
    cuts: FloatArray
    leaves: FloatArray

    def __call__(self, outputs: Outputs) -> FloatArray:
        x = as_rows(outputs)
        total = np.zeros(len(x))
        powers = 1 << np.arange(self.cuts.shape[1])
        for columns, cuts, leaves in zip(self.columns, self.cuts, self.leaves, strict=True):
            total += leaves[(x[:, columns] > cuts) @ powers]
        return total


#: Trees that are grown one on another, their depth, and how much of its step each takes.
_COUNT, _DEPTH, _RATE = 24, 3, 0.4


def trees() -> Fit:
    """Trees that are learned on 8,192 of each input at most: level by level the question that takes most off the
    logistic loss, by Newton's step."""

    def fit(first: Outputs, second: Outputs) -> Score:
        x = np.vstack([as_rows(first[:_LEARNT]), as_rows(second[:_LEARNT])])
        truth = np.repeat([1.0, 0.0], [len(first[:_LEARNT]), len(second[:_LEARNT])])
        edges = [np.unique(np.quantile(column, np.linspace(0, 1, _BINS + 1)[1:-1])) for column in x.T]
        edges = [cuts[cuts < column.max()] for cuts, column in zip(edges, x.T, strict=True)]
        alive = [i for i, cuts in enumerate(edges) if len(cuts)]
        if not alive:
            return Trees(np.zeros((0, _DEPTH), np.int64), np.zeros((0, _DEPTH)), np.zeros((0, 1 << _DEPTH)))
        codes = np.stack([np.searchsorted(edges[i], x[:, i], side="left") for i in alive])
        logit, grown = np.zeros(len(x)), []
        for _ in range(_COUNT):
            p = 1 / (1 + np.exp(-logit))
            asked, leaf = _tree(codes, truth - p, p * (1 - p), _DEPTH)
            size = 1 << _DEPTH
            values = _RATE * np.bincount(leaf, truth - p, size) / (np.bincount(leaf, p * (1 - p), size) + 1.0)
            logit += values[leaf]
            grown.append((asked, values))
        columns = np.array([[alive[i] for i, _ in asked] for asked, _ in grown])
        cuts = np.array(
            [[edges[alive[i]][b] if b < len(edges[alive[i]]) else np.inf for i, b in asked] for asked, _ in grown]
        )
        return Trees(columns, cuts, np.array([values for _, values in grown]))

    return fit


def _tree(
    codes: NDArray[np.int64], rest: FloatArray, weight: FloatArray, depth: int
) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
    """Questions (row of codes, cell: is it above?) of one tree, and which leaf each row comes to.

    A level's question may gain nothing by itself where two do together, so of the first level the best is taken
    whatever it gains.
    """
    leaf, asked = np.zeros(codes.shape[1], dtype=np.int64), []
    for level in range(depth):
        gains = np.zeros((len(codes), _BINS))
        size = 1 << level
        for i, row in enumerate(codes):
            at = leaf * _BINS + row
            below = np.cumsum(np.bincount(at, rest, size * _BINS).reshape(size, _BINS), axis=1)
            held = np.cumsum(np.bincount(at, weight, size * _BINS).reshape(size, _BINS), axis=1)
            above, left = below[:, -1:] - below, held[:, -1:] - held
            gains[i] = (below**2 / (held + 1.0) + above**2 / (left + 1.0)).sum(axis=0)
        i, b = np.unravel_index(int(np.argmax(gains)), gains.shape)
        asked.append((int(i), int(b)))
        leaf += (codes[i] > b).astype(np.int64) << level
    return asked, leaf


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The log-ratio of how many of a row's k nearest examples (m, f) are the first input's; features over `scale`."""

    examples: FloatArray
    firsts: int
    scale: FloatArray
    k: int

    def __call__(self, outputs: Outputs) -> FloatArray:
        _, near = cKDTree(self.examples / self.scale).query(as_rows(outputs) / self.scale, k=self.k)
        own = (near.reshape(len(outputs), -1) < self.firsts).sum(axis=1)
        ratio: FloatArray = np.log((own + 0.5) / (self.k - own + 0.5))
        return ratio


def neighbours(k: int = 32) -> Fit:
    """Neighbours among 4,096 examples of each input at most."""

    def fit(first: Outputs, second: Outputs) -> Score:
        one, other = as_rows(first[:_REFERENCE]), as_rows(second[:_REFERENCE])
        both = np.vstack([one, other])
        return Neighbours(both, len(one), _spread(both), min(k, len(both)))

    return fit


@dataclass(frozen=True, eq=False)
class Network:
    """A hidden layer of hyperbolic tangents: features less `shift`, over `scale`, (f, h) and (h,) weights."""

    shift: FloatArray
    scale: FloatArray
    hidden: FloatArray
    offsets: FloatArray
    out: FloatArray

    def __call__(self, outputs: Outputs) -> FloatArray:
        z = np.clip((as_rows(outputs) - self.shift) / self.scale, -8, 8)
        score: FloatArray = np.tanh(z @ self.hidden + self.offsets) @ self.out
        return score


#: Hidden units of a network, steps that it learns in, and their length.
_WIDTH, _STEPS, _LENGTH = 16, 150, 0.05


def network() -> Fit:
    """A network that is learned on 8,192 of each input at most, by Adam (Kingma and Ba 2015) on all of them at once."""

    def fit(first: Outputs, second: Outputs) -> Score:
        x = np.vstack([as_rows(first[:_LEARNT]), as_rows(second[:_LEARNT])])
        truth = np.repeat([1.0, 0.0], [len(first[:_LEARNT]), len(second[:_LEARNT])])
        shift, scale = np.median(x, axis=0), _spread(x)
        z = np.clip((x - shift) / scale, -8, 8)
        rng = np.random.default_rng(0)  # a start, of which nothing depends but how well it learns
        inputs = x.shape[1]
        weights = [rng.normal(size=(inputs, _WIDTH)) / np.sqrt(inputs), rng.normal(size=_WIDTH), np.zeros(_WIDTH)]
        first_moments, second_moments = ([np.zeros_like(w) for w in weights] for _ in range(2))
        for step in range(1, _STEPS + 1):
            h = np.tanh(z @ weights[0] + weights[1])
            rest = (truth - 1 / (1 + np.exp(-h @ weights[2]))) / len(x)
            back = rest[:, None] * weights[2] * (1 - h * h)
            for i, gradient in enumerate((z.T @ back, back.sum(axis=0), h.T @ rest)):
                first_moments[i] = 0.9 * first_moments[i] + 0.1 * gradient
                second_moments[i] = 0.999 * second_moments[i] + 0.001 * gradient**2
                slope = first_moments[i] / (1 - 0.9**step)
                weights[i] = weights[i] + _LENGTH * slope / (np.sqrt(second_moments[i] / (1 - 0.999**step)) + 1e-12)
        return Network(shift, scale, *weights)

    return fit


def frequencies(first: Outputs, second: Outputs) -> Score:
    """How often each outcome came, where outcomes come again; where most came once there is nothing to count."""
    if len(np.unique(first, axis=0)) > len(first) / 2:
        return Table({})
    return learned(first, second)


def _spread(x: FloatArray) -> FloatArray:
    """Of each feature its usual deviation, which far values do not stretch; 1 where it is always the same."""
    low, high = np.quantile(x, [0.1, 0.9], axis=0)
    spread = (high - low) / 2.5
    wide = np.where(spread > 0, spread, x.std(axis=0))
    return np.where(wide > 0, wide, 1.0)


# --- written down, and read again

_KINDS: dict[str, Callable[..., Any]] = {"trees": Trees, "neighbours": Neighbours, "network": Network}


def stated(score: Score) -> dict[str, Any]:
    """A score as JSON can hold it. TypeError for one that cannot be written down."""
    if isinstance(score, Table):
        return {"kind": "table", "values": [[_listed(key), value] for key, value in score.values.items()]}
    if isinstance(score, Linear) and score.features is as_rows:
        return {"kind": "linear", "axis": score.axis.tolist()}
    for name, kind in _KINDS.items():
        if type(score) is kind:
            return {"kind": name} | {key: _plain(value) for key, value in vars(score).items()}
    raise TypeError(f"{type(score).__name__} cannot be written down")


def score_of(written: dict[str, Any]) -> Score:
    """Inverse of `stated`. ValueError, KeyError or TypeError on anything else."""
    values = dict(written)
    kind = values.pop("kind")
    if kind == "table":
        return Table({tuple(key) if isinstance(key, list) else key: value for key, value in values["values"]})
    if kind == "linear":
        return Linear(np.array(values["axis"], dtype=np.float64))
    if kind not in _KINDS:
        raise ValueError(f"unknown score {kind!r}")
    return _KINDS[kind](**{key: _array(key, value) for key, value in values.items()})  # type: ignore[no-any-return]


def _listed(key: Any) -> Any:
    return list(key) if isinstance(key, tuple) else key


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(row) for row in value] if value.ndim > 1 else [_finite(v) for v in value.tolist()]
    return value


def _finite(value: float) -> float:
    return min(max(value, -1.7e308), 1.7e308)


def _array(key: str, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return np.array(value, dtype=np.int64 if key == "columns" else np.float64)

"""Learned scores of draws of two inputs, beside those of `adversary.estimators.audit`: trees, neighbours, a network.

Each is a frozen value that can be saved and read again (`stated`, `score_of`), so that a reader can check the test
itself. A score maps rows of features (n, f) to scores (n,); a high score speaks for the first input.
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

#: Most outputs of each input for learning trees and networks, and as reference for neighbours.
_LEARNT, _REFERENCE = 8192, 4096
#: Number of bins for a tree's feature.
_BINS = 32


@dataclass(frozen=True, eq=False)
class Trees:
    """Gradient boosting of trees of one depth. All rows of a level are split by the same feature and cut.

    Args:
        columns: Features (trees, depth).
        cuts: Cuts (trees, depth); a row goes up if its feature is above the cut.
        leaves: Values (trees, 2^depth).

    Source: Friedman 2001.
    """

    columns: NDArray[np.int64]
    cuts: FloatArray
    leaves: FloatArray

    def __call__(self, outputs: Outputs) -> FloatArray:
        """Return the scores (n,) of outputs."""
        x = as_rows(outputs)
        total = np.zeros(len(x))
        powers = 1 << np.arange(self.cuts.shape[1])
        for columns, cuts, leaves in zip(self.columns, self.cuts, self.leaves, strict=True):
            total += leaves[(x[:, columns] > cuts) @ powers]
        return total


#: Number of trees, their depth, and the share of its step that each takes.
_COUNT, _DEPTH, _RATE = 24, 3, 0.4


def trees() -> Fit:
    """Return a score that learns trees on at most 8,192 outputs of each input.

    Each level takes the split that reduces the logistic loss most, by Newton's step.
    """

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
    """Return the splits (row of codes, bin) of one tree, and the leaf of each row.

    A split may gain nothing by itself where two gain together, so the first level takes the best split whatever it
    gains.
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
    """Score by nearest neighbours: the log-ratio of both inputs' shares among a row's k nearest examples.

    Args:
        examples: Examples (m, f).
        firsts: Number of examples of the first input, which come first.
        scale: Scale of each feature.
        k: Number of neighbours.
    """

    examples: FloatArray
    firsts: int
    scale: FloatArray
    k: int

    def __call__(self, outputs: Outputs) -> FloatArray:
        """Return the scores (n,) of outputs."""
        _, near = cKDTree(self.examples / self.scale).query(as_rows(outputs) / self.scale, k=self.k)
        own = (near.reshape(len(outputs), -1) < self.firsts).sum(axis=1)
        ratio: FloatArray = np.log((own + 0.5) / (self.k - own + 0.5))
        return ratio


def neighbours(k: int = 32) -> Fit:
    """Return a score by k neighbours among at most 4,096 examples of each input."""

    def fit(first: Outputs, second: Outputs) -> Score:
        one, other = as_rows(first[:_REFERENCE]), as_rows(second[:_REFERENCE])
        both = np.vstack([one, other])
        return Neighbours(both, len(one), _spread(both), min(k, len(both)))

    return fit


@dataclass(frozen=True, eq=False)
class Network:
    """Network with a hidden layer of hyperbolic tangents.

    Args:
        shift: Subtracted from features.
        scale: Divides features.
        hidden: Weights (f, h).
        offsets: Offsets (h,).
        out: Weights (h,).
    """

    shift: FloatArray
    scale: FloatArray
    hidden: FloatArray
    offsets: FloatArray
    out: FloatArray

    def __call__(self, outputs: Outputs) -> FloatArray:
        """Return the scores (n,) of outputs."""
        z = np.clip((as_rows(outputs) - self.shift) / self.scale, -8, 8)
        score: FloatArray = np.tanh(z @ self.hidden + self.offsets) @ self.out
        return score


#: Hidden units of a network, number of its steps, and step length.
_WIDTH, _STEPS, _LENGTH = 16, 150, 0.05


def network() -> Fit:
    """Return a score that learns a network on at most 8,192 outputs of each input, by Adam on all of them at once.

    Source: Kingma and Ba 2015.
    """

    def fit(first: Outputs, second: Outputs) -> Score:
        x = np.vstack([as_rows(first[:_LEARNT]), as_rows(second[:_LEARNT])])
        truth = np.repeat([1.0, 0.0], [len(first[:_LEARNT]), len(second[:_LEARNT])])
        shift, scale = np.median(x, axis=0), _spread(x)
        z = np.clip((x - shift) / scale, -8, 8)
        rng = np.random.default_rng(0)  # this start affects only how well the network learns
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
    """Learn a score from the frequency of each outcome; if most outcomes occur once, the score is 0."""
    if len(np.unique(first, axis=0)) > len(first) / 2:
        return Table({})
    return learned(first, second)


def _spread(x: FloatArray) -> FloatArray:
    """Return the typical deviation of each feature, robust to outliers; 1 for a constant feature."""
    low, high = np.quantile(x, [0.1, 0.9], axis=0)
    spread = (high - low) / 2.5
    wide = np.where(spread > 0, spread, x.std(axis=0))
    return np.where(wide > 0, wide, 1.0)


# --- saving and reading scores

_KINDS: dict[str, Callable[..., Any]] = {"trees": Trees, "neighbours": Neighbours, "network": Network}


def stated(score: Score) -> dict[str, Any]:
    """Return a score as JSON values.

    Raises:
        TypeError: The score cannot be saved.
    """
    if isinstance(score, Table):
        return {"kind": "table", "values": [[_listed(key), value] for key, value in score.values.items()]}
    if isinstance(score, Linear) and score.features is as_rows:
        return {"kind": "linear", "axis": score.axis.tolist()}
    for name, kind in _KINDS.items():
        if type(score) is kind:
            return {"kind": name} | {key: _plain(value) for key, value in vars(score).items()}
    raise TypeError(f"{type(score).__name__} cannot be written down")


def score_of(written: dict[str, Any]) -> Score:
    """Return the score that `stated` saved.

    Raises:
        ValueError: The values are not those of a score.
        KeyError: The values are not those of a score.
        TypeError: The values are not those of a score.
    """
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

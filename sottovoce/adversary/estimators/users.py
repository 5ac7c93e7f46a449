"""Attacks on a user by everything that the server received from that user: many texts, or many vectors.

A *view* is one way to read a user's releases as a vector (the mean of sentence embeddings, weighted words). Only inner
products of users matter, so a view is a matrix of them. The adversary knows an attribute of some users, learns on their
releases, and guesses it for the others: no user is in both. Learning is by least squares with a penalty (kernel ridge
regression) on the indicators of the values. The view and the penalty are those with the best guesses for the known
users, each left out in turn, which has a closed form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Number of folds of users: each is guessed by what is learned on the others.
FOLDS = 10
#: Penalties to choose from, in mean eigenvalues of a view.
_PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


def of_vectors(rows: FloatArray) -> FloatArray:
    """Return the view (u, u) of one vector (u, m) for each user, centred."""
    return _scaled((centred := rows - rows.mean(axis=0)) @ centred.T)


def word_vectors(words: Sequence[Sequence[str]]) -> FloatArray:
    """Return the weights (u, k) of each user's words: 1 + log of their counts, by rarity among users, of unit length.

    Words of a single user are left out: they tell nothing of others.

    Args:
        words: Words of each user.
    """
    columns: dict[str, int] = {}
    at = [(user, columns.setdefault(word, len(columns))) for user, said in enumerate(words) for word in said]
    users, places = np.array(at, dtype=np.int64).reshape(-1, 2).T
    table = sparse.csr_matrix((np.ones(len(at)), (users, places)), shape=(len(words), max(1, len(columns))))
    table.sum_duplicates()
    held = np.bincount(table.indices, minlength=table.shape[1])
    table.data = 1 + np.log(table.data)
    found: FloatArray = table[:, held > 1].toarray()
    return _unit(found * (np.log((1 + len(words)) / (1 + held[held > 1])) + 1))


def together(views: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return the views, and their sum if there are several."""
    return dict(views) if len(views) < 2 else {**views, " and ".join(views): sum(views.values()) / len(views)}


def guessed(
    views: Mapping[str, FloatArray], values: IntArray, *, classes: int, seed: int
) -> tuple[IntArray, tuple[str, ...]]:
    """Return the guessed value of each user, (u,), and the names of the views that were chosen.

    Args:
        views: Views (u, u) by name.
        values: Values (u,) of the users, from 0. A user's own value is not used for the guess about this user.
        classes: Number of values.
        seed: Seed of the folds.

    Raises:
        ValueError: There are fewer users than folds.
    """
    if len(values) < FOLDS:
        raise ValueError(f"{len(values)} users are too few to learn on")
    guesses, chosen = np.full(len(values), -1, dtype=np.int64), []
    fold = np.empty(len(values), dtype=np.int64)
    order = np.random.default_rng([seed, 16]).permutation(len(values))
    order = order[np.argsort(values[order], kind="stable")]  # each fold has its share of each value
    fold[order] = np.arange(len(values)) % FOLDS
    for number in range(FOLDS):
        known, attacked = fold != number, fold == number
        targets = np.eye(classes)[values[known]]
        share = targets.mean(axis=0)
        best: tuple[float, str, Any] = (-1.0, "", None)
        for name, view in views.items():
            size, axes = np.linalg.eigh(view[np.ix_(known, known)])
            along, square = axes.T @ (targets - share), axes**2
            for penalty in _PENALTIES:
                inverse = 1 / (np.maximum(size, 0) + penalty)
                weights = axes @ (inverse[:, None] * along)
                without = targets - weights / (square @ inverse)[:, None]  # each guessed by all other known users
                right = float((without.argmax(axis=1) == values[known]).mean())
                if right > best[0]:
                    best = right, name, weights
        _, name, weights = best
        guesses[attacked] = (share + views[name][np.ix_(attacked, known)] @ weights).argmax(axis=1)
        chosen.append(name)
    return guesses, tuple(dict.fromkeys(chosen))


def likeness(views: Sequence[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """Return the evidence (u, u) that two sets of releases come from one user: the sum of cosines of centred vectors.

    Args:
        views: For each view, the vectors (u, m) of the first and of the second sets.
    """
    total = np.zeros((len(views[0][0]), len(views[0][1])))
    for first, second in views:
        one, other = (_unit(rows - rows.mean(axis=0)) for rows in (first, second))
        found = one @ other.T
        total += found / max(float(found.std()), 1e-12)
    return total


def _scaled(view: FloatArray) -> FloatArray:
    """Return a view whose mean eigenvalue is 1."""
    scale = np.trace(view) / len(view)
    return view / scale if scale > 0 else view


def _unit(rows: FloatArray) -> FloatArray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)

"""Matrix M1 from public text without labels: its principal components."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.maps import Maps
from server.training.rescale import factored

# This file must not import torch: the cost of a study is stated without it.

#: Mean and components of the last embeddings, by their shape and hash.
_LAST: dict[tuple[Any, bytes], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}


def pca_maps(embeddings: NDArray[Any], *, dim: int, classes: int) -> Maps:
    """Return maps from public text without labels: M1 holds the first `dim` principal components, and the head is 0.

    Args:
        embeddings: Public embeddings (n, m).
        dim: m'.
        classes: K.

    Raises:
        ValueError: `checked` raises it.
    """
    h, _ = checked(embeddings, None, classes, dim)
    mean, vectors = _components(h)
    return factored(mean, vectors[:, :dim], np.zeros((dim, classes)), np.zeros(classes))


def _components(h: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean (m,) and all principal components (m, m), the first ones first.

    Those of the last embeddings are kept: every arm of a run needs the same ones, several times, and for four layers of
    width 768 they take six seconds of a core.
    """
    key = (h.shape, hashlib.blake2b(np.ascontiguousarray(h).data).digest())
    if key not in _LAST:
        # imported here: a device, which has no such library, reads experiments and reports as well
        from threadpoolctl import threadpool_limits

        # on one thread, so that the bits of a request do not depend on the cores: a ledger repeats its release
        with threadpool_limits(1):
            _, vectors = np.linalg.eigh(np.cov(h, rowvar=False))
        _LAST.clear()
        _LAST[key] = h.mean(axis=0), vectors[:, ::-1]
    return _LAST[key]


def checked(
    embeddings: NDArray[Any], labels: NDArray[Any] | None, classes: int, dim: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return public embeddings (n, m) as float64, and labels (n,), after a check.

    Args:
        embeddings: Public embeddings (n, m).
        labels: Labels (n,); None gives an empty array.
        classes: K.
        dim: m'.

    Raises:
        ValueError: The embeddings are not finite or fewer than two, they do not fit the labels or `dim`, or a class has
            no example. The message is one line.
    """
    h = np.asarray(embeddings, dtype=np.float64)
    if h.ndim != 2 or len(h) < 2 or not np.isfinite(h).all():
        raise ValueError(f"maps: public embeddings must be two or more finite rows, got shape {h.shape}")
    if not 2 <= dim <= h.shape[1]:
        raise ValueError(f"maps: dim must be between 2 and the encoder's width {h.shape[1]}, got {dim}")
    if classes < 2:
        raise ValueError(f"maps: there must be at least 2 classes, got {classes}")
    if labels is None:
        return h, np.empty(0, np.int64)
    y = np.asarray(labels, dtype=np.int64)
    if y.shape != (len(h),):
        raise ValueError(f"maps: {len(h)} public embeddings but labels of shape {y.shape}")
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(f"maps: public labels must be 0 to {classes - 1}, got {y.min()} to {y.max()}")
    missing = np.setdiff1d(np.arange(classes), y)
    if len(missing):
        raise ValueError(f"maps: the public part has no example of class {missing[0]}; make it larger")
    return h, y

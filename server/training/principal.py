"""M1 from public text without labels: its main components."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.maps import Maps
from server.training.sharpen import factored

# Nothing here may import torch: what a study costs is said without it.


def pca_maps(embeddings: NDArray[Any], *, dim: int, classes: int) -> Maps:
    """Maps from public text without labels: M1 = the first `dim` principal components; the head knows
    nothing."""
    h, _ = checked(embeddings, None, classes, dim)
    mean = h.mean(axis=0)
    _, vectors = np.linalg.eigh(np.cov(h, rowvar=False))
    return factored(mean, vectors[:, ::-1][:, :dim], np.zeros((dim, classes)), np.zeros(classes))


def checked(
    embeddings: NDArray[Any], labels: NDArray[Any] | None, classes: int, dim: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Public embeddings (n, m) as float64, and labels (n,), of which there are none where none are given.

    Raises ValueError, one line, unless maps of `dim` coordinates can be learned from them: where the embeddings are
    not finite or fewer than two, where they do not fit the labels or `dim`, and where a class has no example.
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

"""Rescaling of the projection towards discriminative directions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.maps import Maps

#: Remaining share of non-discriminative directions. Built-in corpus, 1,500 public texts, m'=16, Purkayastha ε=10, seed
#: 1: sanitized test accuracy .872 as trained; .885, .887, .887 and .888 shrunk to .5, .25, .1 and .01.
SHARPEN = 0.1


def rescaled(maps: Maps, *, public: NDArray[Any], dim: int | None = None, rest: float = SHARPEN) -> Maps:
    """Rescale the projection towards discriminative directions: same head, with M1 shrunk to `rest` in the others.

    The others are the directions of m' that the head does not read. After normalization, a release then spends its
    length on discriminative directions. Log loss keeps the others, to express the confidence of a text; under noise
    that costs correct decisions.

    A bias places the decision threshold in units of the old length. So it moves into `mean` and is 0 afterwards, for
    the length at which the most public embeddings keep their decision. If the head is 0, the maps stay unchanged. An
    arm without noise is treated alike, so that arms differ in their noise alone. This uses public knowledge and
    post-processing only: nothing is charged.

    Args:
        maps: Maps and head.
        public: Public embeddings (n, m).
        dim: m' of the returned maps, if a release is to have fewer coordinates than the head was trained on. The
            directions that the head reads come first, then those where public embeddings vary most. None keeps m'.
        rest: Remaining share of the other directions.
    """
    weight = maps.m2.astype(np.float64) @ maps.head_w.astype(np.float64)
    contrasts = weight - weight.mean(axis=1, keepdims=True)
    u, values, vt = np.linalg.svd(contrasts, full_matrices=False)
    if values.max() < 1e-9:
        return maps if dim is None else factored(maps.mean, maps.m1[:, :dim], weight[:dim], maps.head_b)
    kept = values > 1e-6 * values.max()
    read = u[:, kept]
    bias = maps.head_b - maps.head_b.mean()
    shift = (read / values[kept]) @ (vt[kept] @ bias)  # least squares: contrasts.T @ shift = bias
    m1 = maps.m1.astype(np.float64)
    mapped = (np.asarray(public, np.float64) - maps.mean) @ m1
    before = maps.predict(maps.project(public))
    lengths = np.linalg.norm(mapped, axis=1).mean() * np.linspace(0.0, 2.0, 81)
    agreement = [np.mean(np.argmax((mapped + at * shift) @ contrasts, axis=1) == before) for at in lengths]
    mean = maps.mean - np.linalg.lstsq(m1.T, lengths[np.argmax(agreement)] * shift, rcond=None)[0]
    keep = read @ read.T
    if dim is None:
        return factored(mean, m1 @ (keep + rest * (np.eye(len(weight)) - keep)), weight, np.zeros_like(bias))
    first = read[:, :dim]
    _, varied = np.linalg.eigh(np.cov(mapped @ (np.eye(len(weight)) - keep), rowvar=False))
    others = varied[:, ::-1][:, : dim - first.shape[1]]
    basis = np.hstack([first, rest * others])
    return factored(mean, m1 @ basis, np.hstack([first, others]).T @ weight, np.zeros_like(bias))


def factored(mean: NDArray[Any], m1: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]) -> Maps:
    """Return maps whose M2 and head multiply to `weight` (m', K).

    M2's rows are orthonormal and span what M1 reads. M2 and the head are linear with nothing between them, so only
    their product matters to any prediction.
    """
    u, _, vt = np.linalg.svd(m1, full_matrices=False)
    m2 = (u @ vt).T
    return Maps(mean, m1, m2, m2.T @ weight, bias)

"""Linear maps and task head: everything that inference on sanitized embeddings needs.

M1 may hold the principal components of public text (`pca_maps`), and may be rescaled towards discriminative directions
(`rescaled`). This file must not import torch: the cost of a study is stated without it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.projection import project

FILE = "maps.safetensors"
#: Remaining share of non-discriminative directions. Built-in corpus, 1,500 public texts, m'=16, Purkayastha ε=10, seed
#: 1: sanitized test accuracy .872 as trained; .885, .887, .887 and .888 shrunk to .5, .25, .1 and .01.
SHARPEN = 0.1
#: Mean and components of the last embeddings, by their shape and hash.
_LAST: dict[tuple[Any, bytes], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}


@dataclass(frozen=True, eq=False)
class Maps:
    """Public parameters of the linear maps and the head, float32.

    m is the width of the encoder, m' the width of a release, K the number of classes.

    Args:
        mean: Vector (m,) that a client subtracts.
        m1: Matrix (m, m') that the client then applies, before it normalizes and sanitizes.
        m2: Matrix (m', m) back to the encoder's width.
        head_w: Weights (m, K) of the task's linear layer.
        head_b: Biases (K,) of the task's linear layer.

    Raises:
        ValueError: Shapes do not fit, or a value is not finite.

    Source: Du et al. 2023, Figure 1; their M1 and M2 are transposed.
    """

    mean: NDArray[np.float32]
    m1: NDArray[np.float32]
    m2: NDArray[np.float32]
    head_w: NDArray[np.float32]
    head_b: NDArray[np.float32]

    def __post_init__(self) -> None:
        for field in fields(self):
            array = np.ascontiguousarray(getattr(self, field.name), dtype=np.float32)
            if not np.isfinite(array).all():
                raise ValueError(f"maps: {field.name} holds a value that is not finite")
            object.__setattr__(self, field.name, array)
        if self.m1.ndim != 2 or self.head_w.ndim != 2:
            raise ValueError("maps: m1 and head_w must be matrices")
        m, dim = self.m1.shape
        if not 2 <= dim <= m:
            raise ValueError(f"maps: dim must be between 2 and the encoder's width {m}, got {dim}")
        shapes = {"mean": (m,), "m2": (dim, m), "head_w": (m, self.classes), "head_b": (self.classes,)}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"maps: {name} must have shape {shape}, got {getattr(self, name).shape}")

    @property
    def dim(self) -> int:
        """Return m', the number of coordinates of a release."""
        return int(self.m1.shape[1])

    @property
    def classes(self) -> int:
        """Return K, the number of classes."""
        return int(self.head_w.shape[1])

    def project(self, h: NDArray[Any]) -> NDArray[np.float64]:
        """Return unit rows (n, m'), float64, of embeddings (n, m).

        A client calls the same function before it sanitizes.
        """
        return project(np.asarray(h), self.mean, self.m1)

    def folded(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (W (m', K), b (K,)): M2 and head as one linear map. A label prior needs no more."""
        weight = self.m2.astype(np.float64) @ self.head_w.astype(np.float64)
        return weight.astype(np.float32), self.head_b

    def logits(self, z: NDArray[Any]) -> NDArray[np.float64]:
        """Return logits (n, K) of released rows (n, m')."""
        wide = np.asarray(z, np.float64) @ self.m2.astype(np.float64)
        out: NDArray[np.float64] = wide @ self.head_w + self.head_b
        return out

    def predict(self, z: NDArray[Any]) -> NDArray[np.int64]:
        """Return the likeliest class (n,) of released rows (n, m')."""
        return self.logits(z).argmax(axis=1).astype(np.int64)

    def save(self, folder: str | Path) -> None:
        """Write maps.safetensors into the folder."""
        from safetensors.numpy import save_file  # where experiments are only checked, a device has none

        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file({f.name: getattr(self, f.name) for f in fields(self)}, str(Path(folder) / FILE))

    @classmethod
    def load(cls, folder: str | Path) -> Maps:
        """Read maps.safetensors of a folder; this needs neither torch nor BERT.

        Raises:
            ValueError: The file cannot be read as the maps of a saved pipeline.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = Path(folder) / FILE
        try:
            return cls(**load_file(str(path)))
        except (OSError, SafetensorError, TypeError) as error:
            raise ValueError(f"maps: {path} cannot be read as the maps of a saved pipeline") from error


def factored(mean: NDArray[Any], m1: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]) -> Maps:
    """Return maps whose M2 and head multiply to `weight` (m', K).

    M2's rows are orthonormal and span what M1 reads. M2 and the head are linear with nothing between them, so only
    their product matters to any prediction.
    """
    u, _, vt = np.linalg.svd(m1, full_matrices=False)
    m2 = (u @ vt).T
    return Maps(mean, m1, m2, m2.T @ weight, bias)


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

"""Linear maps and task head: everything that inference on sanitized embeddings needs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.projection import project

FILE = "maps.safetensors"


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

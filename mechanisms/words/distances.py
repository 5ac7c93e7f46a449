"""Distances of words, by the metric that a mechanism's guarantee is about."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.vocabulary import Vocabulary
from mechanisms.words.exponential import Geometry

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def metric_distances(mechanism: Any, x: IntArray, y: IntArray) -> FloatArray:
    """What its guarantee's ε is multiplied by: word ids (n,) and (k,), the unknown word's included -> (n, k).

    A word mechanism says so in `distances(x, y)`; one that does not has the Euclidean distance of the vectors.
    """
    own = getattr(mechanism, "distances", None)
    apart: FloatArray = distances(mechanism.vocabulary, x, y) if own is None else own(x, y)
    return apart


def distances(vocabulary: Vocabulary, x: IntArray, y: IntArray) -> FloatArray:
    """Euclidean, word ids (n,) and (k,) -> (n, k), not to be written to."""
    return _geometry(vocabulary, np.asarray(y, dtype=np.int64).tobytes()).distances(x)


@lru_cache(maxsize=4)
def _geometry(vocabulary: Vocabulary, outputs: bytes) -> Geometry:
    return Geometry(vocabulary.points, np.frombuffer(outputs, dtype=np.int64))

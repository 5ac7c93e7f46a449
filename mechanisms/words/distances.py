"""Distances of words, by the metric of a mechanism's guarantee."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.exponential import Geometry


def metric_distances(mechanism: Any, x: IntArray, y: IntArray) -> FloatArray:
    """Return the distances that multiply the guarantee's ε, word ids (n,) and (k,) -> (n, k).

    Ids may include the unknown word's. The distances are the word mechanism's own `distances(x, y)`, or the Euclidean
    distances of the vectors.
    """
    own = getattr(mechanism, "distances", None)
    apart: FloatArray = distances(mechanism.vocabulary, x, y) if own is None else own(x, y)
    return apart


def distances(vocabulary: Vocabulary, x: IntArray, y: IntArray) -> FloatArray:
    """Return Euclidean distances, word ids (n,) and (k,) -> (n, k), read-only."""
    return _geometry(vocabulary, np.asarray(y, dtype=np.int64).tobytes()).distances(x)


@lru_cache(maxsize=4)
def _geometry(vocabulary: Vocabulary, outputs: bytes) -> Geometry:
    return Geometry(vocabulary.points, np.frombuffer(outputs, dtype=np.int64))

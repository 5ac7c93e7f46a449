"""A point at a given angle from another on the unit sphere, in a uniform direction."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

FloatArray = NDArray[np.float64]

#: A vector of normals that vanishes in float64 (probability below 2^-50) must not become not-a-number.
_TINY = 1e-300


def tangent_normal(
    x: FloatArray, length: FloatArray, sine: FloatArray, cosine: FloatArray, uniforms: FloatArray, out: FloatArray
) -> None:
    """y = cos θ·x + sin θ·ξ for each row, ξ a uniform unit tangent at x (the tangent-normal decomposition).

    x: (n, m) rows, length: (n, 1) of each. sine, cosine: (n,) of the angle. uniforms: (n, m), each a normal of a
    vector whose part orthogonal to x, normalized, is ξ. out: (n, m), is filled with y.
    """
    tangent = ndtri(uniforms, out=out)
    unit = x / length
    tangent -= np.einsum("ij,ij->i", tangent, unit)[:, None] * unit
    scale = np.sqrt(np.einsum("ij,ij->i", tangent, tangent))
    tangent *= (sine / np.maximum(scale, _TINY))[:, None]
    unit *= cosine[:, None]
    tangent += unit

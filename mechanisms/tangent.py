"""Point at a given angle from another on the unit sphere, in a uniform direction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
from scipy.special import ndtri

from mechanisms.arrays import FloatArray
from mechanisms.certified import NORMAL, UNIT, normal_doubt
from mechanisms.decimals import normal_quantile

#: Keeps a vector of normals that vanishes in float64 (probability below 2^-50) from becoming NaN.
_TINY = 1e-300


def tangent_normal(
    x: FloatArray, length: FloatArray, sine: FloatArray, cosine: FloatArray, uniforms: FloatArray, out: FloatArray
) -> FloatArray:
    """Compute y = cos θ·x + sin θ·ξ for each row, ξ a uniform unit tangent at x (the tangent-normal decomposition).

    An error e of the vector z turns ξ by at most 2·e/|t|. Normals are off by `normal_doubt` each and by a relative
    `NORMAL`; x/|x| and sums of m products by (m + 4) units in the last place of |z|, at each of two sums.

    Args:
        x: (n, m) rows.
        length: (n, 1) length of each.
        sine: (n,) of the angle.
        cosine: (n,) of the angle.
        uniforms: (n, m), each a normal of a vector z whose part t orthogonal to x, normalized, is ξ.
        out: (n, m), filled with y.

    Returns:
        (n,) bounds on the distance of a coordinate from the exact one, without the error of the angle
        (`mechanisms.certified`).
    """
    m = x.shape[1]
    tangent = ndtri(uniforms, out=out)
    unit = x / length
    along = np.einsum("ij,ij->i", tangent, unit)
    tangent -= along[:, None] * unit
    scale = np.maximum(np.sqrt(np.einsum("ij,ij->i", tangent, tangent)), _TINY)
    tangent *= (sine / scale)[:, None]
    unit *= cosine[:, None]
    tangent += unit
    size = scale + np.abs(along)  # at least |z|
    off = math.sqrt(m) * normal_doubt(uniforms) + (NORMAL + (2 * m + 16) * UNIT) * size
    doubt: FloatArray = 2.0 * sine * off / scale + (4 * m + 64) * UNIT
    return doubt


def exact_tangent_normal(x: FloatArray, sine: Decimal, cosine: Decimal, uniforms: Sequence[Decimal]) -> list[Decimal]:
    """Return the same for one row x (m,), normalized exactly, within `decimals.precise`: m coordinates."""
    row = [Decimal(float(value)) for value in x]
    length = sum((value * value for value in row), Decimal(0)).sqrt()
    unit = [value / length for value in row]
    normals = [normal_quantile(u) for u in uniforms]
    along = sum((z * e for z, e in zip(normals, unit, strict=True)), Decimal(0))
    tangent = [z - along * e for z, e in zip(normals, unit, strict=True)]
    scale = sum((t * t for t in tangent), Decimal(0)).sqrt()
    return [cosine * e + sine * t / scale for e, t in zip(unit, tangent, strict=True)]

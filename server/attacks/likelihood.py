"""How likely a released embedding is for each candidate that it may have been drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from mechanisms.gaussian import Gaussian
from mechanisms.identity import Identity
from mechanisms.losses.sphere import log_radial_integral
from mechanisms.spherical import PlanarLaplace, Purkayastha

FloatArray = NDArray[np.float64]

#: Angles at which the density of normalized planar Laplace noise is computed; it is smooth between them.
_ANGLES = 2048


def log_likelihood(mechanism: Any, released: FloatArray, candidates: FloatArray) -> FloatArray:
    """log p(z | x) up to a constant of the mechanism, (n, m') releases and (p, m') unit candidates -> (n, p).

    Without noise the candidate of largest inner product has all the likelihood. ValueError for a mechanism whose
    density is not known.
    """
    products = released @ candidates.T
    if isinstance(mechanism, Identity):
        return np.where(products == products.max(axis=1, keepdims=True), 0.0, -np.inf)
    if isinstance(mechanism, Purkayastha):
        found: FloatArray = -mechanism.epsilon * _angles(released, products)
        return found
    if isinstance(mechanism, PlanarLaplace) and mechanism.normalize:
        if mechanism.epsilon == 0:
            return np.zeros(products.shape)
        grid = np.linspace(0, np.pi, _ANGLES)
        density = log_radial_integral(mechanism.dim, mechanism.epsilon, grid)
        return np.interp(_angles(released, products), grid, density)
    square = np.maximum(np.square(released).sum(axis=1)[:, None] + 1 - 2 * products, 0)  # candidates have length 1
    if isinstance(mechanism, PlanarLaplace):
        return -mechanism.epsilon * np.sqrt(square)
    if isinstance(mechanism, Gaussian):
        return -square / (2 * mechanism.sigma**2)
    raise ValueError(f"{mechanism.name}: its density is not known here")


def posterior(mechanism: Any, released: FloatArray, candidates: FloatArray) -> FloatArray:
    """Probability of each candidate given each release, (n, p), if all were alike likely in advance."""
    found = log_likelihood(mechanism, released, candidates)
    weights: FloatArray = np.exp(found - logsumexp(found, axis=1, keepdims=True))
    return weights


def _angles(released: FloatArray, products: FloatArray) -> FloatArray:
    # the public grid has changed the length of a release a little
    length = np.sqrt(np.square(released).sum(axis=1))[:, None]
    return np.arccos(np.clip(products / length, -1, 1))

"""How likely a released embedding, or a user's one vector, is for each candidate that it may have been drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from mechanisms.gaussian import Gaussian
from mechanisms.grid import SPHERE
from mechanisms.identity import Identity
from mechanisms.losses.sphere import log_radial_ratio
from mechanisms.privunit import PrivUnit
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
        density = log_radial_ratio(mechanism.dim, mechanism.epsilon, grid)
        return np.interp(_angles(released, products), grid, density)
    if isinstance(mechanism, PrivUnit):
        high, low = _densities(mechanism)
        return np.where(products >= mechanism.threshold * _lengths(released), high, low)
    square = np.maximum(np.square(released).sum(axis=1)[:, None] + 1 - 2 * products, 0)  # candidates have length 1
    if isinstance(mechanism, PlanarLaplace):
        return -mechanism.epsilon * np.sqrt(square)
    if isinstance(mechanism, Gaussian):
        return -square / (2 * mechanism.sigma**2)
    raise ValueError(f"{mechanism.name}: its density is not known here")


def log_likelihood_of_means(mechanism: Any, released: FloatArray, means: FloatArray) -> FloatArray:
    """The same of statistics: log p(z | mean) up to a constant, (n, D) releases and (p, D) users' means of length r at
    most 1 -> (n, p). A mean is released as its direction with probability (1 + r)/2, else as the opposite one.

    Without noise the nearest candidate has all the likelihood: minus the distance in steps of the grid.
    """
    if isinstance(mechanism, Identity):
        square = (released**2).sum(axis=1)[:, None] + (means**2).sum(axis=1) - 2 * released @ means.T
        return -np.sqrt(np.maximum(square, 0.0)) / SPHERE.step
    length = np.sqrt(np.square(means).sum(axis=1))
    unit = means / np.maximum(length, 1e-12)[:, None]
    own = log_likelihood(mechanism, released, unit)
    if (length > 1 - 1e-9).all():
        return own
    r = np.minimum(length, 1.0)
    with np.errstate(divide="ignore"):
        turned = log_likelihood(mechanism, released, -unit) + np.log((1 - r) / 2)
    return np.logaddexp(own + np.log((1 + r) / 2), turned)


def posterior(mechanism: Any, released: FloatArray, candidates: FloatArray) -> FloatArray:
    """Probability of each candidate given each release, (n, p), if all were alike likely in advance."""
    found = log_likelihood(mechanism, released, candidates)
    weights: FloatArray = np.exp(found - logsumexp(found, axis=1, keepdims=True))
    return weights


def _densities(mechanism: PrivUnit) -> tuple[float, float]:
    """The logs of the two values of the density, relative to the uniform one: in the cap, and outside it."""
    p, log_mass = mechanism.cap_probability, mechanism.log_mass
    assert p is not None
    with np.errstate(divide="ignore"):
        return float(np.log(p) - log_mass), float(np.log1p(-p) - np.log1p(-np.exp(log_mass)))


def _angles(released: FloatArray, products: FloatArray) -> FloatArray:
    return np.arccos(np.clip(products / _lengths(released), -1, 1))


def _lengths(released: FloatArray) -> FloatArray:
    """(n, 1), near 1: the public grid has changed the length of a release a little."""
    lengths: FloatArray = np.sqrt(np.square(released).sum(axis=1))[:, None]
    return lengths

"""Likelihoods of a released embedding or user vector for each candidate input."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.gaussian import Gaussian
from mechanisms.identity import Identity
from mechanisms.losses.sphere import log_radial_ratio
from mechanisms.privunit import PrivUnit
from mechanisms.quantizer import SPHERE
from mechanisms.spherical import PlanarLaplace, Purkayastha

FloatArray = NDArray[np.float64]

#: Angles at which the density of normalized planar Laplace noise is computed; it is smooth between them.
_ANGLES = 2048


def log_likelihood(mechanism: Any, released: FloatArray, candidates: FloatArray) -> FloatArray:
    """Return log p(z | x) for each release and candidate, (n, p), up to a constant of the mechanism.

    Without noise, the candidate of largest inner product has all the likelihood.

    Args:
        mechanism: Mechanism of the releases.
        released: Releases (n, m').
        candidates: Unit rows (p, m').

    Raises:
        ValueError: The mechanism's density is not known.
    """
    products = released @ candidates.T
    if isinstance(mechanism, Identity):
        return np.where(products == products.max(axis=1, keepdims=True), 0.0, -np.inf)
    if isinstance(mechanism, Purkayastha):
        result: FloatArray = -mechanism.epsilon * _angles(released, products)
        return result
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


def log_likelihood_of_means(mechanism: Any, released: FloatArray, means: FloatArray, clip: float = 1.0) -> FloatArray:
    """Return log p(z | mean) for each released user vector and candidate mean, (n, p), up to a constant.

    A mean of length r is released as its direction with probability (1 + min(1, r/C))/2, otherwise as the opposite one.
    Without noise, the nearest candidate has all the likelihood: minus the distance in steps of the quantizer.

    Args:
        mechanism: Mechanism of the releases.
        released: Releases (n, D).
        means: Means (p, D) of users, of length at most 1.
        clip: C, at which the request clips means.
    """
    if isinstance(mechanism, Identity):
        square = (released**2).sum(axis=1)[:, None] + (means**2).sum(axis=1) - 2 * released @ means.T
        return -np.sqrt(np.maximum(square, 0.0)) / SPHERE.step
    length = np.sqrt(np.square(means).sum(axis=1))
    unit = means / np.maximum(length, 1e-12)[:, None]
    forward = log_likelihood(mechanism, released, unit)
    r = np.minimum(length / clip, 1.0)
    if (r > 1 - 1e-9).all():
        return forward
    with np.errstate(divide="ignore"):
        opposite = log_likelihood(mechanism, released, -unit) + np.log((1 - r) / 2)
    return np.logaddexp(forward + np.log((1 + r) / 2), opposite)


def _densities(mechanism: PrivUnit) -> tuple[float, float]:
    """Return the logs of both values of the density, relative to the uniform one: in the cap, and outside it."""
    p, log_mass = mechanism.cap_probability, mechanism.log_mass
    assert p is not None
    with np.errstate(divide="ignore"):
        return float(np.log(p) - log_mass), float(np.log1p(-p) - np.log1p(-np.exp(log_mass)))


def _angles(released: FloatArray, products: FloatArray) -> FloatArray:
    return np.arccos(np.clip(products / _lengths(released), -1, 1))


def _lengths(released: FloatArray) -> FloatArray:
    """Return the lengths (n, 1), near 1: the public quantizer changes the length of a release a little."""
    lengths: FloatArray = np.sqrt(np.square(released).sum(axis=1))[:, None]
    return lengths

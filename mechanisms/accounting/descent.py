"""Budget of training by noisy gradients with a trusted server: steps, each the noisy sum of a Poisson sample."""

from __future__ import annotations

import math
from functools import lru_cache

from scipy.optimize import brentq

from mechanisms.accounting.pld import compose
from mechanisms.gaussian import Gaussian
from mechanisms.losses.gaussian import gaussian_loss, replaced_loss
from mechanisms.losses.loss import LossCells, check_delta

#: Relative tolerance of the least noise, the range of the search, and the steps of its logarithm.
_NEAR, _LEAST, _MOST, _WIDER = 1e-4, 0.05, 1e8, 0.1
#: Share of δ that a composition may cut off.
_TAIL = 1e-6


def descent_epsilon(noise: float, *, rate: float, steps: int, delta: float) -> float:
    """Return ε at δ > 0 of one user of one vector in each step, against any other user in their place (replacement).

    Each step takes every user's vector with probability `rate`, clips it to length C, adds up, and adds N(0, noise²·C²)
    to each coordinate. The query of a step may depend on the steps before. The number of users is public. Loss
    distributions of the worst pair (`mechanisms.losses.gaussian`) are convolved. With all users in every step
    they are exactly one Gaussian release of distance 2·√steps/noise.

    Raises:
        ValueError: noise, rate, steps or delta is out of range.
    """
    check_delta(delta)
    if isinstance(steps, bool) or not steps >= 1 or steps % 1 or delta == 0:
        raise ValueError(f"descent: at least one step, a whole number, and delta above 0; got {steps} and {delta}")
    return compose([_whole(noise, rate, steps)], tail=delta * _TAIL).epsilon(delta)


@lru_cache(maxsize=64)
def least_noise(epsilon: float, *, rate: float, steps: int, delta: float) -> float:
    """Return the least noise, in units of C, whose `descent_epsilon` is at most epsilon.

    It is within a part in 10⁴, from above.

    Raises:
        ValueError: No noise up to 10⁸ suffices, or epsilon is not above 0.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"descent: epsilon must be a finite number above 0, got {epsilon}")

    def excess(log_noise: float) -> float:
        return descent_epsilon(math.exp(log_noise), rate=rate, steps=steps, delta=delta) - epsilon

    # many steps, each of a small share of the noise, are nearly one Gaussian release of distance 2·rate·√steps/noise
    low = high = math.log(max(Gaussian.calibrated(epsilon, delta, 1).sigma * rate * math.sqrt(steps), _LEAST))
    while excess(high) > 0:
        low, high = high, high + _WIDER
        if high > math.log(_MOST):
            raise ValueError(f"descent: no noise up to {_MOST:g} makes {steps} steps cost {epsilon:g} at {delta:g}")
    while low > math.log(_LEAST) and excess(low) <= 0:
        low, high = low - _WIDER, low
    if excess(low) <= 0:
        return math.exp(low)
    high = min(high, float(brentq(excess, low, high, xtol=_NEAR / 2)) + _NEAR / 2)
    while excess(high) > 0:
        high += _NEAR / 2
    return math.exp(high)


def _whole(noise: float, rate: float, steps: int) -> tuple[LossCells, int]:
    """Return one step's loss and its number. Without sampling, all steps are one Gaussian release."""
    if rate == 1 and noise > 0:
        return gaussian_loss(2 * math.sqrt(steps) / noise), 1
    return replaced_loss(noise, rate), int(steps)

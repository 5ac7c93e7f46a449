"""Inverse distribution functions to sixty digits, by series and Newton's method, for cases that float64 leaves open.

Everything here is slow (tenths of a millisecond a number) and runs only for the few rows of `mechanisms.certified`.
Decimals are computed within `precise()`.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from typing import Any

from scipy.special import betaincinv, gammaincinv, ndtri

#: Working digits. After cancellation (a normal tail of 1e-32 beside 1/2) thirty are left.
_DIGITS = 80
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")
_ROOT_TWO_PI = Context(prec=_DIGITS).sqrt(Context(prec=_DIGITS).multiply(2, PI))
_HALF = Decimal("0.5")
#: Fractional bits of fixed-point integers, in units of 1/_ONE: 86 decimals.
_BITS = 288
_ONE = Decimal(2**_BITS)
#: Newton doubles the digits of a float64 start, which has twelve or more, at each step.
_STEPS = 3


def precise() -> AbstractContextManager[Any]:
    """Return the decimal context that all functions here need."""
    return localcontext(Context(prec=_DIGITS))


def normal_quantile(u: Decimal) -> Decimal:
    """Return z with Φ(z) = u, 1e-32 < u < 1 - 1e-32. Φ(z) = 1/2 + φ(z)·Σ z^(2k+1)/(1·3·...·(2k+1)).

    Φ is evaluated once, near a float64 start z0. With h = (u - Φ(z0))/φ(z0), at most 1e-13, the inverse's Taylor series
    is z0 + h + z0·h²/2 + (2z0² + 1)·h³/6 + (6z0³ + 7z0)·h⁴/24. The rest is below (24z0⁴ + 46z0² + 7)·h⁵/120, which is
    less than 1e-60 (z' = 1/φ(z), differentiated). A row needs thousands of normal quantiles.
    """
    tail = min(u, 1 - u)
    z = Decimal(float(ndtri(float(tail))))
    square = z * z
    density = _exp_minus(square / 2) / _ROOT_TWO_PI
    h = (tail - _HALF) / density + _odd_series(-z, square)
    z += h * (1 + h * (z / 2 + h * ((2 * square + 1) / 6 + h * (6 * square + 7) * z / 24)))
    return z if u <= _HALF else -z


def _exp_minus(y: Decimal) -> Decimal:
    """Return e^(-y), y in [0, 72], relative error 1.1e-78, four times as fast as decimals.

    y and its results are rounded to eighty digits. y = k·log 2 - i/2^8 - j/2^16 - rest, and the powers of e of i and j
    are cached. The parts cut off here, in integer multiples of 1/_ONE, are less than two hundred: one for each k from
    log 2.
    """
    log_two, coarse, fine = _powers()
    scaled = int(y * _ONE)
    halvings = -(-scaled // log_two)
    i, rest = divmod(halvings * log_two - scaled, 1 << _BITS - 8)
    j, rest = divmod(rest, 1 << _BITS - 16)
    term = total = coarse[i] * fine[j] >> _BITS
    k = 0
    while term:
        k += 1
        term = (term * rest >> _BITS) // k
        total += term
    return Decimal(total) / (1 << _BITS + halvings)


@lru_cache(maxsize=1)
def _powers() -> tuple[int, list[int], list[int]]:
    """Return log 2, e^(i/2^8) below 2, and e^(j/2^16) up to j = 255, in integer multiples of 1/_ONE."""
    with localcontext(Context(prec=_DIGITS + 20)):
        log_two = Decimal(2).ln()
        coarse, fine = (
            [int((Decimal(i) / 2**bits).exp() * _ONE) for i in range(most)]
            for bits, most in ((8, math.ceil(256 * math.log(2))), (16, 256))
        )
        return int(log_two * _ONE), coarse, fine


def _odd_series(x: Decimal, square: Decimal) -> Decimal:
    """Return the sum in `normal_quantile` at x in [0, 12], given its square.

    It is computed in integer multiples of 1/_ONE, twice as fast as decimals. A term is off by two of these at most, and
    by the 1e-80 or so of itself that x and the square are rounded to. These errors grow as the terms do, by a factor of
    at most 1e32.
    """
    term = total = int(x * _ONE)
    multiplier, k = int(square * _ONE), 1
    while term:
        k += 2
        term = (term * multiplier >> _BITS) // k
        total += term
    return Decimal(total) / _ONE


def gamma_quantile(shape: int, u: Decimal) -> Decimal:
    """Return r with P(shape, r) = u. P(m, r) = e^(-r)·r^m/m!·(1 + r/(m+1) + r²/((m+1)(m+2)) + ...)."""
    r = Decimal(float(gammaincinv(shape, float(u))))
    smallest = Decimal(10) ** (-_DIGITS)
    for _ in range(_STEPS + 1):
        density = (-r + (shape - 1) * r.ln()).exp() / math.factorial(shape - 1)
        term, total, k = Decimal(1), Decimal(1), shape
        while term > smallest * total:
            k += 1
            term *= r / k
            total += term
        r -= (density * r / shape * total - u) / density
    return r


def symmetric_beta_quantile(dim: int, mass: Decimal) -> Decimal:
    """Return q <= 1/2 with I_q(a, a) = mass <= 1/2, a = (dim - 1)/2: of (1 - cos θ)/2 of a uniform unit vector.

    I_q(a, a) = (q(1-q))^a/(a·B(a, a))·(1 + Σ_k Π_{j<k} (2a + j)/(a + 1 + j)·q^k).
    """
    a, beta = Decimal(dim - 1) / 2, _symmetric_beta(dim)
    half = (dim - 1) / 2
    q = Decimal(float(betaincinv(half, half, float(mass))))
    smallest = Decimal(10) ** (-_DIGITS)
    for _ in range(_STEPS + 1):
        power = (a * (q * (1 - q)).ln()).exp() / beta
        term, total, j = Decimal(1), Decimal(1), 0
        while term > smallest * total:
            term *= (2 * a + j) / (a + 1 + j) * q
            total += term
            j += 1
        q -= (power / a * total - mass) / (power / (q * (1 - q)))
    return q


@lru_cache(maxsize=64)
def _symmetric_beta(dim: int) -> Decimal:
    """Return B(a, a), a = (dim - 1)/2, by Γ of whole and half numbers."""
    with precise():
        h = (dim - 1) // 2
        if dim % 2:
            return Decimal(math.factorial(h - 1) ** 2) / math.factorial(2 * h - 1)
        return PI * math.factorial(2 * h) / (Decimal(16) ** h * math.factorial(h) ** 2)


def sine_cosine(angle: Decimal) -> tuple[Decimal, Decimal]:
    """Return the sine and cosine of an angle in [0, π], by their series."""
    smallest = Decimal(10) ** (-_DIGITS)
    sums, term, k = [Decimal(0), Decimal(0)], Decimal(1), 0
    while abs(term) > smallest or k < 4:
        sums[k % 2] += term if k % 4 < 2 else -term
        k += 1
        term *= angle / k
    return sums[1], sums[0]

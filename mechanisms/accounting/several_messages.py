"""Several anonymous messages of one user: m draws of PrivUnit each, shuffled in one batch with those of all users.

**The bound (proved).** Each of n users sends m independent draws of its vector. The batch of n·m rows does not show
which belong together. A draw is one of the blanket, uniform, with probability γ, whatever the vector (`losses.cap`).
Tell the adversary which of the others' (n - 1)·m draws are of the blanket, and the values of the rest. What remains is
N ~ Bin((n - 1)·m, γ) uniform rows, N known, among which the m of the target lie. Relative to rows that are all uniform,
the chance of these under x is a rising function h of A, the number that fall into the cap of x alone; under x' it is
h(B). So δ(ε) <= E[(h(A) - e^ε·h(B))_+], whose argument is submodular in (A, B). It is largest if a row's two indicators
are least concordant, and that order survives sums of independent rows. Caps that do not meet dominate every pair, and
the laws of (A, B) are those of two trinomials convolved. m = 1 is `accounting.blanket`.

More uniform rows hide better (they are drawn without looking), so N may be rounded down: a few quantiles of its law
stand for all of it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import binom

from mechanisms.accounting.with_sampler_error import price
from mechanisms.privunit import PrivUnit

FloatArray = NDArray[np.float64]

#: Quantiles that cut the law of N. N counts as the least of its part, and the mass below the first is given up.
_QUANTILES = (1e-10, 1e-6, 1e-3, 0.05, 0.3)
#: Standard deviations around the means of the counts that are summed. The rest is given up.
_DEVIATIONS = 8.0
#: Most rows of a batch, so that a trinomial's logarithm, of terms up to 1.5e8, is off by at most 1e-7; and the relative
#: error allowed to each chance. If δ is a small difference of chances, its error is far larger.
MOST_ROWS = 10**7
_ARITHMETIC = 2e-7


def messages_delta(mechanism: PrivUnit, messages: int, users: int, epsilon: float) -> float:
    """Return an upper bound of δ(ε), ε >= 0, of one user of `messages` draws among `users` of one crowd.

    It includes the samplers. Time grows with the rows that the blanket leaves in a cap, by the square of messages.

    Raises:
        ValueError: messages or users is below 1, or there are more than MOST_ROWS rows.
    """
    if messages < 1 or users < 1 or messages * users > MOST_ROWS:
        raise ValueError(
            f"several messages: messages and users must be at least 1 and at most {MOST_ROWS:,} rows together, got "
            f"{messages} and {users}"
        )
    numeric = mechanism.guarantee.numeric_epsilon * messages
    if epsilon < numeric:
        return 1.0
    cells = mechanism.blanket()
    base, mass = math.exp(cells.log_gamma), math.exp(mechanism.log_mass)
    rest = messages * (users - 1)
    least = [int(n) for n in binom.ppf(_QUANTILES, rest, base)]
    given_up = float(binom.cdf(least[0] - 1, rest, base))
    shares = np.diff([given_up, *binom.cdf(np.array(least[1:]) - 1, rest, base), 1.0])
    delta = given_up + sum(
        max(0.0, float(share)) * _delta_among(mass, base, messages, n, epsilon - numeric)
        for n, share in zip(least, shares, strict=True)
    )
    lost = price(epsilon, users * messages * mechanism.guarantee.numeric_delta)
    return min(1.0, delta * math.exp(numeric) + lost)


def _delta_among(mass: float, base: float, messages: int, uniform: int, epsilon: float) -> float:
    """Return δ(ε) of the pair of disjoint caps of this mass among `uniform` rows, each outside both caps or in one.

    `base` is the low density.
    """
    mean = uniform * mass
    reach = _DEVIATIONS * math.sqrt(mean + 1) + 20
    low, high = max(0, math.floor(mean - reach)), min(uniform, math.ceil(mean + reach))
    outside = 2 * float(binom.cdf(low - 1, uniform, mass) + binom.sf(high, uniform, mass))  # of A, and of B
    others = _trinomial(uniform, mass, mass, range(low, high + 1))
    own = _trinomial(messages, 1.0 - base * (1.0 - mass), base * mass, range(messages + 1))
    size = len(others) + messages
    law = np.zeros((size, size))  # of (A - low, B - low) under x; under x' transposed
    for i, j in zip(*np.nonzero(own), strict=True):
        law[i : i + len(others), j : j + len(others)] += own[i, j] * others
    most, least = law * (1 + _ARITHMETIC), law.T * (1 - _ARITHMETIC)
    return float(np.maximum(most - math.exp(epsilon) * least, 0.0).sum()) + outside * (1 + _ARITHMETIC)


def _trinomial(rows: int, first: float, second: float, counts: range) -> FloatArray:
    """Return P(a and b of `rows` rows fall into two cells of these masses), a and b of `counts`: (C, C)."""
    a, b = np.meshgrid(np.array(counts), np.array(counts), indexing="ij")
    left = rows - a - b
    third = max(0.0, 1.0 - first - second)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_third = np.where(left > 0, left * np.log(third), 0.0)
        logs = gammaln(rows + 1) - gammaln(a + 1) - gammaln(b + 1) - gammaln(np.maximum(left, 0) + 1)
        logs = logs + a * math.log(first) + b * math.log(second) + log_third
    return np.where(left >= 0, np.exp(logs), 0.0)

"""Inverse of the ladder: from a central (ε, δ) to local parameters, splits of a budget, and numbers of users."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from scipy.optimize import minimize_scalar

from mechanisms import checks
from mechanisms.accounting.blanket import SLACK, blanket_delta
from mechanisms.accounting.compose import compose
from mechanisms.accounting.generic import LEAST_DELTA
from mechanisms.accounting.shuffle import (
    central_epsilon,
    generic_epsilon,
    group_factor,
    joint_blanket,
    price,
    sampler_errors,
)
from mechanisms.accounting.truncated import fits_truncated
from mechanisms.mechanism import Mechanism
from mechanisms.privunit import MAX_EPSILON, PrivUnit

#: Range of local ε that is searched, in a mechanism's own units. The ends are valid answers.
LEAST, MOST = 1e-3, 1000.0
#: Relative distance of an answer from the largest that fits.
TOLERANCE = 2e-3
#: Largest number of users: more than there are people.
MOST_USERS = 10**10

#: D of a planned PrivUnit while D is unknown, and the margin of its ε below the requested one.
_PLANNED_AT, _MARGIN = 64, 1e-3

Build = Callable[[float], Sequence[Mechanism]]


@dataclass(frozen=True)
class Target:
    """Central budget: (ε, δ) for one user of `records` records, in `stages` shuffled stages of `users` each.

    Attributes:
        epsilon: Central ε in nats, above 0.
        delta: δ in (0, 1).
        users: Users of one crowd (`shuffle.amplify`), delivered, not invited. None without a shuffler; the budget is
            then the user's local one.
        records: Records of a user.
        stages: Stages in which every record is released.
    """

    epsilon: float
    delta: float
    users: int | None
    records: int = 1
    stages: int = 1

    def __post_init__(self) -> None:
        if not checks.real("plan", "epsilon", self.epsilon, 0, MOST) > 0:
            raise ValueError("plan: epsilon must be above 0, got 0")
        if not 0 < checks.real("plan", "delta", self.delta, 0, 1) < 1:
            raise ValueError(f"plan: delta must be above 0 and below 1, got {self.delta:g}")
        for name in ("users", "records", "stages"):
            value = getattr(self, name)
            if value is not None or name != "users":
                checks.integer("plan", name, value, 1, MOST_USERS)

    @property
    def one_record(self) -> tuple[float, float]:
        """Return the (ε, δ) that one record's release in one stage may cost.

        `central.central_epsilon` makes this target of it.
        """
        epsilon = self.epsilon / (self.stages * self.records)
        return epsilon, self.delta / self.stages / group_factor(epsilon, self.records)


def fits(mechanisms: Sequence[Mechanism], target: Target) -> bool:
    """Return True if one linked release of all the mechanisms, for each record and stage, is within the target.

    Either the local ε fits (the exact composition of all that a user releases), or a shuffled one by the bounds of
    `shuffle.amplify`. The blanket bounds are evaluated as δ at the target's ε, which is faster than ε at δ. The
    samplers' numeric ε is in all of them, as in `shuffle.amplify`: ε includes it, and δ the factor e^numeric. With
    amplification, δ includes the samplers of all users.
    """
    guarantees = [mechanism.guarantee for mechanism in mechanisms]
    if any(math.isinf(g.worst_case(target.delta)) for g in guarantees):
        return False
    if _hidden(mechanisms, target):
        return True
    repeats = target.records * target.stages
    if target.users is not None and target.users > 1 and _amplified(tuple(mechanisms), target):
        return True
    if sum(g.worst_case(target.delta) for g in guarantees) * repeats > 1e6:
        return False  # far above any budget, and slow to convolve
    share = target.delta * math.exp(-sampler_errors(mechanisms, 1)[0] * repeats)
    if any(mechanism.privacy_loss().epsilon_optimistic(share) > target.epsilon for mechanism in mechanisms):
        return False  # one release alone costs more
    local = compose([(mechanism, repeats) for mechanism in mechanisms], delta=share)
    return bool(local.epsilon <= target.epsilon)


def _amplified(mechanisms: tuple[Mechanism, ...], target: Target) -> bool:
    """Return True if a bound that `_hidden` has not evaluated is within the target.

    For one stage these are the blanket's, truncated or without the outputs of largest U, and the generic ones. For
    several stages their composition is included.
    """
    assert target.users is not None
    if target.stages == 1:
        epsilon, delta = target.one_record
        numeric, lost = sampler_errors(mechanisms, target.users)
        cells, near = joint_blanket(mechanisms), epsilon - numeric
        rest = (delta - price(epsilon, lost)) * math.exp(-numeric)
        if cells is not None and 0 <= near <= 700 and rest > 0:
            if blanket_delta(cells, target.users, near, slack=rest * SLACK) <= rest:
                return True
            if fits_truncated(cells, target.users, near, rest):
                return True
        shuffled = generic_epsilon(mechanisms, users=target.users, delta=delta) if delta >= LEAST_DELTA else None
        return shuffled is not None and shuffled <= epsilon
    shuffled, _ = central_epsilon(
        mechanisms,
        users=target.users,
        delta=target.delta,
        records=target.records,
        stages=target.stages,
    )
    return shuffled is not None and shuffled <= target.epsilon


def plan(
    build: Build, target: Target, *, least: float = LEAST, most: float = MOST, tolerance: float = TOLERANCE
) -> float | None:
    """Return the largest local ε in [least, most], within `tolerance`, whose mechanisms fit the target, or None.

    `build` maps ε to the mechanisms of one linked release, as
    `lambda e: [Purkayastha(16, e), RandomizedResponse(1.0, 2)]`.
    """
    return largest(lambda epsilon: fits(build(epsilon), target), least=least, most=most, tolerance=tolerance)


@lru_cache(maxsize=64)
def privunit_of(epsilon: float, delta: float, users: int) -> PrivUnit | None:
    """Return the best PrivUnit whose shuffled cost is at most `epsilon` for users who answer together, or None.

    Its cost is below `epsilon` by a small margin, so a ladder, which computes on another grid, never shows more. D is
    64; the ε0 and p of the result hardly depend on it.
    """
    epsilon = checks.real("plan", "epsilon", epsilon, 0, MOST)
    return best_privunit(_PLANNED_AT, Target(epsilon * (1 - _MARGIN), delta, users))


def best_privunit(dim: int, target: Target, *, tolerance: float = TOLERANCE) -> PrivUnit | None:
    """Return the PrivUnit of D = dim with the least error of the mean among those that fit the target, or None.

    The error of a mean of n draws is at most 1/(scale²·n), so the search maximizes the scale. It runs over cap
    probabilities p, and for each over the largest ε0 that fits. The best p for a central ε is not the best for ε0
    alone: a larger p has a smaller cap, into which fewer of the others' draws fall. The mechanism's own blanket
    decides, which no generic bound beats. The answer itself was evaluated and fits. `target.users` is of one crowd, not
    None.
    """
    results: dict[float, tuple[float, PrivUnit | None]] = {}

    def loss(probability: float) -> float:
        p = round(probability, 3)
        if p not in results:
            least = max(LEAST, math.log(p / (1 - p)) + 1e-9)
            build = partial(PrivUnit, dim, cap_probability=p)
            epsilon = largest(lambda e: _hidden([build(e)], target), least=least, most=MAX_EPSILON, tolerance=tolerance)
            best = None if epsilon is None else build(epsilon)
            results[p] = (0.0 if best is None else best.scale, best)
        return -results[p][0]

    for p in (0.5, 0.7, 0.85):
        loss(p)
    start = max(results, key=lambda p: results[p][0])
    minimize_scalar(loss, bounds=(start - 0.15, min(start + 0.15, 0.995)), method="bounded", options={"xatol": 4e-3})
    best = max(results.values(), key=lambda answer: answer[0])[1]
    if best is None or target.stages == 1:
        return best
    # several stages compose to less than their sum; this is slow, so only the p that was found is tried
    again = partial(PrivUnit, dim, cap_probability=best.cap_probability)
    epsilon = largest(lambda e: fits([again(e)], target), least=best.epsilon, most=MAX_EPSILON, tolerance=tolerance)
    return best if epsilon is None else again(epsilon)


def _hidden(mechanisms: Sequence[Mechanism], target: Target) -> bool:
    """Return True if the release is within the target by its worst case, or by its blanket at the target's ε."""
    if sum(m.guarantee.worst_case() for m in mechanisms) * target.records * target.stages <= target.epsilon:
        return True
    cells = None if target.users is None or target.users == 1 else joint_blanket(mechanisms)
    if cells is None or target.users is None:
        return False
    epsilon, delta = target.one_record
    numeric, lost = sampler_errors(mechanisms, target.users)
    if not numeric <= epsilon <= 700:  # range of `blanket_delta`
        return False
    return blanket_delta(cells, target.users, epsilon - numeric) * math.exp(numeric) + price(epsilon, lost) <= delta


def largest(
    fitting: Callable[[float], bool], *, least: float = LEAST, most: float = MOST, tolerance: float = TOLERANCE
) -> float | None:
    """Return the largest number in [least, most], within `tolerance`, that fits, or None.

    The search is a bisection on the logarithm. The answer itself was evaluated and fits. So it is safe even if the cost
    is not monotone, though it may then miss a larger one.
    """
    if not 0 < least < most:
        raise ValueError(f"plan: least must be above 0 and below most, got {least:g} and {most:g}")
    if not fitting(least):
        return None
    # Doubles upwards: large ε are slow to refuse, and most plans end far below them.
    low = high = least
    while high < most:
        high = min(2 * high if high >= 0.25 else 0.5, most)
        if not fitting(high):
            break
        low = high
    else:
        return most
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        if fitting(middle):
            low = middle
        else:
            high = middle
    return low


def users_needed(
    mechanisms: Sequence[Mechanism],
    *,
    epsilon: float,
    delta: float,
    records: int = 1,
    stages: int = 1,
    tolerance: float = 0.01,
) -> int | None:
    """Return the least number of users of one crowd, within `tolerance`, at which the mechanisms fit a central (ε, δ).

    It is 1 if they fit without a shuffler, and None if 10^10 do not suffice. The answer itself was evaluated and fits.
    """

    def enough(users: int) -> bool:
        return fits(mechanisms, Target(epsilon, delta, users, records, stages))

    if enough(1):
        return 1
    low, high = 1, 1000
    while not enough(high):
        if high >= MOST_USERS:
            return None
        low, high = high, min(10 * high, MOST_USERS)
    while high - low > max(1, int(high * tolerance)):
        middle = math.isqrt(low * high)
        if middle in (low, high):
            middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high

"""The same question put to dp-accounting's accountants, their answers beside ours, and the reason where they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mechanisms.gaussian import Gaussian
from mechanisms.mechanism import Mechanism
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import PlanarLaplace
from simulations.analysis.budget import composed, described
from simulations.errors import UserError

#: Answers this near each other differ by discretization alone.
_SAME = 2e-3
#: Releases that are composed one by one.
_MOST = 1000

_NO_EVENT = "it has no event for this mechanism, and none for a shuffler"
_SCALAR = (
    "its Laplace noise is a number, whose loss is the largest, 2ε, half of the time; in R^m the noise's direction "
    "matters, and the loss comes near 2ε only along the line of the two inputs"
)
_MOMENTS = "Rényi divergences are known at some orders alone, and turning them into (ε, δ) loses"
_COUNT = "its accountant leaves out how often a randomized response is repeated: so many at once cost it as much as one"
_SUBSAMPLED = "no release here is subsampled: whoever is asked answers, and what hides them is the shuffler"


def compare(
    released: Sequence[Mechanism], *, times: int, delta: float, sampling: float | None = None
) -> dict[str, Any]:
    """{"mechanism", "times", "delta", "sampling", "ours", "answers"} of so many releases of one mechanism, unshuffled.

    sampling: of Gaussian noise, the chance that a user is in a Poisson sample. An answer is {"accountant", "epsilon",
    "reason"}, ε None where it has none, the reason why it differs from ours ("" where it does not). UserError.
    """
    if len(released) != 1:
        raise UserError("budget compare: one mechanism at a time; leave out --label-epsilon")
    if not 1 <= times <= _MOST:
        raise UserError(f"--times: must be from 1 to {_MOST:,}, got {times}")
    (mechanism,) = released
    if sampling is not None and not (isinstance(mechanism, Gaussian) and 0 < sampling < 1):
        raise UserError("--sampling: a share above 0 and below 1, of gaussian alone")
    ours = None if sampling is not None else composed(released, times=times, delta=delta, method="pld")
    event, relation = _event(mechanism, sampling)
    answers = []
    for name, accountant, one_by_one in _ACCOUNTANTS:
        epsilon = None if event is None else _asked(accountant(relation), event, times, delta, one_by_one)
        reason = _NO_EVENT if event is None else _reason(mechanism, name, ours, epsilon, sampling)
        answers.append({"accountant": name, "epsilon": epsilon, "reason": reason})
    return {
        "mechanism": described(mechanism), "times": times, "delta": delta, "sampling": sampling, "ours": ours,
        "answers": answers,
    }  # fmt: skip


def _event(mechanism: Mechanism, sampling: float | None) -> tuple[Any, Any]:
    """dp-accounting's event of one release at worst, and the neighbouring relation to ask for; None where it has none.

    Unit vectors are 2 apart at most, which is what its noise multipliers are relative to.
    """
    import dp_accounting as theirs

    added, replaced = theirs.NeighboringRelation.ADD_OR_REMOVE_ONE, theirs.NeighboringRelation.REPLACE_ONE
    if isinstance(mechanism, Gaussian):
        event = theirs.GaussianDpEvent(mechanism.sigma / 2)
        return (event if sampling is None else theirs.PoissonSampledDpEvent(sampling, event)), added
    if isinstance(mechanism, PlanarLaplace):
        return theirs.LaplaceDpEvent(1 / (2 * mechanism.epsilon)) if mechanism.epsilon else None, added
    if isinstance(mechanism, RandomizedResponse):
        k = mechanism.classes
        return theirs.RandomizedResponseDpEvent(k / (math.exp(mechanism.epsilon) + k - 1), k), replaced
    return None, added


def _pld(relation: Any) -> Any:
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(relation)


def _rdp(relation: Any) -> Any:
    from dp_accounting.rdp import RdpAccountant

    return RdpAccountant(neighboring_relation=relation)


#: Its accountants: name, how one is made, and whether releases are given to it one by one.
_ACCOUNTANTS: tuple[tuple[str, Callable[[Any], Any], bool], ...] = (
    ("PLDAccountant", _pld, False), ("PLDAccountant, one by one", _pld, True), ("RdpAccountant", _rdp, False)
)  # fmt: skip


def _asked(accountant: Any, event: Any, times: int, delta: float, one_by_one: bool) -> float:
    if one_by_one:
        for _ in range(times):
            accountant.compose(event)
    else:
        accountant.compose(event, times)
    return float(accountant.get_epsilon(delta))


def _reason(
    mechanism: Mechanism, name: str, ours: float | None, epsilon: float | None, sampling: float | None
) -> str:
    if sampling is not None:
        return _SUBSAMPLED
    if ours is None or epsilon is None or abs(epsilon - ours) <= _SAME * max(ours, epsilon, 1e-3):
        return ""
    if isinstance(mechanism, RandomizedResponse) and epsilon < ours:
        return _COUNT
    reasons = [_SCALAR] if isinstance(mechanism, PlanarLaplace) else []
    return "; ".join(reasons + [_MOMENTS] * (name == "RdpAccountant"))

"""Comparison with dp-accounting's accountants: their ε beside ours, and the reason for each difference."""

from __future__ import annotations

import logging
import math
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mechanisms.accounting import pld
from mechanisms.gaussian import Gaussian
from mechanisms.mechanism import Mechanism
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import PlanarLaplace
from simulations.analysis.budget import composed, described
from simulations.errors import UserError

#: Relative difference that discretization alone explains.
_SAME = 2e-3
#: Largest number of releases, since some accountants compose them one by one.
_MOST = 1000
#: Bytes that an accountant may allocate. It keeps one point for each 10^-4 nats, without a limit.
_MEMORY = 4 * 2**30

_NO_EVENT = "it has no event for this mechanism, and none for a shuffler"
_SCALAR = (
    "its Laplace noise is a number, whose loss is the largest, 2ε, half of the time; in R^m the noise's direction "
    "matters, and the loss comes near 2ε only along the line of the two inputs"
)
_MOMENTS = "Rényi divergences are known at some orders alone, and turning them into (ε, δ) loses"
_COUNT = "its accountant leaves out how often a randomized response is repeated: so many at once cost it as much as one"
_TOO_LARGE = f"not asked to the end: it would take more than {_MEMORY // 2**30} GiB of memory"
_COARSE = "its loss distributions are rounded up more coarsely, to 10^-4 nats a release"
_SUBSAMPLED = "no release here is subsampled: whoever is asked answers, and what hides them is the shuffler"


def compare(
    released: Sequence[Mechanism], *, times: int, delta: float, sampling: float | None = None
) -> dict[str, Any]:
    """Return the ε of repeated releases of one mechanism, unshuffled, by our accountant and by those of dp-accounting.

    The keys are "mechanism", "times", "delta", "sampling", "ours" and "answers". An answer has "accountant", "epsilon"
    (None if there is none) and "reason" ("" if it agrees with ours).

    Args:
        released: The mechanism, alone.
        times: Number of releases.
        delta: δ of the composition.
        sampling: Probability of Poisson sampling, for Gaussian noise only.

    Raises:
        UserError: The arguments do not fit together.
    """
    if len(released) != 1:
        raise UserError("budget compare: one mechanism at a time; leave out --label-epsilon")
    if not 1 <= times <= _MOST:
        raise UserError(f"--times: must be from 1 to {_MOST:,}, got {times}")
    (mechanism,) = released
    if sampling is not None and not (isinstance(mechanism, Gaussian) and 0 < sampling < 1):
        raise UserError("--sampling: a share above 0 and below 1, of gaussian alone")
    ours = None if sampling is not None else composed(released, times=times, delta=delta, method="least")
    event, relation = _event(mechanism, sampling)
    answers = []
    for name, accountant, one_by_one in _ACCOUNTANTS:
        epsilon, reason = None, _NO_EVENT
        if event is not None:
            try:
                with _bounded():
                    epsilon = _asked(accountant(relation), event, times, delta, one_by_one)
                counts = one_by_one or times == 1 or name == "RdpAccountant"
                reason = _SUBSAMPLED if ours is None else _reason(mechanism, name, counts, ours, epsilon, times, delta)
            except MemoryError:
                reason = _TOO_LARGE
        answers.append({"accountant": name, "epsilon": epsilon, "reason": reason})
    return {
        "mechanism": described(mechanism),
        "times": times,
        "delta": delta,
        "sampling": sampling,
        "ours": ours,
        "answers": answers,
    }


def _event(mechanism: Mechanism, sampling: float | None) -> tuple[Any, Any]:
    """Return dp-accounting's event of one release in the worst case, and its neighbouring relation.

    Unit vectors are at most 2 apart, and its noise multipliers are relative to that. The event is None if it has none.
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


#: Accountants: name, constructor, and True if releases are composed one by one.
_ACCOUNTANTS: tuple[tuple[str, Callable[[Any], Any], bool], ...] = (
    ("PLDAccountant", _pld, False),
    ("PLDAccountant, one by one", _pld, True),
    ("RdpAccountant", _rdp, False),
)


def _asked(accountant: Any, event: Any, times: int, delta: float, one_by_one: bool) -> float:
    if one_by_one:
        for _ in range(times):
            accountant.compose(event)
    else:
        accountant.compose(event, times)
    return float(accountant.get_epsilon(delta))


@contextmanager
def _bounded() -> Iterator[None]:
    """Limit the memory to _MEMORY more, and suppress the accountants' warnings."""
    disabled, (soft, hard) = logging.root.manager.disable, resource.getrlimit(resource.RLIMIT_AS)
    logging.disable(logging.WARNING)
    try:
        pages = Path("/proc/self/statm")
        if pages.exists():  # other systems do not report the memory in use
            most = int(pages.read_text().split()[0]) * resource.getpagesize() + _MEMORY
            limits = [limit for limit in (most, soft, hard) if limit != resource.RLIM_INFINITY]
            resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        logging.disable(disabled)


def _reason(
    mechanism: Mechanism, name: str, counts: bool, ours: float, epsilon: float, times: int, delta: float
) -> str:
    """Return the reason why its ε differs from ours, or "". `counts` is True if it counts every release."""
    if abs(epsilon - ours) <= _SAME * max(ours, epsilon, 1e-3):
        return ""
    if epsilon > ours:
        reasons = [_SCALAR] if isinstance(mechanism, PlanarLaplace) else []
        return "; ".join(reasons + [_MOMENTS] * (name == "RdpAccountant")) or _COARSE
    if isinstance(mechanism, RandomizedResponse) and not counts:
        return _COUNT
    least = pld.compose([(mechanism.privacy_loss(), times)], pessimistic=False).epsilon(delta)
    if epsilon < least * (1 - _SAME):
        return f"it is below the truth, which is at least ε = {least:.4g}"
    return f"ours is rounded up: the truth is at least ε = {least:.4g}"

"""What a user's data cost after the shuffler: several records by group privacy, several stages by composition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from mechanisms.accounting.clone_pair import LEAST_DELTA
from mechanisms.accounting.rounds import rounds_epsilon
from mechanisms.accounting.shuffle import Amplification, amplify, joint_blanket
from mechanisms.accounting.with_sampler_error import with_sampler_error
from mechanisms.mechanism import Mechanism

#: At most so many looks for the δ that group privacy may spend on one record.
_LOOKS = 12


@lru_cache(maxsize=256)
def central_epsilon(
    mechanisms: tuple[Mechanism, ...], *, users: int, delta: float, records: int = 1, stages: int = 1,
    bracketed: bool = True,
) -> tuple[float | None, Mapping[str, Any]]:  # fmt: skip
    """(ε, details) at δ of one user of k records in r shuffled stages, in each among `users` of one crowd; None: no
    amplification.

    The r stages have δ/r each and add up, or, of one record each and where there is a blanket, their profiles are
    composed exactly (`accounting.rounds`), if that is less. In a stage, records are exchanged one at a time: k
    steps of (ε, δ') make (k·ε, δ'·(e^(kε) - 1)/(e^ε - 1)), and δ' is what that leaves. n counts users, though there
    may be more rows: further rows are drawn independently, which is post-processing. bracketed: of `shuffle.amplify`,
    for who reads the details.
    """
    step = delta / stages
    share = step / records
    for _ in range(_LOOKS):
        if share < LEAST_DELTA:
            break
        answer: Amplification = amplify(mechanisms, users=users, delta=share, lower_bounded=False, bracketed=bracketed)
        if not answer.epsilon < answer.local_epsilon:
            return None, answer.to_dict()
        growth = group_factor(answer.epsilon, records)
        if share * growth <= step * (1 + 1e-12):
            details = answer.to_dict()
            if records * stages > 1:
                details |= {"records": records, "stages": stages, "delta_of_one_record": share}
            epsilon = answer.epsilon * records * stages
            together = _rounds(mechanisms, users, stages, delta) if stages > 1 and records == 1 else None
            if together is not None and together < epsilon:
                epsilon, details = together, details | {"stages_composed": together}
            return epsilon, details
        share = min(share, step / growth) * (1 - 1e-6)
    return None, {"records": records, "stages": stages}


def _rounds(mechanisms: Sequence[Mechanism], users: int, stages: int, delta: float) -> float | None:
    """ε of the stages' blanket profiles composed; None where there is no blanket, or it does not amplify.

    The samplers' numeric ε of a release, e, is in it as in `shuffle.amplify`: `joint_blanket` has it, a δ is less by
    e^-e for each stage, and ε is e more for each. δ holds all stages' samplers.
    """
    cells = joint_blanket(mechanisms)
    if cells is None:
        return None
    numeric = sum(mechanism.guarantee.numeric_epsilon for mechanism in mechanisms)
    lost = users * stages * sum(mechanism.guarantee.numeric_delta for mechanism in mechanisms)
    factor = math.exp(numeric * stages)

    def bound(d: float) -> float | None:
        return rounds_epsilon([(cells, users, stages)], d)

    epsilon = with_sampler_error(bound, delta / factor, lost * factor**2)
    return None if epsilon is None or not math.isfinite(epsilon) else epsilon + numeric * stages


def group_factor(epsilon: float, records: int) -> float:
    """(e^(kε) - 1)/(e^ε - 1), by how much k steps of (ε, δ) multiply δ: 1 + e^ε + ... + e^((k-1)ε)."""
    if records == 1 or epsilon == 0:
        return float(records)
    exponent = (records - 1) * epsilon
    if exponent > 700:
        return math.inf
    return math.exp(exponent) * math.expm1(-records * epsilon) / math.expm1(-epsilon)

"""Central ε of a user after the shuffler: several records by group privacy, several stages by composition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from mechanisms.accounting.generic import LEAST_DELTA
from mechanisms.accounting.rounds import rounds_epsilon
from mechanisms.accounting.shuffle import Amplification, amplify, joint_blanket
from mechanisms.accounting.with_sampler_error import with_sampler_error
from mechanisms.mechanism import Mechanism

#: Attempts to find the δ that group privacy may spend on one record.
_LOOKS = 12


@lru_cache(maxsize=256)
def central_epsilon(
    mechanisms: tuple[Mechanism, ...],
    *,
    users: int,
    delta: float,
    records: int = 1,
    stages: int = 1,
) -> tuple[float | None, Mapping[str, Any]]:
    """Return (ε, details) at δ of one user of k records in r shuffled stages; ε is None without amplification.

    The stages get δ/r each and their ε add up. With one record each and a blanket, the profiles of the stages are also
    composed exactly (`accounting.rounds`), and the smaller ε counts. In a stage, records are exchanged one at a time: k
    steps of (ε, δ') make (k·ε, δ'·(e^(kε) - 1)/(e^ε - 1)), and δ' is chosen accordingly. n counts users even if there
    are more rows: further rows are drawn independently, which is post-processing.

    Args:
        mechanisms: Mechanisms of one record's linked release.
        users: n, the users of one crowd in each stage.
        delta: δ of all stages.
        records: k, the records of the user.
        stages: r, the stages.
    """
    step = delta / stages
    share = step / records
    for _ in range(_LOOKS):
        if share < LEAST_DELTA:
            break
        answer: Amplification = amplify(mechanisms, users=users, delta=share)
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
    """Return ε of the composed blanket profiles of the stages, or None without a blanket or amplification.

    The samplers' numeric ε of a release, e, is included as in `shuffle.amplify`: `joint_blanket` has it, δ is reduced
    by e^-e for each stage, and ε is increased by e for each. δ includes the samplers of all stages.
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
    """Return (e^(kε) - 1)/(e^ε - 1) = 1 + e^ε + ... + e^((k-1)ε), the factor on δ of k steps of (ε, δ)."""
    if records == 1 or epsilon == 0:
        return float(records)
    exponent = (records - 1) * epsilon
    if exponent > 700:
        return math.inf
    return math.exp(exponent) * math.expm1(-records * epsilon) / math.expm1(-epsilon)

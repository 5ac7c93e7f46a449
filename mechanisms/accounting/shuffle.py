"""Amplification by shuffling: three bounds, and the least of them.

Each of n users sends one linked release (all its channels together, one message). A trusted shuffler permutes the n
messages. Two data sets are neighbours if one user's inputs differ. The bounds, by their published names:

blanket               the blanket divergence of the mechanisms themselves, by FFT (`accounting.blanket`)
blanket_truncated     the same with a far larger blanket, at a price in δ (`accounting.truncated`)
variation_ratio       from ε0 and the total variation β of the worst pair (`accounting.generic`)

ε0 is the sum of the channels' worst cases. The last bound needs a finite ε0, so it does not apply to Gaussian noise.

All bounds require that the n users have one randomizer. Users who differ in what leaves in clear beside the release
have none: whatever their inputs are, their messages cannot be equal. So n is the crowd, the users who agree in it; the
others' messages do not depend on the target's input. (`accounting.ladder` knows what leaves in clear, this module does
not.) The users must also be honest: a user who reveals what they sent hides nobody. A label mechanism with a prior of
its own for each record is the same randomizer for all only as part of a joint one, with the prior a public function of
the embedding released with it. Without that embedding the priors, and with them the possible labels, may differ between
users, and there is no amplification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial, reduce
from typing import Any

from mechanisms.accounting.blanket import blanket_epsilon
from mechanisms.accounting.compose import compose
from mechanisms.accounting.generic import LEAST_DELTA, check_arguments, variation_ratio
from mechanisms.accounting.rounds import rounds_epsilon
from mechanisms.accounting.truncated import truncated_epsilon
from mechanisms.arrays import FloatArray
from mechanisms.channels import Domain, domain_of
from mechanisms.losses.blanket_cells import BlanketCells
from mechanisms.losses.loss import LossCells
from mechanisms.mechanism import Mechanism

NAMES = ("blanket", "blanket_truncated", "variation_ratio")
#: Most cells of a joint release from whose distribution anything is computed.
_MOST_CELLS = 4_000_000
_LARGEST = 600.0
#: Attempts to find the δ that group privacy may spend on one record.
_LOOKS = 12
#: Least and largest share of δ that is set aside for the samplers. The least moves no ε by 1e-5 of itself, and usually
#: suffices: a repeated search takes as long as the first.
_LEAST, MOST = 1e-5, 0.5


@dataclass(frozen=True)
class Amplification:
    """Cost of one linked release of each of `users` users after the shuffler, at `delta`.

    Attributes:
        users: Users of the crowd.
        delta: δ of every ε.
        local_worst_case: ε0 in nats, the sum of the channels' worst cases at δ = 0; inf if there is none.
        local_epsilon: Exact local ε at `delta`, before the shuffler; inf if a channel is unprotected.
        bounds: ε by each name of `NAMES`. None is no amplification: the bound's condition fails, it is not below ε0
            (blankets: not below local_epsilon), or there is no such bound for these mechanisms.
        epsilon: Least of local_epsilon and the bounds.
        total_variation: β of the worst pair.
        sampler_delta: Users times the samplers' numeric δ, the probability that any output is not the theorem's. The δ
            of every amplified bound includes it (`with_sampler_error`), and every ε the samplers' numeric ε.
        reason: Reason why nothing is amplified, or "".
    """

    users: int
    delta: float
    local_worst_case: float
    local_epsilon: float
    bounds: dict[str, float | None]
    epsilon: float
    total_variation: float
    sampler_delta: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form. Infinity is "inf", and no amplification is None."""
        return {name: json_ready(value) for name, value in (asdict(self) | {"reason": self.reason or None}).items()}


def amplify(
    mechanisms: Sequence[Mechanism], *, users: int, delta: float, declared: Iterable[str] = ()
) -> Amplification:
    """Return the central ε at `delta` of ONE linked release of all the mechanisms by each of `users` users, shuffled.

    Args:
        mechanisms: Mechanisms of the linked release.
        users: The crowd, at least 1: users who were delivered, validated, honest, and equal to the target in all that
            leaves in clear, the target included. Invited users do not count.
        delta: From 1e-290 to 1.
        declared: Exposures that are declared public, in which the crowd agrees.

    Raises:
        ValueError: An argument is out of range, there is no mechanism, or one has no loss distribution.
    """
    mechanisms = tuple(mechanisms)
    if not mechanisms:
        raise ValueError("shuffle: nothing is released; give at least one mechanism")
    check_arguments(0.0, users, delta)
    if delta < LEAST_DELTA:
        raise ValueError(f"shuffle: delta must be at least {LEAST_DELTA:g}, got {delta:g}")
    users = int(users)
    for mechanism in mechanisms:
        if not hasattr(mechanism, "privacy_loss"):
            raise ValueError(f"shuffle: {getattr(mechanism, 'name', mechanism)!r} has no loss distribution")
    declared = tuple(declared)
    guarantees = [mechanism.guarantee.given(declared) for mechanism in mechanisms]
    worst = math.fsum(g.worst_case() for g in guarantees)
    # Each sampler's densities are within e^(±numeric/2) of the theorem's, but for one factor of all of them, again at
    # most e^(numeric/2) (`accounting.truncated`): ε is off by numeric, δ by e^numeric.
    numeric, lost = sampler_errors(mechanisms, users)
    share = delta * math.exp(-numeric)
    unprotected = any(math.isinf(g.worst_case(delta)) for g in guarantees)
    local, beta = (math.inf, 1.0) if unprotected else _local(mechanisms, worst, numeric, share, declared)

    # bounds for exact samplers, with the numeric ε that they leave out
    candidates: dict[str, tuple[Callable[[float], float | None], float]] = {}
    if math.isfinite(worst) and _one_randomizer(mechanisms):
        candidates["variation_ratio"] = partial(variation_ratio, worst, beta, users), 0.0
    # no other user sends a message that hides a single user's
    # above e^600 float64 has no e^ε, and a blanket of so little mass amplifies for no number of users
    cells = None if unprotected or users == 1 or local == 0 or local > _LARGEST else joint_blanket(mechanisms)
    if cells is not None:
        candidates["blanket_truncated"] = partial(truncated_epsilon, cells, users), numeric
        candidates["blanket"] = partial(blanket_epsilon, cells, users), numeric
    bounds: dict[str, float | None] = dict.fromkeys(NAMES)
    for name, (bound, off) in candidates.items():
        # (1 + e^(ε + off))·lost, over the e^off by which this δ is less; a factor on the safe side
        epsilon = with_sampler_error(bound, delta * math.exp(-off), lost * math.exp(2 * off))
        if epsilon is not None and (name == "variation_ratio" or epsilon + off < local):
            bounds[name] = epsilon + off
    reason = ""
    if all(value is None or value >= local for value in bounds.values()):
        if users == 1:
            reason = "one user alone has nobody to hide among"
        elif unprotected:
            reason = "a channel is sent unprotected"
        elif not _one_randomizer(mechanisms):
            reason = "priors differ between users unless the embedding that they are made from is released beside"
        elif lost > 0 and any((b(delta * math.exp(-off)) or math.inf) < local for b, off in candidates.values()):
            reason = samplers_reason(lost, delta)
        else:
            reason = "no bound is below the local ε"
    return Amplification(
        users=users,
        delta=float(delta),
        local_worst_case=worst,
        local_epsilon=local,
        bounds=bounds,
        epsilon=min([local, *(value for value in bounds.values() if value is not None)]),
        total_variation=beta,
        sampler_delta=min(1.0, lost),
        reason=reason,
    )


@lru_cache(maxsize=256)
def central_epsilon(
    mechanisms: tuple[Mechanism, ...],
    *,
    users: int,
    delta: float,
    records: int = 1,
    stages: int = 1,
    declared: tuple[str, ...] = (),
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
        declared: Exposures that are declared public.
    """
    step = delta / stages
    share = step / records
    for _ in range(_LOOKS):
        if share < LEAST_DELTA:
            break
        answer: Amplification = amplify(mechanisms, users=users, delta=share, declared=declared)
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
    numeric, lost = sampler_errors(mechanisms, users * stages)
    factor = math.exp(numeric * stages)

    def bound(d: float) -> float | None:
        return rounds_epsilon(cells, users, stages, d)

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


def with_sampler_error(bound: Callable[[float], float | None], delta: float, lost: float) -> float | None:
    """Return ε at δ of a bound (δ' -> ε, or None), with samplers whose total variation t is `lost` included.

    It is None if the bound has none, or the samplers take more than half of δ.

    **Theorem.** Let P, Q be (ε, δ')-indistinguishable, and let the samplers' P~, Q~ be within t of them in total
    variation. Then P~(O) <= P(O) + t <= e^ε·Q(O) + δ' + t <= e^ε·Q~(O) + δ' + (1 + e^ε)·t for every event O. For n
    users t is n times one user's, one after the other.
    """
    if lost == 0:
        return bound(delta)
    share = min(MOST, max(_LEAST, price(1.0, lost) / delta))  # enough for ε up to 1, or the most that is allowed
    while share <= MOST:
        epsilon = bound(delta * (1 - share))
        if epsilon is None or price(epsilon, lost) <= share * delta:
            return epsilon
        share = max(2 * share, 1.1 * price(epsilon, lost) / delta)
    return None


def price(epsilon: float, lost: float) -> float:
    """Return what samplers within `lost` add to δ(ε): (1 + e^ε)·lost."""
    return (1.0 + math.exp(min(epsilon, 700.0))) * lost


def samplers_reason(lost: float, delta: float) -> str:
    """Explain that samplers, within `lost` of their mechanisms for all users together, leave no room in δ."""
    return (
        f"the samplers of all users may be {min(1.0, lost):.1e} from their mechanisms in total variation, which leaves "
        f"no room in δ = {delta:g}: take fewer users, or a larger δ"
    )


def sampler_errors(mechanisms: Sequence[Mechanism], users: int) -> tuple[float, float]:
    """Return the numeric ε of one user's linked release, and the total variation of all users' samplers."""
    guarantees = [mechanism.guarantee for mechanism in mechanisms]
    return math.fsum(g.numeric_epsilon for g in guarantees), users * math.fsum(g.numeric_delta for g in guarantees)


def generic_epsilon(mechanisms: Sequence[Mechanism], *, users: int, delta: float) -> float | None:
    """Return ε of the bound from ε0 and the worst pair's total variation alone, as in `amplify`, or None."""
    worst = math.fsum(mechanism.guarantee.worst_case() for mechanism in mechanisms)
    if math.isinf(worst) or not _one_randomizer(mechanisms):
        return None
    numeric, lost = sampler_errors(mechanisms, users)
    _, beta = _local(mechanisms, worst, numeric, delta * math.exp(-numeric), ())
    return with_sampler_error(partial(variation_ratio, worst, beta, users), delta, lost)


def _local(
    mechanisms: Sequence[Mechanism], worst: float, numeric: float, delta: float, declared: Iterable[str]
) -> tuple[float, float]:
    """Return (local ε at δ, total variation of the worst pair), with the samplers' numeric ε; 1 if it is unknown."""
    losses = [mechanism.privacy_loss() for mechanism in mechanisms]
    if math.prod(len(part.low) for part in losses) > _MOST_CELLS:
        composed = compose([(mechanism, 1) for mechanism in mechanisms], delta=delta, declared=declared)
        return min(worst, composed.epsilon + numeric), 1.0
    loss = reduce(_product, losses)
    return min(worst, loss.epsilon(delta) + numeric), min(1.0, loss.delta(0.0) + math.expm1(numeric))


def _one_randomizer(mechanisms: Sequence[Mechanism]) -> bool:
    """Return True if all users' linked releases have one law given their inputs.

    Priors must come from an embedding that is released with them.
    """
    embedded = any(domain_of(mechanism) is Domain.SPHERE for mechanism in mechanisms)
    return embedded or not any(getattr(mechanism, "needs_prior", False) for mechanism in mechanisms)


def joint_blanket(mechanisms: Sequence[Mechanism]) -> BlanketCells | None:
    """Return blanket and dominating pair of the linked release, or None.

    It is None if a mechanism has no blanket, users do not have one randomizer, or there are too many cells. The blanket
    is that of the samplers: their densities may be less than the theorem's by e^-numeric.
    """
    if not all(hasattr(mechanism, "blanket") for mechanism in mechanisms) or not _one_randomizer(mechanisms):
        return None
    cells: list[BlanketCells | None] = [mechanism.blanket() for mechanism in mechanisms]  # type: ignore[attr-defined]
    parts = [part for part in cells if part is not None]
    if len(parts) < len(cells) or math.prod(len(part.log_w) for part in parts) > _MOST_CELLS:
        return None
    joint = reduce(BlanketCells.product, parts)
    numeric, _ = sampler_errors(mechanisms, 1)
    return replace(joint, log_gamma=joint.log_gamma - numeric, numeric=numeric)


def _product(one: LossCells, other: LossCells) -> LossCells:
    """Return the loss of two independent releases together, all pairs of cells."""

    def outer(first: FloatArray, second: FloatArray) -> FloatArray:
        table: FloatArray = first[:, None] + second[None, :]
        return table.ravel()

    def either(first: float, second: float) -> float:
        return first + second - first * second

    return LossCells(
        low=outer(one.low, other.low),
        high=outer(one.high, other.high),
        log_p=outer(one.log_p, other.log_p),
        log_q=outer(one.log_q, other.log_q),
        infinite=either(one.infinite, other.infinite),
        symmetric=one.symmetric and other.symmetric,
        left_out=either(one.left_out, other.left_out),
    )


def json_ready(value: Any) -> Any:
    """Return the JSON-ready form: infinity as "inf", tuples as lists, through mappings and sequences."""
    if isinstance(value, Mapping):
        return {str(k): json_ready(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(v) for v in value]
    return "inf" if value == math.inf else value

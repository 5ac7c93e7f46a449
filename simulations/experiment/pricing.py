"""Check before a run that an arm's own users would not refuse it, at the prices of their policy.

Policy, prices and refusals are the client's own. This module turns them into sentences about the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from client.policy import Policy
from mechanisms.accounting.privacy_filter import FREE, Account, Cost
from mechanisms.channels import ANSWER, EMBEDDING, LABEL, TEXT, VECTOR
from mechanisms.guarantee import EXPOSURES
from mechanisms.mechanism import Mechanism
from mechanisms.words.text import TextMechanism
from simulations.errors import UserError
from simulations.experiment.arm import Arm, answer_of, embeddings_of, label_of, trial_text_of
from simulations.experiment.names import key

#: Number of coordinates of a user vector for pricing: the price does not depend on it.
_ANY = 8


def check_arm(policy: Policy, arm: Arm, classes: int, statistic: Callable[[int], Mechanism] | None) -> None:
    """Raise UserError if the policy refuses the arm's releases other than texts, or the exposures of its texts.

    The ε of a text depends on the vocabulary: `check_text` checks it once that exists.

    Args:
        policy: The client's policy.
        arm: The arm.
        classes: Number of classes.
        statistic: Function from D to the mechanism of user vectors; None if the arm releases none.
    """
    costs = _costs(policy, arm, classes)
    if (answer := answer_of(arm, classes)) is not None:  # of users who release nothing else
        _check_costs(policy, arm, {ANSWER.name: policy.cost(answer.guarantee)})
    if statistic is not None:
        costs[VECTOR.name] = policy.cost(statistic(_ANY).guarantee)
    if arm.text is not None:
        _check_exposed(policy, arm, trial_text_of(arm))
    _check_costs(policy, arm, costs)


def check_text(policy: Policy, arm: Arm, classes: int, text: TextMechanism) -> None:
    """Raise UserError if the policy refuses the arm with this text mechanism, as it is with its vocabulary."""
    _check_exposed(policy, arm, text)
    _check_costs(policy, arm, _costs(policy, arm, classes) | {TEXT.name: policy.cost(text.guarantee)})


def _costs(policy: Policy, arm: Arm, classes: int) -> dict[str, Cost]:
    """Return by channel the charge of one record for the arm's most expensive mechanism; ε is inf if sent in clear."""
    released = {
        EMBEDDING.name: embeddings_of(arm),
        LABEL.name: [] if arm.public_only or arm.statistic is not None else [label_of(arm, classes)],
    }
    return {
        channel: max((policy.cost(m.guarantee) for m in mechanisms), key=lambda cost: cost.sums)
        for channel, mechanisms in released.items()
        if mechanisms
    }


def _check_exposed(policy: Policy, arm: Arm, text: TextMechanism) -> None:
    if TEXT.name in policy.unprotected:
        return
    if exposed := [name for name in text.guarantee.exposes if name not in policy.unprotected]:
        what = ", ".join(f"{EXPOSURES[name]} ({name})" for name in exposed)
        reasons = ", ".join(f'"{name}: ..."' for name in exposed)
        raise UserError(
            f'arm "{arm.name}": its texts pass {what} through (worst-case ε = ∞); choose another mechanism or '
            f"treatment, or give reasons in policy.accept-unprotected = [{reasons}], or set reference = true"
        )
    if math.isinf(policy.cost(text.guarantee).epsilon):
        raise UserError(_unprotected(arm, TEXT.name))


def _check_costs(policy: Policy, arm: Arm, costs: dict[str, Cost]) -> None:
    record = Account.empty(1)
    for channel, cost in costs.items():
        refusal = policy.refusal(channel, cost)
        if refusal == "unprotected":
            raise UserError(_unprotected(arm, channel))
        if refusal == "channel":
            limit = policy.limit(channel)
            raise UserError(
                f'arm "{arm.name}": {key(channel)}: worst-case ε {cost.epsilon:.4g} is above '
                f"policy.{key(channel)} = {limit:g}, so its users refuse; raise the limit or lower epsilon"
            )
        record = record.plus(FREE if channel in policy.unprotected else cost, np.ones(1, np.int64))
    if not policy.allows_number(record)[0]:
        raise UserError(
            f'arm "{arm.name}": one record makes {record.releases[0]} releases, '
            f"more than policy.releases = {policy.releases}"
        )
    if not policy.allows(record, "total")[0]:  # which no channel alone may exceed
        raise UserError(f'arm "{arm.name}": {_over(policy, record)}')


def _over(policy: Policy, record: Account) -> str:
    epsilon, delta = float(record.epsilon[0]), float(record.delta[0])
    if epsilon > policy.total:
        over = f"the worst-case ε of one record, {epsilon:.4g}, is above policy.total = {policy.total:g}"
        return f"{over}; raise it, or lower an ε of the arm"
    return (
        f"δ and samplers of one record spend {delta:.4g}, more than one half of policy.total-delta = "
        f"{policy.total_delta:g} (the filter takes the other)"
    )


def _unprotected(arm: Arm, channel: str) -> str:
    spec = getattr(arm, channel)
    mend = f"name a {key(channel)} mechanism" if spec is None else "choose another mechanism"
    if spec is not None and spec["mechanism"] == "gaussian":
        mend = "set policy.delta above 0"
    return (
        f'arm "{arm.name}": its {key(channel)}s are sent unprotected (worst-case ε = ∞); {mend}, '
        f'or give a reason in policy.accept-unprotected = ["{channel}: ..."], or set reference = true'
    )

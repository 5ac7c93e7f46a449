"""Whether an arm's own users would refuse it, as their policy prices it: better said before a run than by them.

The policy is the client's own, and so are the prices and the refusals; here they become sentences about the file.
"""

from __future__ import annotations

import math

import numpy as np

from client.policy import Policy
from mechanisms.guarantee import EXPOSURES
from mechanisms.words.text import TextMechanism
from simulations.errors import UserError
from simulations.experiment.arm import PUBLIC_ONLY, Arm, embeddings_of, label_of, statistic_of, trial_text_of

#: Coordinates of a statistic whose price is asked for: it does not depend on them.
_ANY = 8


def check_arm(policy: Policy, arm: Arm, classes: int) -> None:
    """Raise UserError where the policy refuses the arm's embeddings or labels, or what its texts expose.

    How large a text's ε is depends on the vocabulary: `check_text` looks at it when that is there.
    """
    costs = _costs(policy, arm, classes)
    if arm.text is not None:
        _check_exposed(policy, arm, trial_text_of(arm))
    _check_costs(policy, arm, costs)


def check_text(policy: Policy, arm: Arm, classes: int, text: TextMechanism) -> None:
    """Raise UserError where the policy refuses the arm with this text, the mechanism as it is with its vocabulary."""
    _check_exposed(policy, arm, text)
    _check_costs(policy, arm, _costs(policy, arm, classes) | {"text": policy.cost(text.guarantee)})


def _costs(policy: Policy, arm: Arm, classes: int) -> dict[str, float]:
    """By channel, the largest worst-case ε that one record is charged; inf where it is sent in clear."""
    released = {
        "embedding": embeddings_of(arm),
        "label": [] if arm.way == PUBLIC_ONLY or arm.statistic is not None else [label_of(arm, classes)],
        "statistic": [] if (statistic := statistic_of(arm)) is None else [statistic(_ANY)],
    }
    return {
        channel: max((policy.cost(m.guarantee) for m in mechanisms), default=0.0)
        for channel, mechanisms in released.items()
    }


def _check_exposed(policy: Policy, arm: Arm, text: TextMechanism) -> None:
    if "text" in policy.unprotected:
        return
    if exposed := [name for name in text.guarantee.exposes if name not in policy.unprotected]:
        what = ", ".join(f"{EXPOSURES[name]} ({name})" for name in exposed)
        reasons = ", ".join(f'"{name}: ..."' for name in exposed)
        raise UserError(
            f'arm "{arm.name}": its texts pass {what} through (worst-case ε = ∞); choose another mechanism or '
            f"treatment, or give reasons in policy.accept-unprotected = [{reasons}], or set reference = true"
        )
    if math.isinf(policy.cost(text.guarantee)):
        raise UserError(_unprotected(arm, "text"))


def _check_costs(policy: Policy, arm: Arm, costs: dict[str, float]) -> None:
    for channel, cost in costs.items():
        refusal = policy.refusal(channel, cost)
        if refusal == "unprotected":
            raise UserError(_unprotected(arm, channel))
        if refusal == "channel":
            limit = getattr(policy, channel)
            raise UserError(
                f'arm "{arm.name}": {channel}: worst-case ε {cost:.4g} is above '
                f"policy.{channel} = {limit:g}, so its users refuse; raise the limit or lower epsilon"
            )
    total = sum(cost for channel, cost in costs.items() if channel not in policy.unprotected)
    if not policy.allows(np.array([total]), "total").all():  # which no channel alone may exceed
        raise UserError(
            f'arm "{arm.name}": the worst-case ε of one record, {total:.4g}, '
            f"is above policy.total = {policy.total:g}"
        )


def _unprotected(arm: Arm, channel: str) -> str:
    spec = getattr(arm, channel)
    mend = f"name a {channel} mechanism" if spec is None else "choose another mechanism"
    if spec is not None and spec["mechanism"] == "gaussian":
        mend = "set policy.delta above 0"
    return (
        f'arm "{arm.name}": its {channel}s are sent unprotected (worst-case ε = ∞); {mend}, '
        f'or give a reason in policy.accept-unprotected = ["{channel}: ..."], or set reference = true'
    )

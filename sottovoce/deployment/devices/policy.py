"""Policy of a device: it permits the requests of its arm, as often as they come, and nothing of other arms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from client.policy import Policy
from mechanisms.accounting.privacy_filter import Cost
from mechanisms.channels import ANSWER, CHANNELS, EMBEDDING
from mechanisms.mechanism import Mechanism
from mechanisms.messages.questions import QUESTIONS, TextQuestion
from mechanisms.messages.request import Request
from simulations.experiment import Arm, ArmSetup, answer_of
from simulations.experiment.arm import embeddings_of


def policy_of(setup: ArmSetup, request: Request, *, teaching: bool, records: int | None = None) -> Policy:
    """Return the policy of a device that answers `request` and queries the arm's model.

    For each record, a channel's limit is the cost of the arm's own release. For each user, the total and the number of
    releases are those of `records` training records (if `teaching`) and of as many queries, and never more than the
    study's. A declaration of the study as public is kept only if this arm needs it.

    Args:
        setup: The arm.
        request: Request of the bundle.
        teaching: Whether it is the request of training.
        records: Records of a user; None if each user of the study has one, or the study sets a total.
    """
    study = setup.policy
    taught = {item.channel: item.mechanism for item in request.questions if teaching}
    asked = _question(study, setup.arm, request)
    mechanisms = [*taught.items(), *asked.items()]
    exposed = {name for _, mechanism in mechanisms for name in mechanism.guarantee.exposes}
    clear = {channel for channel, m in mechanisms if math.isinf(study.cost(m.guarantee).epsilon)}
    kept = tuple(entry for entry in study.accept_unprotected if entry.partition(":")[0].strip() in exposed | clear)
    policy = replace(study, accept_unprotected=kept, mechanisms=tuple(sorted({m.name for _, m in mechanisms})))
    priced = [(channel, policy.cost(m.guarantee)) for channel, m in mechanisms]
    limits: dict[str, Any] = {channel: _largest(priced, channel, clear) for channel in CHANNELS}
    policy = replace(policy, **limits)
    records = setup.records if records is None else records
    if records is None:
        return policy
    # A user has one user vector, whatever the number of records.
    times = [1 if QUESTIONS[channel].of_user else records for channel, _ in priced]
    charged = (n * cost.epsilon for n, (channel, cost) in zip(times, priced, strict=True) if channel not in clear)
    return replace(policy, total=min(study.total, sum(charged)), releases=min(study.releases, sum(times)))


def _question(policy: Policy, arm: Arm, request: Request) -> Mapping[str, Mechanism]:
    """Return the most expensive mechanism that a user may need for a query of the arm's model."""
    if (answer := answer_of(arm, request.classes)) is not None:
        return {ANSWER.name: answer}
    if (text := request.find(TextQuestion)) is not None:
        return {text.channel: text.mechanism}
    if arm.embedding is None:
        return {}
    return {EMBEDDING.name: max(embeddings_of(arm), key=lambda m: policy.cost(m.guarantee).sums)}


def _largest(priced: list[tuple[str, Cost]], channel: str, clear: set[str]) -> float:
    return max((cost.epsilon for name, cost in priced if name == channel and name not in clear), default=0.0)

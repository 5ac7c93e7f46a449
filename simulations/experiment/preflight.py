"""Checks of an arm before a run: its requests can be made, and its own users would not refuse them.

Policy, prices and refusals are the client's own. This module turns them into sentences about the file. Requests are
made on maps of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from client.policy import Policy
from mechanisms.accounting.privacy_filter import FREE, Account, Cost
from mechanisms.channels import ANSWER, EMBEDDING, LABEL, TEXT, VECTOR
from mechanisms.guarantee import EXPOSURES
from mechanisms.mechanism import Mechanism
from mechanisms.messages.questions import MAX_CLASSES, MAX_WIDTH
from mechanisms.messages.request import Request
from mechanisms.privunit import MAX_DIM
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.text import TextMechanism
from server.maps import Maps
from server.protocols.protocol import Channels
from server.training.public_maps import dim_of
from simulations.errors import UserError
from simulations.experiment.arm import (
    DEFAULT_DIM,
    Arm,
    ArmSetup,
    answer_of,
    embeddings_of,
    label_of,
    released_text,
    trial_text_of,
)
from simulations.experiment.names import key, slug

#: Number of coordinates of a user vector for pricing: the price does not depend on it.
_ANY = 8
#: Placeholder for the hash of an encoder or a language model.
_HASH = "0" * 64


def check_prices(setup: ArmSetup, text: TextMechanism | None = None) -> None:
    """Raise UserError if the policy refuses the arm's releases, or the exposures of its texts.

    The ε of a text depends on the vocabulary. It is checked of `text`, the mechanism with the run's vocabulary.
    """
    policy, arm, statistic = setup.policy, setup.arm, setup.statistic
    if (answer := answer_of(arm, setup.classes)) is not None:  # of users who release nothing else
        _check_costs(policy, arm, {ANSWER.name: policy.cost(answer.guarantee)})
    if arm.text is not None:
        _check_exposed(policy, arm, text or trial_text_of(arm))
    released: dict[str, Sequence[Mechanism]] = {
        EMBEDDING.name: embeddings_of(arm),
        LABEL.name: [] if arm.public_only or statistic is not None else [label_of(arm, setup.classes)],
        VECTOR.name: [] if statistic is None else [statistic(_ANY)],
        TEXT.name: [] if text is None else [text],
    }
    costs = {
        channel: max((policy.cost(mechanism.guarantee) for mechanism in mechanisms), key=lambda cost: cost.sums)
        for channel, mechanisms in released.items()
        if mechanisms
    }
    _check_costs(policy, arm, costs)


def check_requests(setup: ArmSetup, *, classes: int | None = None, width: int | None = None) -> None:
    """Check that the requests of the arm can be made, and that nobody would refuse them.

    Args:
        setup: The arm.
        classes: Number of classes of the data; None for that of the file.
        width: Width of the encoder; None if it is unknown: then as wide as the arm needs.

    Raises:
        UserError: A request would be refused, or could not be made; the message names the arm.
    """
    if not setup.protocol.private:  # its users are sent no requests
        return
    arm, statistic, classes = setup.arm, setup.statistic, classes or setup.classes
    dims = arm.dims or (() if arm.embedding is None else (DEFAULT_DIM if width is None else min(DEFAULT_DIM, width),))
    features = None if statistic is None else max(arm.features or 2, *dims, 2)
    widest = max((*dims, features or 0))
    if width is not None and widest > width:
        where = "vector.dim" if arm.features == widest else "embedding.dim"
        raise UserError(
            f'arm "{arm.name}": {where}: {widest} is above the encoder\'s width {width}; choose at most {width}'
        )
    if width is not None and width > MAX_WIDTH:
        raise UserError(
            f"encoder.layers: their states have {width:,} coordinates side by side, and a request takes {MAX_WIDTH:,} "
            "at most; name fewer layers"
        )
    if classes > MAX_CLASSES:
        raise UserError(f"data.levels: {classes:,} classes, and a request takes {MAX_CLASSES:,} at most; give fewer")
    if features is not None:
        from server.training.statistic_head import code_length

        size = code_length(classes, shared=setup.shared_codes) * (features + 1)
        if size > MAX_DIM:
            raise UserError(
                f'arm "{arm.name}": vector: {features} features of {classes:,} classes take {size:,} coordinates, '
                f"and a vector has {MAX_DIM:,} at most; choose fewer features or classes"
            )
    text = None if arm.text is None else trial_text_of(arm)
    channels = Channels(
        arm=slug(arm.name),
        classes=classes,
        label=label_of(arm, classes),
        embedding=tuple(embeddings_of(arm)),
        text=None if text is None else released_text(arm, text, "test"),
        taught=None if text is None else released_text(arm, text, "train"),
        statistic=statistic,
        answer=answer_of(arm, classes),
        features=features,
        minimum_users=setup.shuffle.least,
        teaching=not arm.public_only,
    )
    try:
        for _ in _requests(setup, channels, width or max(widest, 2)):
            pass
    except ValueError as error:
        raise UserError(f'arm "{arm.name}": {str(error).removeprefix("request: ")}; its users would refuse') from error


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
    """Check the charge of one record, by channel; ε is inf of what is sent in clear."""
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


def _requests(setup: ArmSetup, channels: Channels, width: int) -> Iterator[Request]:
    """Yield the requests to the arm's users, at its last stage."""
    part = (setup.stages - 1, setup.stages)
    if channels.text is not None:
        words: Any = _Words(channels.text.vocabulary)
        if channels.teaching:
            yield channels.texts(words, stage="train", split="train", label=True, part=part)
        yield channels.texts(words, stage="test", split="test")
    for mechanism in channels.embedding:
        maps = _maps(width, dim_of(mechanism), channels.classes)
        prior = maps.folded() if getattr(channels.label, "needs_prior", False) and channels.teaching else None
        if channels.teaching and not setup.protocol.releases_vector:
            yield channels.embeddings(
                _HASH, maps, mechanism, stage="train", split="train", label=True, part=part, prior=prior
            )
        if channels.answer is None:
            yield channels.embeddings(_HASH, maps, mechanism, stage="test", split="test")
    if channels.statistic is not None and channels.features is not None and channels.teaching:
        from server.training.statistic_head import shared_codes, simplex_codes

        codes = (shared_codes if setup.shared_codes else simplex_codes)(channels.classes)
        yield channels.statistics(
            _HASH, _maps(width, channels.features, channels.classes), codes, stage="train", part=part
        )
    if channels.answer is not None:
        yield channels.answers(_HASH, _maps(width, 2, channels.classes), stage="test", split="test")


def _maps(width: int, dim: int, classes: int) -> Maps:
    wide, head = np.zeros((width, dim), np.float32), np.zeros((width, classes), np.float32)
    return Maps(np.zeros(width, np.float32), wide, wide.T, head, np.zeros(classes, np.float32))


@dataclass(frozen=True)
class _Words:
    """Part of a `server.protocols.protocol.PublicRewriter` that a request for texts needs."""

    vocabulary: Vocabulary

    def identity(self, text: TextMechanism) -> str:
        """Return a hash where the mechanism reads a language model."""
        return _HASH if text.word.reads else ""

"""Guarantees of an arm: bounds on the privacy loss of one user's releases, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from client.policy import Policy
from mechanisms.accounting.ladder import text_statement
from mechanisms.channels import LABEL
from mechanisms.guarantee import EXPOSURES, Guarantee, metric_statement
from mechanisms.mechanism import Mechanism
from mechanisms.messages.questions import VectorQuestion
from mechanisms.words.text import TextMechanism
from server.protocols.drive import Driver
from server.protocols.models import Model
from server.protocols.protocol import Channels
from server.training.descent import DPSGD
from simulations.experiment.arm import Arm, ArmSetup
from simulations.experiment.ladder import Curator, Releases


@dataclass(frozen=True)
class Promise:
    """Guarantee of an arm to one user.

    Args:
        metric_epsilon: ε of one unit of the metric; None if only a label is released.
        metric: Name of the metric; None if there is none.
        statement: The guarantee in words; None before a run.
        worst_case_epsilon: Worst-case ε of a text, an embedding or a user vector.
        label_epsilon: ε of a label; None if no label is sent, or labels are declared public.
        delta: δ of the worst case: the policy's for Gaussian noise, otherwise 0. A label's is always 0.
        asking_epsilon: Worst-case ε of inference, if its release differs from that of a training user; None if no user
            asks in this way.
        central_epsilon: ε of the model for a user who trusts the server with everything; None if the arm's server is
            not trusted.
        central_delta: δ of central_epsilon.
        public_label: True if labels are sent in clear, declared public.
        public: Exposures of the released texts that are declared public, in words. Every finite ε is between texts that
            agree in them; between others it is infinite.
    """

    metric_epsilon: float | None = None
    metric: str | None = None
    statement: str | None = None
    worst_case_epsilon: float | None = None
    label_epsilon: float | None = None
    delta: float = 0.0
    asking_epsilon: float | None = None
    central_epsilon: float | None = None
    central_delta: float | None = None
    public_label: bool = False
    public: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that is JSON-ready except for infinity."""
        return asdict(self)


def releases(setup: ArmSetup, channels: Channels, model: Model | None, driver: Driver) -> Releases:
    """Return what an arm's users released, also if too little arrived to train a model."""
    stages, vectors = driver.teaching.stages, channels.statistic is not None
    candidates = channels.embedding if channels.embedded else ()
    records = channels.teaching and not vectors
    public_label = records and setup.arm.label is None and LABEL.name in setup.declared
    in_clear = records and math.isinf(channels.label.guarantee.worst_case())
    text = channels.text if channels.taught is None else channels.taught
    requests = driver.teaching.requests.values() if vectors else ()
    return Releases(
        embedding=model.embedding if model is not None else next(iter(candidates), None),
        label=channels.label if records and not public_label else None,
        train=tuple(stages.values()) if channels.teaching else None,
        test=next(iter(driver.asking.stages.values()), None),
        text=text,
        asked_text=None if channels.text == text else channels.text,
        statistics=tuple(request.question(VectorQuestion).mechanism for request in requests),
        answer=channels.answer,
        classes=tuple(driver.teaching.classes.get(stage, 0) for stage in stages) if in_clear else None,
        public_label=public_label,
        curator=_curator(setup.arm, channels) if vectors else None,
    )


def promise(policy: Policy, what: Releases) -> Promise:
    """Return the guarantee of a user who releases all of it, at the price of the policy.

    A user whose inference releases something else has the guarantee of that, under `asking_epsilon`.
    """
    own = _of_statistic(policy, what) if what.statistics else _promise(policy, what.text or what.embedding, what)
    if what.answer is not None:
        answer = what.answer.guarantee
        worst = policy.cost(answer).epsilon
        inference = "no protection" if math.isinf(answer.epsilon) else f"{metric_statement([answer])}, any two texts"
        asks = Promise(statement=inference, worst_case_epsilon=worst)
    elif what.asked_text is not None:
        asks = _promise(policy, what.asked_text, Releases())
    elif what.statistics and what.embedding is not None:
        asks = _promise(policy, what.embedding, what)
    else:
        return own
    return replace(
        own,
        statement=f"{own.statement}; whoever asks: {asks.statement}",
        asking_epsilon=asks.worst_case_epsilon,
        public=tuple(dict.fromkeys([*own.public, *asks.public])),
    )


def _of_statistic(policy: Policy, what: Releases) -> Promise:
    guarantee = what.statistics[0].guarantee  # every stage's is the same
    worst = policy.cost(guarantee).epsilon
    statement = "no protection" if math.isinf(worst) else f"{metric_statement([guarantee])}, any two users' data"
    if what.curator:
        statement += f" from {what.curator.description}"
    central = (None, None) if what.curator is None else (what.curator.epsilon, what.curator.delta)
    return Promise(
        guarantee.epsilon, guarantee.metric, statement, worst, central_epsilon=central[0], central_delta=central[1]
    )


def _curator(arm: Arm, channels: Channels) -> Curator | None:
    if arm.curator is None:
        return None
    epsilon, delta, curator = arm.curator["epsilon"], arm.curator["delta"], channels.curator
    trusted = "the server, which is trusted and adds noise to the sum"
    if isinstance(curator, DPSGD):
        return Curator(f"{trusted} of each step ({curator.describe()})", epsilon, delta)
    return Curator(f"{trusted} ({', '.join(f'{name} {v}' for name, v in arm.curator.items())})", epsilon, delta)


def _promise(policy: Policy, data: Mechanism | None, what: Releases) -> Promise:
    label = None if what.label is None else what.label.guarantee
    declared: Mapping[str, str] = policy.declared
    statement = _in_words(data, label) + ("; labels in clear, declared public" if what.public_label else "")
    guarantee = data.guarantee if data is not None else None
    public = () if guarantee is None else tuple(EXPOSURES[name] for name in guarantee.exposes if name in declared)
    if isinstance(data, TextMechanism):
        word = data.word.guarantee
        for name in data.guarantee.exposes if math.isfinite(word.epsilon) else ():
            statement += f"; {EXPOSURES[name]}: in clear" + (", declared public" if name in declared else "")
        guarantee = word
    metric = None if guarantee is None else guarantee.metric
    return Promise(
        None if guarantee is None else guarantee.epsilon,
        f"words, {metric}" if isinstance(data, TextMechanism) else metric,
        statement,
        None if data is None else policy.cost(data.guarantee).epsilon,
        None if label is None else policy.cost(label).epsilon,
        policy.delta if data is not None and data.guarantee.sigma is not None else 0.0,
        public_label=what.public_label,
        public=public,
    )


def _in_words(data: Mechanism | None, label: Guarantee | None) -> str:
    """Return the bound on the privacy loss in words, without "inf"."""
    bounds = [g for g in (None if data is None else data.guarantee, label) if g is not None]
    if any(math.isinf(g.epsilon) for g in bounds):
        unprotected = any(math.isinf(g.epsilon) and g.sigma is None for g in bounds)
        return "no protection" if unprotected else "no bound at δ = 0, as of all Gaussian noise"
    if isinstance(data, TextMechanism):
        return " + ".join([text_statement(data), *([] if label is None else [metric_statement([label])])])
    return metric_statement(bounds) if bounds else "nothing leaves"

"""How an arm gets at its users' releases: a request goes in, a shuffled batch comes out."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from client.policy import REFUSALS
from mechanisms.reply import Reply
from mechanisms.request import Request
from server.app import ask
from server.validation import validate
from simulations.experiment import Experiment
from simulations.population import late
from simulations.shuffler import Batch, Origin, shuffle

#: Flower's own codes, for nodes that could not answer at all.
_FLOWER = (
    (0, "a worker died, or no reason was given"),
    (1, "the client app could not be loaded"),
    (2, "the client app raised"),
    (5, "the node is not there"),
    (8, "the client app crashed"),
)
#: What a node's error code stands for: the texts are constants of ours, not what came over the wire.
_ERRORS = {f"code {code}": text for code, text in (*_FLOWER, *REFUSALS.values())}
#: A full disk is no fault of a client's in a simulation: the run stops before it loses releases.
_STORAGE = f"code {REFUSALS['storage'][0]}"


@dataclass
class Gathered:
    """What came of one request. dropped, errors: rows, and nodes, that came to nothing, by the reason."""

    batch: Batch
    origin: Origin
    dropped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class Users(Protocol):
    """Whoever answers an arm's requests."""

    def gather(self, request: Request, *, enrolled: range) -> Gathered:
        """What the users release. enrolled: who was asked; others' rows come to nothing."""


@dataclass(frozen=True)
class FlowerUsers:
    """The users of an experiment, on the nodes of a running Flower grid, behind the simulation's shuffler."""

    grid: Any
    experiment: Experiment

    def gather(self, request: Request, *, enrolled: range) -> Gathered:
        """Asks every node, drops what is not a valid release or comes late, shuffles what is left.

        Raises OSError where a node cannot write its ledger.
        """
        replies = []
        dropped: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for answer in ask(self.grid, request, timeout=self.experiment.population.timeout):
            if answer.error == _STORAGE:
                raise OSError(errno.ENOSPC, "a node cannot write its ledger")
            if answer.reply is None:
                errors[error_words(str(answer.error))] += 1
                continue
            valid, faults = validate(answer.reply, request, enrolled=enrolled)
            dropped.update(faults)
            valid, gone = self._in_time(valid, request.stage)
            dropped.update(gone)
            replies.append(valid)
        rng = np.random.default_rng([self.experiment.seed, 2, *request.stage.encode()])
        batch, origin = shuffle(replies, minimum_users=request.minimum_users, rng=rng)
        return Gathered(batch, origin, dropped, errors)

    def _in_time(self, reply: Reply, stage: str) -> tuple[Reply, Counter[str]]:
        """The reply without its users who are late at this stage: what they have sent is charged, and comes to nothing.
        """
        probability = self.experiment.population.late
        if not probability:
            return reply, Counter()
        users = np.unique(reply.users)
        gone = users[late(users, probability=probability, stage=stage, seed=self.experiment.seed)]
        return reply.take(~np.isin(reply.users, gone)), +Counter({"late": len(gone)})


def error_words(error: str) -> str:
    """What an error of a node, as `server.app.Answer` has it, stands for."""
    return _ERRORS.get(error, error)

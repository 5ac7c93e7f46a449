"""A simulation's users: they are asked through Flower, behind the simulation's shuffler."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from client.models.embeddings import write_embeddings
from client.shard import Shard
from mechanisms.messages.refusals import REFUSALS, describe_error
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from server.protocols.drive import Collected
from server.query import ask
from server.validation import validate
from simulations.artifacts.public import CachedEncoder
from simulations.experiment.sections import Population
from simulations.progress import Progress
from simulations.run.population import late
from simulations.shuffler.shuffle import Origin, shuffle

#: A full disk is no fault of a client's in a simulation: the run stops before it loses releases.
_STORAGE = f"code {REFUSALS['storage'][0]}"


class FlowerUsers:
    """The users of an experiment, on the nodes of a running Flower grid (`server.protocols.drive.Users`).

    seed: of the run. tests: how many test users there are. nodes: the folder of the nodes' folders.
    origins: for the owner of the truth alone, whose the rows of each stage's last batch are, in its order.
    """

    def __init__(
        self, grid: Any, people: Population, *, seed: int, tests: int, nodes: Path,
        progress: Progress = lambda line: None,
    ) -> None:  # fmt: skip
        users = people.users
        self._grid = grid
        self._people, self._seed = people, seed
        self._enrolled = {"train": range(users), "test": range(users, users + tests)}
        self._nodes = nodes
        self._progress = progress
        self.origins: dict[str, Origin] = {}

    def collect(self, request: Request) -> Collected:
        """Asks every node, drops what is not a valid release or comes late, shuffles what is left.

        Raises OSError where a node cannot write its ledger.
        """
        replies = []
        dropped: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for answer in ask(self._grid, request, timeout=self._people.timeout):
            if answer.error == _STORAGE:
                raise OSError(errno.ENOSPC, "a node cannot write its ledger")
            if answer.reply is None:
                errors[describe_error(str(answer.error))] += 1
                continue
            valid, faults = validate(answer.reply, request, enrolled=self._enrolled[request.split])
            dropped.update(faults)
            valid, gone = self._in_time(valid, request.stage)
            dropped.update(gone)
            replies.append(valid)
        rng = np.random.default_rng([self._seed, 2, *request.stage.encode()])
        batch, self.origins[request.stage] = shuffle(replies, minimum_users=request.minimum_users, rng=rng)
        return Collected(batch, dropped, errors)

    def publish(self, encoder: Path, splits: Sequence[str]) -> CachedEncoder:
        """The encoder, and its embeddings of what nodes hold of these splits: what each would compute by itself, in one
        pass."""
        published = CachedEncoder(encoder, progress=self._progress)
        places = [place for place in sorted(self._nodes.iterdir()) if place.is_dir()]
        shards = [(place, split, Shard.load(place, split)) for place in places for split in splits]
        table = published.embedded([text for _, _, shard in shards for text in shard.texts])
        at = 0
        for place, split, shard in shards:
            write_embeddings(place, split, published.identity, table[at : at + len(shard)])
            at += len(shard)
        return published

    def _in_time(self, reply: Reply, stage: str) -> tuple[Reply, Counter[str]]:
        """The reply without its users who are late at this stage: what they have sent is charged, and comes to nothing.
        """
        probability = self._people.late
        if not probability:
            return reply, Counter()
        users = np.unique(reply.users)
        gone = users[late(users, probability=probability, stage=stage, seed=self._seed)]
        return reply.take(~np.isin(reply.users, gone)), +Counter({"late": len(gone)})

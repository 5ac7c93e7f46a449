"""Users of a simulation, reached through Flower and behind the simulation's shuffler."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from client.models.embeddings import write_embeddings
from client.models.tokens import padded_word_ids
from client.shard import Shard
from mechanisms.messages.batch import Batch
from mechanisms.messages.questions import TextQuestion
from mechanisms.messages.refusals import REFUSALS, describe_error
from mechanisms.messages.request import Request
from mechanisms.vocabulary import NOTHING
from server.protocols.drive import Collected
from server.query import ask
from server.validation import validate
from simulations.artifacts.public import CachedEncoder
from simulations.errors import UserError
from simulations.experiment.sections import Population
from simulations.run.population import late
from simulations.run.prepare import Held
from simulations.shuffler.core import LATE
from simulations.shuffler.shuffle import Origin, shuffle

#: In a simulation a full disk is not a client's fault: the run stops before it loses releases.
_STORAGE = f"code {REFUSALS['storage'][0]}"
#: Errors of nodes whose process is gone: Flower's own codes, and silence.
_GONE = {"code 0", "code 5", "code 8", "no answer"}


class FlowerUsers:
    """Users of an experiment, on the nodes of a running Flower grid (`server.protocols.drive.Users`).

    Only the owner of the true data reads `origins` and `words`. `origins` is the origin of the rows of each stage's
    last batch. `words` has for each arm and split "words", the words in delivered users' texts, as far as a release has
    room for them, and "perturbed", those that were replaced or removed. Fu 2024 (section 5) compares mechanisms that
    perturb a similar share. A word outside the vocabulary stays if it is released as unknown.

    Args:
        grid: Flower's grid.
        people: Table [population] of the experiment.
        held: True data of the users.
        seed: Seed of the run.
        nodes: Folder of the nodes' folders.
    """

    def __init__(self, grid: Any, people: Population, held: Held, *, seed: int, nodes: Path) -> None:
        users = people.users
        self._grid = grid
        self._people, self._held, self._seed = people, held, seed
        self._enrolled = {"train": range(users), "test": range(users, users + held.test_holders.people)}
        self._nodes = nodes
        self.origins: dict[str, Origin] = {}
        self.words: dict[str, dict[str, dict[str, int]]] = {}

    def collect(self, request: Request) -> Collected:
        """Send a request to every node, drop invalid releases, and return the shuffler's batch of the others.

        Raises:
            OSError: A node cannot write its ledger.
            UserError: The processes of all nodes are gone.
        """
        replies = []
        gone: list[bool] = []
        dropped: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for answer in ask(self._grid, request, timeout=self._people.timeout):
            if answer == _STORAGE:
                raise OSError(errno.ENOSPC, "a node cannot write its ledger")
            gone.append(answer in _GONE)
            if isinstance(answer, str):
                errors[describe_error(answer)] += 1
                continue
            valid, faults = validate(answer, request, enrolled=self._enrolled[request.split])
            dropped.update(faults)
            replies.append(valid)
        if gone and all(gone):
            raise UserError(
                f"stage {request.stage}: none of {len(gone)} nodes answered: {', '.join(errors)}; was memory short, or "
                "were Ray's processes killed?"
            )
        rng = np.random.default_rng([self._seed, 2, *request.stage.encode()])
        probability, seed = self._people.late, self._seed
        clock = partial(late, probability=probability, stage=request.stage, seed=seed) if probability else None
        batch, origin, missed = shuffle(replies, minimum_users=request.minimum_users, rng=rng, late=clock)
        self.origins[request.stage] = origin
        self._count_words(request, batch, origin)
        return Collected(batch, dropped + Counter({LATE: missed}), errors)

    def _count_words(self, request: Request, batch: Batch, origin: Origin) -> None:
        """Add to `words`, unless the batch has no texts or its mechanism moves words."""
        release, held, train = batch.of(TextQuestion), self._held, request.split == "train"
        if release is None:
            return
        text: Any = request.question(TextQuestion).text
        if getattr(text.word, "moves", False):
            return
        rows = (held.holders if train else held.test_holders).rows_of(origin)
        mask = rows >= 0
        texts = held.train.texts.take(rows[mask]) if train else held.test.texts.take(held.test_rows[rows[mask]])
        truth = padded_word_ids(texts, text)
        words = truth != NOTHING
        counts = self.words.setdefault(request.arm, {}).setdefault(request.split, {"words": 0, "perturbed": 0})
        counts["words"] += int(words.sum())
        counts["perturbed"] += int((words & (release.values.astype(np.int64)[mask] != truth)).sum())

    def publish(self, encoder: Path, splits: Sequence[str]) -> CachedEncoder:
        """Give the nodes an encoder's embeddings of their records of these splits, and return the encoder.

        Each node would compute the same by itself. Here one pass does.
        """
        published = CachedEncoder(encoder)
        places = [place for place in sorted(self._nodes.iterdir()) if place.is_dir()]
        shards = [(place, split, Shard.load(place, split)) for place in places for split in splits]
        table = published.embedded([text for _, _, shard in shards for text in shard.texts])
        at = 0
        for place, split, shard in shards:
            write_embeddings(place, split, published.identity, table[at : at + len(shard)])
            at += len(shard)
        return published

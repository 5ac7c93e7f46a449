"""Distribution of users' records and settings to nodes, before Flower starts."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.embeddings import TableEmbeddings
from client.node import write_node
from client.shard import write_shard
from server.protocols.protocol import Public
from simulations.artifacts.text_channel import StudyRewriter
from simulations.experiment import ArmSetup, slug
from simulations.experiment.sections import Population
from simulations.run import population
from simulations.run.prepare import Held

#: Largest number of records of a cohort if the number of nodes is automatic. One actor holds a cohort in memory.
_COHORT = 50_000

Numbers = NDArray[np.int64]


def hand_out(
    setups: Sequence[ArmSetup],
    people: Population,
    public: Public,
    held: Held,
    folder: Path,
    *,
    seed: int,
    nodes: int | None = None,
) -> int:
    """Write the records and settings of every node's users, and return the number of nodes.

    User u lives on node u % nodes. "auto" gives each core the same number of nodes, and no node more than about 50,000
    records. Users who have dropped out are offline: they are neither queried nor charged, so their rows are left out.
    Nodes also receive the encoder, vocabulary and language model of `public`. `nodes` fixes their number in a resumed
    run.
    """
    train, test = held.train, held.test
    nodes = _nodes(people.users, people.users_per_node, held) if nodes is None else nodes
    identity = None if public.encoder is None else public.encoder.identity
    words = public.rewriter if isinstance(public.rewriter, StudyRewriter) else None
    policies = {slug(setup.arm.name): setup.policy for setup in setups}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for node, (mine, test_part) in enumerate(cohorts(people, held, nodes, seed=seed)):
        place = folder / str(node)
        place.mkdir(mode=0o700)
        rows = held.test_rows[test_part]
        vectors, test_vectors = _rows(held.train_embeddings, mine), _rows(held.test_embeddings, rows)
        for split, holders, part, texts, labels, embeddings in (
            ("train", held.holders, mine, train.texts.take(mine), train.labels[mine], vectors),
            ("test", held.test_holders, test_part, test.texts.take(rows), None, test_vectors),
        ):
            users, records = holders.users[part], holders.records[part]
            write_shard(place, split, users, records, texts, labels, embeddings=embeddings, identity=identity)
        write_node(
            place,
            seed=seed,
            arms=policies,
            vocabulary=None if words is None else words.folder,
            masked_lm=None if words is None else words.masked_lm,
        )
    return nodes


def cohorts(people: Population, held: Held, nodes: int, *, seed: int) -> list[tuple[Numbers, Numbers]]:
    """Return for each node the training rows and the test rows that its users hold."""
    train_users, test_users = held.holders.users, held.test_holders.users
    online = population.online(people.users, dropout=people.dropout, seed=seed)
    train = _by_node(train_users, nodes, np.flatnonzero(online[train_users]))
    test = _by_node(test_users, nodes, np.arange(len(test_users)))
    return list(zip(train, test, strict=True))


def _nodes(users: int, per_node: int | str, held: Held) -> int:
    if not isinstance(per_node, str):
        return math.ceil(users / per_node)
    cores, records = max(1, os.cpu_count() or 1), max(len(held.holders.users), len(held.test_holders.users))
    return cores * max(1, math.ceil(records / (cores * _COHORT)))


def _by_node(users: Numbers, nodes: int, rows: Numbers) -> list[Numbers]:
    """Return the rows of each node, in their order. `users` are the users of all rows."""
    node = (users[rows] % nodes).astype(np.int32)
    order = np.argsort(node, kind="stable")
    return np.split(rows[order], np.searchsorted(node[order], np.arange(1, nodes)))


def _rows(embeddings: Any, rows: Numbers) -> Any:
    """Return some rows of an array; of embeddings in tables their positions, so that no node gets a copy."""
    if embeddings is None or isinstance(embeddings, np.ndarray):
        return None if embeddings is None else embeddings[rows]
    return TableEmbeddings(embeddings.tables, embeddings.rows[rows])

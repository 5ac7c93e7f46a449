"""What every node gets before Flower starts: its users' records, its settings, and nothing else."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.embeddings import Rows
from client.node import write_node
from client.policy import Policy
from client.shard import write_shard
from mechanisms.catalogue import CATALOGUE
from simulations import population
from simulations.experiment import CHANNELS, Experiment, slug
from simulations.prepare import Prepared

#: Records of a cohort, at most, where the number of nodes is ours to choose: a cohort's memory is an actor's.
_COHORT = 50_000

Numbers = NDArray[np.int64]


def hand_out(experiment: Experiment, prepared: Prepared, folder: Path, *, nodes: int | None = None) -> int:
    """Gives every node its users' records, settings and nothing else; returns the number of nodes.

    A user lives on node `user % nodes`. "auto" gives each core as many nodes as every other, and no node more than
    about 50,000 records. Users who have dropped out are offline: they are not asked and not charged, so their rows are
    left out here. nodes: how many there are, where that is settled already.
    """
    people, train, test = experiment.population, prepared.split.train, prepared.split.test
    nodes = _nodes(people.users, people.users_per_node, prepared) if nodes is None else nodes
    identity = None if prepared.encoder is None else prepared.encoder.identity
    words = prepared.words
    installed = {} if words is None else {"vocabulary": words.folder, "masked_lm": words.masked_lm}
    policies = {slug(arm.name): policy_of(experiment, arm) for arm in experiment.arms}
    for node, (mine, theirs) in enumerate(cohorts(experiment, prepared, nodes)):
        place = folder / str(node)
        place.mkdir(parents=True)
        write_shard(
            place, "train", prepared.held.users[mine], prepared.held.records[mine], train.texts.take(mine),
            train.labels[mine], embeddings=_rows(prepared.train_embeddings, mine), identity=identity,
        )  # fmt: skip
        rows = prepared.test_rows[theirs]
        write_shard(
            place, "test", prepared.test_held.users[theirs], prepared.test_held.records[theirs],
            test.texts.take(rows), None, embeddings=_rows(prepared.test_embeddings, rows), identity=identity,
        )  # fmt: skip
        write_node(place, seed=experiment.seed, arms=policies, **installed)
    return nodes


def cohorts(experiment: Experiment, prepared: Prepared, nodes: int) -> list[tuple[Numbers, Numbers]]:
    """For node 0, 1, ... the rows that its users hold of the training part, and of the test users."""
    people, held = experiment.population, prepared.held
    online = population.online(people.users, dropout=people.dropout, seed=experiment.seed)
    train = _by_node(held.users, nodes, np.flatnonzero(online[held.users]))
    test = _by_node(prepared.test_held.users, nodes, np.arange(len(prepared.test_held.users)))
    return list(zip(train, test, strict=True))


def _nodes(users: int, per_node: int | str, prepared: Prepared) -> int:
    if not isinstance(per_node, str):
        return math.ceil(users / per_node)
    cores, records = max(1, os.cpu_count() or 1), max(len(prepared.held.users), len(prepared.test_held.users))
    return cores * max(1, math.ceil(records / (cores * _COHORT)))


def _by_node(users: Numbers, nodes: int, rows: Numbers) -> list[Numbers]:
    """Those of the rows that live on node 0, 1, ..., each in their order. users: of all rows."""
    node = (users[rows] % nodes).astype(np.int32)
    order = np.argsort(node, kind="stable")
    return np.split(rows[order], np.searchsorted(node[order], np.arange(1, nodes)))


def _rows(embeddings: Any, rows: Numbers) -> Any:
    """Some rows of an array, or, of embeddings that lie in tables, their places there: none is copied to a node."""
    if embeddings is None or isinstance(embeddings, np.ndarray):
        return None if embeddings is None else embeddings[rows]
    return Rows(embeddings.tables, embeddings.rows[rows])


def policy_of(experiment: Experiment, arm: Any) -> Policy:
    """What the clients of an arm accept: the experiment's policy, or, in a reference arm, anything."""
    if arm.reference:
        reason = "a reference arm, not private"
        return Policy(
            embedding=math.inf, label=math.inf, text=math.inf, mechanisms=tuple(CATALOGUE),
            accept_unprotected=tuple(f"{channel}: {reason}" for channel in CHANNELS),
        )  # fmt: skip
    policy, shuffle = experiment.policy, experiment.shuffle
    return Policy(
        delta=policy.delta, embedding=policy.embedding, label=policy.label, text=policy.text, total=policy.total,
        mechanisms=tuple(CATALOGUE), minimum_users=shuffle.minimum_users if shuffle.enabled else 0,
        accept_unprotected=policy.accept_unprotected,
    )  # fmt: skip

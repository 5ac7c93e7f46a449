"""What every node gets before Flower starts: its users' records, its settings, and nothing else."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from client.node import write_node
from client.policy import Policy
from client.shard import write_shard
from mechanisms.catalogue import CATALOGUE
from simulations import population
from simulations.experiment import CHANNELS, Experiment, slug
from simulations.prepare import Prepared


def hand_out(experiment: Experiment, prepared: Prepared, folder: Path) -> int:
    """Gives every node its users' records, settings and nothing else; returns the number of nodes.

    A user lives on node `user % nodes`. Users who have dropped out are offline: they are not asked and not
    charged, so their rows are left out here.
    """
    people = experiment.population
    per_node = people.users_per_node
    nodes = max(1, os.cpu_count() or 1) if per_node == "auto" else math.ceil(people.users / per_node)
    online = population.online(people.users, dropout=people.dropout, seed=experiment.seed)
    present = online[prepared.held.users]
    identity = None if prepared.encoder is None else prepared.encoder.identity
    words = prepared.words
    installed = {} if words is None else {"vocabulary": words.folder, "masked_lm": words.masked_lm}
    policies = {slug(arm.name): policy_of(experiment, arm) for arm in experiment.arms}
    train, test = prepared.split.train, prepared.split.test
    for node in range(nodes):
        place = folder / str(node)
        place.mkdir(parents=True)
        mine = np.flatnonzero(present & (prepared.held.users % nodes == node))
        write_shard(
            place, "train", prepared.held.users[mine], prepared.held.records[mine], [train.texts[i] for i in mine],
            train.labels[mine], embeddings=_rows(prepared.train_embeddings, mine), identity=identity,
        )  # fmt: skip
        asked = np.flatnonzero(prepared.test_held.users % nodes == node)
        rows = prepared.test_rows[asked]
        write_shard(
            place, "test", prepared.test_held.users[asked], prepared.test_held.records[asked],
            [test.texts[i] for i in rows], None, embeddings=_rows(prepared.test_embeddings, rows), identity=identity,
        )  # fmt: skip
        write_node(place, seed=experiment.seed, arms=policies, **installed)
    return nodes


def _rows(table: Any, rows: Any) -> Any:
    return None if table is None else table[rows]


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

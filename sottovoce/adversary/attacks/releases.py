"""What a run's ledgers hold of an arm, for attacks; and the texts that it was drawn from, for their scores alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from client.node import Node
from client.store.ledger import Ledger, LedgerError, LedgerRow
from mechanisms.guarantee import Guarantee
from simulations.corpora.corpus import Text
from simulations.errors import UserError
from simulations.experiment import slug
from sottovoce.adversary.attacks.target import Target


@dataclass(frozen=True)
class Row:
    """A line of a node's ledger."""

    node: Node
    released: LedgerRow

    @property
    def split(self) -> str:
        return "train" if self.released.stage.startswith("train") else "test"

    @property
    def key(self) -> tuple[int, int]:
        """User and record."""
        return self.released.user, self.released.record


def of_arm(target: Target, channel: str | None = None) -> list[Row]:
    """Every release of the arm on a channel (None: on any), by user, record and stage. UserError where a ledger cannot
    be read."""
    found = []
    for node in target.nodes:
        path = node.folder / f"ledger-{slug(target.arm.name)}.sqlite"
        if not path.is_file():
            continue
        try:
            with Ledger(path, durable=False) as ledger:
                found += [Row(node, row) for row in ledger.rows() if channel in (None, row.channel)]
        except LedgerError as error:
            raise UserError(f"{path}: {error}") from error
    return sorted(found, key=lambda row: (*row.key, row.released.stage))


def attacked(target: Target, rows: Sequence[Row], what: str) -> list[Row]:
    """Those of training users, else of test users; `target.limit` of them, picked by the study's seed. UserError where
    there are fewer than two."""
    chosen = [row for row in rows if row.split == "train"] or list(rows)
    if len(chosen) < 2:
        raise UserError(f'{target.run}: arm "{target.arm.name}" has fewer than two released {what}')
    return [chosen[i] for i in np.sort(shuffled(target, len(chosen))[: target.limit])]


def shuffled(target: Target, n: int) -> np.ndarray:
    """0..n-1 in an order that is the study's."""
    return np.random.default_rng([target.study.seed, 6]).permutation(n)


def texts_of(target: Target, rows: Sequence[Row]) -> list[Text]:
    """The texts, or pairs, that releases were drawn from. UserError where a node does not hold one."""
    held: dict[tuple[int, int], Text] = {}
    for node, split in {(row.node.folder, row.split): (row.node, row.split) for row in rows}.values():
        shard = node.shard(split)
        keys = zip(shard.users.tolist(), shard.records.tolist(), strict=True)
        held |= dict(zip(keys, shard.texts, strict=True))
    for row in rows:
        if row.key not in held:
            raise UserError(f"{target.run}: user {row.key[0]} has released a text that its node does not hold")
    return [held[row.key] for row in rows]


def written_by_another(row: Row, arm: str, guarantee: Guarantee) -> UserError:
    """For a release that the arm, as the experiment describes it, cannot have made. guarantee: of the arm's mechanism;
    one that differs from the release's in nothing but the samplers' error is that of another version."""
    path, stated = row.node.folder / f"ledger-{slug(arm)}.sqlite", row.released.guarantee
    as_here = replace(stated, numeric_epsilon=guarantee.numeric_epsilon, numeric_delta=guarantee.numeric_delta)
    if stated != guarantee == as_here:
        return UserError(
            f"{path}: was written by a version of Sottovoce with other samplers; attack the run with that one, which "
            "results.json names"
        )
    return UserError(f'{path}: was not written by arm "{arm}" as experiment.toml describes it')

"""Releases of an arm in a run's ledgers, for attacks; and their original texts, for the scores alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from client.node import Node
from client.store.ledger import Ledger, LedgerError, LedgerRow
from mechanisms.guarantee import Guarantee
from mechanisms.pieces import Text
from simulations.errors import UserError
from simulations.experiment import slug
from sottovoce.adversary.attacks.target import Target


@dataclass(frozen=True)
class Row:
    """One row of a node's ledger.

    Args:
        node: Node.
        released: Row of its ledger.
    """

    node: Node
    released: LedgerRow

    @property
    def split(self) -> str:
        """Return the split of the release, "train" or "test"."""
        return "train" if self.released.stage.startswith("train") else "test"

    @property
    def key(self) -> tuple[int, int]:
        """Return the user and the record."""
        return self.released.user, self.released.record


def of_arm(target: Target, channel: str | None = None) -> list[Row]:
    """Return every release of the arm on a channel, by user, record and stage.

    Args:
        target: Attacked arm.
        channel: Name of the channel; None for all channels.

    Raises:
        UserError: A ledger cannot be read.
    """
    results = []
    for node in target.nodes:
        path = node.folder / f"ledger-{slug(target.arm.name)}.sqlite"
        if not path.is_file():
            continue
        try:
            with Ledger(path, durable=False) as ledger:
                results += [Row(node, row) for row in ledger.rows() if channel in (None, row.channel)]
        except LedgerError as error:
            raise UserError(f"{path}: {error}") from error
    return sorted(results, key=lambda row: (*row.key, row.released.stage))


def attacked(target: Target, rows: Sequence[Row], what: str) -> list[Row]:
    """Return the releases to attack: those of training users, otherwise of test users; at most `target.limit`.

    Args:
        target: Attacked arm; the study's seed picks the releases.
        rows: Releases of the arm.
        what: Name of the releases in the error message.

    Raises:
        UserError: There are fewer than two.
    """
    result = [row for row in rows if row.split == "train"] or list(rows)
    if len(result) < 2:
        raise UserError(f'{target.run}: arm "{target.arm.name}" has fewer than two released {what}')
    return [result[i] for i in np.sort(shuffled(target, len(result))[: target.limit])]


def shuffled(target: Target, n: int) -> np.ndarray:
    """Return 0..n-1 in an order that the study's seed determines."""
    return np.random.default_rng([target.seed, 6]).permutation(n)


def texts_of(target: Target, rows: Sequence[Row]) -> list[Text]:
    """Return the texts, or pairs, that releases were drawn from.

    Raises:
        UserError: A node does not hold one of them.
    """
    texts: dict[tuple[int, int], Text] = {}
    for node, split in {(row.node.folder, row.split): (row.node, row.split) for row in rows}.values():
        shard = node.shard(split)
        keys = zip(shard.users.tolist(), shard.records.tolist(), strict=True)
        texts |= dict(zip(keys, shard.texts, strict=True))
    for row in rows:
        if row.key not in texts:
            raise UserError(f"{target.run}: user {row.key[0]} has released a text that its node does not hold")
    return [texts[row.key] for row in rows]


def written_by_another(row: Row, arm: str, guarantee: Guarantee) -> UserError:
    """Return the error for a release that the arm cannot have made by its experiment file.

    Args:
        row: Release.
        arm: Name of the arm.
        guarantee: Guarantee of the arm's mechanism. If it differs from the release's only in the samplers' error,
            another version made the release.
    """
    path, guarantee_of_row = row.node.folder / f"ledger-{slug(arm)}.sqlite", row.released.guarantee
    same_numerics = replace(
        guarantee_of_row, numeric_epsilon=guarantee.numeric_epsilon, numeric_delta=guarantee.numeric_delta
    )
    if guarantee_of_row != guarantee == same_numerics:
        return UserError(
            f"{path}: was written by a version of Sottovoce with other samplers; attack the run with that one, which "
            "results.json names"
        )
    return UserError(f'{path}: was not written by arm "{arm}" as experiment.toml describes it')

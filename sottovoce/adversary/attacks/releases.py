"""Releases of an arm in a run's ledgers, for attacks; and their original texts, for the scores alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.node import Node
from client.store.ledger import Ledger, LedgerError, LedgerRow
from mechanisms.channels import EMBEDDING, LABEL, TEXT
from mechanisms.guarantee import Guarantee
from mechanisms.pieces import Text
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import embedding_mechanism, slug
from simulations.experiment.result import arms_of
from simulations.run.population import late
from simulations.run.prepare import Held
from sottovoce.adversary.attacks import releases
from sottovoce.adversary.attacks.knowledge import values
from sottovoce.adversary.attacks.target import Skipped, Target


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
    chosen = [row for row in rows if row.split == "train"] or list(rows)
    if len(chosen) < 2:
        raise UserError(f'{target.run}: arm "{target.arm.name}" has fewer than two released {what}')
    return [chosen[i] for i in np.sort(shuffled(target, len(chosen))[: target.limit])]


def shuffled(target: Target, n: int) -> np.ndarray:
    """Return 0..n-1 in an order that the study's seed determines."""
    return np.random.default_rng([target.seed, 6]).permutation(n)


def texts_of(target: Target, rows: Sequence[Row]) -> list[Text]:
    """Return the texts, or pairs, that releases were drawn from.

    Raises:
        UserError: A node does not hold one of them.
    """
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
    """Return the error for a release that the arm cannot have made by its experiment file.

    Args:
        row: Release.
        arm: Name of the arm.
        guarantee: Guarantee of the arm's mechanism. If it differs from the release's only in the samplers' error,
            another version made the release.
    """
    path, stated = row.node.folder / f"ledger-{slug(arm)}.sqlite", row.released.guarantee
    as_here = replace(stated, numeric_epsilon=guarantee.numeric_epsilon, numeric_delta=guarantee.numeric_delta)
    if stated != guarantee == as_here:
        return UserError(
            f"{path}: was written by a version of Sottovoce with other samplers; attack the run with that one, which "
            "results.json names"
        )
    return UserError(f'{path}: was not written by arm "{arm}" as experiment.toml describes it')


# --- members and others


IntArray = NDArray[np.int64]

#: Least number of records of each kind: if half of them are scored, the standard error of a coin is .09.
LEAST = 30


@dataclass(frozen=True, eq=False)
class Delivered:
    """Releases of an arm's training users that the server has.

    Args:
        held: Text of each (user, record), for the truth alone.
        stage: Name of the stage.
        z: Released embeddings (n, m'); None without this channel.
        w: Released texts (n, L), as numbers of words; None without this channel.
        y: Released labels (n,); None without this channel.
    """

    held: dict[tuple[int, int], Text]
    stage: str
    z: NDArray[np.float64] | None = None
    w: IntArray | None = None
    y: IntArray | None = None

    def rows(self, held: Held) -> IntArray:
        """Return the rows of the run's training part that were delivered.

        Raises:
            Skipped: The nodes hold other texts than the experiment's data have now.
        """
        keys = zip(held.holders.users.tolist(), held.holders.records.tolist(), strict=True)
        results = []
        for row, (key, text) in enumerate(zip(keys, held.train.texts, strict=True)):
            if key in self.held:
                if self.held[key] != text:
                    break
                results.append(row)
        if len(results) < len(self.held):
            raise Skipped("the experiment's data are not those that the run was made with; who was a member is unknown")
        return np.array(results, dtype=np.int64)


def arrived(target: Target, channel: str) -> list[Row]:
    """Return the training users' releases on a channel that the server has.

    Raises:
        Skipped: There are none.
    """
    results = target.run / "results.json"
    if results.is_file():
        arms = {arm.name: arm for arm in arms_of(json.loads(results.read_text(encoding="utf-8")))}
        if target.arm.name in arms and not arms[target.arm.name].delivered:
            raise Skipped("no training user's release was delivered")
    released = [row for row in releases.of_arm(target) if row.split == "train"]
    rows = _in_time(target, [row for row in released if row.released.channel == channel])
    if not rows:
        if not released:
            raise Skipped("no training user has released anything")
        sent = " and ".join(sorted({row.released.channel for row in released}))
        raise Skipped(f"what its training users released ({sent}) is not what this attack reads ({channel})")
    return rows


def delivered(target: Target) -> Delivered | None:
    """Return the training users' releases that reached the server; None if the protocol has none.

    Raises:
        Skipped: The users released nothing that membership attacks read. The message names what they released.
    """
    arm = target.arm
    if not target.setup.protocol.private:
        return None
    rows = arrived(target, (EMBEDDING if arm.text is None else TEXT).name)
    w = z = y = None
    if arm.text is not None:
        w = np.stack([np.frombuffer(row.released.payload, dtype="<i4") for row in rows]).astype(np.int64)
    else:
        assert arm.embedding is not None
        mechanism = embedding_mechanism(arm.embedding, 2)  # the encoding of numbers does not depend on m'
        z = np.stack([values(row, mechanism) for row in rows])
    labels = {(row.key, row.released.stage): row.released.payload for row in releases.of_arm(target, LABEL.name)}
    if all((row.key, row.released.stage) in labels for row in rows):
        text = b"".join(labels[row.key, row.released.stage] for row in rows)
        y = np.frombuffer(text, dtype="<i2").astype(np.int64)
    held = dict(zip((row.key for row in rows), releases.texts_of(target, rows), strict=True))
    return Delivered(held, ", ".join(sorted({row.released.stage for row in rows})), z, w, y)


def _in_time(target: Target, rows: list[Row]) -> list[Row]:
    """Return the rows without users who were late at their stage."""
    kept = []
    for stage in sorted({row.released.stage for row in rows}):
        mine = [row for row in rows if row.released.stage == stage]
        users = np.array([row.key[0] for row in mine], dtype=np.int64)
        people, person = np.unique(users, return_inverse=True)
        gone = late(people, probability=target.population.late, stage=stage, seed=target.seed)[person]
        kept += [row for row, missed in zip(mine, gone, strict=True) if not missed]
    return kept


def members_and_others(target: Target, held: Held, inside: IntArray) -> tuple[Corpus, Corpus, np.random.Generator]:
    """Return as many members as other records, and the generator that picked them.

    Args:
        target: Attacked arm; its limit applies to each kind.
        held: Data of the run.
        inside: Rows of the members in the training part.

    Raises:
        Skipped: There are too few records.
    """
    outside = others(target, held)
    n = min(target.limit, len(inside), len(outside))
    if n < LEAST:
        raise Skipped(
            f"needs {LEAST} training records and as many others; there are {len(inside)} and {len(outside)}, and "
            f"--limit is {target.limit}"
        )
    rng = np.random.default_rng([target.seed, 7])
    return held.train.take(rng.permutation(inside)[:n]), outside.take(rng.permutation(len(outside))[:n]), rng


def others(target: Target, held: Held) -> Corpus:
    """Return texts that nobody released: private texts without a user if there are enough, otherwise test texts."""
    released = set(held.train.texts)
    for corpus in (target.split().train, held.test):
        first: dict[Any, int] = {}
        for row, text in enumerate(corpus.texts):
            if text not in released:
                first.setdefault(text, row)
        if len(first) >= min(target.limit, len(released)):
            break
    return corpus.take(np.array(list(first.values()), dtype=np.int64))

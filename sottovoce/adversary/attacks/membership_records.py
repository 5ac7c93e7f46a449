"""The records that membership inference asks about: those that training users released, and others like them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.corpora.corpus import Corpus, Text
from simulations.corpora.parts import load_split
from simulations.experiment import embedding_mechanism
from simulations.run.population import late
from simulations.run.prepare import Held
from sottovoce.adversary.attacks import releases
from sottovoce.adversary.attacks.knowledge import values
from sottovoce.adversary.attacks.releases import Row
from sottovoce.adversary.attacks.target import Skipped, Target

IntArray = NDArray[np.int64]

#: Records of each kind, at least: where half of them are scored, the standard error of a coin is .09.
LEAST = 30


@dataclass(frozen=True, eq=False)
class Delivered:
    """What the server has of an arm's training users. z, w, y: released embeddings (n, m'), texts as numbers of words
    (n, L) and labels (n,); None where there is no such channel. stage: its name. held: for the truth alone, the text of
    each (user, record)."""

    held: dict[tuple[int, int], Text]
    stage: str
    z: NDArray[np.float64] | None = None
    w: IntArray | None = None
    y: IntArray | None = None

    def rows(self, held: Held) -> IntArray:
        """The rows of the run's training part that were delivered. Raises Skipped where the nodes hold other texts than
        the experiment's data have now."""
        keys = zip(held.holders.users.tolist(), held.holders.records.tolist(), strict=True)
        found = []
        for row, (key, text) in enumerate(zip(keys, held.train.texts, strict=True)):
            if key in self.held:
                if self.held[key] != text:
                    break
                found.append(row)
        if len(found) < len(self.held):
            raise Skipped("the experiment's data are not those that the run was made with; who was a member is unknown")
        return np.array(found, dtype=np.int64)


def arrived(target: Target, channel: str) -> list[Row]:
    """What the training users released on a channel and the server has. Raises Skipped where that is nothing."""
    results = target.run / "results.json"
    if results.is_file():
        lines = {line["name"]: line for line in json.loads(results.read_text(encoding="utf-8"))["arms"]}
        if target.arm.name in lines and not lines[target.arm.name]["delivered"]:
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
    """The training users' releases that reached the server; None where the way has none. Raises Skipped, with what
    they released where it is nothing that membership attacks read."""
    study, arm = target.study, target.arm
    if not study.training.protocol.private:
        return None
    channel = "embedding" if arm.text is None else "text"
    rows = arrived(target, channel)
    w = z = y = None
    if channel == "text":
        w = np.stack([np.frombuffer(row.released.payload, dtype="<i4") for row in rows]).astype(np.int64)
    else:
        assert arm.embedding is not None
        mechanism = embedding_mechanism(arm.embedding, 2)  # how numbers are written does not depend on m'
        z = np.stack([values(row, mechanism) for row in rows])
    labels = {(row.key, row.released.stage): row.released.payload for row in releases.of_arm(target, "label")}
    if all((row.key, row.released.stage) in labels for row in rows):
        said = b"".join(labels[row.key, row.released.stage] for row in rows)
        y = np.frombuffer(said, dtype="<i2").astype(np.int64)
    held = dict(zip((row.key for row in rows), releases.texts_of(target, rows), strict=True))
    return Delivered(held, ", ".join(sorted({row.released.stage for row in rows})), z, w, y)


def _in_time(target: Target, rows: list[Row]) -> list[Row]:
    """Without users who were late at their stage, and so came to nothing."""
    study, kept = target.study, []
    for stage in sorted({row.released.stage for row in rows}):
        mine = [row for row in rows if row.released.stage == stage]
        users = np.array([row.key[0] for row in mine], dtype=np.int64)
        people, person = np.unique(users, return_inverse=True)
        gone = late(people, probability=study.population.late, stage=stage, seed=study.seed)[person]
        kept += [row for row, missed in zip(mine, gone, strict=True) if not missed]
    return kept


def members_and_others(target: Target, held: Held, inside: IntArray) -> tuple[Corpus, Corpus, np.random.Generator]:
    """As many of the rows `inside` of the run's training part as of other texts, at most the target's limit of each,
    and the generator that has picked them. Raises Skipped where there are too few."""
    outside = others(target, held)
    n = min(target.limit, len(inside), len(outside))
    if n < LEAST:
        raise Skipped(
            f"needs {LEAST} training records and as many others; there are {len(inside)} and {len(outside)}, and "
            f"--limit is {target.limit}"
        )
    rng = np.random.default_rng([target.study.seed, 7])
    return held.train.take(rng.permutation(inside)[:n]), outside.take(rng.permutation(len(outside))[:n]), rng


def others(target: Target, held: Held) -> Corpus:
    """Texts that nobody released: private ones that no user holds, if there are enough, else those of the test part."""
    released = set(held.train.texts)
    for corpus in (load_split(target.study)[0].train, held.test):
        first: dict[Any, int] = {}
        for row, text in enumerate(corpus.texts):
            if text not in released:
                first.setdefault(text, row)
        if len(first) >= min(target.limit, len(released)):
            break
    return corpus.take(np.array(list(first.values()), dtype=np.int64))

"""Attacks on a user by all of their sanitized texts, or released embeddings, together.

They assume that the server knows which releases come from one user, as it does without a shuffler. The adversary
(`adversary.estimators.users`) gets the releases and the attribute of other users. Only `adversary.attacks.scores`
compares its guesses with the truth.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.artifacts.encoder import encoder_folder
from simulations.artifacts.public import CachedEncoder
from simulations.experiment import embedding_mechanism
from sottovoce.adversary.attacks import attributes, releases, scores
from sottovoce.adversary.attacks.knowledge import prepared, values
from sottovoce.adversary.attacks.target import Skipped, Target, each
from sottovoce.adversary.attacks.words import mechanism_of
from sottovoce.adversary.estimators import users as estimator

log = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Description of each attack, by its name on the command line.
ATTACKS = {
    "attribute-user": "an attribute of a user by all releases together, by what learnt on those of other users",
    "linkage-user": "which of two halves of the releases come from one user",
}
#: Explanation of their table's columns.
READING = (
    "Users: the server knows which releases come from one user, and an attribute of other users. Texts are read by the "
    "mean of their sentence embeddings, by their words, and by both, embeddings by their mean; the reading and the "
    "penalty are chosen among the users whose attribute is known. Success is the share of users guessed right, each by "
    "what was learned on nine tenths of the others; baseline: the most frequent value, of linkage chance."
)
#: Least number of users of a value: users of rarer values are left out.
LEAST_OF_A_VALUE = 10


@dataclass(frozen=True, eq=False)
class Received:
    """Everything that the server received of u users.

    Args:
        users: User (n,) of each release, from 0 to u - 1, each with at least one.
        vectors: Embeddings (n, m) of the texts received, or received vectors.
        words: Words of each text received; None for vectors.
    """

    users: IntArray
    vectors: NDArray[Any]
    words: Sequence[Sequence[str]] | None = None

    @property
    def count(self) -> int:
        """Return u."""
        return int(self.users.max()) + 1

    def of(self, people: IntArray) -> Received:
        """Return the releases of these users, numbered anew."""
        number = np.full(self.count, -1)
        number[people] = np.arange(len(people))
        rows = np.flatnonzero(number[self.users] >= 0)
        return self._rows(rows, number[self.users[rows]])

    @cached_property
    def readings(self) -> dict[str, FloatArray]:
        """Return a vector (u, m) of each user by each reading."""
        total = np.zeros((self.count, self.vectors.shape[1]))
        np.add.at(total, self.users, self.vectors)
        found = {"vectors": total / np.bincount(self.users)[:, None]}
        if self.words is not None:
            said: list[list[str]] = [[] for _ in range(self.count)]
            for user, words in zip(self.users.tolist(), self.words, strict=True):
                said[user] += words
            found["words"] = estimator.word_vectors(said)
        return found

    def halves(self, seed: int) -> Received:
        """Return the releases of users with two or more, the first half of each as user 2i and the rest as 2i + 1."""
        order = np.random.default_rng([seed, 19]).permutation(len(self.users))
        people = np.flatnonzero(np.bincount(self.users) > 1)
        owner = np.empty(len(self.users), np.int64)
        rows = []
        for number, user in enumerate(people):
            mine = order[self.users[order] == user]
            owner[mine] = 2 * number + (np.arange(len(mine)) >= len(mine) // 2)
            rows.append(mine)
        every = np.sort(np.concatenate(rows)) if rows else np.zeros(0, np.int64)
        return self._rows(every, owner[every])

    def _rows(self, rows: IntArray, users: IntArray) -> Received:
        words = None if self.words is None else [self.words[row] for row in rows]
        return Received(users, self.vectors[rows], words)


def attribute(received: Received, said: Sequence[str | None], seed: int) -> dict[str, Any]:
    """Return the results of guessing an attribute of each user.

    Args:
        received: Releases of u users.
        said: Value of each user; None where there is none.
        seed: Seed of the folds.

    Raises:
        Skipped: Too few users have a value that is frequent enough.
    """
    counts = Counter(value for value in said if value is not None)
    classes = sorted(value for value, count in counts.items() if count >= LEAST_OF_A_VALUE)
    people = np.array([user for user, value in enumerate(said) if value in classes], dtype=np.int64)
    if len(people) < attributes.LEAST or len(classes) < 2:
        raise Skipped(
            f"{attributes.LEAST} users are needed, of two values or more that {LEAST_OF_A_VALUE} users have; there are "
            f"{len(people)} of {len(classes)}"
        )
    truth = np.array([classes.index(str(said[user])) for user in people], dtype=np.int64)
    readings = received.of(people).readings
    views = estimator.together({name: estimator.of_vectors(rows) for name, rows in readings.items()})
    guesses, by = estimator.guessed(views, truth, classes=len(classes), seed=seed)
    rate, share = scores.guesses_right(guesses, truth), np.bincount(truth) / len(truth)
    gain = rate.success - float(share.max())
    return {
        **rate.shown,
        "baseline": float(share.max()),
        "texts": len(people),
        "share": share.tolist(),
        "gain": gain / (1 - float(share.max())),
        "right": dict(zip(people.tolist(), (guesses == truth).tolist(), strict=True)),
        "note": f"{len(classes)} values; gain {gain:+.3f}; by {', '.join(by)}"
        + (f"; {len(counts) - len(classes)} rare values left out" if len(counts) > len(classes) else ""),
    }


def linkage(received: Received, seed: int) -> dict[str, Any]:
    """Return the results of matching the halves of each user's releases.

    Raises:
        Skipped: Fewer than two users have two releases.
    """
    halves = received.halves(seed)
    if len(halves.users) == 0 or halves.count < 4:
        raise Skipped("two users of two releases each are needed")
    evidence = estimator.likeness([(rows[::2], rows[1::2]) for rows in halves.readings.values()])
    found, auc = scores.matched(evidence), scores.area(evidence)
    return {
        **found.shown,
        "baseline": 1 / len(evidence),
        "texts": len(evidence),
        "auc": auc.success,
        "auc_error": auc.error,
        "note": f"AUC {auc.success:.3f} ± {auc.error:.3f}",
    }


def entries(target: Target, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of attacks on users: see `Target`."""
    attacked = _Users(target)
    return each(names, attacked.entries, on=target.arm.name)


@dataclass(frozen=True, eq=False)
class _Users:
    """Attacked users of one arm: training users if they released anything, otherwise test users."""

    target: Target

    def entries(self, name: str) -> list[dict[str, Any]]:
        """Return one attack's entries; raise Skipped if it does not apply."""
        if len(np.unique(self._rows_of)) == len(self._rows_of):
            raise Skipped("every user released one record; the attacks on single releases say it")
        if name == "linkage-user":
            return [self._entry(name, linkage(self._received, self.target.seed))]
        found = []
        for attribute_ in attributes.wanted(self.target):
            about = attributes.column(self.target, self._held, attribute_)
            entry = attribute(self._received, self._said(about), self.target.seed)
            del entry["right"], entry["share"]
            found.append(self._entry(name, entry | {"attribute": attribute_, "note": f"{attribute_}, {entry['note']}"}))
        return found

    def _entry(self, name: str, found: dict[str, Any]) -> dict[str, Any]:
        log.info(f"{self.target.arm.name}: {name}: {found['success']:.3f} ± {found['error']:.3f}")
        spec = self.target.arm.text or self.target.arm.embedding or {}
        worst = max(row.released.guarantee.worst_case(declared=row.released.guarantee.exposes) for row in self._rows)
        return {
            "attack": name,
            "arm": self.target.arm.name,
            "mechanism": spec.get("mechanism"),
            "epsilon": spec.get("epsilon"),
            "worst_case_epsilon": worst,
            "stage": ", ".join(sorted({row.released.stage for row in self._rows})),
            "tokens": None,
            "best": None,
            "bound": None,
            "bound_counts": None,
            "expected": None,
        } | found

    def _said(self, about: Mapping[Any, str]) -> list[str | None]:
        """Return the value of each user in which all texts agree."""
        known: list[set[str]] = [set() for _ in range(self._received.count)]
        for user, text in zip(self._received.users.tolist(), releases.texts_of(self.target, self._rows), strict=True):
            known[user] |= {about[text]} if text in about else set()
        return [min(each) if len(each) == 1 else None for each in known]

    @cached_property
    def _held(self) -> Any:
        return prepared(self.target.run).held

    @cached_property
    def _rows(self) -> list[releases.Row]:
        """Return the releases of at most `limit` users."""
        channel = "text" if self.target.arm.text is not None else "embedding"
        rows = releases.of_arm(self.target, channel)
        rows = [row for row in rows if row.split == "train"] or rows
        if not rows:
            raise Skipped("nothing was released")
        people = np.unique([row.key[0] for row in rows])
        chosen = set(people[releases.shuffled(self.target, len(people))[: self.target.limit]].tolist())
        return [row for row in rows if row.key[0] in chosen]

    @property
    def _rows_of(self) -> IntArray:
        return np.array([row.key[0] for row in self._rows], dtype=np.int64)

    @cached_property
    def _received(self) -> Received:
        users = np.unique(self._rows_of, return_inverse=True)[1].astype(np.int64)
        target, arm = self.target, self.target.arm
        if arm.text is None:
            assert arm.embedding is not None
            mechanism = embedding_mechanism(arm.embedding, 2)  # the encoding of numbers does not depend on m'
            return Received(users, np.stack([values(row, mechanism) for row in self._rows]))
        text, _ = mechanism_of(target)
        payload = b"".join(row.released.payload for row in self._rows)
        said = text.texts(np.frombuffer(payload, dtype="<i4").reshape(-1, text.positions))
        lines = [one if isinstance(one, str) else " ".join(one) for one in said]
        folder = encoder_folder(
            target.encoder, target.split().public, batch_size=target.training.batch_size, seed=target.seed
        )
        vectors = CachedEncoder(folder).embed(lines)
        return Received(users, vectors, [line.lower().split() for line in lines])

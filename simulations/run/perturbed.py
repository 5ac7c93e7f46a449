"""Count of the words that users' releases change, for the owner of the true texts alone.

Fu 2024 (section 5) reports it beside accuracy, to compare mechanisms that perturb a similar share of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from client.models.tokens import padded_word_ids
from mechanisms.messages.questions import TextQuestion
from mechanisms.messages.request import Request
from mechanisms.vocabulary import NOTHING
from server.protocols.drive import Collected
from simulations.artifacts.public import CachedEncoder
from simulations.run.collect import FlowerUsers
from simulations.run.prepare import Held


class CountedUsers:
    """Users of a simulation whose changed words are counted (`server.protocols.drive.Users`).

    `counts` has for each split "words", the words in delivered users' texts, as far as a release has room for them, and
    "perturbed", those that were replaced or removed. A word outside the vocabulary stays if it is released as unknown.
    Mechanisms that move words are not counted.
    """

    def __init__(self, users: FlowerUsers, held: Held) -> None:
        self._users, self._held = users, held
        self.counts: dict[str, dict[str, int]] = {}

    def collect(self, request: Request) -> Collected:
        """Collect from the users, and count."""
        collected = self._users.collect(request)
        release = collected.batch.of(TextQuestion)
        if release is not None:
            self._count(request, release.values.astype(np.int64))
        return collected

    def publish(self, encoder: Path, splits: Sequence[str]) -> CachedEncoder:
        """Publish to the users."""
        return self._users.publish(encoder, splits)

    def _count(self, request: Request, released: Any) -> None:
        text: Any = request.question(TextQuestion).text
        if getattr(text.word, "moves", False):
            return
        origin, held = self._users.origins[request.stage], self._held
        holders, texts = (held.holders, held.train.texts) if request.split == "train" else (held.test_holders, None)
        keys = zip(holders.users.tolist(), holders.records.tolist(), strict=True)
        rows = {key: row for row, key in enumerate(keys)}
        whose = zip(origin.users.tolist(), origin.records.tolist(), strict=True)
        at = np.array([rows.get(key, -1) for key in whose], dtype=np.int64)
        mask = at >= 0  # a hostile client may name a record that nobody holds
        written = [held.test.texts[held.test_rows[row]] if texts is None else texts[row] for row in at[mask].tolist()]
        truth = padded_word_ids(written, text)
        words = truth != NOTHING
        result = self.counts.setdefault(request.split, {"words": 0, "perturbed": 0})
        result["words"] += int(words.sum())
        result["perturbed"] += int((words & (released[mask] != truth)).sum())

"""How many words of what users wrote are others in what they released: for the owner of the truth alone.

Fu 2024 (section 5) records it beside the accuracy, to compare choices of words that perturb alike much of a text.
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
    """A simulation's users, of whose texts it is counted what their releases perturb (`server.protocols.drive.Users`).

    counts: by the split, "words" of the vocabulary that delivered users wrote, as far as a release has room for them,
    and "perturbed", in whose place another stands, or none. Of mechanisms whose words do not stay in their places there
    is nothing to count.
    """

    def __init__(self, users: FlowerUsers, held: Held) -> None:
        self._users, self._held = users, held
        self.counts: dict[str, dict[str, int]] = {}

    def collect(self, request: Request) -> Collected:
        """As the users do."""
        collected = self._users.collect(request)
        release = collected.batch.of(TextQuestion)
        if release is not None:
            self._count(request, release.values.astype(np.int64))
        return collected

    def publish(self, encoder: Path, splits: Sequence[str]) -> CachedEncoder:
        """As the users do."""
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
        there = at >= 0  # a hostile client may name a record that nobody holds
        written = [held.test.texts[held.test_rows[row]] if texts is None else texts[row] for row in at[there].tolist()]
        truth = padded_word_ids(written, text)
        known = (truth != NOTHING) & (truth < len(text.vocabulary))
        found = self.counts.setdefault(request.split, {"words": 0, "perturbed": 0})
        found["words"] += int(known.sum())
        found["perturbed"] += int((known & (released[there] != truth)).sum())

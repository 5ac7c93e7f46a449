"""What a shuffler hands on: the releases of many users, and nothing that says whose they are."""

from __future__ import annotations

from dataclasses import dataclass

from mechanisms.messages.questions import Question
from mechanisms.messages.release import Release


@dataclass(frozen=True)
class Batch:
    """Releases of n rows in random order, one release a channel, and no ids.

    users: number of distinct users in it. duplicates: rows that were there twice, and count once. discarded: why
    nothing was delivered, None where it was.
    """

    releases: tuple[Release, ...]
    users: int
    duplicates: int
    discarded: str | None = None

    def of(self, kind: type[Question]) -> Release | None:
        """The release that answers a class of questions; None where there is none."""
        return next((r for r in self.releases if r.channel == kind.channel), None)

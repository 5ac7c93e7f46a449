"""Batch of a shuffler: the releases of many users, without any ids."""

from __future__ import annotations

from dataclasses import dataclass

from mechanisms.messages.questions import Question
from mechanisms.messages.release import Release


@dataclass(frozen=True)
class Batch:
    """Releases of n rows in random order, one release a channel, and no ids.

    Attributes:
        releases: One release a channel.
        users: Number of distinct users in it.
        duplicates: Number of repeated rows, which count once.
        discarded: Reason why nothing was delivered, or None.
    """

    releases: tuple[Release, ...]
    users: int
    duplicates: int
    discarded: str | None = None

    def of(self, kind: type[Question]) -> Release | None:
        """The release that answers a class of questions; None where there is none."""
        return next((r for r in self.releases if r.channel == kind.channel), None)

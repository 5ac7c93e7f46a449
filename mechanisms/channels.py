"""Channels by their names on the wire: what an input of each is, and its words for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Domain(Enum):
    """Inputs that the mechanisms of a channel take."""

    TEXT = "texts"
    SPHERE = "unit vectors"
    BALL = "vectors of length 1 at most"
    CLASSES = "whole numbers"

    @property
    def vectors(self) -> bool:
        """Return True if an input is a row of coordinates."""
        return self in (Domain.SPHERE, Domain.BALL)


@dataclass(frozen=True)
class Channel:
    """Facts of a channel that need no request.

    name: on the wire, in ledgers, in digests and in files.
    title: name for people.
    domain: inputs of its mechanisms.
    protects: what an input is, as guarantees call it; the usual one first.
    neighbours: the inputs between which its guarantee holds, in words.
    released: what leaves with a mechanism, in words. bare: what leaves without one.
    always: whether a ledger's ladder shows it where there is no release of it.
    """

    name: str
    title: str
    domain: Domain
    protects: tuple[str, ...]
    neighbours: str
    released: str
    bare: str
    always: bool = False


TEXT = Channel(
    "text",
    "text",
    Domain.TEXT,
    ("token", "sequence"),
    "any two texts",
    "for each text, a rewritten one: a random mechanism on the device has drawn its words",
    "the words of each text as they were written",
    always=True,
)
EMBEDDING = Channel(
    "embedding",
    "embedding",
    Domain.SPHERE,
    ("sequence",),
    "any two texts",
    "for each text, a short list of numbers computed from it, with random noise added on the device before it leaves",
    "the exact numbers computed from each text, from which much of it can be guessed",
    always=True,
)
VECTOR = Channel(
    "statistic",
    "vector",
    Domain.BALL,
    ("record",),
    "any two users' data",
    "one vector of numbers that sums up all of the user's texts and labels, with random noise added on the device "
    "before it leaves",
    "the exact vector that sums up the user's texts and labels",
)
ANSWER = Channel(
    "answer",
    "answer",
    Domain.CLASSES,
    ("sequence",),
    "any two texts",
    "for each text asked about, one class, computed on the device and exchanged there at random with a known "
    "probability",
    "the exact answer of the model to each text",
)
LABEL = Channel(
    "label",
    "label",
    Domain.CLASSES,
    ("label",),
    "any two labels",
    "for each text, its label, which the device has exchanged at random with a known probability",
    "the true label of each text",
    always=True,
)

#: Channels by name, in their order in a request.
CHANNELS: dict[str, Channel] = {c.name: c for c in (TEXT, EMBEDDING, VECTOR, ANSWER, LABEL)}


def domain_of(mechanism: Any) -> Domain:
    """Return the inputs of a mechanism, or of a class of mechanisms."""
    return CHANNELS[mechanism.channel].domain

"""Randomized response for a model's answer in place of a label, with the guarantee of a text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from mechanisms.guarantee import Guarantee
from mechanisms.randomized_response import RandomizedResponse


@dataclass(frozen=True)
class RandomizedAnswer(RandomizedResponse):
    """Release of a public model's class of a text with probability e^ε/(e^ε + K - 1), else another of K, uniformly.

    It is ε-LDP for any two texts (Warner 1965). The class is a function of the text and of public parameters. So two
    texts are distinguished as two labels are, or, if of one class, not at all. Unless some other class is beforehand
    more than e^ε times as likely, the released class is the likeliest one: P(c | y) is proportional to
    P(c)·e^(ε[c = y]). A reader takes it as it is.

    Only the input differs from `RandomizedResponse`, so the name is the same: the channel of a catalogue's spec decides
    which is meant. It is a class rather than a parameter. A parameter would change the digest of every label, and
    records would be released, and charged, again.

    Attributes:
        epsilon: 0..1000.
        classes: K, 2..10,000.
    """

    channel: ClassVar[str] = "answer"

    @property
    def guarantee(self) -> Guarantee:
        """Return the theorem, of a sequence."""
        return replace(super().guarantee, protects="sequence")

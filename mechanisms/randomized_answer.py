"""Randomized response for what a model answers, in place of a label: the guarantee of a text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from mechanisms.guarantee import Guarantee
from mechanisms.randomized_response import RandomizedResponse


@dataclass(frozen=True)
class RandomizedAnswer(RandomizedResponse):
    """Of K classes the one that a public model gives a text with probability e^ε/(e^ε + K - 1), else another,
    uniformly: ε-LDP for any two texts (Warner 1965).

    The class is a function of the text and of public parameters, so two texts are told apart as two labels are, or, of
    one class, not at all. Unless some other class is beforehand more than e^ε times as likely, the released class is
    the likeliest one: P(c | y) is proportional to P(c)·e^(ε[c = y]). Whoever gets it takes it as it is.

    Only what an input is differs from `RandomizedResponse`, and so the name is the same: a catalogue's spec says by its
    channel which of the two is meant. It is a class of its own rather than a parameter, which would stand in the digest
    of every label: records would be released, and charged, once more.

    epsilon: 0..1000. classes: K, 2..10,000.
    """

    channel: ClassVar[str] = "answer"

    @property
    def guarantee(self) -> Guarantee:
        return replace(super().guarantee, protects="sequence")

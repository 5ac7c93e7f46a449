"""Settings of the page, checked once before any use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from mechanisms.catalogue import CATALOGUE, build
from mechanisms.channels import Domain, domain_of
from mechanisms.mechanism import Mechanism
from mechanisms.messages.questions import QUESTIONS
from mechanisms.vocabulary import Vocabulary
from simulations.analysis.budget import mechanism_of
from simulations.errors import UserError

#: Channels of the page, in its order.
CHANNELS = ("embedding", "text", "statistic", "label")


class Slider(NamedTuple):
    """Mechanism on the page, with the slider of its ε.

    Args:
        label: Name and a few words for people who choose a mechanism.
        usual: First ε.
        least: Least ε.
        most: Largest ε.
        more: Parameters with sliders beside ε and dim.
    """

    label: str
    usual: float
    least: float
    most: float
    more: tuple[str, ...] = ()


SLIDERS = {
    "purkayastha": Slider("Purkayastha: turns it on a sphere", 6.0, 0.0, 20.0),
    "planar-laplace": Slider("planar Laplace: shifts it", 12.0, 0.0, 40.0),
    "gaussian": Slider("Gaussian: shifts it, without a worst case", 6.0, 0.5, 20.0),
    "privunit": Slider("PrivUnit: a cap around it", 4.0, 0.0, 16.0),
    "randomized-response": Slider("randomized response", 2.0, 0.0, 8.0),
    "santext": Slider("SanText: near words more often", 12.0, 0.0, 24.0),
    "santext+": Slider("SanText+: frequent words may stay", 12.0, 0.0, 24.0, ("w", "p")),
    "custext": Slider("CusText: one of K words", 4.0, 0.0, 12.0, ("k",)),
    "custext+": Slider("CusText+: stop words stay", 4.0, 0.0, 12.0, ("k",)),
    "madlib": Slider("MADLIB: noise on the word's vector", 12.0, 0.5, 24.0),
    "tem": Slider("TEM: near words, far ones alike", 12.0, 0.5, 24.0),
    "mahalanobis": Slider("Mahalanobis: noise by the words' shape", 12.0, 0.5, 24.0),
}
#: Mechanisms of each channel on the page; the first is the default.
MECHANISMS = {channel: tuple(name for name in SLIDERS if CATALOGUE[name].channel == channel) for channel in CHANNELS}
#: Least and largest value of each number; whole numbers have whole bounds.
RANGES: dict[str, tuple[float, float]] = {
    "epsilon": (0.0, 100.0),
    "label_epsilon": (0.0, 20.0),
    "dim": (2, 64),
    "delta": (1e-15, 0.1),
    "k": (2, 200),
    "w": (0.05, 1.0),
    "p": (0.05, 1.0),
}
#: Most tokens that are read of a text. Its length stays as it is, so that one can follow the words.
TOKENS = 16


@dataclass(frozen=True)
class Settings:
    """One possible request of a server.

    Args:
        channel: Channel in MECHANISMS.
        mechanism: Mechanism of the channel in MECHANISMS.
        epsilon: ε in the mechanism's own metric.
        label_epsilon: ε of a label beside an embedding or a text, by randomized response; None without a label.
        dim: m' of an embedding; number of features of a user vector.
        delta: δ of every ε that has one.
        k: Words from which CusText chooses.
        w: Share of words that SanText+ counts as sensitive.
        p: Probability with which SanText+ exchanges another word.
    """

    channel: str = "embedding"
    mechanism: str = "purkayastha"
    epsilon: float = 6.0
    label_epsilon: float | None = None
    dim: int = 16
    delta: float = 1e-6
    k: int = 20
    w: float = 0.9
    p: float = 0.3

    @classmethod
    def of(cls, values: Any) -> Settings:
        """Return the settings in a JSON value.

        Raises:
            UserError: The value is invalid. The message is one line.
        """
        if not isinstance(values, Mapping):
            raise UserError("settings: must be a table")
        keys = [field.name for field in fields(cls)]
        if extra_keys := [str(key) for key in values if key not in keys]:
            raise UserError(f"settings: unknown key {extra_keys[0][:40]!r}; known: {', '.join(keys)}")
        items = dict(values)
        channel = items.get("channel", cls.channel)
        if not isinstance(channel, str) or channel not in MECHANISMS:
            raise UserError(f"settings: channel must be one of {', '.join(MECHANISMS)}")
        if items.setdefault("mechanism", MECHANISMS[channel][0]) not in MECHANISMS[channel]:
            raise UserError(f"settings: mechanism must be one of {', '.join(MECHANISMS[channel])}")
        for name in RANGES:
            if name in items and not (name == "label_epsilon" and items[name] is None):
                items[name] = _number(name, items[name], *RANGES[name])
        if QUESTIONS[channel].reads_labels:  # these hold the label themselves
            items["label_epsilon"] = None
        return cls(**items)

    def size(self, classes: int) -> int | None:
        """Return the number of released coordinates; None for other channels.

        It is m' for an embedding, and D = (K - 1)·(d + 1) for a user vector with simplex codes.
        """
        if domain_of(self) is Domain.BALL:
            return (classes - 1) * (self.dim + 1)
        return self.dim if domain_of(self) is Domain.SPHERE else None

    def mechanisms(self, classes: int, vocabulary: Vocabulary) -> list[Mechanism]:
        """Return the mechanisms, the label's last, by the functions of the command line.

        Args:
            classes: Number of classes.
            vocabulary: Vocabulary of texts.

        Raises:
            ValueError: A parameter is out of its range. The message is one line.
        """
        more = {name: getattr(self, name) for name in SLIDERS[self.mechanism].more}
        if domain_of(self) is Domain.TEXT:
            spec = {"mechanism": self.mechanism, "epsilon": self.epsilon, "tokens": TOKENS, "length": "kept"}
            first: Any = build(spec | more, channel="text", vocabulary=vocabulary)
        else:
            text = f"{self.mechanism}:epsilon={self.epsilon!r}"
            first = mechanism_of(text, classes=classes, delta=self.delta, dim=self.size(classes))
        if self.label_epsilon is None:
            return [first]
        return [first, mechanism_of(f"randomized-response:epsilon={self.label_epsilon!r}", classes=classes)]


def _number(name: str, value: Any, low: float, high: float) -> float | int:
    whole_alone = isinstance(low, int)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    fits = number and (not whole_alone or float(value).is_integer())
    if not fits or not low <= value <= high:
        kind = "a whole number" if whole_alone else "a number"
        raise UserError(f"settings: {name} must be {kind} from {low:g} to {high:g}")
    return int(value) if whole_alone else float(value)

"""Settings of the page, checked once before any use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from mechanisms.catalogue import CATALOGUE, build
from mechanisms.channels import Domain, domain_of
from mechanisms.facts import usual
from mechanisms.mechanism import Mechanism
from mechanisms.messages.questions import QUESTIONS
from mechanisms.vocabulary import Vocabulary
from simulations.analysis.budget import mechanism_of
from simulations.errors import UserError

#: Channels of the page, in its order.
CHANNELS = ("embedding", "text", "statistic", "label")


@dataclass(frozen=True)
class Range:
    """Slider of a parameter beside ε. It starts at the parameter's default.

    Args:
        label: Description of the parameter.
        least: Least value; a parameter of whole numbers has whole bounds.
        most: Largest value.
        step: Step.
    """

    label: str
    least: float
    most: float
    step: float


@dataclass(frozen=True)
class Slider:
    """Sliders of a mechanism.

    Args:
        label: Name and a few words for people who choose a mechanism.
        usual: First ε.
        least: Least ε.
        most: Largest ε.
        more: Sliders of parameters beside ε and dim, by parameter.
    """

    label: str
    usual: float
    least: float
    most: float
    more: Mapping[str, Range] = field(default_factory=dict)


_K = {"k": Range("Words to choose from, K", 2, 200, 1)}
#: Sliders of each mechanism on the page.
SLIDERS = {
    "purkayastha": Slider("Purkayastha: turns it on a sphere", 6.0, 0.0, 20.0),
    "planar-laplace": Slider("planar Laplace: shifts it", 12.0, 0.0, 40.0),
    "gaussian": Slider("Gaussian: shifts it, without a worst case", 6.0, 0.5, 20.0),
    "privunit": Slider("PrivUnit: a cap around it", 4.0, 0.0, 16.0),
    "randomized-response": Slider("randomized response", 2.0, 0.0, 8.0),
    "santext": Slider("SanText: near words more often", 12.0, 0.0, 24.0),
    "santext+": Slider(
        "SanText+: frequent words may stay",
        12.0,
        0.0,
        24.0,
        {
            "w": Range("Share of words that count as sensitive, w", 0.05, 1.0, 0.05),
            "p": Range("Chance that another word is exchanged too, p", 0.05, 1.0, 0.05),
        },
    ),
    "custext": Slider("CusText: one of K words", 4.0, 0.0, 12.0, _K),
    "custext+": Slider("CusText+: stop words stay", 4.0, 0.0, 12.0, _K),
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
        more: Values of the mechanism's sliders beside ε and dim, in their order.
    """

    channel: str = "embedding"
    mechanism: str = "purkayastha"
    epsilon: float = 6.0
    label_epsilon: float | None = None
    dim: int = 16
    delta: float = 1e-6
    more: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, values: Any) -> Settings:
        """Return the settings in a JSON value.

        Raises:
            UserError: The value is invalid. The message is one line.
        """
        if not isinstance(values, Mapping):
            raise UserError("settings: must be a table")
        extra_names = {name for slider in SLIDERS.values() for name in slider.more}
        keys = [f.name for f in fields(cls) if f.name != "more"] + sorted(extra_names)
        if extra_keys := [str(key) for key in values if key not in keys]:
            raise UserError(f"settings: unknown key {extra_keys[0][:40]!r}; known: {', '.join(keys)}")
        items = dict(values)
        channel = items.get("channel", cls.channel)
        if not isinstance(channel, str) or channel not in MECHANISMS:
            raise UserError(f"settings: channel must be one of {', '.join(MECHANISMS)}")
        mechanism = items.setdefault("mechanism", MECHANISMS[channel][0])
        if mechanism not in MECHANISMS[channel]:
            raise UserError(f"settings: mechanism must be one of {', '.join(MECHANISMS[channel])}")
        for name in RANGES:
            if name in items and not (name == "label_epsilon" and items[name] is None):
                items[name] = _number(name, items[name], *RANGES[name])
        sliders = SLIDERS[mechanism].more
        items["more"] = tuple(
            (name, _number(name, items.get(name, start(mechanism, name)), slider.least, slider.most))
            for name, slider in sliders.items()
        )
        items = {name: value for name, value in items.items() if name not in extra_names}
        if QUESTIONS[channel].reads_labels:  # these hold the label themselves
            items["label_epsilon"] = None
        return cls(**items)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings in the form that `of` reads."""
        values = asdict(self)
        del values["more"]
        return values | dict(self.more)

    def size(self, classes: int) -> int | None:
        """Return the number of released coordinates; None for other channels.

        It is m' for an embedding, and D = (K - 1)·(d + 1) for a user vector with simplex codes.
        """
        if domain_of(self) is Domain.BALL:
            return (classes - 1) * (self.dim + 1)
        return self.dim if domain_of(self) is Domain.SPHERE else None

    def mechanisms(self, classes: int, vocabulary: Vocabulary | None) -> list[Mechanism]:
        """Return the mechanisms, the label's last, by the functions of the command line.

        Args:
            classes: Number of classes.
            vocabulary: Vocabulary of texts, if it is loaded.

        Raises:
            UserError: The words are not loaded yet. The message is one line.
            ValueError: A parameter is out of its range. The message is one line.
        """
        if domain_of(self) is Domain.TEXT:
            if vocabulary is None:
                raise UserError("the words are not loaded yet; wait a moment")
            spec = {"mechanism": self.mechanism, "epsilon": self.epsilon, "tokens": TOKENS, "length": "kept"}
            first: Any = build(spec | dict(self.more), channel="text", vocabulary=vocabulary)
        else:
            text = f"{self.mechanism}:epsilon={self.epsilon!r}"
            mechanism: Any = mechanism_of(text, classes=classes, delta=self.delta, dim=self.size(classes))
            first = replace(mechanism, **dict(self.more))
        if self.label_epsilon is None:
            return [first]
        return [first, mechanism_of(f"randomized-response:epsilon={self.label_epsilon!r}", classes=classes)]


def start(mechanism: str, parameter: str) -> Any:
    """Return the first value of a slider beside ε and dim: the mechanism's default, or its declared value."""
    kind = CATALOGUE[mechanism]
    return usual(kind).get(parameter, getattr(kind, parameter, None))


def slider_of(mechanism: str) -> dict[str, Any]:
    """Return a mechanism's sliders for the page, JSON-ready."""
    kind, slider = CATALOGUE[mechanism], SLIDERS[mechanism]
    return {
        "label": slider.label,
        "usual": slider.usual,
        "least": slider.least,
        "most": slider.most,
        "dim": "dim" in usual(kind),
        "more": {name: asdict(entry) | {"start": start(mechanism, name)} for name, entry in slider.more.items()},
    }


def _number(name: str, value: Any, low: float, high: float) -> float | int:
    whole_alone = isinstance(low, int)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    fits = number and (not whole_alone or float(value).is_integer())
    if not fits or not low <= value <= high:
        kind = "a whole number" if whole_alone else "a number"
        raise UserError(f"settings: {name} must be {kind} from {low:g} to {high:g}")
    return int(value) if whole_alone else float(value)

"""Settings of the page, checked once before any use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from mechanisms.catalogue import build
from mechanisms.mechanism import Mechanism
from mechanisms.vocabulary import Vocabulary
from simulations.analysis.budget import Release
from simulations.errors import UserError

#: Mechanisms of each channel on the page; the first is the default.
MECHANISMS = {
    "embedding": ("purkayastha", "planar-laplace", "gaussian"),
    "text": (
        "santext", "santext+", "custext", "custext+", "tem", "diffractor", "clusant", "madlib", "mahalanobis",
        "vickrey",
    ),
    "statistic": ("privunit",),
    "label": ("randomized-response",),
}  # fmt: skip
#: Mechanisms of the catalogue that the page does not show, with reasons.
ABSENT = {
    "embedding": "identity, which hides nothing",
    "text": "madlib-syntax, which wants the part of speech of every word; random and redaction, which have no ε; "
    "custext-importance, dp-mlm, dp-mlm-resized, dp-prompt, dp-paraphrase and dp-bart, whose chance of a word depends "
    "on the whole text or on a language model, so that no list of a word's chances can be shown",
    "statistic": "",
    "label": "randomized-response-prior, which wants to know what is public about this very person",
}
#: Parameters of a mechanism beside ε, by their names here; others have the catalogue's defaults.
PARAMETERS: dict[str, tuple[str, ...]] = {name: () for names in MECHANISMS.values() for name in names} | {
    "purkayastha": ("dim",), "planar-laplace": ("dim",), "gaussian": ("dim",), "privunit": ("dim",),
    "santext+": ("w", "p"), "custext": ("k",), "custext+": ("k",),
}  # fmt: skip
#: Default ε of each mechanism. Diffractor's is for each place in a list of all words.
USUAL = {name: 12.0 for name in MECHANISMS["text"]} | {
    "purkayastha": 6.0, "planar-laplace": 12.0, "gaussian": 6.0, "privunit": 4.0, "randomized-response": 2.0,
    "custext": 4.0, "custext+": 4.0, "diffractor": 0.1,
}  # fmt: skip
#: Least and largest value of each number.
RANGES: dict[str, tuple[float, float]] = {
    "epsilon": (0.0, 100.0), "label_epsilon": (0.0, 20.0), "dim": (2, 64), "k": (2, 200), "w": (0.05, 1.0),
    "p": (0.05, 1.0), "users": (1, 10**9), "delta": (1e-15, 0.1), "rounds": (1, 1000), "records": (1, 1000),
}  # fmt: skip
_WHOLE = ("dim", "k", "users", "rounds", "records")
#: Most tokens that are read of a text, and the setting of its length.
TOKENS, LENGTH = 16, "kept"


@dataclass(frozen=True)
class Settings:
    """One possible request of a server, and the crowd of its answer.

    Args:
        channel: Channel in MECHANISMS.
        mechanism: Mechanism of the channel in MECHANISMS.
        epsilon: ε in the mechanism's own metric.
        label_epsilon: ε of a label beside an embedding or a text, by randomized response; None without a label.
        dim: m' of an embedding; number of features of a user vector.
        k: Parameter of CusText.
        w: Parameter of SanText+.
        p: Parameter of SanText+.
        tokens: Tokens of a text, as in experiment files.
        length: Length of a text, as in experiment files.
        users: Users in the crowd.
        delta: δ of every ε that has one.
        rounds: Rounds of a protocol.
        records: Records of a protocol.
    """

    channel: str = "embedding"
    mechanism: str = "purkayastha"
    epsilon: float = 6.0
    label_epsilon: float | None = None
    dim: int = 16
    k: int = 20
    w: float = 0.9
    p: float = 0.3
    tokens: int = field(default=TOKENS)
    length: str | float = LENGTH
    users: int = 10_000
    delta: float = 1e-6
    rounds: int = 1
    records: int = 1

    @classmethod
    def of(cls, values: Any) -> Settings:
        """Return the settings in a JSON value.

        Raises:
            UserError: The value is invalid. The message is one line.
        """
        if not isinstance(values, Mapping):
            raise UserError("settings: must be a table")
        known = [f.name for f in fields(cls)]
        if unknown := [str(key) for key in values if key not in known]:
            raise UserError(f"settings: unknown key {unknown[0][:40]!r}; known: {', '.join(known)}")
        given = dict(values)
        channel = given.get("channel", cls.channel)
        if not isinstance(channel, str) or channel not in MECHANISMS:
            raise UserError(f"settings: channel must be one of {', '.join(MECHANISMS)}")
        mechanism = given.setdefault("mechanism", MECHANISMS[channel][0])
        if mechanism not in MECHANISMS[channel]:
            raise UserError(f"settings: mechanism must be one of {', '.join(MECHANISMS[channel])}")
        for name in RANGES:
            if name in given and not (name == "label_epsilon" and given[name] is None):
                given[name] = _number(name, given[name])
        if channel in ("statistic", "label"):  # these hold the label themselves
            given["label_epsilon"] = None
        if type(given.get("tokens", TOKENS)) is not int or not 1 <= given.get("tokens", TOKENS) <= 64:
            raise UserError("settings: tokens must be a whole number from 1 to 64")
        length = given.get("length", LENGTH)
        if length != LENGTH and not (type(length) in (int, float) and 0 <= length <= 1000):
            raise UserError('settings: length must be "kept", or an ε from 0 to 1000')
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings in the form that `of` reads."""
        return asdict(self)

    def at(self, epsilon: float) -> Settings:
        """Return the settings with another ε."""
        return replace(self, epsilon=epsilon)

    @property
    def text(self) -> dict[str, Any]:
        """Return the text mechanism, in the form of experiment files."""
        own = {name: getattr(self, name) for name in PARAMETERS[self.mechanism]}
        about = {"mechanism": self.mechanism, "epsilon": self.epsilon, "tokens": self.tokens, "length": self.length}
        return about | own

    def size(self, classes: int) -> int | None:
        """Return the number of released coordinates; None for other channels.

        It is m' for an embedding, and D = (K - 1)·(d + 1) for a user vector with simplex codes.
        """
        if self.channel == "statistic":
            return (classes - 1) * (self.dim + 1)
        return self.dim if self.channel == "embedding" else None

    def mechanisms(self, classes: int, vocabulary: Vocabulary | None) -> list[Mechanism]:
        """Return the mechanisms, the label's last, by the functions of the command line.

        Args:
            classes: Number of classes.
            vocabulary: Vocabulary of texts, if it is loaded.

        Raises:
            UserError: The words are not loaded yet. The message is one line.
            ValueError: A parameter is out of its range. The message is one line.
        """
        if self.channel == "text":
            if vocabulary is None:
                raise UserError("the words are not loaded yet; wait a moment")
            made = [build(self.text, channel="text", vocabulary=vocabulary)]
            if self.label_epsilon is not None:
                made += Release("randomized-response", self.label_epsilon, classes=classes).mechanisms()
            return made
        return self.released(classes).mechanisms()

    def released(self, classes: int) -> Release:
        """Return the release in the form of `sottovoce budget`, for channels other than text."""
        return Release(
            self.mechanism, self.epsilon, None, self.size(classes), classes, False, self.label_epsilon, self.delta
        )


def _number(name: str, value: Any) -> float | int:
    low, high = RANGES[name]
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    whole = number and (name not in _WHOLE or float(value).is_integer())
    if not whole or not low <= value <= high:
        kind = "a whole number" if name in _WHOLE else "a number"
        raise UserError(f"settings: {name} must be {kind} from {low:g} to {high:g}")
    return int(value) if name in _WHOLE else float(value)

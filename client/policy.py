"""What a client agrees to. The server is the adversary: it may ask for anything, and this is what stops
it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.catalogue import CATALOGUE
from mechanisms.guarantee import EXPOSURES, Guarantee
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.release import CHANNELS
from mechanisms.messages.request import Request

#: Sums of floats may miss a limit by their rounding, and by no more.
_ROUNDING = 1e-9


class Refused(Exception):
    """A request that this client does not answer. Carries one of the constant reasons of `REFUSALS`, only."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.code, self.text = REFUSALS[reason]
        super().__init__(self.text)


@dataclass(frozen=True)
class Policy:
    """Largest privacy losses a client agrees to. The defaults agree to nothing.

    delta: the δ at which each release's worst case is taken. k releases hold together at k·δ (basic
        composition).
    embedding, label, text, statistic: largest worst-case ε of *one record* on that channel (a statistic: of the user,
        all records together), over all its stages and digests: a server gains nothing by asking again under another
        name.
    total: largest worst-case ε of *one user* over all records, stages and channels.
    mechanisms: catalogue names that may be asked for.
    minimum_users: the smallest minimum batch of the shuffler. The server's word for it is all a client has.
    accept_unprotected: "channel: reason". That channel is declared public: no limit applies to it, and it
        does not count towards the total. The ledger shows it all the same. Or "length: reason", or another name of
        EXPOSURES: what a text mechanism may pass through beside its theorem; its limits then apply to the rest.
    """

    delta: float = 0.0
    embedding: float = 0.0
    label: float = 0.0
    text: float = 0.0
    statistic: float = 0.0
    total: float = math.inf
    mechanisms: tuple[str, ...] = field(default_factory=lambda: tuple(sorted(CATALOGUE)))
    minimum_users: int = 0
    accept_unprotected: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (_number(self.delta) and 0 <= self.delta < 1):
            raise ValueError(f"policy: delta must be in [0, 1), got {self.delta!r}")
        for name in (*CHANNELS, "total"):
            value = getattr(self, name)
            if not (_number(value) and value >= 0):
                raise ValueError(f"policy: {name} must be a number of at least 0, got {value!r}")
        if type(self.minimum_users) is not int or self.minimum_users < 0:
            raise ValueError(f"policy: minimum_users must be a whole number, got {self.minimum_users!r}")
        for name in ("mechanisms", "accept_unprotected"):
            values = getattr(self, name)
            if not (isinstance(values, tuple) and all(isinstance(v, str) for v in values)):
                raise ValueError(f"policy: {name} must be a list of strings")
        for entry in self.accept_unprotected:
            name, _, reason = entry.partition(":")
            if name.strip() not in (*CHANNELS, *EXPOSURES) or not reason.strip():
                raise ValueError(
                    f'policy: accept_unprotected takes "name: reason", a channel or one of {", ".join(EXPOSURES)}, '
                    f"got {entry!r}"
                )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Policy:
        """A policy from JSON or TOML values; infinity is "inf" or a float. Raises ValueError on an unknown
        key."""
        if not isinstance(values, Mapping):
            raise ValueError("policy: it must be a table")
        names = [f.name for f in fields(cls)]
        unknown = [key for key in values if key not in names]
        if unknown:
            raise ValueError(f"policy: unknown key {unknown[0]!r}; known: {', '.join(names)}")
        return cls(**{k: _plain(v) for k, v in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready inverse of `from_dict`."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {k: "inf" if v == math.inf else v for k, v in plain.items()}

    @property
    def declared(self) -> dict[str, str]:
        """The channels and exposures declared public, each with its reason."""
        parts = (entry.partition(":") for entry in self.accept_unprotected)
        return {name.strip(): reason.strip() for name, _, reason in parts}

    @property
    def unprotected(self) -> frozenset[str]:
        """The channels and exposures declared public."""
        return frozenset(self.declared)

    def check(self, request: Request) -> None:
        """Raise Refused unless a client that has spent nothing could answer the request."""
        if request.minimum_users < self.minimum_users:
            raise Refused("minimum-users")
        for channel in request.channels:
            mechanism = request.mechanism(channel)
            if mechanism.name not in self.mechanisms:
                raise Refused("mechanism")
            if (reason := self.refusal(channel, self.cost(mechanism.guarantee))) is not None:
                raise Refused(reason)

    def refusal(self, channel: str, cost: float) -> str | None:
        """Why a client that has spent nothing gives no release on the channel at this worst-case ε: one of `REFUSALS`;
        None where it does."""
        if channel in self.unprotected:
            return None
        if math.isinf(cost):
            return "unprotected"
        one = np.array([cost])
        if not self.allows(one, channel).all():
            return "channel"
        return None if self.allows(one, "total").all() else "total"

    def cost(self, guarantee: Guarantee) -> float:
        """The worst-case ε of one release under the guarantee, what is declared public left aside."""
        return guarantee.worst_case(self.delta, declared=self.unprotected)

    def allows(self, spent: NDArray[np.float64], limit: str) -> NDArray[np.bool_]:
        """Which of the worst-case ε, shape (n,), are within a limit: a channel's (of a record) or "total" (of
        a user). A channel declared public has none."""
        if limit in self.unprotected:
            return np.ones(len(spent), dtype=bool)
        allowed: NDArray[np.bool_] = spent <= getattr(self, limit) * (1 + _ROUNDING)
        return allowed


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return math.inf if value == "inf" else value

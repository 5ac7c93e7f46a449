"""What a client agrees to. The server is the adversary: it may ask for anything, and this is what stops
it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.store.ledger import Ledger
from mechanisms.accounting import privacy_filter
from mechanisms.accounting.privacy_filter import FREE, Account, Cost
from mechanisms.catalogue import CATALOGUE
from mechanisms.checks import is_hex
from mechanisms.guarantee import EXPOSURES, Guarantee
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.release import CHANNELS
from mechanisms.messages.request import Request

#: Seconds; whoever asks waits no longer than an hour.
_LONGEST_WINDOW = 3600.0


class Refused(Exception):
    """A request that this client does not answer. Carries one of the constant reasons of `REFUSALS`, only."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.code, self.text = REFUSALS[reason]
        super().__init__(self.text)


@dataclass(frozen=True)
class Policy:
    """Largest privacy losses a client agrees to. The defaults agree to nothing.

    Every limit is held by a privacy filter (`mechanisms.accounting.privacy_filter`): it is a theorem about all that
    leaves, whatever a server chooses to ask in the light of the answers, as long as the policy itself is not so chosen.

    delta: the δ at which a release's worst case is taken, where it has none without (Gaussian noise). Each such
        release spends it of total_delta.
    embedding, label, text, statistic, answer: largest ε of *one record* on that channel (a statistic: of the user, all
        records together), over all its stages and digests: a server gains nothing by asking again under another name.
    total: largest ε of *one user* over all records, stages and channels; total_delta: the δ of that and of the limits
        above. One half is for what releases and samplers spend, the other for the filter.
    releases: the most releases of one user, whatever they cost and declared public or not.
    stand_ins: the most releases of one user that say nothing of them, in place of what they can pay no more: without
        them a user whose total is spent is missing, and everybody sees that (`client.dummy_release`).
    mechanisms: catalogue names that may be asked for.
    minimum_users: the smallest minimum batch of the shuffler. The server's word for it is all a client has.
    accept_unprotected: "channel: reason". That channel is declared public: no limit applies to it, and it
        does not count towards the total. The ledger shows it all the same. Or "length: reason", or another name of
        EXPOSURES: what a text mechanism may pass through beside its theorem; its limits then apply to the rest.
    window: seconds within which an answer leaves, at a moment of its second half that is drawn before the question is
        looked at: it tells nothing of how long the answer took, where that was less than a half. 0: at once.
    questions: the digests (`Request.digest`) of all that may be asked: split, encoder, maps, codes, head, mechanism and
        its parameters. A server that chose its own maps could have one release tell what it most wants to know. None:
        any question within the limits may, as in a simulation.
    """

    delta: float = 0.0
    embedding: float = 0.0
    label: float = 0.0
    text: float = 0.0
    statistic: float = 0.0
    answer: float = 0.0
    total: float = math.inf
    total_delta: float = 1e-5
    releases: int = 10_000
    stand_ins: int = 0
    mechanisms: tuple[str, ...] = field(default_factory=lambda: tuple(sorted(CATALOGUE)))
    minimum_users: int = 0
    accept_unprotected: tuple[str, ...] = ()
    window: float = 0.0
    questions: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("delta", "total_delta"):
            value = getattr(self, name)
            if not (_number(value) and 0 <= value < 1):
                raise ValueError(f"policy: {name} must be in [0, 1), got {value!r}")
        for name in (*CHANNELS, "total"):
            value = getattr(self, name)
            if not (_number(value) and value >= 0):
                raise ValueError(f"policy: {name} must be a number of at least 0, got {value!r}")
        if not (_number(self.window) and 0 <= self.window <= _LONGEST_WINDOW):
            raise ValueError(f"policy: window must be seconds, from 0 to {_LONGEST_WINDOW:g}, got {self.window!r}")
        for name in ("minimum_users", "releases", "stand_ins"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ValueError(f"policy: {name} must be a whole number, got {value!r}")
        for name in ("mechanisms", "accept_unprotected"):
            values = getattr(self, name)
            if not (isinstance(values, tuple) and all(isinstance(v, str) for v in values)):
                raise ValueError(f"policy: {name} must be a list of strings")
        listed = () if self.questions is None else self.questions
        if not (isinstance(listed, tuple) and all(is_hex(v) for v in listed)):
            raise ValueError("policy: questions must be a list of digests, 64 hexadecimal digits each")
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

    def require_end(self, what: str) -> None:
        """Raise ValueError where `what`, a policy that a server meets alone, has no finite total."""
        if math.isinf(self.total):
            raise ValueError(f"{what} needs a finite total: a server may ask without end")

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
        if not self.lists(request):  # last: the user is asked about what is within their limits, and nothing else
            raise Refused("question")

    def lists(self, request: Request) -> bool:
        """Whether the question, whatever it costs, is one that the policy allows."""
        return self.questions is None or all(request.digest(c) in self.questions for c in request.channels)

    def listing(self, request: Request) -> Policy:
        """The policy that allows this question too, within the same limits."""
        new = {*(self.questions or ()), *(request.digest(channel) for channel in request.channels)}
        return self if self.questions is None else replace(self, questions=tuple(sorted(new)))

    def refusal(self, channel: str, cost: Cost) -> str | None:
        """Why a client that has spent nothing gives no release of that cost on the channel: one of `REFUSALS`; None
        where it does."""
        none = Account.empty(1)
        if not self.allows_number(none.plus(FREE, np.ones(1, np.int64)))[0]:
            return "releases"
        if channel in self.unprotected:
            return None
        if math.isinf(cost.epsilon):
            return "unprotected"
        one = none.plus(cost, np.ones(1, np.int64))
        if not self.allows(one, channel)[0]:
            return "channel"
        return None if self.allows(one, "total")[0] else "total"

    def cost(self, guarantee: Guarantee) -> Cost:
        """What one release under the guarantee is charged, what is declared public left aside."""
        return privacy_filter.cost(guarantee, self.delta, declared=self.unprotected)

    def spent(self, ledger: Ledger, users: NDArray[np.int64]) -> Account:
        """What each user has been charged in all, as this policy prices it, (n,)."""
        declared = self.unprotected
        return ledger.spent(users, delta=self.delta, without=declared, declared=declared)

    def spent_on(
        self, ledger: Ledger, channel: str, users: NDArray[np.int64], records: NDArray[np.int64]
    ) -> Account:
        """What each record has been charged on the channel, as this policy prices it, (n,)."""
        return ledger.spent_on(channel, users, records, delta=self.delta, declared=self.unprotected)

    def allows(self, spent: Account, limit: str) -> NDArray[np.bool_]:
        """Which of n accounts, with what is asked for, are within a limit: a channel's (of a record) or "total" (of
        a user), (n,). A channel declared public has none."""
        if limit in self.unprotected:
            return np.ones(len(spent), dtype=bool)
        if limit == "total":
            return privacy_filter.within(spent, epsilon=self.total, delta=self.total_delta)
        return privacy_filter.within_epsilon(spent, epsilon=getattr(self, limit), delta=self.total_delta)

    def allows_number(self, spent: Account) -> NDArray[np.bool_]:
        """Which of n users' accounts, with what is asked for, are of so many releases as the policy allows, (n,)."""
        allowed: NDArray[np.bool_] = spent.releases <= self.releases
        return allowed

    def left(self, spent: Account, public: bool = False) -> str:
        """What of the total one user who has spent this may still spend, in words; public: on a channel declared so."""
        releases = f"{max(0, self.releases - int(spent.releases[0])):,} releases"
        if public:
            return releases
        epsilon, delta = max(0.0, self.total - spent.epsilon[0]), max(0.0, self.total_delta / 2 - spent.delta[0])
        return f"ε = {'∞' if math.isinf(self.total) else f'{epsilon:.4g}'}, δ = {delta:.4g} and {releases}"

    def affords(self, spent: Account, cost: Cost, limit: str) -> int:
        """How many more releases of that cost one user who has spent this may make, within a limit and in number."""
        low, high = 0, max(0, self.releases - int(spent.releases[0]))
        while low < high:  # both conditions are of sums that only grow
            middle = (low + high + 1) // 2
            more = spent.plus(cost, np.array([middle]))
            low, high = (middle, high) if self.allows(more, limit)[0] else (low, middle - 1)
        return low


def _number(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    except OverflowError:  # a whole number of JSON's that no float can be
        return False


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return math.inf if value == "inf" else value

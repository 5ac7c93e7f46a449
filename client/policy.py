"""Policy of a client: limits on the requests that it answers. The server, as the adversary, may request anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.store.ledger import ALL_RECORDS, Ledger
from mechanisms.accounting import privacy_filter
from mechanisms.accounting.privacy_filter import FREE, Account, Cost
from mechanisms.catalogue import CATALOGUE
from mechanisms.channels import CHANNELS
from mechanisms.checks import is_hex, whole
from mechanisms.guarantee import EXPOSURES, Guarantee
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.request import Request

#: Seconds; a server waits at most an hour.
_LONGEST_WINDOW = 3600.0


class Refused(Exception):
    """Error of a request that this client does not answer. It carries only a constant reason of `REFUSALS`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.code, self.text = REFUSALS[reason]
        super().__init__(self.text)


@dataclass(frozen=True)
class Policy:
    """Largest privacy losses that a client accepts. The defaults accept nothing.

    A privacy filter (`mechanisms.accounting.privacy_filter`) enforces every limit. Its theorem covers all releases,
    even if a server chooses its requests in the light of the answers, as long as the policy itself is not chosen that
    way.

    Attributes:
        delta: δ of the worst case of a release that has none at δ = 0 (Gaussian noise). Each such release spends this
            much of total_delta.
        embedding: Largest ε of *one record* on that channel, over all its stages and digests: a server gains nothing by
            repeating a request under another name.
        label: As for embedding.
        text: As for embedding.
        statistic: Largest ε of *one user* for user vectors, which cover all records, over all stages and digests.
        answer: As for embedding.
        total: Largest ε of *one user* over all records, stages and channels.
        total_delta: δ of the total and of the limits above. One half is for releases and samplers, the other for the
            filter. At 0 every limit is a pure ε, which the sum of worst cases keeps (samplers apart:
            `privacy_filter.SAMPLERS`).
        releases: Largest number of releases of one user, at any cost and even if declared public. A user who has spent
            this or the total is missing from the next batch, which everybody can see.
        mechanisms: Catalogue names of the mechanisms that may be requested.
        minimum_users: Smallest minimum batch of the shuffler. A client cannot verify it.
        accept_unprotected: "channel: reason" declares a channel public: no limit applies to it, and it does not count
            towards the total. The ledger still lists its releases. "length: reason", or another name of EXPOSURES,
            accepts what a text mechanism exposes besides its theorem; the channel's limits then apply to the rest.
        window: Seconds within which an answer leaves. The client draws the moment from the second half, before it
            reads a record. So the moment hides a computing time below half the window. 0 sends at once.
        questions: Digests (`Request.digest`) of all requests that are allowed: split, encoder, maps, codes, head,
            mechanism and its parameters. A server that chose its own maps could make one release reveal what it most
            wants to know. None allows any request within the limits, as in a simulation.
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
        for name in ("minimum_users", "releases"):
            value = whole(getattr(self, name))
            if value is None or value < 0:
                raise ValueError(f"policy: {name} must be a whole number, got {getattr(self, name)!r}")
            object.__setattr__(self, name, value)
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
        """Return a policy from JSON or TOML values; infinity is "inf" or a float.

        Raises:
            ValueError: A key is unknown or a value is invalid.
        """
        if not isinstance(values, Mapping):
            raise ValueError("policy: it must be a table")
        names = [f.name for f in fields(cls)]
        if values.get("stand_ins") == 0:  # written by earlier versions for a policy without dummy releases
            values = {k: v for k, v in values.items() if k != "stand_ins"}
        if unknown := [key for key in values if key not in names]:
            raise ValueError(f"policy: unknown key {unknown[0]!r}; known: {', '.join(names)}")
        return cls(**{k: _plain(v) for k, v in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready inverse of `from_dict`."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {k: "inf" if v == math.inf else v for k, v in plain.items()}

    @property
    def declared(self) -> dict[str, str]:
        """Return the channels and exposures declared public, each with its reason."""
        parts = (entry.partition(":") for entry in self.accept_unprotected)
        return {name.strip(): reason.strip() for name, _, reason in parts}

    @property
    def unprotected(self) -> frozenset[str]:
        """Return the channels and exposures declared public."""
        return frozenset(self.declared)

    def require_end(self, what: str) -> None:
        """Check that the total is finite, as is required if a server communicates with one device directly.

        Args:
            what: First words of the error, which name the policy.

        Raises:
            ValueError: The total is not finite.
        """
        if math.isinf(self.total):
            raise ValueError(f"{what} needs a finite total: a server may ask without end")

    def check(self, request: Request) -> None:
        """Check that a client that has spent nothing could answer the request.

        Raises:
            Refused: It could not.
        """
        if request.minimum_users < self.minimum_users:
            raise Refused("minimum-users")
        for question in request.questions:
            mechanism = question.mechanism
            if mechanism.name not in self.mechanisms:
                raise Refused("mechanism")
            if (reason := self.refusal(question.channel, self.cost(mechanism.guarantee))) is not None:
                raise Refused(reason)
        if not self.lists(request):  # last: the user is asked only about requests within their limits
            raise Refused("question")

    def lists(self, request: Request) -> bool:
        """Return whether `questions` allows the request, at any ε."""
        return self.questions is None or all(request.digest(c) in self.questions for c in request.channels)

    def listing(self, request: Request) -> Policy:
        """Return the policy that lists this request too, within the same limits."""
        new = {*(self.questions or ()), *(request.digest(channel) for channel in request.channels)}
        return self if self.questions is None else replace(self, questions=tuple(sorted(new)))

    def refusal(self, channel: str, cost: Cost) -> str | None:
        """Return why a client that has spent nothing refuses a release of that cost on the channel.

        Returns:
            One of `REFUSALS`; None if the release is allowed.
        """
        none = Account.empty(1)
        if not self.allows_number(none.plus(FREE, np.ones(1, np.int64)))[0]:
            return "releases"
        if channel in self.unprotected:
            return None
        if math.isinf(cost.epsilon):
            return "unprotected"
        account = none.plus(cost, np.ones(1, np.int64))
        if not self.allows(account, channel)[0]:
            return "channel"
        return None if self.allows(account, "total")[0] else "total"

    def limit(self, channel: str) -> float:
        """Return the largest ε on a channel."""
        return float(getattr(self, channel))

    def cost(self, guarantee: Guarantee) -> Cost:
        """Return the charge of one release under the guarantee, without what is declared public."""
        return privacy_filter.cost(guarantee, self.delta, declared=self.unprotected)

    def spent(self, ledger: Ledger, users: NDArray[np.int64]) -> Account:
        """Return the total charge of each user, as this policy prices it, (n,)."""
        declared = self.unprotected
        return ledger.spent(users, delta=self.delta, without=declared, declared=declared)

    def spent_on(self, ledger: Ledger, channel: str, users: NDArray[np.int64], records: NDArray[np.int64]) -> Account:
        """Return the charge of each record on the channel, as this policy prices it, (n,).

        A release of all of a user's records (ALL_RECORDS) is charged to each of them.
        """
        delta, declared = self.delta, self.unprotected
        own, together = (
            ledger.spent(users, numbers, channel=channel, delta=delta, declared=declared)
            for numbers in (records, np.full_like(records, ALL_RECORDS))
        )
        return own + together

    def allows(self, spent: Account, limit: str) -> NDArray[np.bool_]:
        """Return a mask (n,) of the accounts that are within a limit, after the requested releases.

        Args:
            spent: n accounts that include the requested releases.
            limit: Channel, for accounts of records, or "total", for accounts of users. A channel declared public has no
                limit.
        """
        if limit in self.unprotected:
            return np.ones(len(spent), dtype=bool)
        if limit == "total":
            return privacy_filter.within(spent, epsilon=self.total, delta=self.total_delta)
        return privacy_filter.within_epsilon(spent, epsilon=self.limit(limit), delta=self.total_delta)

    def allows_number(self, spent: Account) -> NDArray[np.bool_]:
        """Return a mask (n,) of the users' accounts (requested releases included) within `releases`."""
        allowed: NDArray[np.bool_] = spent.releases <= self.releases
        return allowed

    def left(self, spent: Account, public: bool = False) -> str:
        """Return the rest of the total for one user with this account, in words.

        Args:
            spent: Account of the user.
            public: Whether the channel is declared public.
        """
        releases = f"{max(0, self.releases - int(spent.releases[0])):,} releases"
        if public:
            return releases
        epsilon, delta = max(0.0, self.total - spent.epsilon[0]), max(0.0, self.total_delta / 2 - spent.delta[0])
        return f"ε = {'∞' if math.isinf(self.total) else f'{epsilon:.4g}'}, δ = {delta:.4g} and {releases}"

    def affords(self, spent: Account, cost: Cost, limit: str) -> int:
        """Return how many more releases of that cost a user may make within `limit` and the policy's `releases`."""
        low, high = 0, max(0, self.releases - int(spent.releases[0]))
        while low < high:  # bisect: costs grow with the number
            middle = (low + high + 1) // 2
            more = spent.plus(cost, np.array([middle]))
            low, high = (middle, high) if self.allows(more, limit)[0] else (low, middle - 1)
        return low


def _number(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    except OverflowError:  # a whole number in JSON that exceeds every float
        return False


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return math.inf if value == "inf" else value

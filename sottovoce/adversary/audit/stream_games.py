"""Does every draw of a client have randomness of its own?

Two releases, of inputs that the adversary knows, are told from one of these beside another person's: their noise may
not go together in any way, whatever they share. If it did, who knows one input (its own, or one that the user has told)
would read the noise off that release and subtract it from the other. Nothing is claimed of it but ε = 0, so the score
may be any.

The two differ in one thing at a time: in the user, in the record, in the stage, in the step (asked again at the same
stage, an ε apart that changes nothing), in the channel, or in the place within a text. Users and records that belong
together differ in one bit of their numbers, each of several bits in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.grid import SPHERE
from mechanisms.messages.reply import Reply
from mechanisms.vocabulary import NOTHING
from sottovoce.adversary.audit import clients as audit_clients
from sottovoce.adversary.audit.clients import WIDTH, Clients, rows_of, values_of
from sottovoce.adversary.audit.games import Game, PairClaim
from sottovoce.adversary.estimators.audit import Fit, alike, learned, part

IntArray = NDArray[np.int64]
Outputs = NDArray[Any]

_SHARE = 0.1
#: Bits in which two users' numbers differ, of 62; and two records', of 32.
_USER_BITS, _RECORD_BITS = (0, 1, 7, 15, 31, 32, 47, 61), (0, 1, 7, 15, 31)
#: Every ε is multiplied by it in what is asked again: other parameters, and the same draws from the same uniforms.
_NEXT = 1 + 2.0**-30
_STAGES = "train", "second"
#: What two releases differ in, of each channel; "embedding" is asked for with the label.
DIFFER = {
    "embedding": ("user", "record", "stage", "step", "channel"),
    "text": ("user", "record", "stage", "step", "place"),
    "statistic": ("user", "stage", "step"),  # a user's records make one vector
    "answer": ("user", "record", "stage", "step"),
}
_SHOWN = {
    "user": "two users", "record": "two records of a user", "stage": "two stages of a record",
    "step": "a record asked twice", "channel": "the embedding and the label of a record",
    "place": "the words of a text",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Of n users and their companions: users, records (n,), and the replies to what was asked in turn."""

    users: IntArray
    companions: IntArray
    records: IntArray
    others: IntArray
    replies: tuple[Reply, Reply, Reply]


@dataclass(eq=False)
class Streams:
    """Users of two records each and their companions of one, asked three times on a channel, all of whom hold the same.
    Other users on the other side of a game."""

    clients: Clients
    channel: str
    drawn: dict[tuple[int, int, int], _Drawn] = field(default_factory=dict)

    def of(self, side: int, n: int, seed: int) -> _Drawn:
        """Kept, because several games look at it."""
        key = (side, n, seed)
        if key not in self.drawn:
            self.drawn[key] = self._asked(*key)
        return self.drawn[key]

    def _asked(self, side: int, n: int, seed: int) -> _Drawn:
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, side, n])))
        users, records = rng.integers(2**62, size=n), rng.integers(2**32, size=n)
        companions = users ^ (1 << np.resize(_USER_BITS, n))
        others = records ^ (1 << np.resize(_RECORD_BITS, n))
        name = f"{self.channel}-{side}-{n}-{seed}"
        people = np.concatenate([users, users, companions])
        embeddings = None if self.channel == "text" else np.tile(np.eye(1, WIDTH, dtype=np.float32), (3 * n, 1))
        word = audit_clients.few_words().words[0]
        self.clients.write(
            name, people, np.concatenate([records, others, records]), texts=[" ".join([word] * 5)] * 3 * n,
            labels=np.zeros_like(people), embeddings=embeddings, seed=seed,
        )  # fmt: skip
        first, second = (self.clients.request(self.channel, stage=stage) for stage in _STAGES)
        again = self.clients.request(self.channel, stage=_STAGES[0], louder=_NEXT)
        replies = [self.clients.ask(name, asked) for asked in (first, second, again)]
        if self.channel == "statistic":  # of users, whose record has no number
            records = others = np.zeros_like(records)
        return _Drawn(users, companions, records, others, (replies[0], replies[1], replies[2]))

    def pair(self, differ: str, channel: str, side: int, n: int, seed: int) -> tuple[Outputs, Outputs]:
        """Releases on a channel of n users, as they travel, and those that differ from them in one thing; on side 1
        the next person's."""
        drawn = self.of(side, n, seed)
        users, records, replies = drawn.users, drawn.records, drawn.replies
        one = rows_of(replies[0], channel, users, records)
        if differ == "user":
            other = rows_of(replies[0], channel, drawn.companions, records)
        elif differ == "record":
            other = rows_of(replies[0], channel, users, drawn.others)
        elif differ == "channel":
            other = rows_of(replies[0], "label", users, records)
        else:
            other = rows_of(replies[1 if differ == "stage" else 2], channel, users, records)
        return one, np.roll(other, -side, axis=0)


def stream_games(clients: Clients, delta: float) -> list[Game]:
    """Every channel, in everything that two releases may differ in."""
    each = {channel: Streams(clients, channel) for channel in DIFFER}
    return [_game(each[channel], differ) for channel, kinds in DIFFER.items() for differ in kinds]


def _game(streams: Streams, differ: str) -> Game:
    """Whether two releases go together."""
    channel = streams.channel
    mechanism = audit_clients.request(channel).mechanism(channel)
    shown = "embedding and label" if channel == "embedding" else channel

    def draw(side: int, n: int, seed: int) -> Outputs:
        if differ == "place":
            return _places(streams.of(side, n, seed), side, n)
        one, other = streams.pair(differ, channel, side, n, seed)
        if channel == "text":
            return np.column_stack([_bits(differ, n), (one == other).sum(axis=1)])
        if channel == "answer":
            return _classes(differ, one, other)
        z = SPHERE.decode(one)
        if differ == "channel":
            return np.hstack([z, np.repeat(2.0 * (other == 0) - 1, z.shape[1]).reshape(z.shape)])
        vectors = np.hstack([z, SPHERE.decode(other)])
        if channel == "statistic":
            return vectors
        return np.hstack([vectors, _classes(differ, *streams.pair(differ, "label", side, n, seed))])

    return Game(
        "client-streams", f"{shown}, {mechanism.name}", f"{_SHOWN[differ]}: together / apart",
        mechanism.guarantee.worst_case(), PairClaim(0.0, 0.0, np.zeros((1, 2))), draw, _fits(channel, differ),
        share=_SHARE,
    )  # fmt: skip


def _fits(channel: str, differ: str) -> tuple[Fit, ...]:
    vectors = alike(SPHERE.step)
    if channel in ("text", "answer"):
        return (learned,)
    if channel == "statistic" or differ == "channel":
        return (vectors,)
    return part(slice(-4), vectors), part(slice(-4, None), learned, whole=True)


def _bits(differ: str, n: int) -> IntArray:
    """Which bit the users or the records of each of n pairs differ in, (n,): it may be one alone that is ignored."""
    bits = {"user": _USER_BITS, "record": _RECORD_BITS}.get(differ, (0,))
    return np.resize(np.array(bits, dtype=np.int64), n)


def _classes(differ: str, one: Outputs, other: Outputs) -> IntArray:
    """Of two rows of classes (n,), where class 0 is the truth: the bit, are they the same, and is each the truth?
    (n, 4)."""
    return np.column_stack([_bits(differ, len(one)), one == other, one == 0, other == 0]).astype(np.int64)


def _places(drawn: _Drawn, side: int, n: int) -> IntArray:
    """Of n texts that came out with two words or more their number and the last two, (n, 3); on side 1 each of another
    text. All hold one word five times, so that neither number nor place says anything of a word."""
    words = values_of(drawn.replies[0], "text")
    ends = (words != NOTHING).sum(axis=1)
    words, ends = words[ends >= 2][:n], ends[ends >= 2][:n]
    rows = np.arange(len(words))
    columns = ends, words[rows, ends - 2], words[rows, ends - 1]
    return np.column_stack([np.roll(column, -i * side) for i, column in enumerate(columns)]).astype(np.int64)

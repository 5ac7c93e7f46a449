"""Games of whether every draw of a client has its own randomness.

Two releases of known inputs are compared with one of these beside another person's. Their noise may not be related in
any way. Otherwise an adversary who knows one input (its own, or one that the user has disclosed) could read the noise
off that release and subtract it from the other. The claim is ε = 0, so any score may be used.

The two differ in one thing at a time: the user, the record, the stage, the step (a second request at the same stage,
with a negligible change of ε), the channel, or the place within a text. Users and records that belong together differ
in one bit of their numbers, each of several bits in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.messages.questions import (
    QUESTIONS,
    AnswerQuestion,
    EmbeddingQuestion,
    LabelQuestion,
    Question,
    TextQuestion,
    VectorQuestion,
)
from mechanisms.messages.reply import Reply
from mechanisms.quantizer import SPHERE
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
#: Factor of every ε in the second request: other parameters, and the same draws from the same uniforms.
_NEXT = 1 + 2.0**-30
_STAGES = "train", "second"
#: Differences between two releases, for each channel; an embedding includes the label.
DIFFER = {
    EmbeddingQuestion.channel: ("user", "record", "stage", "step", "channel"),
    TextQuestion.channel: ("user", "record", "stage", "step", "place"),
    VectorQuestion.channel: ("user", "stage", "step"),  # a user's records make one vector
    AnswerQuestion.channel: ("user", "record", "stage", "step"),
}
_SHOWN = {
    "user": "two users",
    "record": "two records of a user",
    "stage": "two stages of a record",
    "step": "a record asked twice",
    "channel": "the embedding and the label of a record",
    "place": "the words of a text",
}


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Users and their companions, (n,) each, their records, and their replies to three requests."""

    users: IntArray
    companions: IntArray
    records: IntArray
    others: IntArray
    replies: tuple[Reply, Reply, Reply]


@dataclass(eq=False)
class Streams:
    """Users of two records each and their companions of one, who receive three requests on a channel.

    All hold the same data. The other side of a game has other users.

    Args:
        clients: Clients of the audit.
        channel: Name of the channel.
        drawn: Replies by (side, n, seed).
    """

    clients: Clients
    channel: str
    drawn: dict[tuple[int, int, int], _Drawn] = field(default_factory=dict)

    @property
    def kind(self) -> type[Question]:
        """Return the class of the channel's questions."""
        return QUESTIONS[self.channel]

    def of(self, side: int, n: int, seed: int) -> _Drawn:
        """Return the replies, which are kept because several games use them."""
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
        embeddings = None if self.kind is TextQuestion else np.tile(np.eye(1, WIDTH, dtype=np.float32), (3 * n, 1))
        word = audit_clients.few_words().words[0]
        self.clients.write(
            name,
            people,
            np.concatenate([records, others, records]),
            texts=[" ".join([word] * 5)] * 3 * n,
            labels=np.zeros_like(people),
            embeddings=embeddings,
            seed=seed,
        )
        first, second = (self.clients.request(self.channel, stage=stage) for stage in _STAGES)
        again = self.clients.request(self.channel, stage=_STAGES[0], louder=_NEXT)
        replies = [self.clients.ask(name, asked) for asked in (first, second, again)]
        if self.kind.of_user:  # a user's release, whose record has no number
            records = others = np.zeros_like(records)
        return _Drawn(users, companions, records, others, (replies[0], replies[1], replies[2]))

    def pair(self, differ: str, channel: str, side: int, n: int, seed: int) -> tuple[Outputs, Outputs]:
        """Return releases of n users, and releases that differ from them in one thing; on side 1 the next person's.

        Args:
            differ: Difference between the two.
            channel: Name of the channel.
            side: Side of the game.
            n: Number of users.
            seed: Seed of the users.
        """
        drawn = self.of(side, n, seed)
        users, records, replies = drawn.users, drawn.records, drawn.replies
        one = rows_of(replies[0], channel, users, records)
        if differ == "user":
            other = rows_of(replies[0], channel, drawn.companions, records)
        elif differ == "record":
            other = rows_of(replies[0], channel, users, drawn.others)
        elif differ == "channel":
            other = rows_of(replies[0], LabelQuestion.channel, users, records)
        else:
            other = rows_of(replies[1 if differ == "stage" else 2], channel, users, records)
        return one, np.roll(other, -side, axis=0)


def stream_games(clients: Clients, delta: float) -> list[Game]:
    """Return the games of every channel, for every difference between two releases."""
    each = {channel: Streams(clients, channel) for channel in DIFFER}
    return [_game(each[channel], differ) for channel, kinds in DIFFER.items() for differ in kinds]


def _game(streams: Streams, differ: str) -> Game:
    """Return the game of whether two releases are related."""
    channel, kind = streams.channel, streams.kind
    asked = audit_clients.request(channel)
    mechanism = asked.question(kind).mechanism
    shown = " and ".join(asked.channels)

    def draw(side: int, n: int, seed: int) -> Outputs:
        if differ == "place":
            return _places(streams.of(side, n, seed), side, n)
        one, other = streams.pair(differ, channel, side, n, seed)
        if kind is TextQuestion:
            return np.column_stack([_bits(differ, n), (one == other).sum(axis=1)])
        if kind is AnswerQuestion:
            return _classes(differ, one, other)
        z = SPHERE.decode(one)
        if differ == "channel":
            return np.hstack([z, np.repeat(2.0 * (other == 0) - 1, z.shape[1]).reshape(z.shape)])
        vectors = np.hstack([z, SPHERE.decode(other)])
        if kind.of_user:
            return vectors
        return np.hstack([vectors, _classes(differ, *streams.pair(differ, LabelQuestion.channel, side, n, seed))])

    return Game(
        "client-streams",
        f"{shown}, {mechanism.name}",
        f"{_SHOWN[differ]}: together / apart",
        mechanism.guarantee.worst_case(),
        PairClaim(0.0, 0.0, np.zeros((1, 2))),
        draw,
        _fits(kind, differ),
        share=_SHARE,
    )


def _fits(kind: type[Question], differ: str) -> tuple[Fit, ...]:
    vectors = alike(SPHERE.step)
    if kind in (TextQuestion, AnswerQuestion):
        return (learned,)
    if kind.of_user or differ == "channel":
        return (vectors,)
    return part(slice(-4), vectors), part(slice(-4, None), learned, whole=True)


def _bits(differ: str, n: int) -> IntArray:
    """Return the bit in which each of n pairs of users or records differs, (n,): a fault may ignore a single bit."""
    bits = {"user": _USER_BITS, "record": _RECORD_BITS}.get(differ, (0,))
    return np.resize(np.array(bits, dtype=np.int64), n)


def _classes(differ: str, one: Outputs, other: Outputs) -> IntArray:
    """Return for two rows of classes (n,), with true class 0, whether they are equal and whether each is true.

    The result is (n, 4), with the bit of `_bits` first.
    """
    return np.column_stack([_bits(differ, len(one)), one == other, one == 0, other == 0]).astype(np.int64)


def _places(drawn: _Drawn, side: int, n: int) -> IntArray:
    """Return the length and the last two words of n released texts with two words or more, (n, 3).

    On side 1, each column is of another text. All texts hold one word five times, so neither length nor place says
    anything about a word.
    """
    words = values_of(drawn.replies[0], TextQuestion.channel)
    ends = (words != NOTHING).sum(axis=1)
    words, ends = words[ends >= 2][:n], ends[ends >= 2][:n]
    rows = np.arange(len(words))
    columns = ends, words[rows, ends - 2], words[rows, ends - 1]
    return np.column_stack([np.roll(column, -i * side) for i, column in enumerate(columns)]).astype(np.int64)

"""Clients of the audit: nodes in folders, the records of their users, and their ledgers' charges."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.app import answer
from client.models import vocabulary as vocabularies
from client.models.tokens import padded_word_ids
from client.node import load_node, write_node
from client.policy import Policy
from client.shard import write_shard
from client.store.ledger import Key, Ledger
from mechanisms.accounting.shuffle import amplify
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.channels import CHANNELS
from mechanisms.guarantee import EXPOSURES, Guarantee
from mechanisms.messages.questions import (
    QUESTIONS,
    EmbeddingQuestion,
    LabelQuestion,
    Projection,
    Question,
    TextQuestion,
    VectorQuestion,
)
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import generate_keys, open_envelope
from mechanisms.messages.signature import public_of
from mechanisms.messages.wire import (
    record_from_bytes,
    record_to_bytes,
    reply_from_record,
    reply_to_record,
    request_identity,
    request_to_record,
    sealed_from_record,
)
from mechanisms.projection import statistic_vectors
from mechanisms.quantizer import SPHERE
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.vocabulary import NOTHING, Vocabulary
from server.sealed_batches import open_batch
from server.training.statistic_head import simplex_codes
from simulations.errors import UserError
from simulations.shuffler.shuffle import shuffle
from sottovoce.adversary.audit import games as audit_games
from sottovoce.adversary.audit.games import Game, PairClaim, claim, streams, words
from sottovoce.adversary.estimators.audit import Fit, finite, known, learned, looked_at, paired

ENCODER = "ab" * 32
ARM = "audit"
#: Width of the encoder, dimension of the maps, number of labels.
WIDTH, DIM, CLASSES = 8, 4, 3
EMBEDDING = {"mechanism": "purkayastha", "epsilon": 0.5, "dim": DIM}
LABEL = {"mechanism": "randomized-response", "epsilon": 1.0}
#: Little ε for each word, so that a word in clear is visible among five.
TEXT = {"mechanism": "santext", "epsilon": 0.25, "tokens": 5, "length": 0.1}
STATISTIC = {"mechanism": "privunit", "epsilon": 2.0}


def few_words() -> Vocabulary:
    """Return the vocabulary of the clients' texts, so small that all outcomes of a text can be listed."""
    return words(4)


#: Total of a device: more than any audit spends.
_TOTAL = 1e12


@dataclass(eq=False)
class Clients:
    """Nodes, each in its own folder below this one, with all their replies.

    Args:
        folder: Folder of the nodes.
        deployed: True for nodes as on a device: randomness of the operating system, a durable ledger, and sealed
            releases that the audit opens like a server. False for nodes simulated from a seed.
        answered: Replies of each node, by its name.
    """

    folder: Path
    deployed: bool = False
    answered: dict[str, list[Reply]] = field(default_factory=dict)
    _keys: tuple[bytes, bytes] = field(default_factory=generate_keys)
    _shuffler: tuple[bytes, bytes] = field(default_factory=generate_keys)

    @property
    def arm(self) -> str:
        """Return the arm's name; "" for a device."""
        return "" if self.deployed else ARM

    def request(self, channel: str, *, stage: str = "train") -> Request:
        """Return the request of a channel to these nodes. "embedding" includes the label."""
        maps = Projection(ENCODER, np.zeros(WIDTH, np.float32), np.eye(WIDTH, DIM, dtype=np.float32))
        questions: tuple[Question, ...] = (
            EmbeddingQuestion(EMBEDDING, projection=maps, classes=CLASSES),
            LabelQuestion(LABEL, classes=CLASSES),
        )
        if channel == TextQuestion.channel:
            words = few_words()
            questions = (TextQuestion(TEXT | {"vocabulary": words.identity}, classes=CLASSES, vocabulary=words),)
        elif channel == VectorQuestion.channel:
            questions = (VectorQuestion(STATISTIC, projection=maps, codes=simplex_codes(2)),)
        return Request(arm=self.arm, stage=stage, split="train", minimum_users=0, questions=questions)

    def write(
        self,
        name: str,
        users: IntArray,
        records: IntArray,
        *,
        texts: Sequence[str],
        labels: IntArray | None = None,
        embeddings: NDArray[np.float32] | None = None,
        seed: int,
    ) -> None:
        """Write a node of this name whose users (n,) agree to everything, with n records of these numbers and contents.

        Embeddings are (n, WIDTH). A simulated node has the seed.
        """
        folder, words_folder = self.folder / name, self.folder / "words"
        if not words_folder.exists():
            vocabularies.save(few_words(), words_folder)
        encoder = None if embeddings is None else ENCODER
        write_shard(folder, "train", users, records, texts, labels, embeddings=embeddings, identity=encoder)
        declarations = tuple(f"{exposure}: what the audit measures is the rest" for exposure in EXPOSURES)
        limits: dict[str, Any] = dict.fromkeys(CHANNELS, math.inf)
        policy = Policy(**limits, total=_TOTAL, accept_unprotected=declarations)
        if self.deployed:
            seal, shuffler_seal = self._keys[1], self._shuffler[1]
            write_node(folder, vocabulary=words_folder.resolve(), policy=policy, seal=seal, shuffler_seal=shuffler_seal)
        else:
            write_node(folder, vocabulary=words_folder.resolve(), seed=seed, arms={ARM: policy})

    def ask(self, name: str, request: Request) -> Reply:
        """Return the reply of a node to a request, over the wire.

        Raises:
            UserError: It does not answer, or a sealed row does not open.
        """
        try:
            content = answer(request_to_record(request), load_node(self.folder / name))
        except Exception as error:  # of any type: nothing left the node, so there is nothing to measure
            raise UserError(f"audit: a client does not answer ({type(error).__name__})") from error
        record = record_from_bytes(record_to_bytes(content))
        if self.deployed:
            device, identity = load_node(self.folder / name).device_key, request_identity(request_to_record(request))
            envelope = open_envelope(sealed_from_record(record), identity, self._shuffler[0], public_of(device))
            batch, dropped = open_batch(envelope.rows, request, self._keys[:1])
            if len(batch) != len(envelope):
                raise UserError(f"audit: sealed releases of a device are no releases to a server: {dict(dropped)}")
            reply = Reply(envelope.users, envelope.records, batch.releases)
        else:
            reply = reply_from_record(record)
        self.answered.setdefault(name, []).append(reply)
        return reply

    # --- both sides of a game

    def reply(self, channel: str, side: int, n: int, seed: int) -> Reply:
        """Return the reply of a side of a game. It is kept, because several games use it.

        Sides come in pairs, an even number for x and the next for x'. Of texts, 0 is x and any other number an x'. Rows
        2i belong to the adversary's own users, who hold x; rows 2i + 1 to the targets.
        """
        name = f"{channel}-{side}-{n}-{seed}"
        if name in self.answered:
            return self.answered[name][0]
        self._write_side(channel, name, side, n, seed)
        return self.ask(name, self.request(channel))

    def targets(self, channel: str, side: int, n: int, seed: int) -> NDArray[Any]:
        """Return the targets' releases on the channel, decoded if they are vectors."""
        values = values_of(self.reply(channel, side, n, seed), channel)[1::2]
        return SPHERE.decode(values) if values.ndim > 1 and channel != TextQuestion.channel else values

    def same(self, channel: str, side: int, n: int, seed: int) -> NDArray[Any]:
        """Return 1 for each of a target's releases that equals that of the adversary's own user beside them, else 0."""
        reply = self.reply(channel, side, n, seed)
        values = [values_of(reply, release.channel).reshape(2 * n, -1) for release in reply.releases]
        return np.column_stack([(v[1::2] == v[::2]).all(axis=1) for v in values]).astype(np.int64)

    def _write_side(self, channel: str, name: str, side: int, n: int, seed: int) -> None:
        # other users on the other side, because a simulation's noise is a function of seed and user
        users = np.arange(2 * n, dtype=np.int64) + 2 * n * side
        kind = QUESTIONS[channel]
        own_side = 0 if kind is TextQuestion else side - side % 2
        sides = np.where(np.arange(2 * n) % 2 == 1, side, own_side)
        if kind is TextQuestion:
            texts = np.array(_texts())[sides].tolist()
            self.write(name, users, np.zeros_like(users), texts=texts, seed=seed)
            return
        if kind.of_user:
            sizes = np.array([len(records) for records in _STATISTICS])[sides]
            records = np.concatenate([np.arange(size) for size in sizes])
            axes, labels = np.concatenate([_STATISTICS[kind] for kind in sides]).T
            users, embeddings = np.repeat(users, sizes), np.eye(WIDTH, dtype=np.float32)[axes]
        else:
            records, labels, embeddings = np.zeros_like(users), sides, np.zeros((2 * n, WIDTH), np.float32)
            embeddings[:, 0] = 1.0 - 2.0 * sides
        self.write(
            name, users, records, texts=["a good film"] * len(users), labels=labels, embeddings=embeddings, seed=seed
        )

    def charged(self) -> tuple[int, int]:
        """Return the number of releases in all replies, and of those that are charged in the ledgers.

        A release counts as charged if its bytes are in the ledger and its record was charged the worst case of all its
        releases.
        """
        releases = charges = 0
        for name, replies in self.answered.items():
            with load_node(self.folder / name).ledger(self.arm) as ledger:
                for reply in replies:
                    for release in reply.releases:
                        mask = _kept(ledger, release, reply) & _paid(ledger, release.channel, reply, replies)
                        releases, charges = releases + len(mask), charges + int(mask.sum())
        return releases, charges


def _kept(ledger: Ledger, release: Release, reply: Reply) -> BoolArray:
    """Return True for each row of a release that is in the ledger, byte by byte, (n,)."""
    key = Key(release.stage, release.channel, release.digest, release.guarantee)
    result = ledger.recall(key, reply.users, reply.records)
    (values,) = release.payload.values()
    payload = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(len(reply), -1).view(np.uint8)
    if result.payloads.shape != payload.shape:
        return np.zeros(len(reply), dtype=bool)
    return result.known & (result.payloads == payload).all(axis=1)


def _paid(ledger: Ledger, channel: str, reply: Reply, replies: list[Reply]) -> BoolArray:
    """Return True for each of a reply's records that was charged for all its releases in `replies`, (n,)."""
    records = [*zip(reply.users.tolist(), reply.records.tolist(), strict=True)]
    price = np.zeros(len(reply))
    for other in replies:
        worst = [r.guarantee.worst_case(declared=EXPOSURES) for r in other.releases if r.channel == channel]
        present = {*zip(other.users.tolist(), other.records.tolist(), strict=True)}
        price += sum(worst) * np.array([record in present for record in records], dtype=bool)
    costs = ledger.spent(reply.users, reply.records, channel=channel, declared=frozenset(EXPOSURES))
    return costs.epsilon >= price * (1 - 1e-12)


def values_of(reply: Reply, channel: str) -> NDArray[Any]:
    """Return the releases on a channel in transport form, (n, ...)."""
    (release,) = (r for r in reply.releases if r.channel == channel)
    values: NDArray[Any]
    (values,) = release.payload.values()
    return values


# --- games


#: Shares of the draws: each draw runs a whole client, or a whole shuffle, so there are fewer of them.
_CLIENT_SHARE, _SHUFFLE_SHARE = 0.25, 0.1
#: Share of the draws for users of many records each.
_MANY_SHARE = 0.1
#: Records of a user of each kind: an axis of the embedding and a label each. The first two kinds are opposite vectors,
#: of one record and of three. The other two have the same mean, shorter than 1, of two records and of four.
_STATISTICS = (((0, 0),), ((0, 1),) * 3, ((0, 0), (1, 1)), ((0, 0), (1, 1)) * 2)
#: A word outside every vocabulary.
_UNKNOWN = "zzyzxq"
#: Claim that two inputs have one distribution.
INDISTINGUISHABLE = PairClaim(0.0, 0.0, np.zeros((1, 2)))


def client_games(clients: Clients, delta: float) -> list[Game]:
    """Return the games of one record's embedding and label, whose pair differs in both.

    One game reads the target's release. One reads its embedding alone, whose claim is closer. One reads whether it
    equals the release of the adversary's own user, who holds x.
    """
    embedding_request = clients.request("embedding")
    embedding: Any = embedding_request.question(EmbeddingQuestion).mechanism
    label: Any = embedding_request.question(LabelQuestion).mechanism
    parts = (embedding.guarantee, label.guarantee)
    both = replace(
        parts[0],
        numeric_epsilon=sum(g.numeric_epsilon for g in parts),
        numeric_delta=sum(g.numeric_delta for g in parts),
    )
    pair_claim = claim(embedding.blanket().product(label.blanket()).loss(), both, delta)
    first = np.eye(1, DIM)[0]
    embedding_ratio = audit_games.ratio(embedding, first, -first)

    def draw(side: int, n: int, seed: int) -> NDArray[Any]:
        labels = values_of(clients.reply("embedding", side, n, seed), "label")[1::2]
        return np.column_stack([clients.targets("embedding", side, n, seed), labels.astype(np.float64)])

    def ratio(outputs: NDArray[Any]) -> FloatArray:
        y = outputs[:, DIM].astype(np.int64)
        first_law, second_law = (label.log_prob(y, np.full(len(y), x)) for x in (0, 1))
        return embedding_ratio(outputs[:, :DIM]) + first_law - second_law

    parameters = f"purkayastha ε={EMBEDDING['epsilon']}, m'={DIM}; randomized response ε={LABEL['epsilon']}"
    game = partial(Game, "client", parameters, share=_CLIENT_SHARE)
    worst, guarantee = sum(g.worst_case() for g in parts), embedding.guarantee
    fits = (known(ratio), looked_at(SPHERE.step), paired(SPHERE.step))
    embedding_claim = claim(embedding.privacy_loss(), guarantee, delta)
    targets, same = (partial(method, "embedding") for method in (clients.targets, clients.same))
    alone = guarantee.worst_case(), embedding_claim, targets, (known(embedding_ratio),)
    return [
        game("antipodal embedding and other label", worst, pair_claim, draw, fits),
        game("the same, the embedding alone", *alone),
        game("the same, beside the adversary's own noise", worst, pair_claim, same, (learned,)),
    ]


def client_text_games(clients: Clients, delta: float) -> list[Game]:
    """Return the games of texts of five places, with a known distribution of all outcomes.

    The pairs are: other words in all places, words outside the vocabulary, and fewer words.
    """
    text: Any = clients.request("text").question(TextQuestion).mechanism
    outcomes, law = audit_games.text_law(text)
    ids = [padded_word_ids([words], text)[0] for words in _texts()]
    laws = [law(x) for x in ids]

    def game(other: int, shown: str) -> Game:
        def draw(side: int, n: int, seed: int) -> NDArray[Any]:
            return clients.targets("text", side * other, n, seed).astype(np.int64)

        loss = text.privacy_loss(audit_games.text_distance(text, ids[0], ids[other]))
        return Game(
            "client-text",
            f"santext ε={TEXT['epsilon']:g}, L={text.tokens}, length ε={TEXT['length']:g}",
            shown,
            text.guarantee.worst_case(),
            claim(loss, text.guarantee, delta),
            draw,
            (finite(outcomes, laws[0] - laws[other]), known(lambda y: (y != NOTHING).sum(axis=1).astype(np.float64))),
            law=audit_games.law_of(laws[0], laws[other], text.guarantee, delta),
            share=_CLIENT_SHARE,
        )

    others = ("five others", "five outside the vocabulary", "two of them", "two others")
    return [game(other, f"five words / {shown}") for other, shown in enumerate(others, 1)]


def _texts() -> list[str]:
    """Return the texts of users.

    They are: five times the first word, five times its farthest word, five unknown words, two of the first word, and
    two of the second.
    """
    vocabulary = few_words()
    points = vocabulary.points.astype(np.float64)
    farthest = int(np.argmax(np.linalg.norm(points - points[0], axis=1)))
    words = vocabulary.words[0], vocabulary.words[farthest], _UNKNOWN
    return [*(" ".join([word] * 5) for word in words), *(" ".join([word] * 2) for word in words[:2])]


def client_statistic_games(clients: Clients, delta: float) -> list[Game]:
    """Return the games of a user vector.

    One pair is of users with opposite vectors. Another differs only in the number of records, about which the vector
    may reveal nothing. A third game reads whether the target's release equals that of the adversary's own user.
    """
    question = clients.request("statistic").question(VectorQuestion)
    mechanism: Any = question.mechanism
    axes, labels = np.array(_STATISTICS[2], dtype=np.int64).T
    records = statistic_vectors(np.eye(2, DIM)[axes], labels, simplex_codes(2))

    targets, same = (partial(method, "statistic") for method in (clients.targets, clients.same))

    def several(side: int, n: int, seed: int) -> NDArray[Any]:
        return targets(2 + side, n, seed)

    def fits(x: FloatArray) -> tuple[Fit, ...]:
        unit = x / np.linalg.norm(x)
        return known(audit_games.ratio(mechanism, unit, -unit)), looked_at(SPHERE.step), paired(SPHERE.step)

    parameters = f"privunit ε={STATISTIC['epsilon']:g}, D={question.dim}"
    worst, pair_claim = mechanism.guarantee.worst_case(), claim(mechanism.privacy_loss(), mechanism.guarantee, delta)
    game = partial(Game, "client-statistic", parameters, share=_CLIENT_SHARE)
    many_game = game(
        "two records / four of the same mean", worst, INDISTINGUISHABLE, several, fits(records.mean(axis=0))
    )
    return [
        game("one record / three of the other label", worst, pair_claim, targets, fits(records[0])),
        game("the same, beside the adversary's own noise", worst, pair_claim, same, (learned,)),
        replace(many_game, share=_MANY_SHARE),
    ]


# --- device

DEVICE = "device"
#: Share of the draws: rows are sealed and opened one by one.
_SEALED_SHARE = 0.05


def device_games(clients: Clients, delta: float) -> list[Game]:
    """Return the games of the client as it is deployed, on every channel: its worst pair, and the game beside it."""
    channels = [
        ("embedding and label", client_games(clients, delta)),
        ("text", client_text_games(clients, delta)[-1:]),
        ("statistic", client_statistic_games(clients, delta)[:2]),
    ]
    return [
        replace(game, name=DEVICE, about=f"{channel}, {game.about}", share=_SEALED_SHARE)
        for channel, games in channels
        for game in games
    ]


# --- shuffler

_SENDERS = 6
_CROWD, _LOCAL = 100, 2.0
#: Batches whose labels are drawn at once.
_BATCHES = 1024


def _order_game() -> Game:
    """Return the game of one marked row, sent by the first user or by the last: its place must not reveal which."""
    theorem = Guarantee(math.inf, "discrete", 1.0, "label")

    def draw(side: int, n: int, seed: int) -> NDArray[Any]:
        marked = 0 if side == 0 else _SENDERS - 1
        replies = [
            _reply(range(at, at + 2), [int(user == marked) for user in range(at, at + 2)], theorem)
            for at in range(0, _SENDERS, 2)
        ]
        generators = np.random.SeedSequence([seed, side, 1]).spawn(n)
        places = np.empty(n, dtype=np.int64)
        for i, generator in enumerate(generators):
            batch = shuffle(replies, minimum_users=2, rng=np.random.Generator(np.random.Philox(generator))).batch
            places[i] = int(np.argmax(batch.releases[0].values))
        return places

    pair = "which user sent a row, by its place"
    return Game("shuffler", f"{_SENDERS} users", pair, 0.0, INDISTINGUISHABLE, draw, (learned,), share=_SHUFFLE_SHARE)


def _amplified_game(delta: float) -> Game:
    """Return the game of a user with label 0 or 1 among others with label 1.

    The adversary sees the first row and all counts.
    """
    mechanism = RandomizedResponse(_LOCAL, 2)
    results = [
        (amplify([mechanism], users=_CROWD, delta=d).epsilon, d)
        for d in sorted({0.2, 0.1, 0.05, 0.02, 0.01, 1e-3, delta}, reverse=True)
    ]
    at_delta = next(e for e, d in results if d == delta)

    def draw(side: int, n: int, seed: int) -> NDArray[Any]:
        generators = np.random.SeedSequence([seed, side, 2]).spawn(n)
        labels = np.ones((_BATCHES, _CROWD), dtype=np.int64)
        labels[:, 0] = side
        counts = np.empty((n, 2), dtype=np.int64)
        for i, generator in enumerate(generators):
            if i % _BATCHES == 0:
                rng = streams("shuffler", side, labels.size, seed, start=i * _CROWD)
                y = mechanism.sample(labels.ravel(), rng=rng).reshape(labels.shape)
            reply = _reply(range(_CROWD), y[i % _BATCHES], mechanism.guarantee)
            batch = shuffle([reply], minimum_users=_CROWD, rng=np.random.Generator(np.random.Philox(generator))).batch
            rows = batch.releases[0].values
            counts[i] = rows[0], rows.sum()
        return counts

    return Game(
        "shuffler",
        f"{_CROWD} users, randomized response ε={_LOCAL:g}, K=2",
        "one user's label in a shuffled batch",
        mechanism.guarantee.worst_case(),
        PairClaim(_LOCAL, at_delta, np.array(results)),
        draw,
        (learned,),
        share=_SHUFFLE_SHARE,
    )


def _reply(users: range, labels: Any, guarantee: Guarantee) -> Reply:
    """Return a node's reply, over the wire."""
    ids = np.array(users, dtype=np.int64)
    release = Release({"y": np.asarray(labels, dtype=np.int16)}, "label", "train", guarantee, "audit")
    return reply_from_record(reply_to_record(Reply(ids, np.zeros_like(ids), (release,))))


#: Parts of the audit by the name in --mechanism: functions from clients to games.
PARTS: dict[str, Callable[[Clients, float], list[Game]]] = {
    "client": client_games,
    "client-text": client_text_games,
    "client-statistic": client_statistic_games,
    DEVICE: device_games,
    "shuffler": lambda clients, delta: [_order_game(), _amplified_game(delta)],
}

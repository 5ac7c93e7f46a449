"""Games through the client for every mechanism of the catalogue that no other part of the audit covers.

The games follow the catalogue at the time of the audit. So a new mechanism is covered too, with the usual parameters
and the worst pair of its channel. Two kinds are left out (`left_out`): mechanisms that read a language model beside the
text, which have their own audits, and mechanisms without a promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.catalogue import CATALOGUE, build
from mechanisms.facts import facts_of, usual
from mechanisms.identity import Identity
from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion, Prior, TextQuestion
from mechanisms.messages.request import Request
from mechanisms.words.verbatim import Verbatim
from sottovoce.adversary.audit import clients as audit_clients
from sottovoce.adversary.audit.clients import CLASSES, DIM, EMBEDDING, LABEL, STATISTIC, TEXT, WIDTH, Clients
from sottovoce.adversary.audit.games import Game, distances_of, finite_game, label_game, sphere_game, worst_words

NAME = "client-catalogue"
#: Mechanisms that other parts of the audit cover.
_ASKED = {spec["mechanism"] for spec in (EMBEDDING, LABEL, TEXT, STATISTIC)}
#: A word outside every vocabulary.
_UNKNOWN = "zzyzxq"
_SHARE = 0.1
#: δ of the policy, at which mechanisms without a pure ε are answered.
_DELTA = 1e-6


def left_out(kind: type[Any]) -> bool:
    """Return True if a kind of mechanism reads a model beside the text, or is no protection."""
    return bool(getattr(kind, "reads", ())) or issubclass(kind, Identity | Verbatim)


def catalogue_games(clients: Clients, delta: float) -> list[Game]:
    """Return a game for each mechanism that no other part of the audit covers."""
    kinds = [kind for name, kind in CATALOGUE.items() if name not in _ASKED and not left_out(kind)]
    makers = {"embedding": _embedding, "label": _label, "text": _text}
    return [
        replace(makers[kind.channel](clients, kind, delta), name=NAME, share=_SHARE)
        for kind in kinds
        if kind.channel in makers
    ]


def _spec(kind: type[Any]) -> dict[str, Any]:
    spec = {"mechanism": kind.name} | usual(kind)
    sizes = {name: size for name, size in (("dim", DIM), ("classes", CLASSES)) if name in spec}
    return spec | sizes | {name: values[0] for name, values in facts_of(kind).few_words.items()}


def _embedding(clients: Clients, kind: type[Any], delta: float) -> Game:
    spec = _spec(kind)
    mechanism = build(spec, channel="embedding", dim=DIM)
    asked = audit_clients.request("embedding").without(LabelQuestion)
    request = replace(asked, questions=(replace(asked.question(EmbeddingQuestion), spec=spec),))
    game = sphere_game(mechanism, delta)

    def decoded(values: NDArray[Any]) -> NDArray[Any]:
        return values.astype(np.float64) if mechanism.grid is None else mechanism.grid.decode(values)

    return replace(
        game, about=f"{kind.name}, {game.about}", draw=_drawn(clients, request, kind.name, "embedding", decoded)
    )


def _label(clients: Clients, kind: type[Any], delta: float) -> Game:
    spec = _spec(kind)
    mechanism = build(spec, channel="label", classes=CLASSES)
    game, prior = label_game(mechanism, delta), None
    if mechanism.needs_prior:  # the prior is that of the game, whatever the embedding
        prior = (np.zeros((DIM, CLASSES), np.float32), (np.log(0.6) * np.arange(CLASSES)).astype(np.float32))
    asked = audit_clients.request("embedding")
    embedding = asked.question(EmbeddingQuestion)
    known = None if prior is None else Prior(prior, embedding)
    request = replace(asked, questions=(embedding, LabelQuestion(spec, classes=CLASSES, prior=known)))
    draw = _drawn(clients, request, kind.name, "label", _numbers)
    return replace(game, about=f"{kind.name}, {game.about}", draw=draw)


def _text(clients: Clients, kind: type[Any], delta: float) -> Game:
    vocabulary = audit_clients.few_words()
    spec = _spec(kind) | {"tokens": 1, "length": "kept"}
    word = build(spec, channel="text", vocabulary=vocabulary).word
    words = (*vocabulary.words, _UNKNOWN)
    (x, y), laws = worst_words(word)
    game = finite_game(
        word,
        (x, y),
        delta,
        shown=f"{words[x]} / {words[y]}",
        outcomes=np.arange(len(vocabulary)),
        log_probs=laws,
        distance=float(distances_of(word)[x, y]) if word.guarantee.metric == "euclidean" else None,
    )
    question = TextQuestion(
        spec | {"vocabulary": vocabulary.identity}, classes=audit_clients.MANY, vocabulary=vocabulary
    )
    asking = replace(audit_clients.request("text"), questions=(question,))
    texts = words[x], words[y]
    draw = _drawn(clients, asking, kind.name, "text", lambda values: _numbers(values[:, 0]), texts=texts)
    return replace(game, about=f"{kind.name}, {game.about}", draw=draw)


def _numbers(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.int64)


def _drawn(
    clients: Clients,
    request: Request,
    name: str,
    channel: str,
    decoded: Callable[[NDArray[Any]], NDArray[Any]],
    *,
    texts: tuple[str, str] = ("", ""),
) -> Callable[[int, int, int], NDArray[Any]]:
    """Return draws of users of one record each: opposite embeddings, two labels and two texts, as the request needs."""

    def draw(side: int, n: int, seed: int) -> NDArray[Any]:
        users, node = np.arange(n, dtype=np.int64) + n * side, f"{name}-{side}-{n}-{seed}"
        embeddings = np.zeros((n, WIDTH), np.float32)
        embeddings[:, 0] = 1.0 - 2.0 * side
        clients.write(
            node,
            users,
            np.zeros_like(users),
            texts=[texts[side]] * n,
            labels=np.full(n, side),
            embeddings=None if channel == "text" else embeddings,
            seed=seed,
            delta=_DELTA,
        )
        return decoded(audit_clients.values_of(clients.ask(node, request), channel))

    return draw

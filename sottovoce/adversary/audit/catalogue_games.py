"""Games through the client for every mechanism of the catalogue that no other part of the audit covers.

The games follow the catalogue at the time of the audit. So a new mechanism is covered too, with the usual parameters
and the worst pair of its channel. Two kinds are left out (`left_out`): mechanisms that read a language model beside the
text, which have their own audits, and mechanisms without a promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.catalogue import CATALOGUE, build
from mechanisms.messages.request import Request
from sottovoce.adversary.audit import clients as audit_clients
from sottovoce.adversary.audit.clients import CLASSES, DIM, EMBEDDING, LABEL, STATISTIC, TEXT, WIDTH, Clients
from sottovoce.adversary.audit.games import Game, distances_of, finite_game, label_game, sphere_game, worst_pair

NAME = "client-catalogue"
#: Values of parameters that have no default.
_USUAL: dict[str, Any] = {"epsilon": 1.0, "dim": DIM, "sigma": 1.0, "classes": CLASSES}
#: Mechanisms that other parts of the audit cover.
_ASKED = {spec["mechanism"] for spec in (EMBEDDING, LABEL, TEXT, STATISTIC)}
#: A word outside every vocabulary.
_UNKNOWN = "zzyzxq"
_SHARE = 0.1
#: δ of the policy, at which mechanisms without a pure ε are answered.
_DELTA = 1e-6


def left_out(kind: type[Any]) -> bool:
    """Return True if a kind of mechanism reads a model beside the text, or is no protection."""
    return bool(getattr(kind, "reads", ())) or kind.name in ("identity", "redaction")


def catalogue_games(clients: Clients, delta: float) -> list[Game]:
    """Return a game for each mechanism that no other part of the audit covers."""
    kinds = [kind for name, kind in CATALOGUE.items() if name not in _ASKED and not left_out(kind)]
    makers = {"embedding": _embedding, "label": _label, "text": _text}
    return [
        replace(makers[kind.channel](clients, kind, delta), name=NAME, share=_SHARE)
        for kind in kinds if kind.channel in makers
    ]  # fmt: skip


def _spec(kind: type[Any]) -> dict[str, Any]:
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    spec = {"mechanism": kind.name} | {key: _USUAL[key] for key in needed if key in _USUAL}
    return spec | ({"k": 2} if any(f.name == "k" for f in fields(kind)) else {})  # the vocabulary is small


def _embedding(clients: Clients, kind: type[Any], delta: float) -> Game:
    spec = _spec(kind)
    mechanism = build(spec, channel="embedding", dim=DIM)
    request = replace(audit_clients.request("embedding"), embedding=spec, label=None)
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
    request = replace(audit_clients.request("embedding"), label=spec, prior=prior)
    draw = _drawn(clients, request, kind.name, "label", _numbers)
    return replace(game, about=f"{kind.name}, {game.about}", draw=draw)


def _text(clients: Clients, kind: type[Any], delta: float) -> Game:
    vocabulary = audit_clients.few_words()
    spec = _spec(kind) | {"tokens": 1, "length": "kept"}
    word = build(spec, channel="text", vocabulary=vocabulary).word
    words = (*vocabulary.words, _UNKNOWN)
    together, apart = _together(word), distances_of(word)
    if hasattr(word, "log_probs"):
        table = word.log_probs(np.arange(len(vocabulary) + 1))
        x, y = worst_pair(table, together)
        laws = table[x], table[y]
    else:
        x, y = (int(i) for i in np.unravel_index(int(np.argmax(apart)), apart.shape))
        laws = None
    game = finite_game(
        word, (x, y), delta, shown=f"{words[x]} / {words[y]}",
        outcomes=np.arange(len(vocabulary)), log_probs=laws,
        distance=float(apart[x, y]) if word.guarantee.metric == "euclidean" else None,
    )  # fmt: skip
    asking = Request(
        audit_clients.ARM, "train", "train", "", None, None, None, None, audit_clients.MANY, 0,
        text=spec | {"vocabulary": vocabulary.identity}, vocabulary=vocabulary,
    )  # fmt: skip
    texts = words[x], words[y]
    draw = _drawn(clients, asking, kind.name, "text", lambda values: _numbers(values[:, 0]), texts=texts)
    return replace(game, about=f"{kind.name}, {game.about}", draw=draw)


def _together(word: Any) -> NDArray[np.int64] | None:
    """Return a number for each word, (V + 1,); None for all words together.

    The theorem covers words of one number >= 0 together.
    """
    exposes, found = set(word.guarantee.exposes), np.zeros(len(word.vocabulary) + 1, dtype=np.int64)
    if "group" in exposes:
        found = word.mapping.group.astype(np.int64)
    if "tag" in exposes:
        found = np.append(np.asarray(word.vocabulary.tags, dtype=np.int64), -1)
    if "frequent-words" in exposes:
        found = np.where(word.sensitive, found, -1)
    if "stop-words" in exposes:
        found = np.where(word.vocabulary.kinds["stop_words"], -1, found)
    return found if exposes else None


def _numbers(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.int64)


def _drawn(
    clients: Clients, request: Request, name: str, channel: str, decoded: Callable[[NDArray[Any]], NDArray[Any]],
    *, texts: tuple[str, str] = ("", ""),
) -> Callable[[int, int, int], NDArray[Any]]:  # fmt: skip
    """Return draws of users of one record each: opposite embeddings, two labels and two texts, as the request needs."""

    def draw(side: int, n: int, seed: int) -> NDArray[Any]:
        users, node = np.arange(n, dtype=np.int64) + n * side, f"{name}-{side}-{n}-{seed}"
        embeddings = np.zeros((n, WIDTH), np.float32)
        embeddings[:, 0] = 1.0 - 2.0 * side
        clients.write(
            node, users, np.zeros_like(users), texts=[texts[side]] * n, labels=np.full(n, side),
            embeddings=None if channel == "text" else embeddings, seed=seed, delta=_DELTA,
        )  # fmt: skip
        return decoded(audit_clients.values_of(clients.ask(node, request), channel))

    return draw

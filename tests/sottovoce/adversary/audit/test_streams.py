"""Draws of a client: no two share their randomness, and each mechanism of the catalogue draws as by itself."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from client.models.tokens import padded_word_ids
from client.node import write_node
from client.policy import Policy
from mechanisms.catalogue import CATALOGUE
from mechanisms.channels import CHANNELS
from mechanisms.facts import usual
from mechanisms.guarantee import EXPOSURES
from mechanisms.identity import Identity
from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion, Prior, TextQuestion
from mechanisms.messages.request import Request
from mechanisms.projection import softmax
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING
from mechanisms.words.verbatim import Verbatim
from sottovoce.adversary.audit import run as audit
from sottovoce.adversary.audit.client import (
    ARM,
    CLASSES,
    DEVICE,
    DIM,
    PARTS,
    WIDTH,
    Clients,
    few_words,
    request,
    values_of,
)
from sottovoce.adversary.audit.run import Audit

SEED = 3


@pytest.mark.soak
@pytest.mark.slow
def test_the_rate_of_false_alarms_of_clients(tmp_path: Path) -> None:
    """Of 60 audits of all that is asked of sound clients no more alarm than the stated 1e-3 explains (at 1e-6)."""
    raised = 0
    for seed in range(60):
        games = [
            game
            for name, made in PARTS.items()
            if name != "shuffler"
            for game in made(Clients(tmp_path / f"{name}-{seed}", deployed=name == DEVICE), 1e-3)
        ]
        raised += any(f.verdict == "violated" for f in audit.measure(games, Audit(draws=2000, seed=seed)))
    assert raised <= stats.binom.isf(1e-6, 60, audit.FAMILY)


# --- streams


@pytest.mark.parametrize("channel", ["embedding", "text", "statistic", "answer"])
def test_every_draw_has_a_stream_of_its_own(channel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users and records that differ in one bit, two stages, a second request at one stage, two channels of a request:
    the names of the streams are those of the draws, and none comes twice."""
    named, rows = [], SimulationStreams.rows

    def noted(self: SimulationStreams, users: Any, records: Any, **about: Any) -> Any:
        for user, record in zip(np.asarray(users).tolist(), np.asarray(records).tolist(), strict=True):
            named.append((self, about["stage"], about["channel"], about.get("step", 0), user, record))
        return rows(self, users, records, **about)

    monkeypatch.setattr(SimulationStreams, "rows", noted)
    people = [(0, 0), (0, 1), (0, 2**31), (1, 0), (2**32, 0), (2**61, 0)]
    users, records = np.array(people, dtype=np.int64).T
    clients, n = Clients(tmp_path), len(people)
    embeddings = None if channel == "text" else np.tile(np.eye(1, WIDTH, dtype=np.float32), (n, 1))
    clients.write(
        "a", users, records, texts=["word0"] * n, labels=np.zeros(n, np.int64), embeddings=embeddings, seed=SEED
    )
    first, second = (clients.request(channel, stage=stage) for stage in ("train", "second"))
    louder = tuple(replace(each, spec=each.spec | {"epsilon": 2 * each.spec["epsilon"]}) for each in first.questions)
    for asked in (first, second, replace(first, questions=louder)):
        clients.ask("a", asked)
    wanted = {(user, 0) for user, _ in people} if channel == "statistic" else set(people)
    assert len(named) == len(set(named)) and {(user, record) for *_, user, record in named} == wanted
    asked_for = {(stage, each.channel, step) for each in first.questions for stage, step in RELEASES}
    assert {(stage, on, step) for _, stage, on, step, _, _ in named} == asked_for


#: Stage and step of the three requests.
RELEASES = (("train", 0), ("second", 0), ("train", 1))


def test_places_of_a_text_are_drawn_one_by_one(tmp_path: Path) -> None:
    """Of one word five times, neighbours are as often equal as words of different texts; 5 standard errors."""
    n, clients = 4000, Clients(tmp_path)
    users = np.arange(n, dtype=np.int64)
    clients.write("a", users, np.zeros_like(users), texts=[" ".join(["word0"] * 5)] * n, seed=SEED)
    words = values_of(clients.ask("a", clients.request("text")), "text")
    words = words[(words[:, :2] != NOTHING).all(axis=1)]
    beside, apart = (np.mean(words[:, 0] == other) for other in (words[:, 1], np.roll(words[:, 1], 1)))
    assert abs(beside - apart) < 5 * math.sqrt(0.5 / len(words))


# --- the catalogue

KINDS = [
    kind
    for kind in CATALOGUE.values()
    if not (getattr(kind, "reads", ()) or issubclass(kind, Identity | Verbatim))
    and kind.channel in ("embedding", "label", "text")
]


def spec_of(kind: type[Any]) -> dict[str, Any]:
    spec = {"mechanism": kind.name} | usual(kind)
    sizes = {name: size for name, size in (("dim", DIM), ("classes", CLASSES)) if name in spec}
    return spec | sizes | ({"k": 2} if hasattr(kind, "k") else {})  # of four words


def asked_of(kind: type[Any]) -> Request:
    """Return the request of a mechanism on its channel."""
    base, spec = request("embedding"), spec_of(kind)
    if kind.channel == "text":
        spec |= {"tokens": 3, "length": "kept", "vocabulary": few_words().identity}
        return replace(base, questions=(TextQuestion(spec, classes=CLASSES, vocabulary=few_words()),))
    embedding = base.question(EmbeddingQuestion)
    if kind.channel == "embedding":
        return replace(base, questions=(replace(embedding, spec=spec),))
    weights = np.ones((DIM, CLASSES), np.float32), np.log(np.arange(1, CLASSES + 1, dtype=np.float32))
    prior = Prior(weights, embedding) if getattr(kind, "needs_prior", False) else None
    return replace(base, questions=(embedding, LabelQuestion(spec, classes=CLASSES, prior=prior)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.name}-{kind.channel}")
def test_a_client_releases_what_the_mechanism_draws(kind: type[Any], tmp_path: Path) -> None:
    n, asked, clients = 60, asked_of(kind), Clients(tmp_path)
    users = np.arange(n, dtype=np.int64)
    texts = [few_words().words[i % 4] + " nowhere " + few_words().words[i % 3] for i in range(n)]
    embeddings = np.eye(WIDTH, dtype=np.float32)[users % DIM] * (1 - 2 * (users % 2))[:, None].astype(np.float32)
    labels = users % CLASSES
    clients.write("a", users, 0 * users, texts=texts, labels=labels, embeddings=embeddings, seed=SEED)
    shown = tuple(f"{each}: of the test" for each in EXPOSURES)
    policy = Policy(**dict.fromkeys(CHANNELS, math.inf), delta=1e-6, accept_unprotected=shown)
    write_node(tmp_path / "a", vocabulary=(tmp_path / "words").resolve(), seed=SEED, arms={ARM: policy})
    reply = clients.ask("a", asked)
    question: Any = asked.questions[-1]
    mechanism, given = question.mechanism, {}
    if kind.channel == "text":
        x: Any = padded_word_ids(texts, mechanism)
    elif kind.channel == "embedding":
        x = embeddings[:, :DIM].astype(np.float64)
    else:
        x = labels
        if question.prior is not None:
            released = question.prior.embedding.decode(values_of(reply, "embedding"))
            given["prior"] = softmax(released, *question.prior.weights)
    rows = SimulationStreams(SEED).rows(users, 0 * users, stage="train", channel=question.channel)
    drawn = mechanism.sample(x, rng=rows, **given)
    if kind.channel == "embedding":
        drawn = drawn.astype(np.float32) if mechanism.grid is None else mechanism.grid.encode(drawn)
    np.testing.assert_array_equal(values_of(reply, question.channel), drawn)

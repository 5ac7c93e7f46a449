"""A channel that no product has costs one file and one registration."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.node import load_node
from client.policy import Policy, Refused
from client.sanitizer import Sanitizer
from client.store.ledger import Ledger
from mechanisms.catalogue import OWN_KINDS
from mechanisms.channels import CHANNELS
from mechanisms.messages.questions import QUESTIONS, Question, register
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import generate_keys, seal
from mechanisms.messages.wire import (
    record_from_bytes,
    record_to_bytes,
    reply_from_record,
    reply_to_record,
    request_from_record,
    request_to_record,
)
from mechanisms.streams import SimulationStreams
from server.sealed_batches import open_batch
from server.validation import validate
from simulations.shuffler.shuffle import shuffle
from tests.support.clients import make_node

#: The whole channel: the number of a text's characters, by randomized response.
CHANNEL = '''
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from mechanisms.channels import Channel, Domain
from mechanisms.messages.questions import Question
from mechanisms.randomized_response import RandomizedResponse


@dataclass(frozen=True)
class RandomizedLength(RandomizedResponse):
    """Randomized response of a length: any two texts are neighbours."""

    channel: ClassVar[str] = "length"

    @property
    def guarantee(self):
        return replace(super().guarantee, protects="sequence")


@dataclass(frozen=True, eq=False)
class LengthQuestion(Question):
    """Length of each record's text, as one of K classes."""

    classes: int = field(kw_only=True)

    about = Channel(
        "length", "length", Domain.CLASSES, ("sequence",), "any two texts", "the length of each text, at random",
        "the length of each text",
    )
    channel = "length"
    array = "n"
    mechanisms = (RandomizedLength,)
    content = "how long the text is"

    @property
    def sizes(self):
        return {"classes": self.classes}

    def public(self, split):
        return {"classes": self.classes}

    @classmethod
    def read(cls, spec, wire):
        return cls(spec, classes=wire.classes)

    def values(self, records, rows, starts):
        return np.array([min(len(text), self.classes - 1) for text in records.texts(rows)], np.int64)

    def draw(self, values, lent):
        return self.mechanism.sample(values, rng=lent.rng())

    @property
    def payload_form(self):
        return self.array, np.dtype(np.int16), ()

    def checks(self, payload):
        return {"length: out of range": (payload >= 0) & (payload < self.classes)}

    def decode(self, payload):
        return payload.astype(np.int64)
'''
EPSILON, CLASSES = 3.0, 20


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "lengths.py").write_text(CHANNEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    tables: tuple[dict[Any, Any], ...] = (QUESTIONS, CHANNELS, OWN_KINDS)
    before = [dict(table) for table in tables]
    found = import_module("lengths").LengthQuestion
    register(found)
    yield found
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)
    del sys.modules["lengths"]


def policy(**changes: Any) -> Policy:
    return Policy(**{"further": {"length": EPSILON}, "total": 2 * EPSILON} | changes)


def asked(kind: type[Question], **changes: Any) -> Request:
    about: dict[str, Any] = {"arm": "a", "stage": "train", "split": "train", "minimum_users": 0} | changes
    made: Any = kind
    spec = {"mechanism": "randomized-response", "epsilon": EPSILON}
    return Request(questions=(made(spec, classes=CLASSES),), **about)


def answered(folder: Path, request: Request, allowed: Policy) -> Any:
    """The client's reply, both over the wire."""
    node = load_node(folder)
    sent = request_from_record(record_from_bytes(record_to_bytes(request_to_record(request))))
    with Ledger(folder / "lengths.sqlite") as ledger:
        reply = Sanitizer(allowed, ledger, SimulationStreams(1)).answer(sent, node.shard("train"))
    return reply_from_record(record_from_bytes(record_to_bytes(reply_to_record(reply))))


def test_a_new_channel_is_one_file_and_one_registration(kind: Any, tmp_path: Path) -> None:
    """Request, draw, ledger, wire, validation, shuffler, batch and decoding: no other table names it."""
    request, folder = asked(kind), make_node(tmp_path / "node")
    reply = answered(folder, request, policy())
    assert answered(folder, request, policy()).releases[0].values.tolist() == reply.releases[0].values.tolist()
    with Ledger(folder / "lengths.sqlite") as ledger:
        rows = ledger.rows()
    assert len(rows) == len(reply) == 8
    assert {(row.channel, row.digest, row.epsilon) for row in rows} == {("length", request.digest("length"), EPSILON)}
    valid, dropped = validate(reply, request, enrolled=range(8))
    assert len(valid) == 8 and not dropped
    batch, *_ = shuffle([valid], minimum_users=1, rng=np.random.default_rng(0))
    decoded = request.question(kind).decode(batch.of(kind).values)
    assert batch.users == 8 and sorted(decoded) == sorted(reply.releases[0].values)
    private, public = generate_keys()
    opened, _ = open_batch(seal(reply, request, public).rows, request, [private])
    assert opened.releases[0].values.tolist() == reply.releases[0].values.tolist()


def test_its_limit_is_the_policys(kind: Any, tmp_path: Path) -> None:
    folder, file = make_node(tmp_path / "node"), {"length": EPSILON, "total": 6.0}
    assert Policy.from_dict(file).limit("length") == EPSILON and Policy.from_dict(file).to_dict()["length"] == EPSILON
    for small in (Policy(), policy(further={"length": EPSILON - 0.1})):
        with pytest.raises(Refused, match="channel"):
            answered(folder, asked(kind), small)
    assert len(answered(folder, asked(kind), policy())) == 8
    with pytest.raises(Refused, match="budget"):  # another stage would cost again
        answered(folder, asked(kind, stage="again"), policy())


def test_a_name_that_is_taken_is_refused(kind: Any) -> None:
    other: Any = type("Other", (kind,), {})
    with pytest.raises(ValueError, match="registered already"):
        register(other)

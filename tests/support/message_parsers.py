"""The parsers of messages, as targets: what a hostile server, device or shuffler sends."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from flwr.app import RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from client.app import release
from client.device.fleet import Unusable, assemble
from client.device.signed_request import read_request, write_request
from client.device.statement import describe_question
from client.models import vocabulary as vocabularies
from client.node import load_node, write_node
from client.policy import Policy, Refused
from mechanisms.messages import signature
from mechanisms.messages.refusals import REFUSALS, describe_error
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import SUITE, Sealed, envelop, generate_keys, hpke_info, row_bytes, sealed_bytes
from mechanisms.messages.signature import public_of
from mechanisms.messages.wire import (
    record_from_bytes,
    record_to_bytes,
    reply_from_record,
    reply_to_record,
    request_from_record,
    request_identity,
    request_to_record,
    sealed_from_record,
    sealed_to_record,
)
from server.sealed_batches import open_batch
from server.validation import validate
from simulations.shuffler.core import Admitted, admit
from simulations.shuffler.enrolment import Enrolled
from simulations.shuffler.rounds import Rounds
from simulations.shuffler.store import OPEN, Stage
from tests.support import clients
from tests.support.parsers import Target
from tests.system.test_fuzz import CONSTANT, words

M, DIM, CLASSES = 3, 2, 3
PRIVATE, PUBLIC = generate_keys()
#: Not of `tests.support.devices`, which takes PyTorch.
SIGNER = bytes(range(32))
PUBLISHER = public_of(SIGNER)
POLICY = Policy(embedding=70.0, label=6.0, text=400.0, answer=6.0, statistic=6.0, total=900.0)


def small(**changes: Any) -> Request:
    """A request of few numbers, so that most bytes of a message say something."""
    rng = np.random.default_rng(1)
    m1 = rng.normal(size=(M, DIM)).astype(np.float32)
    return clients.request(**({"arm": "a", "mean": np.zeros(M, np.float32), "m1": m1, "minimum_users": 2} | changes))


def asked() -> list[Request]:
    none: dict[str, Any] = {"encoder": "", "mean": None, "m1": None, "embedding": None}
    text = {"mechanism": "santext", "epsilon": 2.0, "tokens": 3, "vocabulary": words().identity}
    ones = np.zeros((DIM, CLASSES), np.float32), np.zeros(CLASSES, np.float32)
    response = {"mechanism": "randomized-response", "epsilon": 2.0}
    return [
        small(),
        small(**none),
        small(label=None, embedding={"mechanism": "planar-laplace", "epsilon": 4.0}),
        small(embedding={"mechanism": "gaussian", "sigma": 2.0}),
        small(embedding={"mechanism": "identity"}),
        small(prior=ones, label={"mechanism": "randomized-response-prior", "epsilon": 1.0}),
        small(embedding=None, label=None, answer=response, head=ones),
        small(
            embedding=None,
            label=None,
            codes=np.eye(CLASSES, dtype=np.float32),
            statistic={"mechanism": "privunit", "epsilon": 3.0},
        ),
        small(**none, text=text, vocabulary=words()),
    ]


def bytes_of(request: Request) -> bytes:
    return record_to_bytes(request_to_record(request))


def honest(wanted: Request, n: int) -> Reply:
    releases = []
    for channel in wanted.channels:
        name, dtype, shape = wanted.named(channel).payload_form
        values = np.zeros((n, *shape), dtype)
        if channel == "embedding" and wanted.named(channel).mechanism.grid is not None:
            values[:, 0] = 32767
        guarantee = wanted.named(channel).mechanism.guarantee
        releases.append(Release({name: values}, channel, wanted.stage, guarantee, wanted.digest(channel)))
    return Reply(np.arange(n), np.zeros(n, np.int64), tuple(releases))


def _requests() -> Target:
    """`wire.py` and `request.py`, and what looks at a request next: its digests and a policy."""
    policy = replace(POLICY, questions=())

    def run(data: bytes) -> str:
        request = request_from_record(record_from_bytes(data), lambda identity: words())
        assert all(len(request.digest(channel)) == 64 for channel in request.channels)
        assert hpke_info(request) and row_bytes(request) >= 0
        policy.check(request)
        return "accepted"

    return Target("requests", run, [bytes_of(r) for r in asked()], (ValueError, Refused))


def _replies() -> Target:
    """`wire.py`, `reply.py` and `release.py`, and the server's `validation.py`, which never raises. The first byte says
    what was asked for."""
    talks = [r for r in asked() if all(each.given is None for each in r.questions)]

    def run(data: bytes) -> str:
        wanted = talks[data[0] % len(talks) if data else 0]
        reply = reply_from_record(record_from_bytes(data[1:]))
        valid, dropped = validate(reply, wanted, enrolled=range(4))
        assert "unreadable" in dropped or len(valid) + dropped.total() == len(reply)
        assert ((valid.users >= 0) & (valid.users < 4)).all()
        for sent in valid.releases:
            assert sent.guarantee.agrees(wanted.named(sent.channel).mechanism.guarantee)
        return next(iter(dropped), "accepted" if len(valid) else "nothing")

    seeds = [bytes([i]) + record_to_bytes(reply_to_record(honest(r, 2))) for i, r in enumerate(talks)]
    return Target("replies", run, seeds)


def _batches() -> Target:
    """`sealed.py` and the server's `sealed_batches.py`: rows as a shuffler hands them on, which were sealed by anybody.
    Of an input the first byte says what was asked for, the next how rows are cut; the rest is what is sealed, or, where
    the second is odd, rows as they are."""
    talks = [small(minimum_users=0), asked()[8], small(minimum_users=3, label=None)]
    key = X25519PublicKey.from_public_bytes(PUBLIC)

    def run(data: bytes) -> str:
        wanted = talks[(data[0] if data else 0) % len(talks)]
        cut, body = data[1] if len(data) > 1 else 0, data[2:1026]
        width = (sealed_bytes(wanted) if cut & 1 else row_bytes(wanted)) + (cut >> 1) % 3
        rows = np.frombuffer(body[: len(body) // width * width], np.uint8).reshape(-1, width)
        if not cut & 1 and len(rows):
            sealed = [SUITE.encrypt(row.tobytes(), key, hpke_info(wanted)) for row in rows]
            sealed += sealed[: cut >> 6]  # and some of them again
            rows = np.frombuffer(b"".join(sealed), np.uint8).reshape(len(sealed), -1)
        valid, dropped = open_batch(rows, wanted, [PRIVATE])
        assert len(valid) + dropped.total() == len(rows)
        return next(iter(+dropped), "accepted" if len(valid) else "nothing")

    seeds = []
    for i, wanted in enumerate(talks):
        reply = honest(wanted, 3)
        plain = [b"".join(r.values[j].tobytes() for r in reply.releases) for j in range(3)]
        rows = b"".join(row.ljust(row_bytes(wanted), b"\0") for row in plain)
        seeds += [bytes([i, 0]) + rows, bytes([i, 64]) + rows, bytes([i, 1]) + bytes(3 * sealed_bytes(wanted))]
    return Target("batches", run, seeds)


class _Store:
    """A stage that is open, and what a shuffler would put into its store."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.rows = stage, 0

    def open_stages(self) -> list[Stage]:
        return [self.stage]

    def add(self, name: str, sealed: Sealed, most: Any) -> Admitted:
        assert len(most) == len(sealed) and (sealed.records >= 0).all() and np.isin(sealed.users, (0, 1, 5)).all()
        assert sealed.rows.shape[1] == self.stage.row_bytes
        self.rows += len(sealed)
        return admit(sealed.users, sealed.records)

    def close(self, name: str, *, dropped: Counter[str], errors: Counter[str]) -> Stage:
        self.stage.dropped.update(dropped)
        self.stage.errors.update(errors)
        return self.stage


def _rounds() -> Target:
    """The shuffler's `rounds.py`: what a device answers. The first byte says whether it is an error."""
    wanted = small(part=(1, 2))
    private, public = generate_keys()
    device, known_as = signature.generate_keys()
    enrolled = {7: Enrolled(np.array([0, 1, 5]), np.array([1, 2, 1]), known_as)}
    body = bytes_of(wanted)
    known = {
        "another error",
        "a reply that is not sealed and signed for this request, or unreadable",
        *(text for _, text in REFUSALS.values()),
        *map(describe_error, ("code 0", "code 1", "code 2", "code 5", "code 8")),
    }
    constant = {"not enrolled there", "user of another part", "record below 0", "of another length"}

    def run(data: bytes) -> str:
        stage = Stage("train", body, sealed_bytes(wanted), 2, 60.0, OPEN, 0, 0, 0, Counter(), Counter(), "")
        store: Any = _Store(stage)
        reply: RecordDict | None = None
        if not data[:1].isdigit():
            reply = record_from_bytes(data[1:])
            with suppress(ValueError):  # a hostile device signs whatever it likes
                outer = envelop(sealed_from_record(reply), request_identity(record_from_bytes(body)), public, device)
                reply = sealed_to_record(outer)
        error = None if reply is not None else f"code {data[1:].decode(errors='replace')}"  # as `superlink.ask` says it
        Rounds(store, enrolled, lambda *_: iter([(7, reply, error)]), private).work()
        assert set(stage.dropped) <= constant | {"more records than the user is enrolled with"}
        assert set(stage.errors) <= known
        return next(iter(+stage.dropped), next(iter(stage.errors), "accepted" if store.rows else "nothing"))

    rows = np.zeros((3, sealed_bytes(wanted)), np.uint8)  # nobody opens them
    sealed = Sealed(np.array([1, 5, 1]), np.array([0, 0, 1]), rows)
    seeds = [b"r" + record_to_bytes(sealed_to_record(sealed)), b"0104", b"0five"]
    return Target("rounds", run, seeds)


def _answers(folder: Path) -> Target:
    """A client as a whole: `client/app.py` answers a request, or refuses it in a constant text."""
    node = clients.make_node(folder / "client" / "0", range(4))
    vocabularies.save(words(), folder / "client" / "words")
    write_node(node, seed=7, arms={"a": POLICY}, vocabulary=folder / "client" / "words")
    context: Any = clients.context(0, out=str(folder / "client"))
    (folder / "client" / "nodes").symlink_to(folder / "client")

    def run(data: bytes) -> str:
        given = release(clients.message(record_from_bytes(data)), context)
        if given.has_content():
            reply_from_record(given.content)
            return "accepted"
        assert (given.error.code, given.error.reason) in CONSTANT
        name = next(name for name, (code, _) in REFUSALS.items() if code == given.error.code)
        assert name != "failed", "a question that is not refused, and not answered"
        return name

    seeds = [bytes_of(r) for r in (*asked()[1:2], asked()[8])]
    return Target("answers", run, seeds)


def _questions(folder: Path) -> Target:
    """`client/device/signed_request.py` and what it tells a user: a file that somebody has sent."""
    vocabularies.save(words(), folder / "question-words")
    policy = replace(POLICY, questions=(), mechanisms=("purkayastha", "santext", "randomized-response"))
    write_node(folder / "asked", policy=policy, vocabulary=folder / "question-words", publisher=PUBLISHER)
    node, path = load_node(folder / "asked"), folder / "a.question"

    def run(data: bytes) -> str:
        path.write_bytes(data)
        question = read_request(path, node)
        told = describe_question(question.request, policy)
        assert told and all(line.isprintable() and len(line) < 2000 for line in told)
        policy.listing(question.request).check(question.request)
        return f"vouched {question.vouched(node.publisher)}"

    seeds = []
    for request in (replace(r, arm="") for r in asked()):
        write_request(path, request, SIGNER if len(seeds) % 2 else None)
        seeds.append(path.read_bytes())
    return Target("questions", run, seeds, (ValueError, Refused))


def _objects() -> Target:
    """`client/device/fleet.py`: a message from the objects that a SuperLink gives, and the tree that names them. An
    input is JSON: the tree as nested lists, and the objects, their bytes as characters of Latin-1."""
    sent = clients.message(small())
    tree, parts = get_object_tree(sent), {name: part.deflate() for name, part in get_all_nested_objects(sent).items()}

    def of_tree(node: Any) -> list[Any]:
        return [node.object_id, *map(of_tree, node.children)]

    def to_tree(node: Any) -> ObjectTree:
        return ObjectTree(object_id=node[0], children=[to_tree(child) for child in node[1:]])

    def run(data: bytes) -> str:
        try:
            values = json.loads(data)
            made = to_tree(values["tree"])
            there = {k: v.encode("latin-1") for k, v in values["objects"].items()}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return "no input"
        whole = assemble(made, lambda name: there.get(name, b""), limit=2**16)
        return type(whole).__name__

    one = {"tree": of_tree(tree), "objects": {k: v.decode("latin-1") for k, v in parts.items()}}

    return Target("objects", run, [json.dumps(one, ensure_ascii=True).encode()], (Unusable,))


def targets(folder: Path) -> list[Target]:
    """All of them; what they write lies in a folder."""
    return [_requests(), _replies(), _batches(), _rounds(), _answers(folder), _questions(folder), _objects()]

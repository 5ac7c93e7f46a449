"""Every parser of what another party sends: it rejects an input in the one way that it documents, in a line, within
bounded memory. Inputs that broke a parser, or reach far into it, are kept in tests/corpora.

Messages, files and HTTP: of a publisher, an authority, a SuperLink, a shuffler, and what anybody may send to a service.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import ssl
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpcore
import httpx
import numpy as np
import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse
from uvicorn import Config
from uvicorn.server import ServerState

from client.device import fleet
from client.device.bundle import MANIFEST, SIGNATURE, Keys, Parts, open_bundle, write_bundle
from client.device.signed_request import read_request, write_request
from client.device.statement import describe_question
from client.models import encoder as encoders
from client.models import vocabulary as vocabularies
from client.node import load_node, write_node
from client.policy import Policy, Refused
from mechanisms.messages.request import Request
from mechanisms.messages.signature import public_of
from simulations.errors import UserError
from simulations.shuffler.enrolment import read_table, read_tokens
from simulations.shuffler.store import Conflict
from simulations.transport import https
from sottovoce.deployment import certificates
from sottovoce.deployment import shuffler_client as client
from sottovoce.deployment import shuffler_service as service
from sottovoce.deployment.shuffler_client import Shuffler
from tests.support import clients
from tests.support.paths import ROOT
from tests.support.requests import changed
from tests.system.test_fuzz import words

CORPORA = ROOT / "tests" / "corpora"
#: Longer inputs are the business of tests of memory.
LONGEST = 6000
#: Bytes of memory that an input may take at most, beside so many for each of its own.
ROOM, EACH = 8 * 2**20, 200


@dataclass(frozen=True)
class Target:
    """Parser of what another party sends.

    run: reads an input and names the outcome; asserts what must hold of it. seeds: valid inputs beside those of the
    corpus. refuses: exceptions by which the parser rejects an input.
    """

    run: Callable[[bytes], str]
    seeds: Sequence[bytes] = ()
    refuses: tuple[type[Exception], ...] = (ValueError,)

    def outcome(self, data: bytes) -> str:
        """Run the parser. AssertionError for another exception, or a message of more than one line."""
        try:
            return self.run(data)
        except self.refuses as error:
            assert "\n" not in str(error), f"{error}: {data.hex()}"
            return type(error).__name__
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}: {data.hex()}") from error

    def peak(self, data: bytes) -> int:
        """Return the bytes of memory that an input takes beside what was there."""
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            self.outcome(data)
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()


def read_corpus(name: str) -> tuple[set[str], list[bytes]]:
    """Return the outcomes that a corpus reaches, and its inputs: text, or hexadecimal digits."""
    about, *inputs = map(json.loads, (CORPORA / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")[:-1])
    return set(about["outcomes"]), [i.get("text", "").encode() + bytes.fromhex(i.get("hex", "")) for i in inputs]


def scribbled(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Return bytes of any format, changed in one place."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 32, 200)))
    number = rng.choice((0, 1, 0x7F, 0xFF, 0x8000, 2**31, 2**63, 2**64 - 1)).to_bytes(8, "little")
    new = rng.choice((bytes([rng.randrange(256)]), number[: rng.choice((1, 2, 4, 8))], number[::-1]))
    changed = data[:at] + new + data[at + len(new) :]
    spliced = data[:at] + other[rng.randrange(len(other) + 1) :]
    return rng.choice((changed, changed, data[:at] + data[end:], data[:end] + data[at:], data[:at], spliced))


M, DIM, CLASSES = 3, 2, 3
#: Not of `tests.support.devices`, which takes PyTorch.
SIGNER = bytes(range(32))
PUBLISHER = public_of(SIGNER)
POLICY = Policy(embedding=70.0, label=6.0, text=400.0, answer=6.0, statistic=6.0, total=900.0)


def small(**changes: Any) -> Request:
    """A request of few numbers, so that most bytes of a message say something."""
    rng = np.random.default_rng(1)
    m1 = rng.normal(size=(M, DIM)).astype(np.float32)
    return clients.request(**({"arm": "a", "mean": np.zeros(M, np.float32), "m1": m1, "minimum_users": 2} | changes))


TEXT = {"mechanism": "santext", "epsilon": 2.0, "tokens": 3, "vocabulary": words().identity}
RESPONSE = {"mechanism": "randomized-response", "epsilon": 2.0}
HEAD_OF_ZEROS = np.zeros((DIM, CLASSES), np.float32), np.zeros(CLASSES, np.float32)
NO_MAPS: dict[str, Any] = {"encoder": "", "mean": None, "m1": None, "embedding": None}
NO_RELEASES: dict[str, Any] = {"embedding": None, "label": None}
WITH_PRIOR = small(prior=HEAD_OF_ZEROS, label={"mechanism": "randomized-response-prior", "epsilon": 1.0})
OF_TEXT = small(**NO_MAPS, text=TEXT, vocabulary=words())
REQUESTS = [
    small(),
    small(**NO_MAPS),
    small(label=None, embedding={"mechanism": "planar-laplace", "epsilon": 4.0}),
    small(embedding={"mechanism": "gaussian", "sigma": 2.0}),
    small(embedding={"mechanism": "identity"}),
    WITH_PRIOR,
    small(**NO_RELEASES, answer=RESPONSE, head=HEAD_OF_ZEROS),
    small(**NO_RELEASES, codes=np.eye(CLASSES, dtype=np.float32), statistic={"mechanism": "privunit", "epsilon": 3.0}),
    OF_TEXT,
]


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
    for request in (replace(r, arm="") for r in REQUESTS):
        write_request(path, request, SIGNER if len(seeds) % 2 else None)
        seeds.append(path.read_bytes())
    return Target(run, seeds, (ValueError, Refused))


def _bundles(folder: Path) -> Target:
    """`client/device/bundle.py`: a folder in which the file that an input's first line names holds what is behind that
    line. The manifest is made to fit, as a hostile publisher would, where it is not the manifest."""
    encoder = folder / "fake-encoder"
    encoder.mkdir()
    for name in encoders.FILES:
        (encoder / name).write_text("not read")
    vocabularies.save(words(), folder / "bundle-words")
    made: dict[str, dict[str, bytes]] = {}
    for which, request in (("e", changed(WITH_PRIOR, encoder=encoders.identity(encoder))), ("t", OF_TEXT)):
        place = folder / which
        parts, about = Parts(encoder, vocabulary=folder / "bundle-words"), {"name": "small", "made_by": "tests"}
        classes = tuple("abcdefgh"[: request.classes])
        write_bundle(place, request, POLICY, **about, arm="a", classes=classes, parts=parts, keys=Keys(signer=SIGNER))
        made[which] = {p.relative_to(place).as_posix(): p.read_bytes() for p in place.rglob("*") if p.is_file()}

    def run(data: bytes) -> str:
        head, _, body = data.partition(b"\n")
        which, _, name = head.decode(errors="replace").partition("/")
        if name not in made.get(which, ()):
            return "no input"
        place, files = folder / which, made[which] | {name: body}
        if name not in (MANIFEST, SIGNATURE):
            manifest = json.loads(files[MANIFEST]) | {"publisher": None}
            manifest["files"][name] = {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
            files[MANIFEST] = json.dumps(manifest).encode()
            files.pop(SIGNATURE)
            (place / SIGNATURE).unlink(missing_ok=True)
        for file, content in files.items():
            (place / file).write_bytes(content)
        bundle = open_bundle(place)
        assert bundle.size > 0 and bundle.publisher in (None, PUBLISHER)
        return "accepted"

    files = [(w, n) for w in made for n in made[w] if not n.startswith("encoder/") and (w == "e" or n != "policy.json")]
    seeds = [f"{which}/{name}\n".encode() + made[which][name] for which, name in sorted(files)]
    unsigned = json.loads(made["e"][MANIFEST]) | {"publisher": None}
    return Target(run, [*seeds, f"e/{MANIFEST}\n{json.dumps(unsigned)}".encode()])


# -- HTTP, from a server -----------------------------------------------------------------------------------------------


def _keys(folder: Path) -> Path:
    if not (folder / "ca").exists():
        certificates.make_authority(folder / "ca")
        certificates.issue(folder / "ca", folder / "pair", "training-server", client=True)
        certificates.node_keys(folder / "pair")
    return folder


#: Made once: it takes long, and no TLS is spoken here.
_ANY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def saying(data: bytes) -> httpx.HTTPTransport:
    """A connection on which a server says just this, whatever it is asked."""
    transport = httpx.HTTPTransport(verify=_ANY)
    transport._pool = httpcore.ConnectionPool(_ANY, network_backend=httpcore.MockBackend([data] if data else []))
    return transport


def _fleets(folder: Path) -> Target:
    """`client/device/fleet.py`: a SuperLink's answers. The first byte of an input says to which question."""
    keys = _keys(folder)
    line = fleet.Fleet("a:1", keys / "ca" / "ca.pem", next((keys / "pair").glob("node*.key"), keys / "pair" / "node"))
    calls: list[Callable[[], Any]] = [
        lambda: line.activate(None),
        lambda: line.activate(5),
        line.beat,
        line.receive,
        lambda: line.fab(1),
        lambda: line.announce(PushMessagesRequest()),
        line.close,
    ]

    def run(data: bytes) -> str:
        bounded = fleet.BoundedTransport(fleet.context_for("superlink"), fleet._LARGER)
        bounded._inner = saying(data[1:])
        line._client._client = httpx.Client(transport=bounded, timeout=1, follow_redirects=False)
        line._client.offset *= 0
        try:
            calls[data[0] % len(calls) if data else 0]()
        except fleet.Rejected:
            assert line._client.offset.total_seconds() == 0
            return "rejected"
        finally:  # whatever it has said of the time, tomorrow's question can be signed too
            fleet._now() + line._client.offset + timedelta(days=1)
        return "accepted"

    return Target(run, (), (fleet.Lost, fleet.Rejected, fleet.Unusable))


def _deliveries(folder: Path) -> Target:
    """The training server's `sottovoce/deployment/shuffler_client.py`: what a shuffler says of a stage."""
    pair = _keys(folder) / "pair"
    with Shuffler(
        "a:1", root_certificates=folder / "ca" / "ca.pem", certificate=pair / "cert.pem", key=pair / "cert.key"
    ) as shuffler:
        pass
    left = [0]

    def few(call: Callable[[], Any]) -> Any:
        """In place of patience: the same answer comes again, and may say for ever that the stage is open."""
        left[0] -= 1
        try:
            return call() if left[0] > 0 else b"it is not waited for"
        except httpx.TransportError:
            raise UserError("cannot be reached") from None

    shuffler._patiently = few  # type: ignore[method-assign]

    def run(data: bytes) -> str:
        """A stage that is open is asked for again; a batch is read alone."""
        shuffler._client = httpx.Client(base_url="https://a:1", transport=saying(data))
        left[0] = 3
        with shuffler, pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "LOOK", 0.0)
            if data.startswith(b"HTTP/1.1 202"):
                shuffler.batch("train", b"", row_bytes=4, timeout=1.0)
                return "delivered"
            got: Any = few(lambda: shuffler._sent("GET", "/v1/stages/train", 4))
        return "open" if isinstance(got, bytes) else f"rows {got.rows.shape[1]}"

    return Target(run, (), (UserError,))


# -- the shuffler's own doors ------------------------------------------------------------------------------------------


def _enrolments(folder: Path) -> Target:
    """`simulations/shuffler/enrolment.py`: tokens, and an authority's table. Of an input the first byte says which."""
    path = folder / "enrolled"

    def run(data: bytes) -> str:
        path.write_bytes(data[1:])
        if not data[:1].isdigit():
            return f"table of {len(read_table(path)) > 1}"
        enrolled = read_tokens(path, public_of(SIGNER))
        for there in enrolled.values():
            assert (np.diff(there.users) > 0).all() and (there.users >= 0).all() and (there.records > 0).all()
        return "tokens"

    return Target(run, (), (UserError,))


class _Stages:
    def open_stage(self, name: str, body: bytes, *, row_bytes: int, minimum_users: int, timeout: float) -> None:
        assert 48 < row_bytes <= 2**20 and 0 < timeout <= 7 * 24 * 3600 and minimum_users >= 0 and len(name) <= 64
        if name != "train":
            raise Conflict("another")

    def stage(self, name: str) -> None:
        return None


def _doors(folder: Path) -> Target:
    """`simulations/transport/https.py` and `sottovoce/deployment/shuffler_service.py`: bytes on a connection."""
    rounds: Any = SimpleNamespace(store=_Stages(), nodes=1, answered=lambda name: 0)
    app = service.application(rounds, lambda: None)

    async def at_once(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return call(*arguments, **named)  # tracing sees one thread

    async def known(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})["peer"] = service.TRAINING_SERVER
        if scope["path"] == "/short":
            try:
                body = await https.read_body(HttpRequest(scope, receive), limit=20, seconds=1)
                await PlainTextResponse(f"{len(body)}")(scope, receive, send)
            except ValueError:
                await PlainTextResponse("no", 400)(scope, receive, send)
        else:
            await app(scope, receive, send)

    def run(data: bytes) -> str:
        logging.getLogger("uvicorn.error").disabled = True  # as `make_server` has it
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(service, "run_in_threadpool", at_once)
            return _spoken(known, data)

    return Target(run, (), ())


def _spoken(app: Any, data: bytes) -> str:
    """The status of the last answer on a connection on which this was said."""
    written = bytearray()

    async def conversation() -> None:
        loop = asyncio.get_running_loop()
        config = Config(app, http=https.Patient, lifespan="off", log_config=None, server_header=False, access_log=False)
        state = ServerState()
        wire = Mock(spec=asyncio.Transport)
        wire.get_extra_info = {"peername": ("127.0.0.1", 9), "sockname": ("127.0.0.1", 1)}.get
        wire.write = written.extend
        wire.is_closing = lambda: wire.close.called or wire.abort.called
        protocol = https.Patient(config, state, {}, loop)
        protocol.connection_made(wire)
        for start in range(0, len(data), 700):  # no loop ever gives a protocol nothing; h11 would take it for the end
            if not protocol.transport.is_closing():
                protocol.data_received(data[start : start + 700])
                await asyncio.sleep(0)
        protocol.eof_received()
        protocol.connection_lost(None)
        if state.tasks:
            _, waiting = await asyncio.wait(set(state.tasks), timeout=5)
            assert not waiting, "a request that is broken off is never let go"
        assert all(task.exception() is None for task in state.tasks)

    asyncio.run(conversation())
    said = bytes(written)
    assert all(secret not in said for secret in (b"Traceback", b"site-packages"))
    status = said.rpartition(b"HTTP/1.1 ")[2][:3].decode(errors="replace")
    assert status in ("", "100", "202", "400", "403", "404", "405", "409", "200"), status
    return status or "silence"


TARGETS = {
    "questions": _questions,
    "bundles": _bundles,
    "fleets": _fleets,
    "deliveries": _deliveries,
    "enrolments": _enrolments,
    "doors": _doors,
}
DEEP = b"[" * 100_000


def _answer(status: str, text: str, *head: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *head, f"Content-Length: {len(text)}", "", text)).encode()


#: Of a batch of one row, whose identity is not that of its bytes.
HEAD = '{"batch": "ab", "rows": 1, "row_bytes": 4, "users": 1, "duplicates": 0, "dropped": {}, "errors": {}}\n'
#: Inputs that came to another exception than the documented ones, too long for a corpus or with a length of their own.
KNOWN: dict[str, list[bytes]] = {
    "bundles": [
        *(b"e/%s\n%s" % (name, DEEP) for name in (b"request.json", b"policy.json")),
        b"e/request.json\n3",
        b'e/policy.json\n{"total": 1' + b"0" * 400 + b"}",
        b"e/m1.npy\nPK\x03\x04",
        b"e/m1.npy\n\x93NUMPY\x01\x00v\x00{'descr': (",
        b"e/m1.npy\n\x93NUMPY\x01\x00\x10\x00" + b"{" * 16,
    ],
    "fleets": [
        b"\3" + _answer("500 Failed", "[" * 100_000),
        b"\3" + _answer("401 Unauthorized", "", "Date: Fri, 31 Dec 9999 23:59:59 GMT"),
    ],
    "deliveries": [
        _answer("202 Accepted", '{"users": "many"}'),
        _answer("202 Accepted", '{"users": [1]}'),
        _answer("202 Accepted", "[" * 60_000),
        _answer("200 OK", "[" * 60_000 + "\n"),
        _answer("200 OK", '{"rows": Infinity, "row_bytes": 4}\n'),
        _answer("200 OK", '{"rows": 0, "row_bytes": 4, "batch": "", "users": Infinity}\n'),
        *(_answer("200 OK", head) for head in ("", "\n", "[]\n", "{}\n", "nonsense", HEAD, HEAD + "123")),
        *(
            _answer("200 OK", HEAD.replace(*change))
            for change in (("{}", "[]"), ("4", "3"), ('"rows": 1', '"rows": -1'))
        ),
    ],
}


@pytest.fixture(scope="module")
def parsers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    folder = tmp_path_factory.mktemp("parsers")
    return {name: make(folder) for name, make in TARGETS.items()}


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_are_rejected_in_bounded_memory(parsers: dict[str, Target], name: str) -> None:
    target, (outcomes, inputs) = parsers[name], read_corpus(name)
    for data in target.seeds:  # fills what is cached
        target.outcome(data)
    assert outcomes <= {target.outcome(data) for data in inputs}, "the parser is exercised no more"
    for data in KNOWN.get(name, ()):
        assert target.outcome(data) not in ("accepted", "delivered", "rows 4"), data[:1000]
    for data in (*target.seeds, *inputs[-20:], *KNOWN.get(name, ())):
        assert target.peak(data) < ROOM + EACH * len(data), data[:1000].hex()


@pytest.mark.parametrize("key", ["total", "delta", "embedding", "window"])
def test_a_limit_beyond_floating_point_is_rejected(key: str) -> None:
    with pytest.raises(ValueError, match=f"^policy: {key} must be"):
        Policy.from_dict({key: 10**400})


@pytest.mark.parametrize("n", [100, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.soak])])
@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_are_survived(parsers: dict[str, Target], name: str, n: int) -> None:
    """Seeds and kept inputs, each changed in one to three places."""
    target, rng = parsers[name], random.Random(f"{name} 1")
    pool = [*target.seeds, *read_corpus(name)[1]]
    for _ in range(n):
        data = rng.choice(pool)
        for _ in range(rng.choice((1, 1, 2, 3))):
            data = scribbled(rng, data, rng.choice(pool))
        target.outcome(data[:LONGEST])

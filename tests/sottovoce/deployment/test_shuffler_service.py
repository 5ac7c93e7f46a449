"""The shuffler's service: who is served, what it says, and that it goes on after a kill."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from mechanisms.messages import signature
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import batch_identity, unseal
from mechanisms.messages.wire import (
    MAX_REQUEST_BYTES,
    record_to_bytes,
    reply_to_record,
    request_to_record,
)
from simulations.errors import UserError
from simulations.shuffler.enrolment import tokens
from simulations.shuffler.rounds import Rounds
from simulations.shuffler.store import Store, StoreError
from sottovoce.deployment import certificates
from sottovoce.deployment.processes import free_port
from sottovoce.deployment.shuffler import Options, run
from sottovoce.deployment.shuffler_service import STORE, TRAINING_SERVER, application, serving
from tests.support.clients import honest
from tests.support.rounds import ENROLLED, ONE, OPENS, PRIVATE, TWO, Nodes, answer, device, wanted


@dataclass
class Service:
    """A service that is up, and the certificates of its deployment."""

    port: int
    folder: Path
    nodes: Nodes
    rounds: Rounds
    opened: threading.Event

    def client(self, who: str | None = "server", *, ca: str = "ca") -> httpx.Client:
        """A client with the certificate of a party, or without one."""
        context = ssl.create_default_context(cafile=str(self.folder / ca / "ca.pem"))
        if who is not None:
            context.load_cert_chain(self.folder / who / "cert.pem", self.folder / who / "cert.key")
        address = f"https://127.0.0.1:{self.port}"
        return httpx.Client(base_url=address, verify=context, trust_env=False, timeout=20)


def post(client: httpx.Client, asked: Request | bytes, **headers: str) -> httpx.Response:
    body = record_to_bytes(request_to_record(asked)) if isinstance(asked, Request) else asked
    return client.post("/v1/stages", content=body, headers={"Row-Bytes": "112", "Timeout": "60.5"} | headers)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for authority in ("ca", "other"):
        certificates.make_authority(folder / authority)
    certificates.issue(folder / "ca", folder / "shuffler", "shuffler")
    certificates.issue(folder / "ca", folder / "server", TRAINING_SERVER, client=True)
    certificates.issue(folder / "ca", folder / "another", "somebody", client=True)
    certificates.issue(folder / "ca", folder / "no-client", TRAINING_SERVER)
    certificates.issue(folder / "other", folder / "foreign", TRAINING_SERVER, client=True)
    return folder


@pytest.fixture
def start(keys: Path, store: Store) -> Iterator[Callable[[Nodes], Service]]:
    """Starts a service in front of nodes."""
    blocks = []

    def starting(nodes: Nodes) -> Service:
        new = threading.Event()
        rounds = Rounds(store, ENROLLED, nodes.ask, OPENS)
        block = serving(
            rounds,
            certificate=keys / "shuffler" / "cert.pem",
            key=keys / "shuffler" / "cert.key",
            root_certificates=keys / "ca" / "ca.pem",
            on_opened=new.set,
        )
        port, _ = block.__enter__()
        blocks.append(block)
        return Service(port, keys, nodes, rounds, new)

    yield starting
    for block in blocks:
        block.__exit__(None, None, None)


@pytest.fixture
def service(start: Callable[[Nodes], Service]) -> Service:
    asked = wanted()
    return start(Nodes({ONE: answer(asked, range(100, 104)), TWO: answer(asked, range(104, 108), seed=2)}))


def test_a_stage_over_https(service: Service) -> None:
    with service.client() as client:
        assert client.get("/v1/stages/train").status_code == 404
        assert post(client, wanted()).status_code == 202 and service.opened.is_set()
        waiting = client.get("/v1/stages/train")
        assert waiting.status_code == 202 and waiting.json() == {"asked": 2, "answered": 0, "users": 0}
        service.rounds.work()
        given = client.get("/v1/stages/train")
        assert given.status_code == 200 and given.headers["content-type"] == "application/octet-stream"
        head, _, rows = given.content.partition(b"\n")
        about = json.loads(head)
        assert about == {
            "batch": batch_identity(rows),
            "rows": 8,
            "row_bytes": 112,
            "users": 8,
            "duplicates": 0,
            "dropped": {},
            "errors": {},
        }
        releases, mask = unseal(np.frombuffer(rows, np.uint8).reshape(8, 112), wanted(), PRIVATE)
        assert mask.all() and len(releases) == 2
        assert post(client, wanted()).status_code == 202  # the same again: nothing happens
        service.rounds.work()
        assert client.get("/v1/stages/train").content == given.content and len(service.nodes.asked) == 1
        assert "server" not in given.headers


@pytest.mark.parametrize("who", [None, "foreign", "no-client"])
def test_without_a_certificate_of_the_authority_nobody_is_served(service: Service, who: str | None) -> None:
    """None at all, one of another authority with the right name, and one that is no client's."""
    with service.client(who) as client:
        for call in (lambda: client.get("/v1/stages/train"), lambda: post(client, wanted())):
            with pytest.raises(httpx.TransportError):
                call()
    assert service.rounds.store.open_stages() == []


def test_another_partys_certificate_is_refused(service: Service) -> None:
    """Of the authority, a client's, and of another name."""
    with service.client("another") as client:
        for given in (client.get("/v1/stages/train"), post(client, wanted()), client.get("/"), client.put("/x")):
            assert (given.status_code, given.text) == (403, "only the training server is served here")
    assert service.rounds.store.open_stages() == []


def test_plaintext_is_refused(service: Service) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{service.port}/v1/stages/train", trust_env=False)
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as plain:
        plain.sendall(b"POST /v1/stages HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        try:
            while data := plain.recv(4096):
                assert b"HTTP" not in data
        except ConnectionResetError:
            pass
    with service.client() as client:
        assert client.get("/v1/stages/train").status_code == 404


BODY = record_to_bytes(request_to_record(wanted()))


NO_REQUESTS = (
    b"",
    b"\n",
    b"{}",
    b"GET / HTTP/1.1\r\n\r\n",
    BODY[:-1],
    BODY[1:],
    BODY + b"\xff",
    b"\x0a\x00" * 1000,
    record_to_bytes(RecordDict()),
    record_to_bytes(RecordDict({"request.about": ConfigRecord({"stage": "a"})})),
    record_to_bytes(RecordDict({"request.about": ArrayRecord(), "request.arrays": ConfigRecord()})),
    record_to_bytes(reply_to_record(honest(wanted()))),
    bytes(MAX_REQUEST_BYTES + 2**20 + 1),
)
NO_NUMBERS = (
    {"Row-Bytes": "48"},
    {"Row-Bytes": "0"},
    {"Row-Bytes": "-112"},
    {"Row-Bytes": "1e9"},
    {"Row-Bytes": "x"},
    {"Row-Bytes": "nan"},
    {"Row-Bytes": "112.5"},
    {"Row-Bytes": ""},
    {"Row-Bytes": "9" * 5000},
    {"Timeout": "0"},
    {"Timeout": "inf"},
    {"Timeout": "nan"},
    {"Timeout": "1e9"},
    {"Timeout": ""},
)


def test_what_is_no_request(service: Service) -> None:
    with service.client() as client:
        given = [post(client, body) for body in NO_REQUESTS] + [post(client, wanted(), **h) for h in NO_NUMBERS]
        given.append(client.post("/v1/stages", content=BODY))
    assert {(g.status_code, g.text) for g in given} == {(400, "this is no request that nodes can be asked")}
    assert service.rounds.store.open_stages() == [] and not service.opened.is_set()


def test_another_request_under_a_stage_is_refused(service: Service) -> None:
    """While it is open, and when it is closed."""
    with service.client() as client:
        post(client, wanted())
        for _ in range(2):
            for given in (post(client, wanted(label=None)), post(client, wanted(), **{"Row-Bytes": "176"})):
                assert (given.status_code, given.text) == (409, "the stage was opened by another request")
            service.rounds.work()
    (question,) = service.nodes.asked
    assert question[0].channels == ("embedding", "label")


def test_stages_that_are_not_there(service: Service) -> None:
    with service.client() as client:
        for path in ("/v1/stages/none", "/v1/stages/..%2f..", "/v1/stages/train%00", "/v1/stages/%F0%28", "/v1", "/"):
            given = client.get(path)
            assert given.status_code == 404 and given.text in ("no such stage", "Not Found")
        assert client.delete("/v1/stages/train").status_code == 405


def test_a_store_that_fails_is_told_in_constant_words(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreError("shuffler: /secret/place cannot be used: disk is full")

    for name in ("open_stage", "stage"):
        monkeypatch.setattr(Store, name, full)
    with service.client() as client:
        for given in (client.get("/v1/stages/train"), post(client, wanted())):
            assert (given.status_code, given.text) == (503, "the shuffler's store cannot be used")


def test_a_fault_of_ours_is_told_in_constant_words(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "stage", lambda *_: {}["HIV"])
    with service.client() as client:
        given = client.get("/v1/stages/train")
        assert (given.status_code, given.text) == (500, "Internal Server Error")


def test_a_service_that_starts_anew_goes_on(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened over HTTPS at the first one, served by the second one, closed at the third."""
    asked = wanted()
    nodes = Nodes({ONE: answer(asked, range(100, 104)), TWO: answer(asked, range(104, 108), seed=2)})
    seen = []
    for life in range(3):
        with Store(tmp_path / "other.sqlite") as store:
            rounds = Rounds(store, ENROLLED, nodes.ask, OPENS)
            block = serving(
                rounds,
                certificate=keys / "shuffler" / "cert.pem",
                key=keys / "shuffler" / "cert.key",
                root_certificates=keys / "ca" / "ca.pem",
                on_opened=lambda: None,
            )
            with block as (port, _), Service(port, keys, nodes, rounds, threading.Event()).client() as client:
                assert post(client, asked).status_code == 202
                if life == 1:
                    rounds.work()
                seen.append((client.get("/v1/stages/train").status_code, client.get("/v1/stages/train").content))
    assert [status for status, _ in seen] == [202, 200, 200] and seen[1] == seen[2] and len(nodes.asked) == 1


def test_without_tls_nobody_is_known(store: Store) -> None:
    """The application by itself, as behind a proxy that forgets to say who asks."""
    import anyio

    async def get() -> int:
        app = application(Rounds(store, ENROLLED, Nodes().ask, OPENS), lambda: None)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return (await client.get("/v1/stages/train")).status_code

    assert anyio.run(get) == 403


# -- the process ----------------------------------------------------------------------------------------------------


def started(folder: Path, keys: Path, superlink: str = "127.0.0.1:1", **changes: Any) -> None:
    """A shuffler in `folder`/place, with an enrolment and a secret that are there."""
    signer, authority = signature.generate_keys()
    (folder / "tokens.jsonl").write_text(tokens({"1": {"key": device(1)[1].hex(), "users": {"0": 1, "1": 1}}}, signer))
    (folder / "enrolment.pub").write_text(authority.hex())
    (folder / "secret").write_bytes(bytes(32))
    (folder / "seal.key").write_text(OPENS.hex())
    options = Options(
        folder / "place",
        superlink=superlink,
        root_certificates=keys / "ca" / "ca.pem",
        secret=folder / "secret",
        certificate=keys / "shuffler" / "cert.pem",
        key=keys / "shuffler" / "cert.key",
        port=0,
        users=folder / "tokens.jsonl",
        enrolment_key=folder / "enrolment.pub",
        seal_key=folder / "seal.key",
    )
    run(replace(options, **changes))


@pytest.mark.parametrize("name", ["root_certificates", "secret", "users", "enrolment_key", "seal_key", "certificate"])
def test_a_file_that_is_missing_ends_in_one_line(tmp_path: Path, keys: Path, name: str) -> None:
    with pytest.raises(UserError) as caught:
        started(tmp_path, keys, **{name: tmp_path / "missing"})
    assert "\n" not in str(caught.value) and str(tmp_path / "missing") in str(caught.value)


def test_a_superlink_that_is_not_there_ends_in_one_line(tmp_path: Path, keys: Path) -> None:
    port = free_port()
    with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port}: cannot be reached") as caught:
        started(tmp_path, keys, f"127.0.0.1:{port}")
    assert "\n" not in str(caught.value)


def test_a_store_that_another_shuffler_has_ends_in_one_line(tmp_path: Path, keys: Path) -> None:
    with Store(tmp_path / "place" / STORE), pytest.raises(UserError, match=r"another process has it$"):
        started(tmp_path, keys)

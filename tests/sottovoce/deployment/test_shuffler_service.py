"""The shuffler's service: who is served, what it says, and that it goes on after a kill."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from client.device.serve import serve
from client.node import DEVICE_PUBLIC, write_node
from mechanisms.messages import signature
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import batch_identity, unseal
from mechanisms.messages.wire import (
    MAX_REQUEST_BYTES,
    record_from_bytes,
    record_to_bytes,
    reply_to_record,
    request_to_record,
)
from simulations.errors import UserError
from simulations.shuffler.enrolment import tokens
from simulations.shuffler.rounds import Rounds
from simulations.shuffler.store import Store, StoreError
from simulations.transport.quiet import QUIET
from sottovoce.deployment import certificates
from sottovoce.deployment.processes import free_port
from sottovoce.deployment.shuffler import Options, run
from sottovoce.deployment.shuffler_service import STORE, TRAINING_SERVER, application, serving
from tests.server.test_sealed_batches import honest
from tests.support.clients import OPEN as ANYTHING
from tests.support.clients import make_node
from tests.support.deployments import running, superlink_in
from tests.support.paths import ROOT
from tests.support.rounds import ENROLLED, ONE, OPENS, PRIVATE, PUBLIC, SHUFFLER, TWO, Nodes, answer, device, wanted
from tests.support.units import supervised


@dataclass
class Service:
    """A service that is up, and the certificates of its deployment."""

    port: int
    folder: Path
    nodes: Nodes
    rounds: Rounds
    opened: threading.Event

    def client(self, who: str | None = "server", *, ca: str = "ca") -> httpx.Client:
        return client_of(self.port, self.folder, who, ca=ca)


def client_of(port: int, folder: Path, who: str | None, *, ca: str = "ca") -> httpx.Client:
    """A client with the certificate of a party, or without one."""
    context = ssl.create_default_context(cafile=str(folder / ca / "ca.pem"))
    if who is not None:
        context.load_cert_chain(folder / who / "cert.pem", folder / who / "cert.key")
    return httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context, trust_env=False, timeout=20)


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


def test_progress_is_told_while_nodes_answer(start: Callable[[Nodes], Service]) -> None:
    asked, hold = wanted(), threading.Event()
    service = start(Nodes({ONE: answer(asked, range(100, 104)), TWO: "code 5"}, hold=hold))
    with service.client() as client:
        post(client, asked)
        thread = threading.Thread(target=service.rounds.work)
        thread.start()
        try:
            while (now := client.get("/v1/stages/train")).json()["users"] < 4:
                assert now.status_code == 202
        finally:
            hold.set()
            thread.join()
        assert client.get("/v1/stages/train").status_code == 200


def test_a_discarded_stage_says_how_many_users_there_were(service: Service) -> None:
    with service.client() as client:
        post(client, wanted(minimum_users=9))
        service.rounds.work()
        given = client.get("/v1/stages/train")
        head, _, rows = given.content.partition(b"\n")
        assert given.status_code == 200 and rows == b""
        assert json.loads(head) | {"errors": {}} == {
            "batch": "",
            "rows": 0,
            "row_bytes": 112,
            "users": 8,
            "duplicates": 0,
            "dropped": {},
            "errors": {},
        }


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


def test_the_training_server_notices_another_shuffler(service: Service) -> None:
    with service.client(ca="other") as client, pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        client.get("/v1/stages/train")


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


def test_a_port_that_is_taken(keys: Path, store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"^--port {port}: cannot be listened at \(.*\); choose another$"):
            start_at(keys, store, port)
    with pytest.raises(UserError, match=r"^--port 70000: cannot be listened at"):
        start_at(keys, store, 70_000)


@pytest.mark.parametrize("bad", ["certificate", "key", "root_certificates"])
def test_files_that_are_no_certificates(keys: Path, store: Store, tmp_path: Path, bad: str) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    for path in (tmp_path / "no.pem", tmp_path / "missing.pem"):
        with pytest.raises(UserError, match="are no PEM certificate, its key and an authority") as caught:
            start_at(keys, store, 0, **{bad: path})
        assert "\n" not in str(caught.value)


def start_at(keys: Path, store: Store, port: int, **files: Path) -> None:
    values: dict[str, Any] = {
        "certificate": keys / "shuffler" / "cert.pem",
        "key": keys / "shuffler" / "cert.key",
        "root_certificates": keys / "ca" / "ca.pem",
    }
    rounds = Rounds(store, ENROLLED, Nodes().ask, OPENS)
    with serving(rounds, on_opened=lambda: None, port=port, **(values | files)):
        pass


def test_without_tls_nobody_is_known(store: Store) -> None:
    """The application by itself, as behind a proxy that forgets to say who asks."""
    import anyio

    async def get() -> int:
        app = application(Rounds(store, ENROLLED, Nodes().ask, OPENS), lambda: None)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return (await client.get("/v1/stages/train")).status_code

    assert anyio.run(get) == 403


def test_bytes_of_a_stage_are_what_nodes_are_asked(service: Service) -> None:
    """To the last bit: what the training server signs a stage with is what devices check."""
    with service.client() as client:
        post(client, BODY)
    (stage,) = service.rounds.store.open_stages()
    assert stage.request == BODY and record_from_bytes(stage.request) == request_to_record(wanted())


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


@pytest.mark.slow
def test_a_shuffler_that_is_killed_and_told_to_stop(tmp_path: Path) -> None:
    """Real processes: a SuperLink, and a shuffler that is killed when two of three devices have answered. Its unit's
    supervisor starts the next one, which goes on, asks the third until it is there, closes with everybody's releases
    once, and ends when it is told to; the one after gives the same batch."""
    asked, stop = wanted(minimum_users=30), threading.Event()
    users = [[user for user in range(60) if user % 3 == i] for i in range(3)]
    with superlink_in(tmp_path) as link, ExitStack() as processes:
        certificates.issue(link.authority, tmp_path / "shuffler", "shuffler")
        certificates.issue(link.authority, tmp_path / "server", TRAINING_SERVER, client=True)
        port, enrolment, devices = free_port(), {}, []
        for i, mine in enumerate(users):
            folder = make_node(tmp_path / f"node-{i}", mine, seed=None)
            write_node(folder, policy=ANYTHING, seal=PUBLIC, shuffler_seal=SHUFFLER)
            key, number = link.node(folder)
            own = (folder / DEVICE_PUBLIC).read_text().strip()
            enrolment[str(number)] = {"key": own, "users": dict.fromkeys(map(str, mine), 1)}
            about = {"superlink": link.address, "root_certificates": link.ca, "key": key}
            devices.append(threading.Thread(target=serve, args=(folder,), kwargs={**about, "stop": stop}, daemon=True))
        signer, authority = signature.generate_keys()
        (tmp_path / "tokens.jsonl").write_text(tokens(enrolment, signer))
        (tmp_path / "enrolment.pub").write_text(authority.hex())
        (tmp_path / "seal.key").write_text(OPENS.hex())
        command = [
            sys.executable,
            "-m",
            "sottovoce.cli.main",
            "deploy",
            "shuffler",
            tmp_path / "shuffler",
            "--superlink",
            link.address,
            "--root-certificates",
            link.ca,
            "--secret",
            link.secret,
            "--certificate",
            tmp_path / "shuffler" / "cert.pem",
            "--key",
            tmp_path / "shuffler" / "cert.key",
            "--port",
            port,
            "--users",
            tmp_path / "tokens.jsonl",
            "--enrolment-key",
            tmp_path / "enrolment.pub",
            "--seal-key",
            tmp_path / "seal.key",
        ]

        words = list(map(str, command))
        lives: list[subprocess.Popen[bytes]] = []

        def started(life: int) -> subprocess.Popen[bytes]:
            return processes.enter_context(running(words, log=tmp_path / f"log-{life}", env=os.environ | QUIET))

        with client_of(port, tmp_path, "server") as client:
            supervisor = supervised(words, ROOT, lives.append)
            processes.callback(lambda: lives[-1].kill())
            for device in devices[:2]:
                device.start()
            assert patiently(lambda: post(client, asked)).status_code == 202
            until(lambda: client.get("/v1/stages/train").json()["users"] == 40)
            lives[0].kill()  # and its supervisor starts it again
            assert patiently(lambda: post(client, asked)).status_code == 202
            until(lambda: client.get("/v1/stages/train").json()["answered"] == 2)
            devices[2].start()  # of which Flower has said by now that it is not there
            until(lambda: client.get("/v1/stages/train").status_code == 200)
            given = client.get("/v1/stages/train").content
            lives[-1].terminate()
            supervisor.join(30)
            assert [life.returncode for life in lives] == [-9, 0]
            started(2)
            assert patiently(lambda: client.get("/v1/stages/train")).content == given
        stop.set()
        for device in devices:
            device.join(30)
    head, _, data = given.partition(b"\n")
    about = json.loads(head)
    assert (about["users"], about["rows"], about["duplicates"], about["errors"]) == (60, 60, 40, {})
    _, mask = unseal(np.frombuffer(data, np.uint8).reshape(60, 112), asked, PRIVATE)
    assert mask.all()


def patiently(call: Callable[[], httpx.Response]) -> httpx.Response:
    """What a service says that may be starting."""
    for _ in range(300):
        try:
            return call()
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError("the service is not up")


def until(ready: Callable[[], bool]) -> None:
    for _ in range(300):
        if ready():
            return
        time.sleep(0.2)
    raise AssertionError("it does not come")

"""A shuffler's service, its process, and a training server's line to it: who is served, what is taken and refused."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from mechanisms.messages.request import Request
from mechanisms.messages.sealed import batch_identity, unseal
from mechanisms.messages.wire import MAX_REQUEST_BYTES, record_to_bytes, reply_to_record, request_to_record
from server.protocols.drive import Collected
from simulations.errors import UserError
from simulations.shuffler.enrolment import tokens
from simulations.shuffler.rounds import Rounds
from simulations.shuffler.store import Store, StoreError
from sottovoce.deployment import certificates, shuffler_client
from sottovoce.deployment.keys import read_key
from sottovoce.deployment.processes import free_port
from sottovoce.deployment.shuffler import run
from sottovoce.deployment.shuffler_client import Delivered, Shuffler
from sottovoce.deployment.shuffler_service import STORE, TRAINING_SERVER, application, serving
from sottovoce.deployment.training_server import RemoteShuffler
from tests.support.clients import honest
from tests.support.rounds import ENROLLED, ONE, OPENS, PRIVATE, TWO, Nodes, answer, device, wanted


@dataclass
class Service:
    """A service that is up, and the certificates of its deployment."""

    port: int
    keys: Path
    nodes: Nodes
    rounds: Rounds
    opened: threading.Event

    def client(self, who: str | None = "server") -> httpx.Client:
        """A client with the certificate of a party, or without one."""
        context = ssl.create_default_context(cafile=str(self.keys / "ca" / "ca.pem"))
        if who is not None:
            context.load_cert_chain(self.keys / who / "cert.pem", self.keys / who / "cert.key")
        address = f"https://127.0.0.1:{self.port}"
        return httpx.Client(base_url=address, verify=context, trust_env=False, timeout=20)


@contextmanager
def served(keys: Path, place: Path, nodes: Nodes, *, port: int = 0, origins: bool = True) -> Iterator[Service]:
    """A shuffler's service in front of nodes, without Flower; its store is in `place`."""
    opened = threading.Event()
    with Store(place / "store.sqlite", origins=place / "origins" if origins else None) as store:
        rounds = Rounds(store, ENROLLED, nodes.ask, OPENS)
        with serving(
            rounds,
            certificate=keys / "shuffler" / "cert.pem",
            key=keys / "shuffler" / "cert.key",
            root_certificates=keys / "ca" / "ca.pem",
            on_opened=opened.set,
            port=port,
        ) as (at, _):
            yield Service(int(at.rpartition(":")[2]), keys, nodes, rounds, opened)


def post(client: httpx.Client, asked: Request | bytes, **headers: str) -> httpx.Response:
    body = record_to_bytes(request_to_record(asked)) if isinstance(asked, Request) else asked
    return client.post("/v1/stages", content=body, headers={"Row-Bytes": "112", "Timeout": "60.5"} | headers)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    certificates.make_keys(folder, nodes=0, hosts={})
    certificates.make_authority(folder / "other")
    certificates.issue(folder / "ca", folder / "another", "somebody", client=True)
    certificates.issue(folder / "ca", folder / "no-client", TRAINING_SERVER)
    certificates.issue(folder / "other", folder / "foreign", TRAINING_SERVER, client=True)
    return folder


@pytest.fixture
def nodes() -> Nodes:
    """Both nodes answer a stage "train" of `wanted()`: users 100 to 107."""
    return Nodes({node: answer(wanted(), ENROLLED[node].users, seed=i) for i, node in enumerate((ONE, TWO))})


@pytest.fixture
def service(keys: Path, tmp_path: Path, nodes: Nodes) -> Iterator[Service]:
    with served(keys, tmp_path, nodes) as up:
        yield up


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


BODY = record_to_bytes(request_to_record(wanted()))
NO_REQUESTS = (
    b"",
    b"{}",
    BODY[:-1],
    BODY + b"\xff",
    record_to_bytes(RecordDict()),
    record_to_bytes(RecordDict({"request.about": ArrayRecord(), "request.arrays": ConfigRecord()})),
    record_to_bytes(reply_to_record(honest(wanted()))),
    bytes(MAX_REQUEST_BYTES + 2**20 + 1),
)
NO_NUMBERS = [{"Row-Bytes": text} for text in ("48", "-112", "1e9", "nan", "", "9" * 5000)]
NO_NUMBERS += [{"Timeout": text} for text in ("0", "inf", "nan", "1e9", "")]


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


def test_faults_are_told_in_constant_words(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreError("shuffler: /secret/place cannot be used: disk is full")

    for name in ("open_stage", "stage"):
        monkeypatch.setattr(Store, name, full)
    with service.client() as client:
        for given in (client.get("/v1/stages/train"), post(client, wanted())):
            assert (given.status_code, given.text) == (503, "the shuffler's store cannot be used")
        monkeypatch.setattr(Store, "stage", lambda *_: {}["HIV"])
        given = client.get("/v1/stages/train")
        assert (given.status_code, given.text) == (500, "Internal Server Error")


def test_without_tls_nobody_is_known(tmp_path: Path) -> None:
    """The application by itself, as behind a proxy that forgets to say who asks."""

    async def get(store: Store) -> int:
        app = application(Rounds(store, ENROLLED, Nodes().ask, OPENS), lambda: None)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return (await client.get("/v1/stages/train")).status_code

    with Store(tmp_path / "store.sqlite") as store:
        assert anyio.run(get, store) == 403


# -- the process


def started(folder: Path, keys: Path, **changes: Any) -> None:
    """A shuffler in `folder`/place, with an enrolment and a secret that are there."""
    users = {"1": {"key": device(1)[1].hex(), "users": {"0": 1, "1": 1}}}
    (folder / "tokens.jsonl").write_text(tokens(users, read_key(keys / "enrolment" / "sign.key")))
    options: dict[str, Any] = {
        "superlink": "127.0.0.1:1",
        "root_certificates": keys / "ca" / "ca.pem",
        "secret": keys / "superlink" / "secret",
        "certificate": keys / "shuffler" / "cert.pem",
        "key": keys / "shuffler" / "cert.key",
        "users": folder / "tokens.jsonl",
        "enrolment_key": keys / "enrolment" / "sign.pub",
        "seal_key": keys / "shuffler" / "seal.key",
    }
    run(folder / "place", **options | changes)


def test_a_file_that_is_missing_ends_in_one_line(tmp_path: Path, keys: Path) -> None:
    for name in ("root_certificates", "secret", "users", "enrolment_key", "seal_key", "certificate"):
        with pytest.raises(UserError, match=rf"{tmp_path / 'missing'}[^\n]+$"):
            started(tmp_path, keys, **{name: tmp_path / "missing"})


def test_a_store_that_another_shuffler_has_ends_in_one_line(tmp_path: Path, keys: Path) -> None:
    with Store(tmp_path / "place" / STORE), pytest.raises(UserError, match=r"another process has it$"):
        started(tmp_path, keys)


# -- the training server's line


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK", "AGAIN"):
        monkeypatch.setattr(shuffler_client, name, 0.02)


@contextmanager
def shuffler(keys: Path, place: Path, nodes: Nodes, **more: Any) -> Iterator[int]:
    """A shuffler at work; its port."""
    over = threading.Event()

    def work(rounds: Rounds) -> None:
        while not over.wait(0.01):
            rounds.work()

    with served(keys, place, nodes, **more) as up:
        thread = threading.Thread(target=work, args=(up.rounds,))
        thread.start()
        try:
            yield up.port
        finally:
            over.set()
            thread.join()


def line(keys: Path, port: int, authority: str = "ca") -> Shuffler:
    return Shuffler(
        f"127.0.0.1:{port}",
        root_certificates=keys / authority / "ca.pem",
        certificate=keys / "server" / "cert.pem",
        key=keys / "server" / "cert.key",
    )


@pytest.fixture
def there(keys: Path, tmp_path: Path, nodes: Nodes) -> Iterator[Shuffler]:
    """A line to a shuffler at work."""
    with shuffler(keys, tmp_path, nodes) as port, line(keys, port) as opened:
        yield opened


def users(place: Path, line: Any) -> RemoteShuffler:
    (place / "seal.key").write_text(PRIVATE.hex())
    return RemoteShuffler(line, seal_keys=[place / "seal.key"], timeout=20.0)


def collect(who: RemoteShuffler, **changes: Any) -> Collected:
    return who.collect(wanted(**({"arm": "some-arm"} | changes)))


def whose(place: Path, who: RemoteShuffler) -> list[int]:
    """The users of a batch's rows, ascending, as whoever runs the study can tell, and the training server cannot."""
    return sorted(np.load(place / "origins" / "train.npy")[who.places["train"]][:, 0])


def payload(collected: Collected) -> np.ndarray:
    return np.concatenate([next(iter(r.payload.values())).ravel() for r in collected.batch.releases])


def test_a_stage_gives_its_batch_and_the_same_one_again(
    there: Shuffler, tmp_path: Path, nodes: Nodes, lines: list[str]
) -> None:
    server = users(tmp_path, there)
    first, again = collect(server), collect(users(tmp_path, there))
    assert (first.batch.users, len(first.batch.releases[0]), first.dropped, first.errors) == (8, 8, {}, {})
    assert whose(tmp_path, server) == list(range(100, 108))
    assert (payload(first) == payload(again)).all()
    assert len(nodes.asked) == 1 and nodes.asked[0][0].arm == "" and nodes.asked[0][2] == 20.0
    assert all(text.startswith("stage train: ") for text in lines)


def test_without_origins_nobody_knows_whose_rows_are(keys: Path, tmp_path: Path, nodes: Nodes) -> None:
    with shuffler(keys, tmp_path, nodes, origins=False) as port, line(keys, port) as there:
        assert collect(users(tmp_path, there)).batch.users == 8
    assert not (tmp_path / "origins").exists()


def test_a_batch_of_too_few_users_is_discarded(there: Shuffler, tmp_path: Path, nodes: Nodes) -> None:
    asked = {"stage": "small", "minimum_users": 5}
    nodes.replies = {ONE: answer(wanted(**asked), ENROLLED[ONE].users), TWO: "code 5"}
    found = collect(users(tmp_path, there), **asked)
    assert found.batch.releases == () and found.batch.users == 0
    assert found.batch.discarded == "4 users are fewer than the 5 a batch must have"
    assert found.errors == {"the node is not there": 1}


def test_rows_that_come_to_nothing_are_taken_off_the_users(there: Shuffler, tmp_path: Path, nodes: Nodes) -> None:
    rows = nodes.replies[ONE].rows.copy()
    rows[1, -1] ^= 1
    nodes.replies[ONE] = replace(nodes.replies[ONE], rows=rows)
    server = users(tmp_path, there)
    found = collect(server)
    assert found.batch.users == 7 and found.dropped == {"does not open": 1}
    assert whose(tmp_path, server) == [100, *range(102, 108)]


def test_a_batch_that_is_replayed_or_exchanged_is_refused(there: Shuffler, tmp_path: Path, nodes: Nodes) -> None:
    collect(users(tmp_path, there))
    rows = np.concatenate([reply.rows for reply in nodes.replies.values()])

    class Hostile:
        """It delivers the same rows for every stage."""

        def batch(self, *_: Any, **__: Any) -> Delivered:
            return Delivered(batch_identity(rows.tobytes()), rows, 8, 0, {}, {})

    hostile = users(tmp_path, Hostile())
    with pytest.raises(ValueError, match="another one was taken for it before"):
        collect(hostile)
    assert collect(hostile, stage="later").dropped == {"does not open": 8}
    with pytest.raises(ValueError, match="it is replayed, and was taken for stage 'later'"):
        collect(hostile, stage="third")


def test_a_shuffler_that_starts_late_is_waited_for(keys: Path, tmp_path: Path, nodes: Nodes) -> None:
    port, found = free_port(), []

    def ask() -> None:
        with line(keys, port) as there:
            found.append(collect(users(tmp_path, there)))

    thread = threading.Thread(target=ask)
    thread.start()
    with shuffler(keys, tmp_path, nodes, port=port):
        thread.join()
    assert found[0].batch.users == 8


def test_a_shuffler_that_cannot_be_reached_is_one_line(
    keys: Path, tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = pytest.raises(UserError, match=r"^--shuffler .*: cannot be reached \(.*certificate")
    with shuffler(keys, tmp_path, nodes) as port, line(keys, port, authority="other") as there, refused:
        collect(users(tmp_path, there))
    assert nodes.asked == []
    monkeypatch.setattr(shuffler_client, "PATIENCE", 0.05)
    port = free_port()
    with line(keys, port) as there, pytest.raises(UserError, match=rf"^--shuffler 127\.0\.0\.1:{port}: cannot be"):
        collect(users(tmp_path, there))
    with pytest.raises(UserError, match="are no authority's certificate, and a certificate and its key"):
        Shuffler("127.0.0.1:1", root_certificates=tmp_path, certificate=tmp_path, key=tmp_path)

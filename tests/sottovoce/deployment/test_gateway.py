"""A gateway before a SuperLink: what a device calls goes through as it is, and nothing else reaches the SuperLink."""

from __future__ import annotations

import inspect
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from client.device import fleet
from client.device.roles import MODEL, SUPERLINK, context_for
from simulations.errors import UserError
from simulations.transport import https
from sottovoce.deployment import gateway
from sottovoce.deployment.party_keys import FOLDERS, make_keys
from sottovoce.deployment.superlink import check_party

HELD = [
    "/v1/control/list-nodes",
    "/v1/control/unregister-node",
    "/v1/control/start-run",
    "/v1/control/stop-run",
    "/v1/fleet/register-node",
    "/v1/fleet/unregister-node",
    "/v1/fleet/",
    "/v1/fleet/pull-messages/",
    "/v1/fleet/../control/list-nodes",
    "/v1/fleet/pull-messages/../../control/list-nodes",
    "//v1/control/list-nodes",
    "/v1/fleet/%2e%2e/control/list-nodes",
    "/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2flist-nodes",
    "/v1/CONTROL",
    "/v1/fleet/pull-messages;/v1/control/list-nodes",
    "/",
    "*",
    "https://elsewhere/v1/control/list-nodes",
    "/docs",
]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, nodes=0, hosts={})
    return folder


@contextmanager
def service(keys: Path, application: Any, party: str = SUPERLINK, connections: int = 16) -> Iterator[str]:
    own = keys / FOLDERS[party]
    server = https.make_server(application, certificate=own / "cert.pem", key=own / "cert.key", connections=connections)
    with https.listening("127.0.0.1", 0) as listener, https.in_thread(server, listener):
        yield https.address(listener)


@pytest.fixture(scope="module")
def written() -> list[tuple[str, dict[str, str], bytes]]:
    return []


@pytest.fixture
def seen(written: list[Any]) -> list[Any]:
    """What a test's calls have made of the SuperLink that all tests share."""
    written.clear()
    return written


@pytest.fixture(scope="module")
def superlink(keys: Path, written: list[Any]) -> Iterator[str]:
    """Whatever is asked, is answered, and written down."""

    async def any_(request: Request) -> Response:
        body = await request.body()
        written.append((request.url.path, dict(request.headers), body))
        status = int(request.headers.get("wanted", "200"))
        return Response(b"answer to " + body[:100], status, {"secret-of-flowers": "1"}, "application/protobuf")

    with service(keys, Starlette(routes=[Route("/{path:path}", any_, methods=["GET", "POST"])])) as address:
        yield address


@pytest.fixture(scope="module")
def passing(keys: Path, superlink: str) -> Iterator[str]:
    with service(keys, gateway.application(superlink, keys / "ca" / "ca.pem")) as address:
        yield address


@pytest.fixture
def device(keys: Path, passing: str) -> Iterator[httpx.Client]:
    """It checks that it speaks to a SuperLink, as devices do."""
    context = context_for(SUPERLINK)
    context.load_verify_locations(cafile=str(keys / "ca" / "ca.pem"))
    with httpx.Client(base_url=f"https://{passing}", verify=context) as client:
        yield client


def raw(address: str, said: bytes) -> bytes:
    """The status line that a server answers such bytes with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = address.rsplit(":", 1)
    with context.wrap_socket(socket.create_connection((host, int(port)), timeout=30.0)) as line:
        line.sendall(said)
        return line.recv(4096).split(b"\r\n", 1)[0]


def test_what_is_passed_is_what_a_device_calls() -> None:
    called = set(re.findall(r"_client\.([A-Z]\w+)", inspect.getsource(fleet)))
    assert {re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower() for name in called} == set(gateway.PASSED)


@pytest.mark.parametrize("name", gateway.PASSED)
def test_a_devices_call_goes_through_as_it_is(name: str, device: httpx.Client, seen: list[Any]) -> None:
    headers = {"content-type": "application/protobuf", "flwr-signature": "c2lnbmVk", "flwr-timestamp": "now"}
    body = bytes(range(256)) * 1000
    answer = device.post(f"/v1/fleet/{name}", content=body, headers=headers)
    assert (answer.status_code, answer.content) == (200, b"answer to " + body[:100])
    assert answer.headers["content-type"] == "application/protobuf" and "secret-of-flowers" not in answer.headers
    assert len(answer.headers.get_list("date")) == 1  # of which a device reads how wrong its clock is
    ((path, received, content),) = seen
    assert path == f"/v1/fleet/{name}" and content == body
    assert headers.items() <= received.items()


def test_a_refusal_goes_through_as_it_is(device: httpx.Client) -> None:
    for status in (400, 401, 403, 500):
        answer = device.post("/v1/fleet/pull-messages", content=b"x", headers={"wanted": str(status)})
        assert (answer.status_code, answer.content) == (status, b"answer to x")


@pytest.mark.parametrize("target", HELD)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_nothing_else_reaches_the_superlink(method: str, target: str, passing: str, seen: list[Any]) -> None:
    said = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    status = raw(passing, said)
    assert not seen
    assert re.match(rb"HTTP/1.1 (307|400|404|405) ", status)


def test_a_call_is_read_one_way_by_both(passing: str, seen: list[Any]) -> None:
    """Two lengths, or a length and chunks, are how a second call is hidden in a first one's body."""
    hidden = b"POST /v1/control/list-nodes HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    head = b"POST /v1/fleet/get-run HTTP/1.1\r\nHost: x\r\n"
    for lengths in (
        b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(hidden),
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % len(hidden),
        b"Transfer-Encoding: chunked, identity\r\n",
    ):
        raw(passing, head + lengths + b"\r\n" + (b"0\r\n\r\n" if b"chunked" in lengths else b"") + hidden)
    assert all(path == "/v1/fleet/get-run" for path, _, _ in seen)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_call_that_is_too_long_is_cut_off(
    chunked: bool, device: httpx.Client, seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "LARGEST", 100_000)
    parts = [bytes(10_000)] * 11
    content: Any = iter(parts) if chunked else b"".join(parts)
    assert device.post("/v1/fleet/push-object", content=content).status_code == 413
    assert not seen
    assert device.post("/v1/fleet/push-object", content=b"".join(parts[:10])).status_code == 200


def test_a_call_that_does_not_come_is_let_go(passing: str, seen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_CALL_SECONDS", 0.5)
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
    assert raw(passing, head + b"x") == b"HTTP/1.1 408 Request Timeout"
    assert not seen


def test_while_the_superlink_is_away_a_device_is_told_to_come_back(keys: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        away = f"127.0.0.1:{nobody.getsockname()[1]}"
    with service(keys, gateway.application(away, keys / "ca" / "ca.pem")) as address:
        answer = httpx.post(f"https://{address}/v1/fleet/pull-messages", content=b"x", verify=False)
    assert answer.status_code in fleet._BUSY


def test_it_stands_before_a_superlink_and_no_other_party(keys: Path, superlink: str) -> None:
    check_party(superlink, keys / "ca" / "ca.pem")
    with service(keys, Starlette(), MODEL) as other, pytest.raises(UserError, match="no SuperLink"):
        check_party(other, keys / "ca" / "ca.pem")
    with pytest.raises(UserError, match="HOST:PORT"):
        check_party("127.0.0.1:x", keys / "ca" / "ca.pem")
    with pytest.raises(UserError, match="no such file"):
        check_party(superlink, keys / "none.pem")
    with pytest.raises(UserError, match="no certificate in PEM"):
        check_party(superlink, keys / FOLDERS[SUPERLINK] / "cert.key")
    with pytest.raises(UserError, match="--connections 1"):
        gateway._server(Starlette(), keys / "cert.pem", keys / "cert.key", 1)

"""Who may speak to a service that anybody may connect to: idle connections keep nobody else out."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest
from flwr.supercore import telemetry
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from client.device.https import MODEL
from simulations.errors import UserError
from simulations.transport import engine, https
from simulations.transport.quiet import QUIET
from sottovoce.deployment import certificates
from sottovoce.deployment.certificates import FOLDERS, make_keys

CONNECTIONS = 8
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
#: Of the loopback, all of it this machine.
HOSTILE, HONEST = "127.0.0.2", "127.0.0.3"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, nodes=0, hosts={})
    own = folder / FOLDERS[MODEL]
    return {"certificate": own / "cert.pem", "key": own / "cert.key"}


@pytest.fixture
def port(pair: dict[str, Path]) -> Iterator[int]:
    there = Starlette(routes=[Route("/", lambda request: PlainTextResponse("there"))])
    service = https.make_server(there, connections=CONNECTIONS, **pair)
    with https.serving(service, "127.0.0.1", 0) as (address, _):
        yield int(address.rpartition(":")[2])


def connected(port: int, address: str, held: ExitStack) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", port), timeout=30.0, source_address=(address, 0))
    return held.enter_context(context.wrap_socket(plain))


def answer(line: ssl.SSLSocket, said: bytes = REQUEST) -> bytes:
    line.sendall(said)
    got = b""
    while not got.endswith(b"there") and (more := line.recv(4096)):
        got += more
    return got


def ended(line: ssl.SSLSocket) -> bool:
    """Whether the other side has let go, waited for."""
    try:
        return line.recv(1) == b""
    except OSError:
        return True


@pytest.mark.parametrize(
    ("whose", "name", "value"), [("its own", "DAYS", -0.01), ("the authority's", "_SLACK", timedelta(hours=-1))]
)
def test_a_certificate_that_every_client_would_refuse_is_not_served(
    pair: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str, name: str, value: object
) -> None:
    monkeypatch.setattr(certificates, name, value)
    make_keys(tmp_path / "old", nodes=0, hosts={})
    own = {part: tmp_path / "old" / FOLDERS[MODEL] / path.name for part, path in pair.items()}
    files = own if whose == "its own" else pair | {"root_certificates": tmp_path / "old" / "ca" / "ca.pem"}
    with pytest.raises(UserError, match=r"\.pem: (was valid until|is valid from) 2.* UTC, and every client"):
        https.make_server(Starlette(), connections=CONNECTIONS, **files)


def test_idle_connections_of_one_address_keep_nobody_else_out(port: int) -> None:
    with ExitStack() as held:
        idle = [connected(port, HOSTILE, held) for _ in range(2 * CONNECTIONS)]
        assert all(ended(line) for line in idle[CONNECTIONS // 2 :])  # let go at once: no more than half are its own
        assert answer(connected(port, HONEST, held)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("byte_by_byte", [False, True])
def test_who_says_nothing_or_too_slowly_is_let_go(
    byte_by_byte: bool, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(https, "_HEAD_SECONDS", 1.5)
    with ExitStack() as held:
        line = connected(port, HOSTILE, held)
        if byte_by_byte:
            with pytest.raises(OSError):
                for byte in REQUEST[:-1] * 1000:
                    line.sendall(bytes([byte]))
                    time.sleep(0.02)
        else:
            assert ended(line)
        assert answer(connected(port, HOSTILE, held)).startswith(b"HTTP/1.1 200")


def test_who_asks_again_and_again_stays(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is for a head, and begins anew with each."""
    monkeypatch.setattr(https, "_HEAD_SECONDS", 4.0)
    with ExitStack() as held:
        line = connected(port, HONEST, held)
        for _ in range(3):  # the last one after 4.5 s
            time.sleep(1.5)
            assert answer(line).startswith(b"HTTP/1.1 200")


def test_a_service_that_ends_by_itself_is_no_normal_end() -> None:
    """Or its command would end with 0, and a supervisor would not start it again."""
    thread = Thread(target=lambda: None)
    thread.start()
    with pytest.raises(UserError, match="the service has ended"):
        https.wait_for(thread)


# --- the engine: Flower phones nobody, and Ray has room for its sockets


def test_flower_phones_nobody_though_it_was_imported_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(telemetry, "FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setattr(
        "flwr.simulation.run_simulation", lambda *_, **__: seen.append(telemetry.FLWR_TELEMETRY_ENABLED)
    )
    monkeypatch.setattr(engine, "_ray", lambda *_: nullcontext())
    monkeypatch.setattr(engine, "hush_flower", lambda level: None)
    for name in (*QUIET, "SOTTOVOCE_NODES"):
        monkeypatch.setenv(name, "")  # put back afterwards
    with pytest.raises(RuntimeError, match="before the server had finished"):
        engine.run_on_flower(lambda grid: None, nodes=1, folder=tmp_path)
    assert seen == ["0"]


def test_a_folder_for_temporary_files_may_have_a_long_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's sockets lie in it, and Linux limits their names to 107 bytes: 36 are left for the folder."""
    monkeypatch.setattr(engine, "_SHORT", str(tmp_path))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    for length in (36, 37):
        monkeypatch.setenv("TMPDIR", "/tmp/" + "x" * (length - 5))
        folder = engine._short_folder()
        assert (folder is not None) == (length > 36) and (folder is None or Path(folder).is_dir())

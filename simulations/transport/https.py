"""Common parts of the HTTPS services: listening, reading a message, running."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import h11
import uvicorn
from cryptography import x509
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from simulations.errors import UserError

#: Settings of every server: HTTP alone, and nothing of a request or of the server is told to anybody.
SETTINGS: dict[str, Any] = {
    "ws": "none",
    "loop": "asyncio",
    "lifespan": "off",
    "access_log": False,
    "log_config": None,
    "log_level": logging.CRITICAL,
    "server_header": False,
    "proxy_headers": False,
}
_STARTING_SECONDS = 10.0
#: Time limit for a request's head, from the start of a connection or the end of the previous answer.
_HEAD_SECONDS = 5.0


class Patient(H11Protocol):
    """HTTP/1.1 protocol that holds against slow and greedy clients.

    It drops a client that sends nothing, or sends byte by byte. One address has no more than half of the connections.
    Otherwise a few idle clients would keep everybody out.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Abort the connection if its address has too many, and start to wait for its first message."""
        super().connection_made(transport)
        host = self.client and self.client[0]
        mine = sum(1 for other in self.connections if other.client and other.client[0] == host)
        if self.limit_concurrency is not None and mine > max(1, self.limit_concurrency // 2):
            transport.abort()
        self._wait()

    def handle_events(self) -> None:
        """Handle received bytes, then start or end the wait for a complete head of a message."""
        super().handle_events()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._waiting is None and not self.transport.is_closing():
            self._waiting = self.loop.call_later(_HEAD_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


async def read_body(request: Request, *, limit: int, seconds: float) -> bytes:
    """Return a message's body.

    Raises:
        ValueError: It is longer than `limit` bytes, too slow, or incomplete.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > limit:
                    raise ValueError("service: the message is too long")
    except (TimeoutError, ClientDisconnect):
        raise ValueError("service: the message does not come") from None
    return bytes(body)


def make_server(
    application: Any,
    *,
    certificate: Path,
    key: Path,
    connections: int,
    root_certificates: Path | None = None,
    protocol: type[Patient] = Patient,
) -> uvicorn.Server:
    """Return a server that logs nothing, does not identify itself, and speaks TLS alone, by valid certificates.

    Args:
        application: ASGI application.
        certificate: PEM file of the certificate.
        key: PEM file of its key.
        connections: Maximum number of simultaneous connections; more clients are asked to come back.
        root_certificates: PEM file of an authority. If given, a client must show a certificate of that authority.
        protocol: HTTP protocol class.

    Raises:
        UserError: A file cannot be used.
    """
    config = uvicorn.Config(
        application,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        http=protocol,
        limit_concurrency=connections,
        timeout_graceful_shutdown=2,
        **SETTINGS,
    )
    files = [certificate, key]
    if root_certificates is not None:
        config.ssl_ca_certs, config.ssl_cert_reqs = str(root_certificates), ssl.CERT_REQUIRED
        files.append(root_certificates)
    try:
        config.load()
    except (OSError, ssl.SSLError):
        what = "certificate, its key and an authority" if root_certificates is not None else "certificate and its key"
        raise UserError(f"{', '.join(map(str, files))}: are no PEM {what}") from None
    for path in files:
        if path != key:
            _require_valid(path)
    return uvicorn.Server(config)


def _require_valid(path: Path) -> None:
    """Check that the first certificate of a PEM file is valid today: every client would refuse another one.

    Raises:
        UserError: It has expired, or is not valid yet.
    """
    certificate, now = x509.load_pem_x509_certificate(path.read_bytes()), datetime.datetime.now(datetime.UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= now <= last:
        when = f"was valid until {last:%Y-%m-%d %H:%M}" if now > last else f"is valid from {first:%Y-%m-%d %H:%M}"
        raise UserError(
            f"{path}: {when} UTC, and every client would refuse it; make new keys, or set this machine's clock"
        )


@contextmanager
def serving(service: uvicorn.Server, host: str, port: int) -> Iterator[tuple[str, threading.Thread]]:
    """Run the service in its own thread for the duration of the block, and yield its HOST:PORT and the thread.

    Args:
        service: Service.
        host: Host name or address.
        port: Port; 0 picks a free one.

    Raises:
        UserError: The port is not available.
    """
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        code = isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno
        reason = os.strerror(code) if code else "there is no such place"
        raise UserError(f"--port {port}: cannot be listened at ({reason}); choose another") from None
    with listener:
        # asyncio sets it only for sockets created with proto=IPPROTO_TCP, unlike these. Without it the body of an
        # answer waits for 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(target=service.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        name, number = listener.getsockname()[:2]
        try:
            yield f"{f'[{name}]' if ':' in name else name}:{number}", thread
        finally:
            service.should_exit = True
            thread.join(_STARTING_SECONDS)


def wait_for(thread: threading.Thread) -> NoReturn:
    """Wait while a service runs, until a signal raises an exception.

    An interrupted `join` of Python 3.11 would mark the thread as ended, and nothing would wait for it afterwards.

    Raises:
        UserError: The service has ended by itself.
    """
    while thread.is_alive():
        time.sleep(0.1)
    raise UserError("the service has ended")

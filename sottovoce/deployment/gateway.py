"""Reverse proxy that exposes only the device API of a private SuperLink.

A SuperLink has one port for its devices, its operator and its apps, and its Control API has no accounts. Anyone who
reaches that port may list and unregister nodes, and start and stop runs. So a SuperLink listens where its operator
alone can reach it. The gateway listens where the devices are, with the SuperLink's own certificate. It reads no call
and stores none: a device signs its calls, and the SuperLink checks the signatures. Connections are limited as in every
service here.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from simulations.errors import Terminated, UserError
from simulations.transport import https as https_service
from sottovoce.deployment.superlink import check_party

log = logging.getLogger(__name__)

#: Calls of `client.device.fleet`. The operator registers devices; they do not register themselves.
PASSED = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "get-run",
    "get-fab",
    "pull-object",
    "confirm-message-received",
    "push-messages",
    "push-object",
)
#: Largest call, in bytes: an object of the largest reply that a shuffler reads, with its head.
LARGEST = 66 * 2**20
#: Default number of connections at a time; one address has at most half of them.
CONNECTIONS = 1024
#: Seconds for a whole call, at a slow telephone's bandwidth; and seconds for the SuperLink's next bytes.
_CALL_SECONDS, _ANSWER_SECONDS = 600.0, 60.0
#: Seconds for which an idle connection to the SuperLink is kept: less than the SuperLink keeps it.
_IDLE = 2.0
#: Headers of one connection, which are never passed on (RFC 9110, 7.6.1), and the header that names the gateway.
_OWN = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
        "host",
    )
)
_BACK = ("content-type", "content-length", "content-encoding")


def application(superlink: str, root_certificates: Path, *, connections: int = CONNECTIONS) -> Starlette:
    """Return the gateway as an ASGI application.

    Status codes: 404 for anything but a call of a device; 408 or 413 if a call does not arrive or is too long; 503 if
    the SuperLink does not answer, after which a device tries again.

    Args:
        superlink: HOST:PORT of the SuperLink.
        root_certificates: Certificates of its authority.
        connections: Connections at a time.
    """
    client = httpx.AsyncClient(
        base_url=f"https://{superlink}",
        verify=ssl.create_default_context(cafile=root_certificates),
        timeout=_ANSWER_SECONDS,
        follow_redirects=False,
        trust_env=False,
        limits=httpx.Limits(max_connections=connections, keepalive_expiry=_IDLE),
    )

    async def passed(request: Request) -> Response:
        headers = [(name, value) for name, value in request.headers.items() if name not in _OWN]
        call = client.build_request("POST", request.scope["path"], headers=headers, content=_bounded(request))
        try:
            answer = await client.send(call, stream=True)
        except _TooLong:
            return Response(status_code=413, headers={"Connection": "close"})
        except (ClientDisconnect, TimeoutError):
            return Response(status_code=408, headers={"Connection": "close"})
        except httpx.TransportError:
            return Response(status_code=503, headers={"Connection": "close"})
        back = {name: answer.headers[name] for name in _BACK if name in answer.headers}
        return StreamingResponse(answer.aiter_raw(), answer.status_code, back, background=BackgroundTask(answer.aclose))

    return Starlette(routes=[Route(f"/v1/fleet/{name}", passed, methods=["POST"]) for name in PASSED])


class _TooLong(Exception):
    pass


async def _bounded(request: Request) -> AsyncIterator[bytes]:
    left, end = LARGEST, time.monotonic() + _CALL_SECONDS
    parts = aiter(request.stream())
    while (part := await asyncio.wait_for(anext(parts, None), end - time.monotonic())) is not None:
        left -= len(part)
        if left < 0:
            raise _TooLong
        yield part


def run(
    *,
    superlink: str,
    root_certificates: Path,
    certificate: Path,
    key: Path,
    port: int,
    host: str = "127.0.0.1",
    connections: int = CONNECTIONS,
) -> None:
    """Run the gateway before a SuperLink until a signal stops it (SIGINT, SIGTERM).

    It prints its address once it listens.

    Args:
        superlink: HOST:PORT of a running SuperLink.
        root_certificates: Certificates of its authority.
        certificate: The SuperLink's own certificate (PEM).
        key: Its key (PEM).
        port: Port to listen on.
        host: Address to listen on.
        connections: Connections at a time.

    Raises:
        UserError: No SuperLink answers, or a file or the port cannot be used.
    """
    check_party(superlink, root_certificates)
    with https_service.listening(host, port) as listener:
        passing = application(superlink, root_certificates, connections=connections)
        server = _server(passing, certificate, key, connections)
        log.info(f"gateway of {superlink}: passes what devices call at https://{https_service.address(listener)}")
        with suppress(KeyboardInterrupt, Terminated):  # the normal end
            server.run(sockets=[listener])


def _server(passing: Starlette, certificate: Path, key: Path, connections: int) -> uvicorn.Server:
    if connections < 2:
        raise UserError(f"--connections {connections}: must be at least 2")
    return https_service.make_server(passing, certificate=certificate, key=key, connections=connections)

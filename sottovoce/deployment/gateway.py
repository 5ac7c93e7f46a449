"""What devices reach of a SuperLink: the calls of Flower's Fleet API that a device makes, and nothing else.

A SuperLink has one port for its devices, its operator and its apps, and its Control API has no accounts: whoever
reaches that port may list and unregister nodes, and start and stop runs. So a SuperLink listens where its operator
alone is, and this gateway where the devices are, with the SuperLink's own certificate. It reads no call and keeps none:
a device signs what it sends, and the SuperLink checks that. Connections are bounded as those of every service here.
"""

from __future__ import annotations

import asyncio
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
from simulations.progress import Progress
from simulations.transport import https as https_service
from sottovoce.deployment.superlink import check_party

#: What `client.device.fleet` calls. Devices are registered by the operator, and not by themselves.
PASSED = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "get-run", "get-fab", "pull-object",
    "confirm-message-received", "push-messages", "push-object",
)  # fmt: skip
#: Bytes of a call: an object of the largest reply that a shuffler reads, and its head.
LARGEST = 66 * 2**20
#: Connections at a time, unless the operator says otherwise; one address has half of them at most.
CONNECTIONS = 1024
#: Seconds for a call to come whole, at the bandwidth of a telephone on a bad day; and for the SuperLink's next word.
_CALL_SECONDS, _ANSWER_SECONDS = 600.0, 60.0
#: Seconds for which an idle connection to the SuperLink is kept: fewer than the SuperLink keeps it.
_IDLE = 2.0
#: Of one connection, and so never passed on (RFC 9110, 7.6.1); and what names the gateway in place of the SuperLink.
_OWN = frozenset((
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "expect", "host",
))  # fmt: skip
_BACK = ("content-type", "content-length", "content-encoding")


def application(superlink: str, root_certificates: Path, *, connections: int = CONNECTIONS) -> Starlette:
    """The gateway as an ASGI application. superlink: its HOST:PORT. root_certificates: of its authority.

    What is no call of a device is 404, as from a server that has nothing else. 408, 413: a call does not come, or is
    too long. 503: the SuperLink does not answer, and a device asks again.
    """
    client = httpx.AsyncClient(
        base_url=f"https://{superlink}", verify=ssl.create_default_context(cafile=root_certificates),
        timeout=_ANSWER_SECONDS, follow_redirects=False, trust_env=False,
        limits=httpx.Limits(max_connections=connections, keepalive_expiry=_IDLE),
    )  # fmt: skip

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
    *, superlink: str, root_certificates: Path, certificate: Path, key: Path, port: int, host: str = "127.0.0.1",
    connections: int = CONNECTIONS, progress: Progress,
) -> None:  # fmt: skip
    """Stands before a SuperLink until it is told to stop (SIGINT, SIGTERM). Says its address once it listens.

    superlink: HOST:PORT of a SuperLink that answers. certificate, key: PEM files, the SuperLink's own. connections: at
    a time. Raises UserError where the SuperLink does not answer or is none, or a file or the port cannot be used.
    """
    check_party(superlink, root_certificates)
    with https_service.listening(host, port) as listener:
        passing = application(superlink, root_certificates, connections=connections)
        server = _server(passing, certificate, key, connections)
        progress(f"gateway of {superlink}: passes what devices call at https://{https_service.address(listener)}")
        with suppress(KeyboardInterrupt, Terminated):  # this is how it ends
            server.run(sockets=[listener])


def _server(passing: Starlette, certificate: Path, key: Path, connections: int) -> uvicorn.Server:
    if connections < 2:
        raise UserError(f"--connections {connections}: must be at least 2")
    return https_service.make_server(passing, certificate=certificate, key=key, connections=connections)

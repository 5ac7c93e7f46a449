"""HTTPS service of the shuffler for the training server.

    POST /v1/stages          a request as bytes of `mechanisms.messages.wire`, with headers: Row-Bytes, of one
                             sealed row, and Timeout, the seconds that nodes have. 202: the stage is open, or
                             was opened before
    GET  /v1/stages/{stage}  202 and {"asked", "answered", "users"} while it is open. Then 200: one line of JSON
                             with "batch", "rows", "row_bytes", "users", "duplicates", "dropped", "errors",
                             and the rows

The service is for the training server alone: it must show a certificate of the deployment's authority, in its own name.
Errors are constant texts. The shuffler reaches nodes through Flower, as its ServerApp.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from mechanisms.messages.sealed import OVERHEAD
from mechanisms.messages.wire import MAX_REQUEST_BYTES, record_from_bytes
from simulations.shuffler.rounds import Rounds, read_request
from simulations.shuffler.store import OPEN, Conflict, StoreError
from simulations.transport import https

#: Name in the certificate of the only client.
TRAINING_SERVER = "training-server"
STORE, ORIGINS = "store.sqlite", "origins"

N = TypeVar("N", int, float)

#: Bytes of a request's arrays and of everything around them.
_LARGEST = MAX_REQUEST_BYTES + 2**20
_LONGEST = 7 * 24 * 3600.0
_WIDEST = 2**20
_BODY_SECONDS = 60.0
_CONNECTIONS = 16

_NOT_SERVED = PlainTextResponse("only the training server is served here", 403)
_NO_REQUEST = PlainTextResponse("this is no request that nodes can be asked", 400)
_NO_STAGE = PlainTextResponse("no such stage", 404)
_CONFLICT = PlainTextResponse("the stage was opened by another request", 409)
_UNUSABLE = PlainTextResponse("the shuffler's store cannot be used", 503)


def application(rounds: Rounds, on_opened: Callable[[], object]) -> Starlette:
    """Return the service as an ASGI application.

    Args:
        rounds: Rounds of the shuffler.
        on_opened: Function to call after a stage was opened.
    """
    store = rounds.store

    async def open_stage(request: Request) -> Response:
        try:
            body = await https.read_body(request, limit=_LARGEST, seconds=_BODY_SECONDS)
            width = _number(int, request, "row-bytes", OVERHEAD + 1, _WIDEST)
            seconds = _number(float, request, "timeout", 0.001, _LONGEST)
            terms = await run_in_threadpool(lambda: read_request(record_from_bytes(body)))
        except ValueError:
            return _NO_REQUEST
        try:
            await run_in_threadpool(
                store.open_stage, terms.stage, body, row_bytes=width, minimum_users=terms.minimum_users, timeout=seconds
            )
        except Conflict:
            return _CONFLICT
        on_opened()
        return JSONResponse({"stage": terms.stage}, 202)

    def stage(request: Request) -> Response:
        batch = store.stage(request.path_params["stage"])
        if batch is None:
            return _NO_STAGE
        if batch.state == OPEN:
            count = rounds.answered(batch.name)
            return JSONResponse({"asked": rounds.nodes, "answered": count, "users": batch.users}, 202)
        size = sum(len(piece) for piece in store.pieces(batch.name))  # checks the whole batch before any of it is sent
        header = {
            "batch": batch.identity,
            "rows": size // batch.row_bytes,
            "row_bytes": batch.row_bytes,
            "users": batch.users,
            "duplicates": batch.duplicates,
            "dropped": dict(batch.dropped),
            "errors": dict(batch.errors),
        }
        head = json.dumps(header).encode() + b"\n"
        return StreamingResponse(
            chain([head], store.pieces(batch.name)),
            media_type="application/octet-stream",
            headers={"Content-Length": str(len(head) + size)},
        )

    async def unusable(request: Request, error: Exception) -> Response:
        return _UNUSABLE

    routes = [Route("/v1/stages", open_stage, methods=["POST"]), Route("/v1/stages/{stage}", stage)]
    app = Starlette(routes=routes, exception_handlers={StoreError: unusable})
    app.add_middleware(_OneClient)
    return app


class _OneClient:
    """Middleware that serves only the certificate in the name of the training server."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        access = scope["type"] == "http" and scope.get("state", {}).get("peer") == TRAINING_SERVER
        await (self.app if access else _NOT_SERVED)(scope, receive, send)


class _Named(https.Patient):
    """HTTP protocol whose requests know the name in the peer's certificate, which TLS has verified."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        certificate = transport.get_extra_info("ssl_object").getpeercert() or {}
        names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        self.app_state = self.app_state | {"peer": names[0] if len(names) == 1 else ""}


@contextmanager
def serving(
    rounds: Rounds,
    *,
    certificate: Path,
    key: Path,
    root_certificates: Path,
    on_opened: Callable[[], object],
    host: str = "127.0.0.1",
    port: int = 0,
) -> Iterator[tuple[str, threading.Thread]]:
    """Serve in a thread for the duration of a context, and return HOST:PORT and the thread.

    Args:
        rounds: Rounds of the shuffler.
        certificate: The shuffler's own certificate (PEM).
        key: Its key (PEM).
        root_certificates: Certificates of the authority.
        on_opened: Function to call after a stage was opened.
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.

    Raises:
        UserError: The port or a file cannot be used.
    """
    service = https.make_server(
        application(rounds, on_opened),
        certificate=certificate,
        key=key,
        connections=_CONNECTIONS,
        root_certificates=root_certificates,
        protocol=_Named,
    )
    with https.serving(service, host, port) as at:
        yield at


def _number(kind: Callable[[str], N], request: Request, header: str, low: float, high: float) -> N:
    """Return the number in a header; raise ValueError if there is none in range."""
    value = kind(request.headers.get(header, ""))
    if not low <= value <= high:  # also rejects NaN
        raise ValueError("shuffler: a header is out of range")
    return value

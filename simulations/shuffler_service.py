"""The shuffler as a process of its own: between nodes, which it asks, and the training server, which it serves.

    POST /v1/stages          a request as bytes of `mechanisms.wire`, with headers: Row-Bytes, of one sealed row, and
                             Timeout, the seconds that nodes have. 202: the stage is open, or was opened before
    GET  /v1/stages/{stage}  202 and {"asked", "answered", "users"} while it is open. Then 200: one line of JSON with
                             "batch", "rows", "row_bytes", "users", "duplicates", "dropped", "errors", and the rows

HTTPS, for the training server alone: it must show a certificate of the deployment's authority, in its own name. Errors
are constant texts. Nodes are reached through Flower, whose ServerApp this process is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import RecordDict
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from mechanisms.sealed import OVERHEAD
from mechanisms.wire import MAX_REQUEST_BYTES, record_from_bytes
from simulations import https_service
from simulations import superlink as superlinks
from simulations.cache import Progress
from simulations.errors import UserError
from simulations.parties import ending_on_signals
from simulations.shuffler_rounds import Enrolment, Rounds, read_enrolment, read_request
from simulations.shuffler_store import OPEN, Conflict, Store, StoreError

#: The name in the certificate of the one who is served.
TRAINING_SERVER = "training-server"
STORE, ORIGINS = "store.sqlite", "origins"

N = TypeVar("N", int, float)

#: A request's arrays, and what stands around them.
_LARGEST = MAX_REQUEST_BYTES + 2**20
_LONGEST = 7 * 24 * 3600.0
_WIDEST = 2**20
_BODY_SECONDS, _LOOK = 60.0, 0.2
_CONNECTIONS = 16

_NOT_SERVED = PlainTextResponse("only the training server is served here", 403)
_NO_REQUEST = PlainTextResponse("this is no request that nodes can be asked", 400)
_NO_STAGE = PlainTextResponse("no such stage", 404)
_CONFLICT = PlainTextResponse("the stage was opened by another request", 409)
_UNUSABLE = PlainTextResponse("the shuffler's store cannot be used", 503)


def application(rounds: Rounds, opened: Callable[[], object]) -> Starlette:
    """The service as an ASGI application. opened: is called when a stage was opened."""
    store = rounds.store

    async def open_stage(request: Request) -> Response:
        try:
            body = await https_service.body(request, most=_LARGEST, seconds=_BODY_SECONDS)
            width = _number(int, request, "row-bytes", OVERHEAD + 1, _WIDEST)
            seconds = _number(float, request, "timeout", 0.001, _LONGEST)
            asked = await run_in_threadpool(lambda: read_request(record_from_bytes(body)))
        except ValueError:
            return _NO_REQUEST
        try:
            await run_in_threadpool(
                store.open_stage, asked.stage, body, row_bytes=width, minimum_users=asked.minimum_users,
                timeout=seconds,
            )  # fmt: skip
        except Conflict:
            return _CONFLICT
        opened()
        return JSONResponse({"stage": asked.stage}, 202)

    def stage(request: Request) -> Response:
        there = store.stage(request.path_params["stage"])
        if there is None:
            return _NO_STAGE
        if there.state == OPEN:
            answered = rounds.answered(there.name)
            return JSONResponse({"asked": rounds.nodes, "answered": answered, "users": there.users}, 202)
        rows = store.batch(there.name)
        head = {
            "batch": there.identity, "rows": len(rows), "row_bytes": there.row_bytes, "users": there.users,
            "duplicates": there.duplicates, "dropped": dict(there.dropped), "errors": dict(there.errors),
        }  # fmt: skip
        return Response(json.dumps(head).encode() + b"\n" + rows.tobytes(), media_type="application/octet-stream")

    async def unusable(request: Request, error: Exception) -> Response:
        return _UNUSABLE

    routes = [Route("/v1/stages", open_stage, methods=["POST"]), Route("/v1/stages/{stage}", stage)]
    app = Starlette(routes=routes, exception_handlers={StoreError: unusable})
    app.add_middleware(_OneClient)
    return app


class _OneClient:
    """Serves whoever's certificate has the name of the training server, and refuses all others."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        known = scope["type"] == "http" and scope.get("state", {}).get("peer") == TRAINING_SERVER
        await (self.app if known else _NOT_SERVED)(scope, receive, send)


class _Named(H11Protocol):
    """HTTP whose requests know the name in the peer's certificate, which TLS has verified."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        certificate = transport.get_extra_info("ssl_object").getpeercert() or {}
        names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        self.app_state = self.app_state | {"peer": names[0] if len(names) == 1 else ""}


@contextmanager
def serving(
    rounds: Rounds, *, certificate: Path, key: Path, root_certificates: Path, opened: Callable[[], object],
    host: str = "127.0.0.1", port: int = 0,
) -> Iterator[tuple[int, threading.Thread]]:  # fmt: skip
    """The service in a thread of its own while the block runs; gives its port and the thread. port 0: a free one.

    Raises UserError where the port or a file cannot be used.
    """
    service = https_service.server(
        application(rounds, opened), certificate=certificate, key=key, connections=_CONNECTIONS,
        root_certificates=root_certificates, protocol=_Named,
    )  # fmt: skip
    with https_service.listening(host, port) as listener, https_service.in_thread(service, listener) as thread:
        yield listener.getsockname()[1], thread


def run(
    folder: Path, *, superlink: str, root_certificates: Path, secret: Path, certificate: Path, key: Path, port: int,
    users: Path, origins: bool, progress: Progress, host: str = "127.0.0.1",
) -> None:  # fmt: skip
    """Serves until it is told to stop (SIGINT, SIGTERM). A stage that was open goes on.

    folder: of the store. superlink: its HOST:PORT. root_certificates: the authority of SuperLink and training server.
    secret: the file that the SuperLink was started with. certificate, key: its own. users: as `read_enrolment` reads.
    origins: whether whose rows are in a batch is written down, in `folder`/origins, for a study's score.
    Raises UserError, in one line, where a file, the port, the store or the SuperLink cannot be used.
    """
    enrolled = read_enrolment(users)
    for path in (root_certificates, secret):
        if not path.is_file():
            raise UserError(f"{path}: is not there")
    try:
        with ending_on_signals(), Store(folder / STORE, origins=folder / ORIGINS if origins else None) as store:
            _serve(store, enrolled, superlink, root_certificates, secret, certificate, key, host, port, progress)
    except StoreError as error:
        raise UserError(str(error)) from error
    except KeyboardInterrupt:
        progress("told to stop")


def _serve(
    store: Store, enrolled: Enrolment, superlink: str, root_certificates: Path, secret: Path, certificate: Path,
    key: Path, host: str, port: int, progress: Progress,
) -> None:  # fmt: skip
    new = threading.Event()
    grid: Any = None

    def ask(record: RecordDict, nodes: Collection[int], timeout: float) -> Iterator[Any]:
        return superlinks.ask(grid, record, nodes, timeout=timeout)

    rounds = Rounds(store, enrolled, ask, progress)
    with serving(
        rounds, certificate=certificate, key=key, root_certificates=root_certificates, opened=new.set, host=host,
        port=port,
    ) as (at, thread):  # fmt: skip
        number = superlinks.start_run(superlink, root_certificates, superlinks.app_bundle())
        grid = superlinks.acquire_grid(superlink, root_certificates, secret, run_id=number)
        progress(f"run {number} on the SuperLink; the training server is served at {host}:{at}")
        try:
            while thread.is_alive():
                new.clear()
                if not rounds.work():
                    new.wait(_LOOK)
        finally:
            superlinks.finish(grid)
        raise UserError(f"{host}:{at}: the service has ended")


def _number(kind: Callable[[str], N], request: Request, header: str, low: float, high: float) -> N:
    """A number in a header. Raises ValueError."""
    value = kind(request.headers.get(header, ""))
    if not low <= value <= high:  # nor is what is no number
        raise ValueError("shuffler: a header is out of range")
    return value

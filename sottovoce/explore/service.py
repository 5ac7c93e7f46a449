"""HTTP service of the page: one token, loopback hosts alone, no scripts but its own files.

    GET  /TOKEN/            the page; its modules and style beside it
    GET  /TOKEN/api/state   possible choices
    POST /TOKEN/api/NAME    a question as JSON, its answer as JSON: cost, send, ledger

A client without the token gets 404 for every request. A host other than a loopback name gets 403, so that a page
elsewhere cannot point its own name here and read the answers (DNS rebinding). An invalid question gets 400 and one
line.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from client.models.clean_text import clean_text
from client.store.ledger import LedgerError
from simulations.errors import Terminated, UserError
from simulations.output.jsonable import json_ready
from simulations.transport import https
from sottovoce.explore.device import Device
from sottovoce.explore.explorer import CHARACTERS, Explorer
from sottovoce.explore.settings import Settings
from sottovoce.explore.world import World, builtin_world, run_world

#: Most bytes of a question: the longest sentence, with each character escaped.
_BODY, _BODY_SECONDS = 12 * CHARACTERS + 2**14, 10.0
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def application(explorer: Explorer, token: str) -> ASGIApp:
    """Return the service as an ASGI application.

    Args:
        explorer: Contents of the page.
        token: Token of the address.
    """
    answers: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
        "cost": lambda q: explorer.cost(_settings(q), _text(q), _label(q)),
        "send": lambda q: explorer.send(_settings(q), _text(q), _label(q), _integer(q, "round", 1, 1000)),
        "ledger": lambda q: explorer.device.statement(),
    }

    async def state(request: Request) -> Response:
        return _answer(await asyncio.to_thread(explorer.state))

    async def api(request: Request) -> Response:
        answer = answers.get(request.path_params["name"])
        if answer is None:
            return Response(status_code=404)
        try:
            question = json.loads(await https.read_body(request, limit=_BODY, seconds=_BODY_SECONDS))
            if not isinstance(question, dict):
                raise UserError("the question must be a table")
            return _answer(await asyncio.to_thread(answer, question))
        except (LedgerError, OSError):
            return _answer({"error": "the ledger cannot be used, so nothing leaves"}, 503)
        except RecursionError:
            return _answer({"error": "the question is nested too deeply"}, 400)
        except ValueError as error:
            return _answer({"error": " ".join(str(error).split())[:500]}, 400)

    async def page(request: Request) -> Response:
        return _file("index.html")

    async def part(request: Request) -> Response:
        return _file(request.path_params["name"])

    routes = [
        Route("/", page),
        Route("/api/state", state),
        Route("/api/{name}", api, methods=["POST"]),
        Route("/{name}", part),
    ]
    return _Guard(Starlette(routes=routes), token)


class _Guard:
    """Middleware that accepts requests for a loopback host, from this page or a person, with the token in the path."""

    def __init__(self, within: ASGIApp, token: str) -> None:
        self._within, self._start = within, f"/{token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, path = headers.get(b"host", ""), scope["path"]
        start = path[: len(self._start)].encode("utf-8", "replace")
        response: Response | None = None
        if not _loopback(host):
            response = Response("this page answers on the loopback alone", 403, _HEADERS)
        elif not hmac.compare_digest(start, self._start.encode()) or path[len(self._start) :][:1] != "/":
            response = Response(status_code=404, headers=_HEADERS)
        elif not _of_this_page(headers, host):
            response = Response("another page has asked", 403, _HEADERS)
        if response is not None:
            await response(scope, receive, send)
            return
        inner_scope = {**scope, "path": path[len(self._start) :], "raw_path": None}

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(k.lower().encode(), v.encode()) for k, v in _HEADERS.items()]
                message = message | {"headers": [*message.get("headers", []), *headers]}
            await send(message)

        await self._within(inner_scope, receive, guarded)


def _loopback(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host) in _HOSTS


def _of_this_page(headers: Mapping[bytes, str], host: str) -> bool:
    """Return True if no header names another origin: an address bar, this page, or no browser at all."""
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", "none")
    return origin in (None, f"http://{host}") and site in ("none", "same-origin")


def _file(name: str) -> Response:
    place = files("sottovoce.explore") / "page"
    names = {entry.name for entry in place.iterdir()}
    kind = next((kind for suffix, kind in _TYPES.items() if name.endswith(suffix)), None)
    if name not in names or kind is None:
        return Response(status_code=404)
    return Response((place / name).read_bytes(), media_type=kind)


def _answer(values: Mapping[str, Any], status: int = 200) -> Response:
    return JSONResponse(json_ready(dict(values)), status)


def _settings(question: Mapping[str, Any]) -> Settings:
    return Settings.of(question.get("settings", {}))


def _text(question: Mapping[str, Any]) -> str:
    text = question.get("text", "")
    if not isinstance(text, str):
        raise UserError("text: must be a text")
    if len(text) > CHARACTERS:
        raise UserError(f"the sentence has {len(text):,} characters, and at most {CHARACTERS:,} are read; cut it")
    readable = clean_text(text)
    return str(readable).encode("utf-8", "replace").decode("utf-8")


def _label(question: Mapping[str, Any]) -> int:
    return _integer(question, "label", 0, 10_000, least=0)


def _integer(question: Mapping[str, Any], name: str, otherwise: int, most: int, *, least: int = 1) -> int:
    value = question.get(name, otherwise)
    if type(value) is not int or not least <= value <= most:
        raise UserError(f"{name}: must be a whole number from {least} to {most}")
    return value


# --- server


_CONNECTIONS = 32


@contextmanager
def explorer(world: World) -> Iterator[Explorer]:
    """Yield the page's contents; its device has a temporary ledger.

    Args:
        world: Public data of the page.
    """
    with tempfile.TemporaryDirectory(prefix="sottovoce-explore-", ignore_cleanup_errors=True) as folder:
        yield Explorer(Device(Path(folder) / "device"), world)


@contextmanager
def serving(shown: Explorer) -> Iterator[str]:
    """Serve the page in a thread for the duration of a context, at a free port, and return its address."""
    token = secrets.token_urlsafe(24)
    with https.serving(_server(shown, token), "127.0.0.1", 0) as (address, _):
        yield f"http://{address}/{token}/"


def run(*, run: Path | None = None, port: int = 0, say: Callable[[str], None]) -> None:
    """Serve the page until a signal stops it (SIGINT, SIGTERM).

    Args:
        run: Folder of a finished run, whose data and encoder are shown; None for the built-in reviews.
        port: Port to listen on; 0 for a free one.
        say: Function that receives the address once the server listens.

    Raises:
        UserError: The folder holds no run, or the port cannot be used. The message is one line.
    """
    token, world = secrets.token_urlsafe(24), builtin_world() if run is None else run_world(run)
    with explorer(world) as page, https.serving(_server(page, token), "127.0.0.1", port) as (address, thread):
        say(f"http://{address}/{token}/")
        with suppress(KeyboardInterrupt, Terminated):  # the normal end
            https.wait_for(thread)


def _server(shown: Explorer, token: str) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            application(shown, token),
            http="h11",
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=1,
            **https.SETTINGS,
        )
    )

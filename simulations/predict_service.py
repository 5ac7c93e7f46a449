"""A deployed model: HTTPS, a question to read, releases to send, probabilities to get.

    GET  /v1/question  the request of `simulations.question`, as bytes of `mechanisms.wire`
    POST /v1/ask       a reply to it, as such bytes, sealed where the service has a key: {"classes", "probabilities"}

It learns what `/v1/ask` brings and who brings it, writes neither down, and answers everything that is not one to
`server.predict.MOST` releases of what it asked for with one constant text.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mechanisms.wire import record_to_bytes, request_to_record
from server.predict import Predictor
from simulations.cache import Progress
from simulations.errors import UserError
from simulations.keys import read_key
from simulations.question import predictor

REFUSED = {"error": "the message is not an answer to the question"}
#: Connections at a time; more are told to come back.
_CONNECTIONS = 64
_BODY_SECONDS = 30.0
_STARTING_SECONDS = 10.0


def application(model: Predictor) -> Starlette:
    """The service as an ASGI application."""
    question = record_to_bytes(request_to_record(model.request))

    async def ask(request: Request) -> Response:
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await _body(request, model.largest)
            return JSONResponse(await asyncio.to_thread(model.answer, body))
        except (ValueError, TimeoutError, ClientDisconnect):
            return JSONResponse(REFUSED, 400, {"Connection": "close"})  # else a body without end is read to its end

    async def asked(request: Request) -> Response:
        return Response(question, media_type="application/octet-stream")

    return Starlette(routes=[Route("/v1/question", asked), Route("/v1/ask", ask, methods=["POST"])])


@contextmanager
def serving(
    model: Predictor, *, certificate: Path, key: Path, host: str = "127.0.0.1", port: int = 0
) -> Iterator[str]:
    """The service in a thread of its own while the block runs; gives its address, https://HOST:PORT. port 0: a free
    one. Raises UserError as `run` does."""
    with _listening(host, port) as listener:
        server = _server(model, certificate, key)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield _address(listener)
        finally:
            server.should_exit = True
            thread.join(_STARTING_SECONDS)


def run(
    place: Path, *, certificate: Path, key: Path, port: int, host: str = "127.0.0.1", arm: str | None = None,
    seal_key: Path | None = None, progress: Progress,
) -> None:  # fmt: skip
    """Serves the model of a run until it is told to stop (SIGINT, SIGTERM). Says its address once it listens.

    place, arm: as in `simulations.question.predictor`. certificate, key: PEM files. seal_key: the private key that
    devices seal to; without it they send their releases in clear within TLS, and sealed ones are refused.
    Raises UserError where a file or the port cannot be used.
    """
    model = predictor(place, arm, private_key=None if seal_key is None else read_key(seal_key))
    with _listening(host, port) as listener:
        server = _server(model, certificate, key)
        sealed = "sealed releases" if seal_key is not None else "releases in clear within TLS"
        progress(f"{place}: answers {sealed} at {_address(listener)}, {', '.join(model.classes)}")
        with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            server.run(sockets=[listener])


async def _body(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise ValueError("predict: the message is too long")
    return bytes(body)


def _server(model: Predictor, certificate: Path, key: Path) -> uvicorn.Server:
    config = uvicorn.Config(
        application(model), ssl_certfile=certificate, ssl_keyfile=key, http="h11", ws="none", loop="asyncio",
        lifespan="off", access_log=False, log_config=None, log_level=logging.CRITICAL, server_header=False,
        proxy_headers=False, limit_concurrency=_CONNECTIONS, timeout_graceful_shutdown=2,
    )  # fmt: skip
    try:
        config.load()
    except (OSError, ssl.SSLError):
        raise UserError(f"{certificate}, {key}: are no PEM certificate and its key") from None
    return uvicorn.Server(config)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens there; connections wait in it until the service takes them."""
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or "no such port"
        raise UserError(f"{host}:{port}: cannot be listened at ({said}); name another --port") from None
    with listener:
        # asyncio does so for sockets that say "TCP" in full, which these do not; else an answer's body waits for 40 ms
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"

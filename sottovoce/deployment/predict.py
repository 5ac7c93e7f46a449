"""A deployed model: HTTPS, a question to read, releases to send, probabilities to get.

    GET  /v1/question  the request of `predictor`, as bytes of `mechanisms.messages.wire`
    POST /v1/ask       a reply to it, as such bytes, sealed where the service has a key: {"classes", "probabilities"}

It learns what `/v1/ask` brings and who brings it, writes neither down, and answers everything that is not one to
`server.predict.MOST` releases of what it asked for with one constant text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from client.device.model import STAGE
from mechanisms.mechanism import parameters
from mechanisms.messages.request import Request as Question
from mechanisms.messages.wire import record_to_bytes, request_to_record
from server.maps import FILE, Maps
from server.predict import Predictor
from simulations.artifacts.model_folder import read_about
from simulations.errors import Terminated, UserError
from simulations.experiment import embedding_mechanism, load, slug
from simulations.progress import Progress
from simulations.transport import https as https_service
from sottovoce.deployment.devices.bundle import chosen
from sottovoce.deployment.keys import ids_of, read_key

REFUSED = {"error": "the message is not an answer to the question"}
#: Connections at a time; more are told to come back.
_CONNECTIONS = 64
_BODY_SECONDS = 30.0


def predictor(place: Path, arm_name: str | None = None, *, private_keys: tuple[bytes, ...] = ()) -> Predictor:
    """The model of an arm of a finished run, and its question: the embedding of one sentence, by the mechanism that
    test users of the run were asked with, from the maps that the run was left with.

    place: the run's folder, or models/ARM in it. arm_name: which arm, where the folder is the run's and there are
    several. private_keys: as in `Predictor`.
    Raises UserError where there is no such model, or its users release no embeddings.
    """
    if (place / FILE).is_file() and place.parent.name == "models":
        place, arm_name = place.parents[1], place.name
    try:
        experiment = load(str(place / "experiment.toml"), [])
    except UserError:
        raise UserError(f"{place}: holds no finished run; name the folder that `simulate` or `deploy` left") from None
    arm = chosen(experiment, arm_name)
    if not arm.embedding or arm.answer:
        what = "release texts" if arm.text else "run all of it on their devices"
        raise UserError(f"{place}: users of {arm.name} {what}, and a sentence is asked about by its embedding")
    model = place / "models" / slug(arm.name)
    maps = Maps.load(model)
    classes, encoder = read_about(model)
    mechanism = embedding_mechanism(arm.embedding, maps.dim)
    request = Question(
        arm="", stage=STAGE, split="test", encoder=encoder, mean=maps.mean, m1=maps.m1, embedding=parameters(mechanism),
        label=None, classes=maps.classes, minimum_users=0,
    )  # fmt: skip
    return Predictor(request, maps, classes, private_keys)


def application(model: Predictor) -> Starlette:
    """The service as an ASGI application."""
    question = record_to_bytes(request_to_record(model.request))

    async def ask(request: Request) -> Response:
        try:
            body = await https_service.read_body(request, limit=model.largest, seconds=_BODY_SECONDS)
            return JSONResponse(await asyncio.to_thread(model.answer, body))
        except ValueError:
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
    service = _server(model, certificate, key)
    with https_service.listening(host, port) as listener, https_service.in_thread(service, listener):
        yield f"https://{https_service.address(listener)}"


def run(
    place: Path, *, certificate: Path, key: Path, port: int, host: str = "127.0.0.1", arm: str | None = None,
    seal_keys: Sequence[Path] = (), progress: Progress,
) -> None:  # fmt: skip
    """Serves the model of a run until it is told to stop (SIGINT, SIGTERM). Says its address once it listens.

    place, arm: as in `predictor`. certificate, key: PEM files. seal_keys: of the private
    keys that devices seal to; without one they send their releases in clear within TLS, and sealed ones are refused.
    Raises UserError where a file or the port cannot be used.
    """
    model = predictor(place, arm, private_keys=tuple(map(read_key, seal_keys)))
    with https_service.listening(host, port) as listener:
        server = _server(model, certificate, key)
        ids = ids_of(model.private_keys)
        sealed = f"releases sealed to {ids}" if ids else "releases in clear within TLS"
        progress(f"{place}: answers {sealed} at https://{https_service.address(listener)}, {', '.join(model.classes)}")
        with suppress(KeyboardInterrupt, Terminated):  # this is how it ends
            server.run(sockets=[listener])


def _server(model: Predictor, certificate: Path, key: Path) -> uvicorn.Server:
    return https_service.make_server(application(model), certificate=certificate, key=key, connections=_CONNECTIONS)

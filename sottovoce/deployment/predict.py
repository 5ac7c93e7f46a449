"""Deployed model: an HTTPS service that classifies releases.

    GET  /v1/question  the request of `predictor`, as bytes of `mechanisms.messages.wire`
    POST /v1/ask       a reply to it, as such bytes, sealed if the service has a key: {"classes", "probabilities"}

The service learns the content and the sender of `/v1/ask`, and stores neither. It answers anything but one to
`server.predict.MOST` releases of its request with one constant text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from client.device.ask import STAGE
from mechanisms.mechanism import parameters
from mechanisms.messages.questions import EmbeddingQuestion, Projection
from mechanisms.messages.request import Request as Question
from mechanisms.messages.wire import record_to_bytes, request_to_record
from server.maps import FILE, Maps
from server.predict import Predictor
from simulations.artifacts.model_folder import read_about
from simulations.errors import Terminated, UserError
from simulations.experiment import embedding_mechanism, load, slug
from simulations.transport import https
from sottovoce.deployment.devices.bundle import chosen
from sottovoce.deployment.keys import ids_of, read_key

log = logging.getLogger(__name__)

REFUSED = {"error": "the message is not an answer to the question"}
#: Connections at a time; others must try again.
_CONNECTIONS = 64
_BODY_SECONDS = 30.0


def predictor(place: Path, arm_name: str | None = None, *, private_keys: tuple[bytes, ...] = ()) -> Predictor:
    """Return the model of an arm of a finished run, with its request.

    The request is for the embedding of one sentence, by the mechanism of the run's test users, under the run's final
    maps.

    Args:
        place: Folder of the run, or models/ARM in it.
        arm_name: Name of the arm, if the folder is the run's and there are several.
        private_keys: As in `Predictor`.

    Raises:
        UserError: There is no such model, or its users release no embeddings.
    """
    if (place / FILE).is_file() and place.parent.name == "models":
        place, arm_name = place.parents[1], place.name
    try:
        experiment = load(str(place / "experiment.toml"), [])
    except UserError:
        raise UserError(f"{place}: holds no finished run; name the folder that `simulate` or `deploy` left") from None
    arm = chosen(experiment, arm_name).arm
    if not arm.embedding or arm.answer:
        releases = "release texts" if arm.text else "run all of it on their devices"
        raise UserError(f"{place}: users of {arm.name} {releases}, and a sentence is asked about by its embedding")
    model = place / "models" / slug(arm.name)
    maps = Maps.load(model)
    classes, encoder = read_about(model)
    mechanism = embedding_mechanism(arm.embedding, maps.dim)
    projection = Projection(encoder, maps.mean, maps.m1)
    embedding = EmbeddingQuestion(parameters(mechanism), projection=projection, classes=maps.classes)
    request = Question(arm="", stage=STAGE, split="test", minimum_users=0, questions=(embedding,))
    return Predictor(request, maps, classes, private_keys)


def application(model: Predictor) -> Starlette:
    """Return the service as an ASGI application."""
    question = record_to_bytes(request_to_record(model.request))

    async def ask(request: Request) -> Response:
        try:
            body = await https.read_body(request, limit=model.largest, seconds=_BODY_SECONDS)
            return JSONResponse(await asyncio.to_thread(model.answer, body))
        except ValueError:
            return JSONResponse(REFUSED, 400, {"Connection": "close"})  # an endless body is not read

    async def asked(request: Request) -> Response:
        return Response(question, media_type="application/octet-stream")

    return Starlette(routes=[Route("/v1/question", asked), Route("/v1/ask", ask, methods=["POST"])])


@contextmanager
def serving(model: Predictor, **where: Any) -> Iterator[str]:
    """Serve in a thread for the duration of a context, and return the address, https://HOST:PORT.

    Args:
        model: Model.
        **where: Arguments of `run`.

    Raises:
        UserError: A file or the port cannot be used.
    """
    with _serving(model, **where) as (address, _):
        yield f"https://{address}"


def run(place: Path, *, seal_keys: Sequence[Path] = (), **where: Any) -> None:
    """Serve the model of a run until a signal stops it (SIGINT, SIGTERM).

    It logs its address once it listens.

    Args:
        place: As in `predictor`.
        seal_keys: Files of the private keys that devices seal to. Without a key, devices send their releases in clear
            within TLS, and sealed ones are refused.
        **where: certificate and key (PEM files), and host and port to listen on; by default a free port of this
            machine.

    Raises:
        UserError: A file or the port cannot be used.
    """
    model = predictor(place, private_keys=tuple(map(read_key, seal_keys)))
    ids = ids_of(model.private_keys)
    form = f"releases sealed to {ids}" if ids else "releases in clear within TLS"
    with _serving(model, **where) as (address, thread), suppress(KeyboardInterrupt, Terminated):  # the normal end
        log.info(f"{place}: answers {form} at https://{address}, {', '.join(model.classes)}")
        https.wait_for(thread)


def _serving(model: Predictor, *, certificate: Path, key: Path, host: str = "127.0.0.1", port: int = 0) -> Any:
    service = https.make_server(application(model), certificate=certificate, key=key, connections=_CONNECTIONS)
    return https.serving(service, host, port)

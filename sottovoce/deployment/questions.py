"""Requests of a training server that its devices' bundle does not list: a publisher signs them before they are sent.

A model's own request is not known before training. The training server writes it as STAGE.question. The publisher reads
it, signs it (`sottovoce deploy sign`), gives it to the devices (`sottovoce device allow`), and puts STAGE.signed beside
it. Devices refuse unlisted requests, so a server that does not wait here gets no answer.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from shlex import quote

from client.device.bundle import Bundle
from client.device.signed_request import read_request, write_request
from client.device.statement import describe_question
from client.policy import Refused
from mechanisms.messages.request import Request
from simulations.errors import UserError
from sottovoce.deployment.keys import read_key

log = logging.getLogger(__name__)

ASKED, SIGNED = ".question", ".signed"
_POLL = 0.2


def wait_for_signature(request: Request, folder: Path, bundle: Bundle, *, timeout: float) -> None:
    """Wait until devices may receive a request of a training server.

    Args:
        request: Request to send.
        folder: Folder of the server's requests and of their signatures.
        bundle: Bundle of the devices.
        timeout: Seconds that a publisher may take.

    Raises:
        UserError: Nobody has signed it in time, or it is about another encoder than the devices'.
    """
    if bundle.policy.lists(request):
        return
    _require_encoder(request, bundle)
    query, answer = (folder / f"{request.stage}{end}" for end in (ASKED, SIGNED))
    write_request(query, request)
    end, logged = time.monotonic() + timeout, False
    while not _is_signed(answer, request, bundle):
        if not logged:
            log.info(f"stage {request.stage} asks what the bundle does not list; waiting for {answer}")
            logged = True
        if time.monotonic() > end:
            raise UserError(
                f"{query}: nobody has signed it in {timeout:.0f} s; its publisher does with: "
                f"sottovoce deploy sign {quote(str(query))} --bundle DIR --sign-key FILE --out {quote(str(answer))}"
            )
        time.sleep(_POLL)


def _is_signed(path: Path, request: Request, bundle: Bundle) -> bool:
    if not path.exists():
        return False
    question = read_request(path)
    equal = all(question.request.digest(c) == request.digest(c) for c in request.channels)
    return equal and question.vouched(bundle.publisher)


def _require_encoder(request: Request, bundle: Bundle) -> None:
    """Raise UserError if the request names an encoder that devices of the bundle do not have."""
    if (encoder := bundle.request.encoder) != request.encoder:
        raise UserError(
            f"stage {request.stage}: asks by the encoder {request.encoder[:16]}…, and devices of {bundle.folder} have "
            f"{encoder[:16]}…; make bundle and public part with one encoder.precision"
        )


def sign_question(file: Path, key: Path, out: Path, bundle: Bundle) -> list[str]:
    """Sign a training server's request, if devices of the bundle could answer it.

    Args:
        file: File of the request.
        key: File of the publisher's private key.
        out: File for the signed request.
        bundle: Bundle of the devices.

    Returns:
        A description of the request, as lines for people.

    Raises:
        UserError: Devices would never answer it, or a file cannot be used. The message is one line.
        ValueError: The file holds no request. The message is one line.
    """
    request = read_request(file).request
    _require_encoder(request, bundle)
    policy = bundle.policy.listing(request)
    try:
        policy.check(request)
    except Refused as error:
        raise UserError(f"{file}: the bundle's devices would not answer it in any case: {error}") from None
    write_request(out, replace(request, arm=""), read_key(key))
    return describe_question(request, policy)

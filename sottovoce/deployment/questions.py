"""What a training server asks and its devices' bundle does not list: written down, and asked once a publisher signs it.

A model's own question is not known before it is trained. The training server leaves it as STAGE.question; the publisher
reads it, signs it (`sottovoce deploy sign`), gives it to the devices (`sottovoce device allow`), and puts STAGE.signed
beside it. It is the devices that refuse what is not listed: who does not wait here asks in vain.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from client.consent import read_question, write_question
from client.device.bundle import Bundle
from client.device.statement import describe_question
from client.policy import Refused
from mechanisms.messages.request import Request
from simulations.errors import UserError
from simulations.progress import Progress
from sottovoce.deployment.keys import read_key

ASKED, SIGNED = ".question", ".signed"
_POLL = 0.2


class Questions:
    """The questions of one training server. folder: where they lie. bundle: what its devices were given. timeout: how
    many seconds a publisher may take."""

    def __init__(self, folder: Path, bundle: Bundle, *, timeout: float, progress: Progress) -> None:
        self._folder, self._bundle, self._timeout, self._progress = folder, bundle, timeout, progress

    def vouched(self, request: Request) -> None:
        """Returns once devices may be asked this. Raises UserError where nobody has signed it in time."""
        if self._bundle.policy.lists(request):
            return
        asked, signed = (self._folder / f"{request.stage}{end}" for end in (ASKED, SIGNED))
        write_question(asked, request)
        end, told = time.monotonic() + self._timeout, False
        while not self._signed(signed, request):
            if not told:
                self._progress(f"stage {request.stage} asks what the bundle does not list; waiting for {signed}")
                told = True
            if time.monotonic() > end:
                raise UserError(
                    f"{asked}: nobody has signed it in {self._timeout:.0f} s; its publisher does with: "
                    f"sottovoce deploy sign {asked} --bundle DIR --sign-key FILE --out {signed}"
                )
            time.sleep(_POLL)

    def _signed(self, path: Path, request: Request) -> bool:
        if not path.exists():
            return False
        question = read_question(path)
        same = all(question.request.digest(c) == request.digest(c) for c in request.channels)
        return same and question.vouched(self._bundle.publisher)


def sign_question(file: Path, key: Path, out: Path, bundle: Bundle) -> list[str]:
    """Signs what a training server asks, where a device of the bundle would allow it otherwise; what it asks, in lines
    for people. Raises UserError and ValueError, in one line."""
    request = read_question(file).request
    policy = bundle.policy.listing(request)
    try:
        policy.check(request)
    except Refused as error:
        raise UserError(f"{file}: the bundle's devices would not answer it in any case: {error}") from None
    write_question(out, replace(request, arm=""), read_key(key))
    return describe_question(request, policy)

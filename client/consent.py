"""Questions that a device's policy does not list: kept for its user, who allows them or not; or vouched for by the
publisher whose key the device has pinned.

A question is a file: a signature, or zeros where nobody has signed, and the request as bytes of the wire. It holds
public parameters alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from client.node import Node, changing, load_node, write_node
from client.policy import Refused
from client.store.durable import replacing
from mechanisms.messages.request import Request
from mechanisms.messages.signature import SIGNATURE_BYTES, sign, verified
from mechanisms.messages.wire import (
    MAX_REQUEST_BYTES,
    record_from_bytes,
    record_to_bytes,
    request_from_record,
    request_to_record,
)

#: Where a device keeps what its user has not been asked, how many of it, and how large one may be.
FOLDER = "asked"
MOST, LARGEST = 8, 2**22
_PURPOSE = "question"
_UNSIGNED = bytes(SIGNATURE_BYTES)


@dataclass(frozen=True, eq=False)
class Question:
    """A question that was read. data: its bytes, which are what is signed."""

    request: Request
    data: bytes
    signature: bytes

    def vouched(self, publisher: bytes | None) -> bool:
        """Whether the publisher has signed it."""
        return publisher is not None and verified(publisher, _PURPOSE, self.data, self.signature)


def write_question(path: Path, request: Request, signer: bytes | None = None) -> None:
    """Write a question, whole, signed by a private key where one is given."""
    data = _bytes(request)
    signature = _UNSIGNED if signer is None else sign(signer, _PURPOSE, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as (draft,):
        draft.write_bytes(signature + data)


def read_question(path: Path, node: Node | None = None) -> Question:
    """The question in a file. node: whose vocabulary it may name. Raises ValueError, one line, where it is none."""
    try:
        with path.open("rb") as file:
            # no more than there is: so many bytes are reserved, however few come
            read = file.read(min(2 * MAX_REQUEST_BYTES, os.fstat(file.fileno()).st_size) + 1)
        signature, data = read[:SIGNATURE_BYTES], read[SIGNATURE_BYTES:]
        if len(read) > 2 * MAX_REQUEST_BYTES:
            raise ValueError
        request = request_from_record(record_from_bytes(data), None if node is None else node.vocabulary)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, Refused):
        raise ValueError(f"{path}: is no question, or of a vocabulary that is not here") from None
    return Question(request, data, signature)


def keep_question(node: Node, request: Request) -> None:
    """Keep a question for the user of a device, the latest ones where there are many; where the disk allows it."""
    if len(data := _bytes(request)) > LARGEST:
        return
    folder = node.folder / FOLDER
    path = folder / _name(request)
    try:
        if path.exists():
            return
        folder.mkdir(mode=0o700, exist_ok=True)
        waiting = kept_questions(node)
        for old in waiting[: max(0, len(waiting) - MOST + 1)]:
            old.unlink(missing_ok=True)
        with replacing(path) as (draft,):
            draft.write_bytes(_UNSIGNED + data)
    except OSError:
        return


def kept_questions(node: Node) -> list[Path]:
    """The questions that wait for the user, the oldest first."""
    return sorted((node.folder / FOLDER).glob("*.question"), key=lambda path: path.stat().st_mtime_ns)


def allow_question(node: Node, request: Request) -> None:
    """Put a question on the list of a device's policy, for good. Raises ValueError where its limits forbid it."""
    with changing(node.folder):
        node = load_node(node.folder)  # as it is now: a bundle may have been installed since
        policy = node.policy("").listing(request)
        try:
            policy.check(request)
        except Refused as error:
            raise ValueError(f"{node.folder}: its policy does not allow this question in any case: {error}") from None
        write_node(
            node.folder, encoder=node.encoder, vocabulary=node.vocabulary_folder, masked_lm=node.masked_lm,
            policy=policy, seal=node.seal, model_seal=node.model_seal, publisher=node.publisher,
        )  # fmt: skip
    for path in kept_questions(node):
        if path.name == _name(request):
            path.unlink(missing_ok=True)


def _name(request: Request) -> str:
    """Of the file that keeps a question: by all that agreeing to it puts on the list, so that a server that has seen
    one read cannot put another in its place."""
    return sha256("".join(request.digest(channel) for channel in request.channels).encode()).hexdigest() + ".question"


def _bytes(request: Request) -> bytes:
    return record_to_bytes(request_to_record(request))

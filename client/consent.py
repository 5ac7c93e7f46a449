"""Requests that a device's policy does not list, kept until its user or the pinned publisher allows them.

A question is a file of one such request: a signature, or zeros without one, and the request as bytes of the wire. It
holds only public parameters.
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

#: Folder of the requests that wait for the user, their largest number, and the largest size of one.
FOLDER = "asked"
MOST, LARGEST = 8, 2**22
_PURPOSE = "question"
_UNSIGNED = bytes(SIGNATURE_BYTES)


@dataclass(frozen=True, eq=False)
class Question:
    """Request that was read from a file, with its bytes `data`, which the signature covers."""

    request: Request
    data: bytes
    signature: bytes

    def vouched(self, publisher: bytes | None) -> bool:
        """Return whether the publisher has signed it."""
        return publisher is not None and verified(publisher, _PURPOSE, self.data, self.signature)


def write_question(path: Path, request: Request, signer: bytes | None = None) -> None:
    """Write the file of a request completely, signed by a private key if one is given."""
    data = _bytes(request)
    signature = _UNSIGNED if signer is None else sign(signer, _PURPOSE, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as (draft,):
        draft.write_bytes(signature + data)


def read_question(path: Path, node: Node | None = None) -> Question:
    """Return the request in a file.

    Args:
        path: The file.
        node: Node whose vocabulary the request may name.

    Raises:
        ValueError: The file holds no request. The message is one line.
    """
    try:
        with path.open("rb") as file:
            # no more than the file holds: this many bytes are reserved
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
    """Keep a request for the user of a device, if the disk allows it. Only the latest requests are kept."""
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
    """Return the files of the requests that wait for the user, the oldest first."""
    return sorted((node.folder / FOLDER).glob("*.question"), key=lambda path: path.stat().st_mtime_ns)


def allow_question(node: Node, request: Request) -> None:
    """Add a request to the list of a device's policy, permanently.

    Raises:
        ValueError: The limits of the device forbid it.
    """
    with changing(node.folder):
        node = load_node(node.folder)  # in its current state: a bundle may have been installed since
        policy = node.policy("").listing(request)
        try:
            policy.check(request)
        except Refused as error:
            raise ValueError(f"{node.folder}: its policy does not allow this question in any case: {error}") from None
        write_node(
            node.folder,
            encoder=node.encoder,
            vocabulary=node.vocabulary_folder,
            masked_lm=node.masked_lm,
            policy=policy,
            seal=node.seal,
            model_seal=node.model_seal,
            publisher=node.publisher,
        )
    for path in kept_questions(node):
        if path.name == _name(request):
            path.unlink(missing_ok=True)


def _name(request: Request) -> str:
    """Return the name of the file that keeps a request.

    It covers everything that consent adds to the list. So a server that has seen one request read cannot replace it by
    another.
    """
    return sha256("".join(request.digest(channel) for channel in request.channels).encode()).hexdigest() + ".question"


def _bytes(request: Request) -> bytes:
    return record_to_bytes(request_to_record(request))

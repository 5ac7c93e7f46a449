"""Requests that a device's policy does not list: the pinned publisher signs one, and the device adds it to the list.

The file of such a request holds a signature (zeros if unsigned), then the request in wire format. It holds only
public parameters.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from client.device.statement import describe_question
from client.node import Node, changing, load_device, load_node, write_policy
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

_PURPOSE = "question"
_UNSIGNED = bytes(SIGNATURE_BYTES)


@dataclass(frozen=True, eq=False)
class SignedRequest:
    """Request that was read from a file, with its bytes `data`, which the signature covers."""

    request: Request
    data: bytes
    signature: bytes

    def vouched(self, publisher: bytes | None) -> bool:
        """Return whether the publisher has signed it."""
        return publisher is not None and verified(publisher, _PURPOSE, self.data, self.signature)


def write_request(path: Path, request: Request, signer: bytes | None = None) -> None:
    """Write the file of a request completely, signed by a private key if one is given."""
    data = record_to_bytes(request_to_record(request))
    signature = _UNSIGNED if signer is None else sign(signer, _PURPOSE, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as (draft,):
        draft.write_bytes(signature + data)


def read_request(path: Path, node: Node | None = None) -> SignedRequest:
    """Return the request in a file.

    Args:
        path: The file.
        node: Node whose vocabulary the request may name.

    Raises:
        ValueError: The file holds no request. The message is one line.
    """
    try:
        with path.open("rb") as file:
            # read() allocates this many bytes, so cap it at file size
            read = file.read(min(2 * MAX_REQUEST_BYTES, os.fstat(file.fileno()).st_size) + 1)
        signature, data = read[:SIGNATURE_BYTES], read[SIGNATURE_BYTES:]
        if len(read) > 2 * MAX_REQUEST_BYTES:
            raise ValueError
        request = request_from_record(record_from_bytes(data), None if node is None else node.vocabulary)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, Refused):
        raise ValueError(f"{path}: is no question, or of a vocabulary that is not here") from None
    return SignedRequest(request, data, signature)


def allow(folder: Path, file: Path) -> str:
    """Add the request in a file to the list of a device's policy, permanently, and return lines for people.

    Args:
        folder: Folder of the device.
        file: File of the request.

    Raises:
        ValueError: The publisher that the device has pinned has not signed the request, or the device's limits forbid
            it in any case. The message is one line.
    """
    node = load_device(folder, simulated=", whose users are asked nothing")
    signed = read_request(file, node)
    with changing(node.folder):
        node = load_node(node.folder)  # in its current state: a bundle may have been installed since
        policy = node.policy("")
        if policy.questions is None:
            raise ValueError(f"{folder}: its policy lists no questions, and answers any within its limits")
        if not signed.vouched(node.publisher):
            raise ValueError(f"{file}: is not signed by the publisher of this device, who does with: deploy sign")
        policy = policy.listing(signed.request)
        try:
            policy.check(signed.request)
        except Refused as error:
            raise ValueError(f"{folder}: its policy does not allow this question in any case: {error}") from None
        write_policy(node.folder, policy)
    lines = describe_question(signed.request, policy)
    return "\n".join([f"{folder}: answers this question from now on:", *(f"  {line}" for line in lines)])

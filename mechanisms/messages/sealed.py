"""Releases sealed to the training server, and once more to the shuffler.

A carrier sees the users of the rows, and nothing of their content.

A row is the release of one record on all channels of a request, as plain little-endian bytes in the order of the
request's channels, with zeros up to a multiple of 64. So every row of a request has the same length. It is sealed by
itself (HPKE, RFC 9180, base mode), so rows can be permuted, under an info that names the request. A row opens at its
own stage, under its own public parameters, or not at all. It contains no user and no record.

A device seals each sealed row a second time, to the shuffler, and signs the reply (`envelop`). The shuffler opens this
layer, so the bytes that a carrier has seen reach no training server: both together cannot link a row to its user. A
device signs for one request with all its parameters, its smallest batch included, and its rows open under its own key
only. So no carrier can send a row of its own, a row of another request, or the same row under two names.

Only this file uses the library of HPKE.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from numpy.typing import NDArray

from mechanisms.arrays import BoolArray, IntArray
from mechanisms.messages.questions import Question
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply, require_ids
from mechanisms.messages.request import Request
from mechanisms.messages.signature import public_of, sign, verified

#: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM.
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
KEY_BYTES = 32
#: Bytes that sealing adds to a row: the ephemeral public key in front, and the tag behind.
OVERHEAD = 32 + 16
#: Rows are padded with zeros to a multiple of this many bytes.
BLOCK = 64
_PURPOSE = "sottovoce sealed release 1"
_OUTER, _SIGNED = "sottovoce envelope 1", "reply"


@dataclass(frozen=True, eq=False)
class Sealed:
    """Sealed reply of a client: users and records of the rows, in clear, and the rows.

    Attributes:
        users: (n,) int64, as in `Reply`.
        records: (n,) int64, as in `Reply`.
        rows: (n, L) uint8, row i of record records[i] of user users[i].
        signature: Signature of the device by `envelop`, or none.
    """

    users: IntArray
    records: IntArray
    rows: NDArray[np.uint8]
    signature: bytes = b""

    def __post_init__(self) -> None:
        require_ids("sealed", self.users, self.records)
        if not (isinstance(self.rows, np.ndarray) and self.rows.dtype == np.uint8 and self.rows.ndim == 2):
            raise ValueError("sealed: rows must be a uint8 array of two axes")
        if len({len(self.users), len(self.records), len(self.rows)}) != 1:
            raise ValueError("sealed: users, records and rows differ in their number")

    def __len__(self) -> int:
        return len(self.users)


def generate_keys() -> tuple[bytes, bytes]:
    """Return a new private key and its public key, 32 bytes each, by the operating system's generator."""
    key = X25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def require_public_key(key: bytes) -> X25519PublicKey:
    """Return a key to which releases can be sealed.

    Raises:
        ValueError: It is no public key.
    """
    try:
        read = X25519PublicKey.from_public_bytes(key)
        X25519PrivateKey.generate().exchange(read)  # refuses points of low order, with which everybody shares a secret
    except (ValueError, TypeError):
        raise ValueError(f"sealed: these are not the {KEY_BYTES} bytes of a public key") from None
    return read


def key_id(public_key: bytes) -> str:
    """Return the name of a key for people: the first 16 hexadecimal digits.

    A row does not carry it, because it would show a carrier of rows which bundle a device has.
    """
    return public_key.hex()[:16]


def public_half(private_key: bytes) -> bytes:
    """Return the public key of a private one, 32 bytes each.

    Raises:
        ValueError: It is no private key.
    """
    return _private(private_key).public_key().public_bytes_raw()


def row_bytes(request: Request) -> int:
    """Return the number of bytes of a row before it is sealed, with its padding."""
    used = sum(_size(question) for question in request.questions)
    return BLOCK * math.ceil(used / BLOCK)


def sealed_bytes(request: Request) -> int:
    """Return the bytes of one sealed row."""
    return row_bytes(request) + OVERHEAD


def hpke_info(request: Request) -> bytes:
    """Return the info that binds a row to its request.

    It is JSON of the stage, the split, and the channels in their order with their digests, behind a name of this use
    and version.
    """
    digests = [[channel, request.digest(channel)] for channel in request.channels]
    return json.dumps([_PURPOSE, request.stage, request.split, digests], separators=(",", ":")).encode()


def seal(reply: Reply, request: Request, public_key: bytes) -> Sealed:
    """Return a reply to the request, for the owner of the private key alone. Two seals of one reply share no row.

    Raises:
        ValueError: The reply is to another request, or the key is no public key.
    """
    info, key = hpke_info(request), require_public_key(public_key)
    sealed = [SUITE.encrypt(row.tobytes(), key, info) for row in _plaintext_rows(reply, request)]
    rows = np.frombuffer(b"".join(sealed), np.uint8).reshape(len(reply), sealed_bytes(request))
    return Sealed(reply.users, reply.records, rows)


def unseal(rows: NDArray[np.uint8], request: Request, private_key: bytes) -> tuple[tuple[Release, ...], BoolArray]:
    """Return the releases of the rows that open, one release a channel, in the rows' order; and a mask of these rows.

    A row does not open if it was sealed to another key or for another request, if a bit of it changed, or if it is not
    of the request's length or form. The server's validation checks that its values are within the mechanism's range.

    Args:
        rows: (n, L) uint8, from any sender.
        request: Request that the rows answer.
        private_key: Private key.

    Raises:
        ValueError: It is no private key.
    """
    info, key, length = hpke_info(request), _private(private_key), row_bytes(request)
    used = sum(_size(question) for question in request.questions)
    opened = np.zeros(len(rows), np.bool_)
    plaintexts = []
    for i, row in enumerate(rows if rows.shape[1] == length + OVERHEAD else ()):
        try:
            opened_row = SUITE.decrypt(row.tobytes(), key, info)
        except (InvalidTag, ValueError):  # a wrong tag; an ephemeral key of low order
            continue
        if not any(opened_row[used:]):
            opened[i] = True
            plaintexts.append(opened_row)
    table = np.frombuffer(b"".join(plaintexts), np.uint8).reshape(len(plaintexts), length)
    releases, start = [], 0
    for question in request.questions:
        _, dtype, shape = question.payload_form
        end = start + _size(question)
        values = np.ascontiguousarray(table[:, start:end]).view(dtype.newbyteorder("<"))
        releases.append(request.release(question, values.astype(dtype).reshape(len(plaintexts), *shape)))
        start = end
    return tuple(releases), opened


def envelop(sealed: Sealed, request_id: str, shuffler: bytes, device: bytes) -> Sealed:
    """Return a sealed reply for the shuffler alone: each row sealed to it, and the whole signed by the device.

    Args:
        sealed: The reply, sealed to the training server.
        request_id: Identity of the request (`mechanisms.messages.wire.request_identity`).
        shuffler: Public key of the shuffler.
        device: Private key of the device.

    Raises:
        ValueError: A key is no key.
    """
    info, key = _outer_info(request_id, public_of(device)), require_public_key(shuffler)
    rows = b"".join(SUITE.encrypt(row.tobytes(), key, info) for row in sealed.rows)
    width = sealed.rows.shape[1] + OVERHEAD
    outer = replace(sealed, rows=np.frombuffer(rows, np.uint8).reshape(len(sealed), width))
    return replace(outer, signature=sign(device, _SIGNED, _whole(outer, request_id)))


def open_envelope(outer: Sealed, request_id: str, shuffler: bytes, device: bytes) -> Sealed:
    """Return the reply within an envelope, with rows for the training server.

    Args:
        outer: The envelope, from any sender.
        request_id: Identity of the request.
        shuffler: Private key of the shuffler.
        device: Public key of the device.

    Raises:
        ValueError: It is no reply of that device to that request. The message is constant.
    """
    if not verified(device, _SIGNED, _whole(outer, request_id), outer.signature):
        raise ValueError("sealed: a reply that its device has not signed")
    info, key, width = _outer_info(request_id, device), _private(shuffler), outer.rows.shape[1] - OVERHEAD
    try:
        rows = b"".join(SUITE.decrypt(row.tobytes(), key, info) for row in outer.rows)
    except (InvalidTag, ValueError):
        raise ValueError("sealed: a row that is not sealed to the shuffler") from None
    return Sealed(outer.users, outer.records, np.frombuffer(rows, np.uint8).reshape(len(outer), max(0, width)))


def _outer_info(request_id: str, device: bytes) -> bytes:
    """Return the info that binds an envelope's row to its request and its device."""
    return json.dumps([_OUTER, request_id, device.hex()], separators=(",", ":")).encode()


def _whole(outer: Sealed, request_id: str) -> bytes:
    """Return the bytes that a device signs: a digest of the request and of everything in the envelope."""
    digest = hashlib.sha256(json.dumps([request_id, *outer.rows.shape], separators=(",", ":")).encode())
    for part in (outer.users.astype("<i8"), outer.records.astype("<i8"), np.ascontiguousarray(outer.rows)):
        digest.update(part.data)
    return digest.digest()


def batch_identity(rows: bytes) -> str:
    """Return the name of a batch: SHA-256 (hex) of its sealed rows in their order."""
    return hashlib.sha256(rows).hexdigest()


def _plaintext_rows(reply: Reply, request: Request) -> NDArray[np.uint8]:
    """Return the rows of a reply before they are sealed, (n, `row_bytes`)."""
    releases = {release.channel: release for release in reply.releases}
    if set(releases) != set(request.channels):
        raise ValueError("sealed: a reply of other channels than the request's")
    table = np.zeros((len(reply), row_bytes(request)), np.uint8)
    start = 0
    for question in request.questions:
        name, dtype, shape = question.payload_form
        release = releases[question.channel]
        values: NDArray[Any] | None = release.payload.get(name)
        if values is None or values.dtype != dtype or values.shape != (len(reply), *shape) or len(release.payload) != 1:
            raise ValueError("sealed: a release of another form than the request's")
        if (release.stage, release.digest) != (request.stage, request.digest(question.channel)):
            raise ValueError("sealed: a release of another request")
        end = start + _size(question)
        data = np.ascontiguousarray(values, dtype.newbyteorder("<"))
        table[:, start:end] = np.frombuffer(data.tobytes(), np.uint8).reshape(len(reply), end - start)
        start = end
    return table


def _size(question: Question) -> int:
    _, dtype, shape = question.payload_form
    return dtype.itemsize * math.prod(shape)


def _private(key: bytes) -> X25519PrivateKey:
    try:
        return X25519PrivateKey.from_private_bytes(key)
    except (ValueError, TypeError):
        raise ValueError(f"sealed: these are not the {KEY_BYTES} bytes of a private key") from None

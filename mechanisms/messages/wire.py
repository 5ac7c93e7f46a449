"""Requests and replies as Flower records, and back, and these as bytes. Only this file knows Flower.

Arrays travel as their plain little-endian bytes in C order, with dtype and shape beside them. No format is parsed, so a
hostile sender can neither make the reader unpickle nor make it allocate more than was sent. Readers raise ValueError,
one line, on anything else.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from numpy.typing import NDArray

from mechanisms.channels import CHANNELS
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import Sealed
from mechanisms.messages.signature import SIGNATURE_BYTES
from mechanisms.vocabulary import Vocabulary

MAX_REQUEST_BYTES = 2**26
#: Largest description: names, hashes, mechanisms' parameters. Read as JSON, a long text takes many times its own
#: memory.
MAX_DESCRIPTION = 2**18
_STYPE = "sottovoce.raw"
_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("float32", "int16", "int32", "int64", "uint8")}


def request_to_record(request: Request) -> RecordDict:
    """Return a request as a message's content."""
    arrays, about = request.parts()
    return RecordDict({"request.arrays": _pack(arrays), "request.about": ConfigRecord(dict(about))})


def request_from_record(record: RecordDict, vocabulary: Callable[[str], Vocabulary] | None = None) -> Request:
    """Return the inverse of `request_to_record`.

    `vocabulary` returns the vocabulary of an identity, for a text, and may raise. None: there is none.

    Raises:
        ValueError: The record is no valid request.
    """
    _keys(record, {"request.arrays", "request.about"})
    arrays = _unpack(record["request.arrays"], limit=MAX_REQUEST_BYTES)
    return Request.from_parts(arrays, _about(record["request.about"]), vocabulary)


def request_identity(record: RecordDict) -> str:
    """Return the SHA-256 (hex) of all parameters in a message's content, which need not be a valid request.

    A release's digest covers less: not the smallest batch, nor which users answer.

    Raises:
        ValueError: It is no content of a request.
    """
    _keys(record, {"request.arrays", "request.about"})
    arrays, about = record["request.arrays"], record["request.about"]
    if not (isinstance(arrays, ArrayRecord) and isinstance(about, ConfigRecord)):
        raise ValueError("message: no request")
    digest = hashlib.sha256(json.dumps(dict(about), sort_keys=True, default=repr).encode())
    for name, array in sorted(arrays.items()):
        digest.update(json.dumps([name, array.dtype, list(array.shape), len(array.data)]).encode() + array.data)
    return digest.hexdigest()


def reply_to_record(reply: Reply) -> RecordDict:
    """Return a reply as a message's content."""
    content: dict[str, Any] = {"ids": _pack({"users": reply.users, "records": reply.records})}
    for release in reply.releases:
        arrays, about = release.parts()
        content[f"{release.channel}.arrays"] = _pack(arrays)
        content[f"{release.channel}.about"] = ConfigRecord(dict(about))
    return RecordDict(content)


def reply_from_record(record: RecordDict) -> Reply:
    """Return the inverse of `reply_to_record`. The server's validation checks that its releases answer the request.

    Raises:
        ValueError: The record is no reply.
    """
    channels = [c for c in CHANNELS if f"{c}.arrays" in record]
    _keys(record, {"ids"} | {f"{c}.{part}" for c in channels for part in ("arrays", "about")})
    ids = _unpack(record["ids"])
    if set(ids) != {"users", "records"}:
        raise ValueError("message: ids are not users and records")
    releases = []
    for channel in channels:
        try:
            arrays, about = _unpack(record[f"{channel}.arrays"]), _about(record[f"{channel}.about"])
            release = Release.from_parts(arrays, about)
        except (TypeError, KeyError, ValueError, AttributeError, RecursionError):
            raise ValueError("message: a release cannot be read") from None
        if release.channel != channel:
            raise ValueError("message: a release names another channel")
        releases.append(release)
    return Reply(ids["users"], ids["records"], tuple(releases))


def sealed_to_record(sealed: Sealed) -> RecordDict:
    """Return a sealed reply as a message's content."""
    ids = {"users": sealed.users, "records": sealed.records}
    rows = {"rows": sealed.rows, "signature": np.frombuffer(sealed.signature, np.uint8)}
    return RecordDict({"ids": _pack(ids), "sealed.arrays": _pack(rows)})


def sealed_from_record(record: RecordDict) -> Sealed:
    """Return the inverse of `sealed_to_record`. Only the owner of the key can check the content of its rows.

    Raises:
        ValueError: The record is no sealed reply.
    """
    _keys(record, {"ids", "sealed.arrays"})
    ids, arrays = _unpack(record["ids"]), _unpack(record["sealed.arrays"])
    if set(ids) != {"users", "records"} or set(arrays) != {"rows", "signature"}:
        raise ValueError("message: not the arrays of a sealed reply")
    if arrays["signature"].nbytes not in (0, SIGNATURE_BYTES):
        raise ValueError("message: a sealed reply with a signature of another length")
    return Sealed(ids["users"], ids["records"], arrays["rows"], arrays["signature"].tobytes())


def record_to_bytes(record: RecordDict) -> bytes:
    """Return a record for transports other than Flower's, in Flower's own format (protobuf)."""
    data: bytes = recorddict_to_proto(record).SerializeToString()
    return data


def record_from_bytes(data: bytes) -> RecordDict:
    """Return the inverse of `record_to_bytes`.

    A message of nothing but empty parts takes about 70 times its bytes as objects, so limit the bytes before.

    Raises:
        ValueError: The bytes are unreadable.
    """
    try:
        return recorddict_from_proto(ProtoRecordDict.FromString(data))
    except Exception:  # protobuf's own errors, and those of Flower's records on values that they may not hold
        raise ValueError("message: its bytes are no records") from None


def _pack(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    packed = {}
    for name, values in arrays.items():
        dtype = values.dtype.name
        if dtype not in _DTYPES:
            raise ValueError(f"message: array {name!r} has dtype {dtype}, which the wire does not carry")
        data = np.ascontiguousarray(values, dtype=_DTYPES[dtype]).tobytes()
        packed[name] = Array(dtype=dtype, shape=tuple(values.shape), stype=_STYPE, data=data)
    return ArrayRecord(packed)


def _unpack(record: object, limit: float = math.inf) -> dict[str, NDArray[Any]]:
    if not isinstance(record, ArrayRecord):
        raise ValueError("message: arrays are missing")
    if sum(len(a.data) for a in record.values()) > limit:
        raise ValueError("message: its arrays are too large")
    return {name: _read(array) for name, array in record.items()}


def _read(array: Array) -> NDArray[Any]:
    shape = tuple(array.shape)
    if array.stype != _STYPE or array.dtype not in _DTYPES or len(shape) > 3:
        raise ValueError("message: an array of a kind that the wire does not carry")
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("message: an array's shape is not one")
    dtype = _DTYPES[array.dtype]
    if math.prod(shape) * dtype.itemsize != len(array.data):
        raise ValueError("message: an array's bytes do not fit its shape")
    values = np.frombuffer(array.data, dtype=dtype).astype(dtype.newbyteorder("="), copy=False)
    return values.reshape(shape)


def _about(record: object) -> dict[str, Any]:
    if not isinstance(record, ConfigRecord):
        raise ValueError("message: its description is missing")
    about = dict(record)
    if sum(len(v) for v in about.values() if isinstance(v, str | bytes | list)) > MAX_DESCRIPTION:
        raise ValueError("message: its description is too long")
    return about


def _keys(record: object, expected: set[str]) -> None:
    if not isinstance(record, RecordDict) or set(record) != expected:
        raise ValueError("message: its records are not those that the wire carries")

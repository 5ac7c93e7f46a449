"""The training server's side of the line to a shuffler: a request opens a stage, and the stage gives one batch."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
from numpy.typing import NDArray

from client.device.https import tls_error
from client.device.roles import SHUFFLER, context_for
from simulations.errors import UserError
from simulations.progress import Progress

#: Seconds for which a shuffler that cannot be reached is tried again: it may be starting anew. Seconds between tries,
#: and between two looks at a stage.
PATIENCE, AGAIN, LOOK = 120.0, 1.0, 0.5
#: Seconds without a byte.
_SILENT = 30.0
#: Bytes of the rows that are read at most: of many millions of users. And of anything else.
_LARGEST, _SMALL = 2**33, 2**16

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Delivered:
    """What a shuffler says of a stage, and the stage's rows, (n, L) uint8; none where the batch was discarded.

    batch: its identity. users: how many are in it. duplicates, dropped: rows; errors: nodes; by the reason.
    """

    batch: str
    rows: NDArray[np.uint8]
    users: int
    duplicates: int
    dropped: Mapping[str, int]
    errors: Mapping[str, int]


class Shuffler:
    """A shuffler at HOST:PORT, whose certificate the authority has signed for one; it knows this side by its own.

    Use it in a `with`. Raises UserError, in one line, where a file cannot be read.
    """

    def __init__(self, address: str, *, root_certificates: Path, certificate: Path, key: Path) -> None:
        self.address = address
        try:
            context = context_for(SHUFFLER)
            context.load_verify_locations(cafile=str(root_certificates))
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError):
            raise UserError(
                f"{root_certificates}, {certificate}, {key}: are no authority's certificate, and a certificate and its "
                "key (PEM)"
            ) from None
        self._client = httpx.Client(
            base_url=f"https://{address}", verify=context, trust_env=False, timeout=_SILENT,
            headers={"Accept-Encoding": "identity", "User-Agent": "sottovoce"},
        )  # fmt: skip

    def __enter__(self) -> Shuffler:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def batch(
        self, stage: str, request: bytes, *, row_bytes: int, timeout: float, progress: Progress
    ) -> Delivered:
        """Opens a stage, or finds it open or closed as it was left, and waits until it is closed.

        request: as bytes of `mechanisms.messages.wire`. row_bytes: of a sealed row. timeout: seconds that nodes have.
        Raises UserError where the shuffler refuses, is not there for `PATIENCE` seconds, or says what it may not.
        """
        about = {"Row-Bytes": str(row_bytes), "Timeout": str(timeout)}
        self._patiently(lambda: self._sent("POST", "/v1/stages", 0, content=request, headers=about))
        said = ""
        while True:
            got = self._patiently(lambda: self._sent("GET", f"/v1/stages/{stage}", row_bytes))
            if isinstance(got, Delivered):
                return got
            now = self._table(got)
            answered, of, users = (now.get(name, 0) for name in ("answered", "asked", "users"))
            if not all(type(n) is int for n in (answered, of, users)):
                raise self._odd()
            line = f"{answered} of {of} nodes, {users:,} users"
            if line != said:
                progress(f"stage {stage}: {line}")
                said = line
            time.sleep(LOOK)

    def _patiently(self, call: Callable[[], T]) -> T:
        """What the call returns, once the shuffler is there."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return call()
            except httpx.TransportError as error:
                if (fault := _tls(error)) is not None or time.monotonic() > end:
                    raise UserError(
                        f"--shuffler {self.address}: cannot be reached ({fault or error}); its log says why"
                    ) from error
            time.sleep(AGAIN)

    def _sent(self, method: str, path: str, row_bytes: int, **content: Any) -> bytes | Delivered:
        """The body of an answer, 202; or, where a length of rows is given, a batch, 200. UserError for another one."""
        with self._client.stream(method, path, **content) as answer:
            if answer.status_code == 200 and row_bytes:
                return self._delivered(answer.iter_raw(2**20), row_bytes)
            data = self._head(answer.iter_raw(2**12), whole=True)[0]
        if answer.status_code != 202:
            said = " ".join(data[:200].decode(errors="replace").split())
            raise UserError(f"--shuffler {self.address}: refuses ({answer.status_code}): {said}")
        return data

    def _head(self, pieces: Iterator[bytes], *, whole: bool = False) -> tuple[bytes, bytes]:
        """What is before the first line's end, or all of it, and what was read behind that."""
        data = b""
        for piece in pieces:
            data += piece
            if len(data) > _SMALL and (whole or b"\n" not in data[:_SMALL]):
                raise UserError(f"--shuffler {self.address}: answers with more than can be read")
            if not whole and b"\n" in data:
                break
        head, _, behind = (data, b"", b"") if whole else data.partition(b"\n")
        return head, behind

    def _delivered(self, pieces: Iterator[bytes], row_bytes: int) -> Delivered:
        """One line of JSON, then the rows, which are read to where they stay."""
        head, behind = self._head(pieces)
        said = self._table(head)
        try:
            count = int(said["rows"])
            if int(said["row_bytes"]) != row_bytes or not 0 <= count * row_bytes <= _LARGEST:
                raise ValueError("rows of another length, or too many")
            rows, at = np.empty(count * row_bytes, np.uint8), 0
            for piece in chain([behind], pieces):
                rows[at : at + len(piece)] = np.frombuffer(piece, np.uint8)  # another length is a ValueError
                at += len(piece)
            if at != len(rows):
                raise ValueError("rows are missing")
            return Delivered(
                str(said["batch"]), rows.reshape(count, row_bytes), int(said["users"]),
                int(said["duplicates"]), _counts(said["dropped"]), _counts(said["errors"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise self._odd() from None

    def _table(self, text: bytes) -> dict[str, Any]:
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            raise self._odd() from None
        if not isinstance(said, dict):
            raise self._odd()
        return said

    def _odd(self) -> UserError:
        return UserError(f"--shuffler {self.address}: is no shuffler of this version; is it the right port?")


def _counts(table: Any) -> dict[str, int]:
    return {str(reason): int(n) for reason, n in table.items()}


def _tls(error: BaseException) -> str | None:
    """What TLS has against the other side, which no waiting mends."""
    fault = tls_error(error)
    return None if fault is None else getattr(fault, "verify_message", None) or fault.reason or "TLS"

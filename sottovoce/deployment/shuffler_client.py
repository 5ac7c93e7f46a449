"""Client of a shuffler, for the training server: a request opens a stage, and the stage returns one batch."""

from __future__ import annotations

import json
import logging
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

from client.device.https import SHUFFLER, context_for, host_and_port, tls_error
from simulations.errors import UserError

log = logging.getLogger(__name__)


#: Seconds for which an unreachable shuffler is tried again (it may be starting), seconds between tries, and seconds
#: between two checks of a stage.
PATIENCE, AGAIN, LOOK = 120.0, 1.0, 0.5
#: Longest wait for a byte, in seconds.
_SILENT = 30.0
#: Most bytes of the rows, enough for many millions of users; and of anything else.
_LARGEST, _SMALL = 2**33, 2**16

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Delivered:
    """Batch of a stage, with the shuffler's counts.

    Args:
        batch: Identity of the batch.
        rows: Sealed rows (n, L), uint8; none if the batch was discarded.
        users: Users in the batch.
        duplicates: Duplicate rows.
        dropped: Rejected rows, by reason.
        errors: Failed nodes, by reason.
    """

    batch: str
    rows: NDArray[np.uint8]
    users: int
    duplicates: int
    dropped: Mapping[str, int]
    errors: Mapping[str, int]


class Shuffler:
    """Connection to a shuffler, as a context manager. Both sides authenticate by certificates.

    The authority must have signed the shuffler's certificate for a shuffler.

    Args:
        address: HOST:PORT.
        root_certificates: Certificates of the authority.
        certificate: Own certificate (PEM).
        key: Its key (PEM).

    Raises:
        ValueError: The address or a file cannot be used. The message is one line.
    """

    def __init__(self, address: str, *, root_certificates: Path, certificate: Path, key: Path) -> None:
        self.address = address
        host_and_port(address, "--shuffler")
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
            base_url=f"https://{address}",
            verify=context,
            trust_env=False,
            timeout=_SILENT,
            headers={"Accept-Encoding": "identity", "User-Agent": "sottovoce"},
        )

    def __enter__(self) -> Shuffler:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def batch(self, stage: str, request: bytes, *, row_bytes: int, timeout: float) -> Delivered:
        """Open a stage, or continue one that was opened before, and wait until it is closed.

        Args:
            stage: Name of the stage.
            request: Request as bytes of `mechanisms.messages.wire`.
            row_bytes: Bytes of a sealed row.
            timeout: Seconds that nodes have.

        Raises:
            UserError: The shuffler refuses, is unreachable for `PATIENCE` seconds, or sends an invalid answer.
        """
        headers = {"Row-Bytes": str(row_bytes), "Timeout": str(timeout)}
        self._patiently(lambda: self._sent("POST", "/v1/stages", 0, content=request, headers=headers))
        last_line = ""
        while True:
            response = self._patiently(lambda: self._sent("GET", f"/v1/stages/{stage}", row_bytes))
            if isinstance(response, Delivered):
                return response
            progress = self._table(response)
            answered, nodes, users = (progress.get(name, 0) for name in ("answered", "asked", "users"))
            if not all(type(n) is int for n in (answered, nodes, users)):
                raise self._odd()
            line = f"{answered} of {nodes} nodes, {users:,} users"
            if line != last_line:
                log.info(f"stage {stage}: {line}")
                last_line = line
            time.sleep(LOOK)

    def _patiently(self, call: Callable[[], T]) -> T:
        """Return the result of the call, once the shuffler is reachable."""
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
        """Return the body of an answer (202), or a batch (200) if a row length is given; else raise UserError."""
        with self._client.stream(method, path, **content) as answer:
            if answer.status_code == 200 and row_bytes:
                return self._delivered(answer.iter_raw(2**20), row_bytes)
            data = self._head(answer.iter_raw(2**12), whole=True)[0]
        if answer.status_code != 202:
            text = " ".join(data[:200].decode(errors="replace").split())
            raise UserError(f"--shuffler {self.address}: refuses ({answer.status_code}): {text}")
        return data

    def _head(self, pieces: Iterator[bytes], *, whole: bool = False) -> tuple[bytes, bytes]:
        """Return the data before the first newline, or all of it, and the data behind."""
        data = b""
        for piece in pieces:
            data += piece
            if len(data) > _SMALL and (whole or b"\n" not in data[:_SMALL]):
                raise UserError(f"--shuffler {self.address}: answers with more than can be read")
            if not whole and b"\n" in data:
                break
        head, _, rest = (data, b"", b"") if whole else data.partition(b"\n")
        return head, rest

    def _delivered(self, pieces: Iterator[bytes], row_bytes: int) -> Delivered:
        """Read one line of JSON, then the rows, directly into their array."""
        head, rest = self._head(pieces)
        table = self._table(head)
        try:
            count = int(table["rows"])
            if int(table["row_bytes"]) != row_bytes or not 0 <= count * row_bytes <= _LARGEST:
                raise ValueError("rows of another length, or too many")
            rows, at = np.empty(count * row_bytes, np.uint8), 0
            for piece in chain([rest], pieces):
                rows[at : at + len(piece)] = np.frombuffer(piece, np.uint8)  # another length is a ValueError
                at += len(piece)
            if at != len(rows):
                raise ValueError("rows are missing")
            return Delivered(
                str(table["batch"]),
                rows.reshape(count, row_bytes),
                int(table["users"]),
                int(table["duplicates"]),
                _counts(table["dropped"]),
                _counts(table["errors"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise self._odd() from None

    def _table(self, text: bytes) -> dict[str, Any]:
        try:
            table = json.loads(text)
        except (ValueError, RecursionError):
            raise self._odd() from None
        if not isinstance(table, dict):
            raise self._odd()
        return table

    def _odd(self) -> UserError:
        return UserError(f"--shuffler {self.address}: is no shuffler of this version; is it the right port?")


def _counts(table: Any) -> dict[str, int]:
    return {str(reason): int(n) for reason, n in table.items()}


def _tls(error: BaseException) -> str | None:
    """Return the TLS error, which no waiting corrects."""
    fault = tls_error(error)
    return None if fault is None else getattr(fault, "verify_message", None) or fault.reason or "TLS"

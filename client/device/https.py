"""HTTPS connection to one server, which may be hostile: one trusted authority, limited answers, no redirections.

One authority signs the certificates of all parties of a deployment, and they may be on one host. So a certificate for
the host by that authority does not prove that its owner is the intended party: certificates state roles, and a client
connects only to a server of the intended role.
"""

from __future__ import annotations

import math
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import httpx

_CONNECT_SECONDS = 10.0
_SILENT_SECONDS = 30.0
#: An answer takes no longer, however slowly it trickles.
_ANSWER_SECONDS = 120.0
#: Bytes of an answer for which nothing else is stated: data in many small parts takes some 70 times its own memory.
MAX_SMALL = 2**18
_MAX_CAUSES = 16
_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_ADDRESS = re.compile(rf"(\[[0-9A-Fa-f:.]+\]|{_LABEL}(\.{_LABEL})*):([1-9][0-9]{{0,4}})", re.ASCII)
SUPERLINK, SHUFFLER, MODEL = "superlink", "shuffler", "model"


def uri_of(role: str) -> str:
    """Return the URI of a role among the subject's alternative names of a certificate (RFC 5280, 4.2.1.6)."""
    return f"urn:sottovoce:{role}"


def context_for(role: str) -> ssl.SSLContext:
    """Return a TLS context that connects to a party of that role only: TLS 1.2 or later, no trusted authority yet.

    A connection to another party fails in the handshake, before anything is sent, with ssl.SSLCertVerificationError.
    """
    context = _OfRole(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.role = role
    return context


class _OfRole(ssl.SSLContext):
    role = ""

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """Wrap a socket, and check the role of the other side."""
        wrapped = super().wrap_socket(*args, **kwargs)
        names = (wrapped.getpeercert() or {}).get("subjectAltName", ())
        if ("URI", uri_of(self.role)) not in names:
            wrapped.close()
            error = ssl.SSLCertVerificationError(1, "certificate of another party")
            error.verify_message = f"it is not a {self.role}'s; have it signed anew as one"
            raise error
        return wrapped

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Refuse memory buffers, because the certificate of the other side cannot be checked here."""
        raise ssl.SSLError("whose certificate it is cannot be looked at here")


def host_and_port(address: str, option: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of an address HOST:PORT.

    Args:
        address: The address; an IPv6 address is in brackets.
        option: Option that states the address, for the error.

    Raises:
        ValueError: It is no such address. The message is one line.
    """
    parts = _ADDRESS.fullmatch(address)
    try:
        url = httpx.URL(f"https://{address}")
    except (httpx.InvalidURL, ValueError):
        parts = None
    if parts is None or int(parts[parts.re.groups]) >= 2**16:
        raise ValueError(
            f"{option} {address[:200]}: must be HOST:PORT, without a scheme, and with an IPv6 address in brackets"
        )
    return url.host, int(parts[parts.re.groups])


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and its chain of causes."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < _MAX_CAUSES:
        chain.append(cause)
    return chain


def tls_error(error: BaseException) -> ssl.SSLError | None:
    """Return the TLS error that caused an error, if there is one."""
    return next((cause for cause in causes(error) if isinstance(cause, ssl.SSLError)), None)


class Unusable(Exception):
    """Error of an answer that is an error itself, or unusable."""


class BoundedTransport(httpx.BaseTransport):
    """HTTP transport that reads each answer up to a limit, and refuses compressed ones.

    The limit is the request's extension "limit", or it goes by the last part of the path.

    Args:
        context: TLS context of the connections.
        larger: Limits in bytes, by the last part of the path, of answers that may be larger than `MAX_SMALL`.
        seconds: An answer takes no longer, however slowly it trickles.

    Raises:
        Unusable: An answer exceeds a limit or is compressed.
    """

    def __init__(self, context: ssl.SSLContext, larger: Mapping[str, int], *, seconds: float = math.inf) -> None:
        self._inner, self._larger, self._seconds = httpx.HTTPTransport(verify=context), larger, seconds

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its answer, read up to the limit."""
        request.headers["accept-encoding"] = "identity"
        by_path = self._larger.get(request.url.path.rpartition("/")[2], MAX_SMALL)
        limit, end = request.extensions.get("limit", by_path), time.monotonic() + self._seconds
        response = self._inner.handle_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":  # it may decompress to a huge one
            response.close()
            raise Unusable("an answer is compressed")
        response.stream = _Bounded(response.stream, limit, end)
        return response

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


class _Bounded(httpx.SyncByteStream):
    def __init__(self, inner: Any, limit: int, end: float) -> None:
        self._inner, self._limit, self._end = inner, limit, end

    def __iter__(self) -> Iterator[bytes]:
        room = self._limit
        for part in self._inner:
            room -= len(part)
            if room < 0:
                raise Unusable(f"an answer has more than the {self._limit:,} bytes that are read")
            if time.monotonic() > self._end:
                raise Unusable("an answer did not end in time")
            yield part

    def close(self) -> None:
        """Close the answer."""
        self._inner.close()


class ServerError(ValueError):
    """One-line error: the server cannot be reached or verified, or gives no valid answer."""


class Server:
    """Server at https://HOST:PORT with a certificate from one authority for its role. Use it in a `with`.

    Nothing else of this machine affects the connection: no proxy, no other authority, no stored password.

    Args:
        address: https://HOST:PORT.
        root_certificates: PEM file of the authority's certificate.
        role: Role of the server that its certificate must state.

    Raises:
        ServerError: An argument cannot be used.
    """

    def __init__(self, address: str, root_certificates: Path | str, *, role: str) -> None:
        self.address, self._authority = address, root_certificates
        try:
            host_and_port(address.removeprefix("https://").removesuffix("/"), "--server")
        except ValueError:
            address = ""
        if not address.startswith("https://"):
            raise ServerError(f"{self.address[:200]}: is no address of a server; give https://HOST:PORT") from None
        try:
            context = context_for(role)
            context.load_verify_locations(cafile=str(root_certificates))
        except (OSError, ssl.SSLError):
            raise ServerError(f"{root_certificates}: cannot be read as an authority's certificate (PEM)") from None
        self._client = httpx.Client(
            base_url=address,
            transport=BoundedTransport(context, {}, seconds=_ANSWER_SECONDS),
            trust_env=False,
            timeout=httpx.Timeout(_SILENT_SECONDS, connect=_CONNECT_SECONDS),
            headers={"User-Agent": "sottovoce"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, *, limit: int) -> bytes:
        """Return the content at a path, if it takes no more than `limit` bytes.

        Raises:
            ServerError: There is no valid answer.
        """
        return self._answer("GET", path, limit)

    def post(self, path: str, body: bytes, *, limit: int) -> bytes:
        """Return the answer to a message, if it takes no more than `limit` bytes.

        Raises:
            ServerError: There is no valid answer.
        """
        return self._answer("POST", path, limit, content=body, headers={"Content-Type": "application/octet-stream"})

    def _answer(self, method: str, path: str, limit: int, **message: Any) -> bytes:
        try:
            answer = self._client.request(method, path, extensions={"limit": limit}, **message)
        except Unusable as error:
            raise ServerError(f"{self.address}: {error}") from None
        except httpx.HTTPError as error:
            raise ServerError(f"{self.address}: {self._description(error)}") from error
        if answer.status_code != 200:
            raise ServerError(f"{self.address}: answered with the status {answer.status_code}")
        return answer.content

    def _description(self, error: BaseException) -> str:
        """Return a description of the error in constant words: the library's may say anything."""
        tls = tls_error(error)
        if isinstance(tls, ssl.SSLCertVerificationError):
            return f"shows a certificate that {self._authority} does not vouch for ({tls.verify_message})"
        if tls is not None and isinstance(error, httpx.ConnectError):
            return "does not speak TLS as this client does; is it the right port?"
        if isinstance(error, httpx.TimeoutException):
            return "does not answer in time"
        if isinstance(error, httpx.ConnectError):
            reasons = (c.strerror for c in reversed(causes(error)) if isinstance(c, OSError) and c.strerror)
            return f"cannot be reached ({next(reasons, 'no way there')})"
        return "broke the connection off, or does not speak HTTP"

"""Roles of servers, stated in their certificates; a client connects only to a server of the intended role.

One authority signs the certificates of all parties of a deployment, and they may be on one host. So a certificate for
the host by that authority does not prove that its owner is the intended party.
"""

from __future__ import annotations

import ssl
from typing import Any

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

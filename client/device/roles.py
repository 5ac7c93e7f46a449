"""Which party a server is: its certificate says so, and whoever connects speaks to no other.

One authority signs the certificates of all parties of a deployment, and they may be on one host: that a certificate is
the authority's and the host's does not say that its owner is the party that was meant.
"""

from __future__ import annotations

import ssl
from typing import Any

SUPERLINK, SHUFFLER, MODEL = "superlink", "shuffler", "model"


def uri_of(role: str) -> str:
    """How a certificate names a role, among its subject's alternative names (RFC 5280, 4.2.1.6)."""
    return f"urn:sottovoce:{role}"


def context_for(role: str) -> ssl.SSLContext:
    """What connects to a party of that role and to no other: TLS 1.2 or later, trusting no authority yet.

    A connection to another party ends with the handshake, before anything is sent, by ssl.SSLCertVerificationError.
    """
    context = _OfRole(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.role = role
    return context


class _OfRole(ssl.SSLContext):
    role = ""

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        wrapped = super().wrap_socket(*args, **kwargs)
        names = (wrapped.getpeercert() or {}).get("subjectAltName", ())
        if ("URI", uri_of(self.role)) not in names:
            wrapped.close()
            error = ssl.SSLCertVerificationError(1, "certificate of another party")
            error.verify_message = f"it is not a {self.role}'s; have it signed anew as one"
            raise error
        return wrapped

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        raise ssl.SSLError("whose certificate it is cannot be looked at here")

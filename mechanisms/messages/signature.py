"""Signatures of a publisher by Ed25519 (RFC 8032). Only this file uses their library.

A user gets a publisher's public key once, from a source that they trust, and pins it when a device is installed.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_BYTES = 64


def generate_keys() -> tuple[bytes, bytes]:
    """Return a new private key and its public key, 32 bytes each, by the operating system's generator."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def public_of(private: bytes) -> bytes:
    """Return the public key of a private one.

    Raises:
        ValueError: It is no private key.
    """
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, purpose: str, data: bytes) -> bytes:
    """Return the signature of data for a purpose, 64 bytes. It does not verify for another purpose.

    Raises:
        ValueError: It is no private key.
    """
    return Ed25519PrivateKey.from_private_bytes(private).sign(_message(purpose, data))


def verified(public: bytes, purpose: str, data: bytes, signature: bytes) -> bool:
    """Return True if the owner of the private key of `public` has signed these data for this purpose."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _message(purpose, data))
    except (InvalidSignature, ValueError):
        return False
    return True


def _message(purpose: str, data: bytes) -> bytes:
    return f"sottovoce {purpose} 1".encode() + b"\0" + data

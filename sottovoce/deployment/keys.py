"""Files with one key: a public key for sealing, a publisher's signing key, or a private half."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mechanisms.messages.sealed import KEY_BYTES, key_id, public_half
from simulations.errors import UserError


def ids_of(private_keys: Iterable[bytes]) -> str:
    """Return the ids of the keys that devices seal to, in the form that a person compares."""
    return ", ".join(key_id(public_half(key)) for key in private_keys)


def read_key(path: Path) -> bytes:
    """Return the key in a file of hexadecimal digits and a newline.

    Raises:
        UserError: The file cannot be read, or holds no key.
    """
    try:
        with path.open("rb") as file:
            key = bytes.fromhex(file.read(4 * KEY_BYTES).decode().strip())
    except ValueError:
        key = b""
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if len(key) != KEY_BYTES:
        raise UserError(f"{path}: is no key to seal or to sign with, which is {2 * KEY_BYTES} hexadecimal digits")
    return key


def read_public_key(path: Path) -> bytes:
    """Return the key in a file, to be shown to others.

    Nothing in a file tells a private key from a public one, and a bundle shows its keys to everybody.

    Raises:
        UserError: The file's name is that of a private key, or it holds no key.
    """
    if path.suffix == ".key":
        raise UserError(f"{path}: is a private key by its name; give the public one, {path.with_suffix('.pub')}")
    return read_key(path)

"""Files that hold one key that releases are sealed to, or that a publisher signs by, or its private half."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mechanisms.messages.sealed import KEY_BYTES, key_id, public_half
from simulations.errors import UserError


def ids_of(private_keys: Iterable[bytes]) -> str:
    """The ids of what devices seal to, as a person compares them."""
    return ", ".join(key_id(public_half(key)) for key in private_keys)


def read_key(path: Path) -> bytes:
    """The key in a file of hexadecimal digits and a line's end. Raises UserError."""
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

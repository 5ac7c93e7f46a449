"""Name of an exported model: the hash of the content of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def file_hash(path: Path) -> str:
    """Return the SHA-256 (hex) of the content of a file.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(folder: Path | str, names: Iterable[str], kind: str) -> str:
    """Return the SHA-256 (hex) over the names and contents of these files of a folder, in this order.

    Raises:
        ValueError: A file is missing. The message begins with `kind`.
    """
    digest = hashlib.sha256()
    for name in names:
        try:
            part = file_hash(Path(folder) / name)
        except OSError:
            raise ValueError(f"{kind}: {Path(folder) / name} cannot be read") from None
        digest.update(f"{name} {part}\n".encode())
    return digest.hexdigest()

"""The name of an exported model: the hash of what is in its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def file_hash(path: Path) -> str:
    """SHA-256 (hex) of what is in a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(folder: Path | str, names: Iterable[str], kind: str) -> str:
    """SHA-256 (hex) over the names and contents of these files of a folder, in this order. Raises ValueError, which
    begins with `kind`, where one is missing."""
    whole = hashlib.sha256()
    for name in names:
        try:
            part = file_hash(Path(folder) / name)
        except OSError:
            raise ValueError(f"{kind}: {Path(folder) / name} cannot be read") from None
        whole.update(f"{name} {part}\n".encode())
    return whole.hexdigest()

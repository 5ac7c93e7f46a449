"""Who may read what a program writes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def nothing_narrowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A umask of 0, and modes that nobody narrows afterwards: what has a mode in the end was created with it."""
    before = os.umask(0)
    try:
        with monkeypatch.context() as patch:
            for name in ("chmod", "fchmod", "lchmod"):
                patch.setattr(os, name, lambda *_, **__: None, raising=False)
            patch.setattr(Path, "chmod", lambda *_, **__: None)
            yield
    finally:
        os.umask(before)


def wider(folder: Path) -> dict[str, str]:
    """The folder and what is in it, where it is not for its owner alone: 0700 of folders, 0600 of files."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode != (0o700 if path.is_dir() else 0o600):
            found[str(path.relative_to(folder))] = oct(mode)
    return found

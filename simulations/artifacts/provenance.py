"""Provenance of an artifact, beside its inputs: the project's code that can change it, and the libraries under it."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_OURS = ("client", "server", "mechanisms", "simulations")


def made_by(modules: tuple[str, ...], libraries: tuple[str, ...]) -> str:
    """Return a name, 32 letters, of the modules' code, all project code that they import, and the libraries' versions.

    It changes with every line of these. A needless repetition costs time, but a stale artifact is wrong.
    """
    lines = [_code(modules), *(f"{name} {version(name)}" for name in libraries)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


@cache
def _code(modules: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name, file in sorted(_imported(modules).items()):
        digest.update(f"{name}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _imported(modules: tuple[str, ...]) -> dict[str, Path]:
    """Return the files of project modules that these import, anywhere in them, and their own, by the modules' names."""
    entries: dict[str, Path] = {}
    names = list(modules)
    while names:
        name = names.pop()
        if name in entries or name.partition(".")[0] not in _OURS or (file := _file(name)) is None:
            continue
        entries[name] = file
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return entries


def _file(name: str) -> Path | None:
    place = _ROOT / name.replace(".", "/")
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)

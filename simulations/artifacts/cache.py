"""Cache of exported encoders and embeddings between runs.

The folder is $XDG_CACHE_HOME/sottovoce (~/.cache/sottovoce). Each entry is named by the hash of its inputs, its code
and its libraries. Entries are written under another name, renamed when they are complete on the disk, and may be
deleted at any time. A simulation owns its users' texts, so their embeddings are cached too. A device keeps no such
cache.

Embeddings are rows of float32 under 16-byte keys, in immutable segments. A segment is a folder with keys.npy, uint64
(k, 2) ascending, and values.npy, float32 (k, m) with row i under key i. It is named by the hash of its keys, so two
processes that add the same rows add one segment, and neither waits. A segment that cannot be read is removed.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.embeddings import TableEmbeddings, Tables
from client.models.encoder import Encoder
from client.store.durable import private_file
from client.store.text_column import TextColumn
from mechanisms.pieces import Text
from simulations.errors import UserError
from simulations.output.atomic import cached, made_once

log = logging.getLogger(__name__)


#: Number of texts in a segment, and between two readings of the clock.
_SEGMENT, _PIECE = 1 << 15, 1 << 11
_SECONDS_BETWEEN_LINES = 10.0
#: Subfolder of a cached entry.
_FILES = "files"
#: Root of the project, and its packages that can change an artifact.
_ROOT, _OURS = Path(__file__).parents[2], ("client", "server", "mechanisms", "simulations")
#: Libraries whose versions determine the bits of an embedding.
_LIBRARIES = ("onnxruntime", "tokenizers", "numpy")

Keys = NDArray[np.uint64]


def cache_folder() -> Path:
    """Return the cache's folder, which need not exist."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sottovoce"
    except RuntimeError:
        raise UserError("HOME: is not set, and the cache has no place; name a folder in XDG_CACHE_HOME") from None


def folder_once(kind: str, inputs: object, make: Callable[[Path], None]) -> Path:
    """Return the cached folder of a kind of artifact that is made from these inputs, told apart by their repr.

    It is complete or absent, never half-written; `make` fills a new one.
    """
    folder = cache_folder() / kind / hashlib.sha256(repr(inputs).encode()).hexdigest()[:32]
    if not folder.is_dir():
        with made_once(folder) as part:
            (part / _FILES).mkdir()
            make(part / _FILES)
    return folder / _FILES


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


class CachedEmbeddings(TableEmbeddings):
    """Embeddings of n texts in tables on the disk.

    `take` reads some of them, and `np.asarray` reads all of them, (n, m) float32.
    """

    def __getitem__(self, index: Any) -> CachedEmbeddings:
        return CachedEmbeddings(self.tables, self.rows[index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("embeddings in tables cannot be an array without a copy")
        return self.tables.take(self.rows).astype(dtype or np.float32, copy=False)


def embed(encoder: Encoder, texts: Sequence[Text]) -> CachedEmbeddings:
    """Return the embeddings of texts, in order. Each distinct text is encoded once, in this run or an earlier one.

    An embedding's bits depend on the text and the encoder alone (`client.models.encoder.Encoder`), so each is cached by
    itself, under the hash of its text. They also depend on our code and on the libraries, so each version has its own
    folder.
    """
    maker = made_by(("client.models.encoder",), _LIBRARIES)
    folder = cache_folder() / "embeddings" / f"{encoder.identity[:32]}-{maker}"
    column = TextColumn.of(texts)
    keys, first, inverse = np.unique(_keys(column), axis=0, return_index=True, return_inverse=True)
    paths, rows = _find(folder, keys, encoder.dim)
    if (rows < 0).any():
        with _one_at_a_time(folder):
            missing = np.flatnonzero(_find(folder, keys, encoder.dim)[1] < 0)  # another process may have made some
            _encode(encoder, column, first[missing], keys[missing], folder)
            paths, rows = _find(folder, keys, encoder.dim)
    if (rows < 0).any():
        raise OSError(f"{folder} loses embeddings while they are being made; is the disk sound?")
    if not paths:
        paths = (_add(folder, keys, np.empty((0, encoder.dim), np.float32)),)
    return CachedEmbeddings(Tables(paths), rows[inverse.reshape(-1)])


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait while another process encodes with the same encoder: the runs of a sweep begin with the same texts."""
    with cached(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        opened = open(folder.parent / f".{folder.name}.lock", "a")  # noqa: SIM115 - closed below
    with opened as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _encode(encoder: Encoder, column: TextColumn, places: NDArray[np.int64], keys: Keys, folder: Path) -> None:
    """Add the embeddings of the texts at some positions of the column, (k,), each under its key, (k, 2)."""
    start = last = time.monotonic()
    for begin in range(0, len(places), _SEGMENT):
        part = places[begin : begin + _SEGMENT]
        values = np.empty((len(part), encoder.dim), np.float32)
        for at in range(0, len(part), _PIECE):
            rows = part[at : at + _PIECE]
            values[at : at + _PIECE] = encoder.encode(list(column.take(rows)))
            done, now = begin + at + len(rows), time.monotonic()
            if now - last > _SECONDS_BETWEEN_LINES or done == len(places):
                log.info(f"encoded {done:,} of {len(places):,} texts, {done / max(now - start, 1e-9):,.0f}/s")
                last = now
        _add(folder, keys[begin : begin + len(part)], values)


def _keys(texts: Sequence[Text]) -> Keys:
    """Return a hash of each text, (n, 2). A pair has another hash than the joined text."""
    hashes = bytearray()
    for text in texts:
        parts = [p.encode(errors="surrogatepass") for p in ((text,) if isinstance(text, str) else text)]
        data = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        hashes += hashlib.blake2b(data, digest_size=16).digest()
    return np.frombuffer(hashes, dtype=np.uint64).reshape(-1, 2)


def _find(folder: Path, keys: Keys, width: int) -> tuple[tuple[Path, ...], NDArray[np.int64]]:
    """Return the tables, and the row of each of some distinct keys (k, 2) in their concatenation; -1 if missing."""
    rows, paths, start = np.full(len(keys), -1, np.int64), [], 0
    for segment in sorted(folder.glob("[0-9a-f]*")):
        values = segment / "values.npy"
        try:
            table = np.load(segment / "keys.npy", mmap_mode="r", allow_pickle=False)
            if table.dtype != np.uint64 or table.shape[1:] != (2,) or values.stat().st_size < 4 * width * len(table):
                raise ValueError
        except (OSError, ValueError, EOFError):
            shutil.rmtree(segment, ignore_errors=True)
            continue
        missing = np.flatnonzero(rows < 0)
        place = np.searchsorted(table[:, 0], keys[missing, 0])
        place[place == len(table)] = 0
        here = (table[place] == keys[missing]).all(axis=1) if len(table) else np.zeros(len(missing), bool)
        if here.any():
            rows[missing[here]] = start + place[here]
            paths.append(values)
            start += len(table)
    return tuple(paths), rows


def _add(folder: Path, keys: Keys, values: NDArray[np.float32]) -> Path:
    """Write the values (k, m) of distinct keys (k, 2), in ascending order of the keys, and return the table."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    keys = np.ascontiguousarray(keys[order])
    segment = folder / hashlib.sha256(keys.tobytes()).hexdigest()[:32]
    with made_once(segment) as part:
        with private_file(part / "values.npy") as file:  # nodes link to it
            np.save(file, np.ascontiguousarray(values[order], dtype="<f4"), allow_pickle=False)
        np.save(part / "keys.npy", keys, allow_pickle=False)
    return segment / "values.npy"

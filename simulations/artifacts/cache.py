"""Cache of exported encoders and embeddings between runs.

The folder is $XDG_CACHE_HOME/sottovoce (~/.cache/sottovoce). Each entry is named by the hash of its inputs, its code
and its libraries. Entries are written under another name and renamed when they are complete on the disk. They have
checksums, and may be deleted at any time. A damaged entry is found when it is used, set aside and made again. A
simulation owns its users' texts, so their embeddings are cached too. A device keeps no such cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models.embeddings import TableEmbeddings
from client.models.encoder import Encoder
from client.store.tables import Tables
from client.store.text_column import TextColumn
from simulations.artifacts.checksums import set_aside, sound, write_sums
from simulations.artifacts.provenance import made_by
from simulations.artifacts.segments import Keys, Segments
from simulations.corpora.corpus import Text
from simulations.errors import UserError
from simulations.output.atomic import cached, made_once
from simulations.progress import Progress

#: Number of texts in a segment, and between two readings of the clock.
_SEGMENT, _PIECE = 1 << 15, 1 << 11
_SECONDS_BETWEEN_LINES = 10.0
#: Number of attempts if embeddings are lost while others are made.
_TRIES = 3
#: Subfolder of a cached entry, beside its checksums.
_FILES = "files"
#: Libraries whose versions determine the bits of an embedding.
_LIBRARIES = ("onnxruntime", "tokenizers", "numpy")


def cache_folder() -> Path:
    """Return the cache's folder, which need not exist."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sottovoce"
    except RuntimeError:
        raise UserError("HOME: is not set, and the cache has no place; name a folder in XDG_CACHE_HOME") from None


def folder_once(name: str, make: Callable[[Path], None], *, progress: Progress) -> Path:
    """Return the cached folder of a name. It is complete or absent, never half-written.

    `make` fills the folder when it is missing or damaged.
    """
    folder = cache_folder() / name
    if folder.is_dir() and not sound(folder):
        set_aside(folder, progress)
    if not folder.is_dir():
        with made_once(folder) as part:
            (part / _FILES).mkdir()
            make(part / _FILES)
            write_sums(part)
    return folder / _FILES


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


def embed(encoder: Encoder, texts: Sequence[Text], *, progress: Progress) -> CachedEmbeddings:
    """Return the embeddings of texts, in order. Each distinct text is encoded once, in this run or an earlier one.

    An embedding's bits depend on the text and the encoder alone (`client.models.encoder.Encoder`), so each is cached by
    itself, under the hash of its text. They also depend on our code and on the libraries, so each version has its own
    folder.
    """
    made = made_by(("client.models.encoder",), _LIBRARIES)
    folder = cache_folder() / "embeddings" / f"{encoder.identity[:32]}-{made}"
    segments = Segments(folder, encoder.dim, progress)
    segments.compact()
    column = TextColumn.of(texts)
    keys, first, inverse = _distinct(_keys(column))
    paths, rows = segments.find(keys)
    if (rows < 0).any():
        with _one_at_a_time(folder):
            paths, rows = _completed(encoder, column, first, keys, segments, progress)
    if (rows < 0).any():
        raise OSError(f"{folder} loses embeddings while they are being made; is the disk sound?")
    if not paths:
        paths = (segments.add(keys, np.empty((0, encoder.dim), np.float32)),)
    return CachedEmbeddings(Tables(paths), rows[inverse])


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait while another process encodes with the same encoder: the runs of a sweep begin with the same texts."""
    with cached(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        opened = open(folder.parent / f".{folder.name}.lock", "a")  # noqa: SIM115 - closed below
    with opened as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _completed(
    encoder: Encoder, column: TextColumn, first: NDArray[np.int64], keys: Keys, segments: Segments, progress: Progress
) -> tuple[Any, NDArray[np.int64]]:
    """Encode the texts that are missing, and return the tables and the row of each key, (k,).

    `first` is the position of each text in the column, (k,), and `keys` are their keys, (k, 2).
    """
    paths, rows = segments.find(keys)  # another process may have been at work meanwhile
    for _ in range(_TRIES):
        if not (rows < 0).any():
            break
        missing = np.flatnonzero(rows < 0)
        _encode(encoder, column, first[missing], keys[missing], segments, progress)
        paths, rows = segments.find(keys)
    return paths, rows


def _encode(
    encoder: Encoder, column: TextColumn, places: NDArray[np.int64], keys: Keys, segments: Segments, progress: Progress
) -> None:
    """Add the embeddings of the texts at some positions of the column, (k,), each under its key, (k, 2)."""
    start = said = time.monotonic()
    for begin in range(0, len(places), _SEGMENT):
        part = places[begin : begin + _SEGMENT]
        values = np.empty((len(part), encoder.dim), np.float32)
        for at in range(0, len(part), _PIECE):
            rows = part[at : at + _PIECE]
            values[at : at + _PIECE] = encoder.encode(list(column.take(rows)))
            done, now = begin + at + len(rows), time.monotonic()
            if now - said > _SECONDS_BETWEEN_LINES or done == len(places):
                progress(f"encoded {done:,} of {len(places):,} texts, {done / max(now - start, 1e-9):,.0f}/s")
                said = now
        segments.add(keys[begin : begin + len(part)], values)


def _keys(texts: Sequence[Text]) -> Keys:
    """Return a hash of each text, (n, 2). A pair has another hash than the joined text."""
    hashes = bytearray()
    for text in texts:
        parts = [p.encode(errors="surrogatepass") for p in ((text,) if isinstance(text, str) else text)]
        said = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        hashes += hashlib.blake2b(said, digest_size=16).digest()
    return np.frombuffer(hashes, dtype=np.uint64).reshape(-1, 2)


def _distinct(keys: Keys) -> tuple[Keys, NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct keys in ascending order, the position of each, and the index of every key among them."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    new = np.ones(len(keys), bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    inverse = np.empty(len(keys), np.int64)
    inverse[order] = np.cumsum(new) - 1
    return ordered[new], order[new], inverse

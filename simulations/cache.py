"""What costs time and depends on public things alone is kept between runs: exported encoders and embeddings.

The folder is $XDG_CACHE_HOME/sottovoce (~/.cache/sottovoce). Everything in it is named by the hash of what it
was made from, is written beside and renamed when whole, and may be deleted at any time. Embeddings of *users'*
texts are in it too, because a simulation owns them; a device keeps no such cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.encoder import Encoder
from simulations.corpus import Text

Progress = Callable[[str], None]


def cache_folder() -> Path:
    """The cache's folder; it need not exist."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "sottovoce"


def folder_once(name: str, make: Callable[[Path], None]) -> Path:
    """The cached folder of that name, made by make(folder) the first time; whole or absent, never half-written."""
    final = cache_folder() / name
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}-"))
    try:
        make(scratch)
        if not final.is_dir():
            scratch.rename(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final


def embed(encoder: Encoder, texts: Sequence[Text], *, progress: Progress) -> NDArray[np.float32]:
    """Embeddings (n, m) of texts, in their order, each distinct text encoded once.

    A transformer's last bits vary with the batch a text sits in, so the distinct texts are sorted and encoded
    as one canonical list; two runs with the same texts get the same bits, whoever holds them.
    """
    distinct = sorted(set(texts), key=lambda t: t if isinstance(t, tuple) else (t,))
    name = hashlib.sha256(repr(distinct).encode()).hexdigest()

    def make(folder: Path) -> None:
        progress(f"encoding {len(distinct):,} distinct texts")
        np.save(folder / "embeddings.npy", encoder.encode(distinct))

    folder = folder_once(f"embeddings/{encoder.identity[:16]}-{name[:32]}", make)
    table = np.load(folder / "embeddings.npy", mmap_mode="r")
    place = {text: row for row, text in enumerate(distinct)}
    return np.asarray(table[[place[text] for text in texts]], dtype=np.float32)

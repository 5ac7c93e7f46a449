"""Similarity of rewritten texts to the originals: BLEU, and cosine of a sentence encoder.

Meisenbacher et al. 2024 (section 5) report both beside accuracy. They measure how much of a text is left. None
is a measure of privacy: a similar text may have been drawn, and a dissimilar one may still reveal the original.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulations.artifacts.cache import embed, folder_once, made_by
from simulations.artifacts.encoder import LIBRARIES
from simulations.corpora.rewriting import blocks
from simulations.errors import UserError

#: The encoder of the published figures (Meisenbacher et al. 2024, section 5), which reads 128 tokens of a text.
_ENCODER = "minilm"
_ROWS = 4096


@dataclass(frozen=True)
class Similarity:
    """Similarity of n pairs of texts.

    Attributes:
        texts: n.
        same: Share of identical pairs.
        bleu: BLEU of the corpus, 0 to 100, by up to four words in a row, with the rewritten text as the hypothesis
            (Papineni et al. 2002). None if no text of either side has four words.
        bleu_signature: Signature of the BLEU implementation (Post 2018, section 3).
        cosine: Mean cosine, -1 to 1; 1 for two empty texts.
        cosine_error: Standard error of the mean; None for one pair.
    """

    texts: int
    same: float
    bleu: float | None
    bleu_signature: str
    cosine: float
    cosine_error: float | None


def similarity(original: Sequence[str], rewritten: Sequence[str]) -> Similarity:
    """Return the similarity of texts and their originals, row by row.

    Raises:
        ValueError: The numbers of texts differ.
    """
    if len(original) != len(rewritten) or not len(original):
        raise ValueError(f"similarity: needs pairs of texts, got {len(original)} and {len(rewritten)}")
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU()
    score = bleu.corpus_score(list(rewritten), [list(original)])
    of_four = score.totals[-1] or bleu.corpus_score(list(original), [list(original)]).totals[-1]
    cosines = _cosines(original, rewritten)
    same = float(np.mean([a == b for a, b in zip(original, rewritten, strict=True)]))
    return Similarity(
        len(original),
        same,
        float(score.score) if of_four else None,
        str(bleu.get_signature()),
        float(cosines.mean()),
        float(cosines.std() / math.sqrt(len(cosines))) if len(cosines) > 1 else None,
    )


def of_files(original: Path, rewritten: Path, columns: Sequence[str]) -> Similarity:
    """Return the similarity of two files with the same rows, as `sanitize` reads and writes them.

    The columns of a row are joined to one text.

    Raises:
        UserError: A file cannot be read, or the rows differ.
    """
    first, second = (_texts(path, columns) for path in (original, rewritten))
    if len(first) != len(second):
        raise UserError(f"{rewritten}: has {len(second):,} rows, and {original} has {len(first):,}; give the same rows")
    if not first:
        raise UserError(f"{original}: has no rows")
    return similarity(first, second)


def _texts(path: Path, columns: Sequence[str]) -> list[str]:
    return ["\n".join(cells) for block in blocks(path, io.BytesIO(), columns, _ROWS) for cells in block.texts]


def _cosines(original: Sequence[str], rewritten: Sequence[str]) -> np.ndarray[Any, Any]:
    from client.models.encoder import Encoder

    encoder = Encoder(_encoder())
    a, b = (np.asarray(embed(encoder, texts), np.float64) for texts in (original, rewritten))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray((a * b).sum(axis=1) / np.maximum(lengths, 1e-300))


def _encoder() -> Path:
    """Return the folder of the bundled sentence encoder, which is exported once."""
    from server.checkpoint_files import fingerprint
    from server.export import export_encoder

    made_from = ["similarity", fingerprint(_ENCODER), made_by(("server.export",), LIBRARIES)]
    return folder_once("encoders", made_from, lambda folder: export_encoder(_ENCODER, folder))

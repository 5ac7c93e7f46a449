"""Is a known record among the releases? What the server sees before any model is trained on them.

A model's outputs show part of what the releases show, so an attack on models alone says little about the protocol.
For releases (z_i, y_i) of embeddings and labels, and a record of unit row u and label c, the evidence is the likelihood
ratio of "one of the n is this record's" against "none is",

    log mean_i p(z_i | u)·Pr[y_i | c] / q(z_i, y_i),

where q mixes the same law over public records (Neyman and Pearson, with public records for the population). For texts
it is the largest weighted overlap of words with any release, whatever the mechanism.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import logsumexp

from mechanisms.identity import Identity
from mechanisms.vocabulary import NOTHING
from server.attacks.likelihood import log_likelihood

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Pairs of a release and a record that are looked at together.
_ENTRIES = 2**22


def embedding_evidence(
    mechanism: Any, z: FloatArray, records: FloatArray, public: FloatArray, *,
    labels: tuple[FloatArray, IntArray, IntArray] | None = None,
) -> FloatArray:  # fmt: skip
    """The evidence (C,) for unit rows `records` (C, m') among decoded releases z (n, m').

    public: (P, m') unit rows of public records. labels: log Pr[y_i | label] of each release and label (n, K), the
    records' labels (C,) and the public ones' (P,); None where labels are not used. A mechanism that passes rows through
    gives minus the least distance. ValueError for a mechanism whose density is not known.
    """
    pieces = []
    rows = max(1, _ENTRIES // max(len(records), len(public)))
    for at in range(0, len(z), rows):
        piece = slice(at, at + rows)
        if isinstance(mechanism, Identity):
            pieces.append(-_distances(z[piece], records).min(axis=0))
            continue
        found, background = (log_likelihood(mechanism, z[piece], known) for known in (records, public))
        if labels is not None:
            law, own, others = labels
            found, background = found + law[piece][:, own], background + law[piece][:, others]
        q = logsumexp(background, axis=1) - np.log(len(public))
        pieces.append(logsumexp(found - q[:, None], axis=0))
    if isinstance(mechanism, Identity):
        return np.max(pieces, axis=0)
    evidence: FloatArray = logsumexp(pieces, axis=0) - np.log(len(z))
    return evidence


def text_evidence(released: IntArray, records: IntArray, size: int) -> FloatArray:
    """The evidence (C,) for texts (C, L) among released ones (n, L), as numbers of words below `size` or NOTHING: the
    largest cosine of their words' counts, rare words weighing more."""
    drawn, known = _counts(released, size), _counts(records, size)
    weight = np.log((1 + len(released)) / (1 + np.diff(drawn.tocsc().indptr)))
    drawn, known = (_unit(counts * weight[None, :]) for counts in (drawn, known))
    rows = max(1, _ENTRIES // len(released))
    pieces = [(known[at : at + rows] @ drawn.T).max(axis=1) for at in range(0, len(records), rows)]
    return np.concatenate([piece.toarray().ravel() for piece in pieces])


def _distances(z: FloatArray, x: FloatArray) -> FloatArray:
    square = (z * z).sum(axis=1)[:, None] + (x * x).sum(axis=1)[None] - 2 * z @ x.T
    distances: FloatArray = np.sqrt(np.maximum(square, 0.0))
    return distances


def _counts(numbers: IntArray, size: int) -> Any:
    rows, columns = np.nonzero((numbers != NOTHING) & (numbers < size))
    return csr_array((np.ones(len(rows)), (rows, numbers[rows, columns])), shape=(len(numbers), size))


def _unit(counts: Any) -> Any:
    length = np.sqrt((counts * counts).sum(axis=1))
    return csr_array(counts / np.maximum(length, 1e-12)[:, None])

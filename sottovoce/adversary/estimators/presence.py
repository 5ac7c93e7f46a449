"""Membership of a known record among the releases, which the server sees before it trains any model.

A model's outputs show only part of the information in the releases. So an attack on models alone says little about the
protocol.

For releases (z_i, y_i) of embeddings and labels, and a record of unit row u and label c, the evidence is the likelihood
ratio of "one of the n is this record's" against "none is",

  log mean_i p(z_i | u)·Pr[y_i | c] / q(z_i, y_i),

where q mixes the same density over public records (Neyman and Pearson, with public records for the population). For
texts, p is the channel's exact distribution, word by word. There q is an even mixture of public texts and of texts with
the same number of words, drawn one by one from public text. Few public texts alone would represent unseen texts poorly.
If a released word depends on more than the word in its place, no distribution is known. There the evidence is the
largest weighted overlap of words with any release.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import logsumexp

from mechanisms.identity import Identity
from mechanisms.vocabulary import NOTHING
from sottovoce.adversary.estimators.channel import LEAST, Table, ends
from sottovoce.adversary.estimators.likelihood import log_likelihood

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Pairs of a release and a record that are computed together.
_ENTRIES = 2**22


def embedding_evidence(
    mechanism: Any,
    z: FloatArray,
    records: FloatArray,
    public: FloatArray,
    *,
    labels: tuple[FloatArray, IntArray, IntArray] | None = None,
) -> FloatArray:
    """Return the evidence (C,) for records among decoded releases.

    For a mechanism that passes rows through, it is minus the least distance.

    Args:
        mechanism: Mechanism of the embeddings.
        z: Decoded releases (n, m').
        records: Unit rows (C, m').
        public: Unit rows (P, m') of public records.
        labels: log Pr[y_i | label] of each release and label (n, K), the records' labels (C,) and the public ones'
            (P,). None to ignore labels.

    Raises:
        ValueError: The mechanism's density is not known.
    """
    pieces = []
    rows = max(1, _ENTRIES // max(len(records), len(public)))
    for at in range(0, len(z), rows):
        piece = slice(at, at + rows)
        if isinstance(mechanism, Identity):
            pieces.append(-_distances(z[piece], records).min(axis=0))
            continue
        result, background = (log_likelihood(mechanism, z[piece], candidates) for candidates in (records, public))
        if labels is not None:
            law, labels_of_records, labels_of_public = labels
            result, background = result + law[piece][:, labels_of_records], background + law[piece][:, labels_of_public]
        q = logsumexp(background, axis=1) - np.log(len(public))
        pieces.append(logsumexp(result - q[:, None], axis=0))
    if isinstance(mechanism, Identity):
        return np.max(pieces, axis=0)
    evidence: FloatArray = logsumexp(pieces, axis=0) - np.log(len(z))
    return evidence


def text_evidence(table: Table, released: IntArray, records: IntArray, public: IntArray) -> FloatArray:
    """Return the evidence (C,) for texts among released texts, all as numbers of words.

    Args:
        table: Table of the words of all texts.
        released: Released texts (n, L).
        records: Texts (C, L).
        public: Public texts (P, L), for the population.

    Raises:
        ValueError: There is no public text.
    """
    if not len(public):
        raise ValueError("public texts are needed for the population")
    pieces = []
    rows = max(1, _ENTRIES // max(len(records), len(public)))
    for at in range(0, len(released), rows):
        piece = released[at : at + rows]
        pool = logsumexp(table.likelihood(public, piece), axis=1) - np.log(len(public))
        q = np.logaddexp(pool, _one_by_one(table, piece, public)) - np.log(2)
        pieces.append(logsumexp(table.likelihood(records, piece) - q[:, None], axis=0))
    evidence: FloatArray = logsumexp(pieces, axis=0) - np.log(len(released))
    return evidence


def _one_by_one(table: Table, released: IntArray, public: IntArray) -> FloatArray:
    """Return log Pr[release], (n,), for texts with the lengths and the independent words of public texts."""
    shares = np.bincount(table.of_words(public[public != NOTHING]), minlength=len(table.inputs))
    words = np.append(shares / max(1, shares.sum()), 0.0) @ np.exp(table.logs.astype(np.float64))
    result = np.log(np.maximum(words, np.exp(LEAST)))[table.of_releases(released)]
    total: FloatArray = np.zeros(len(released))
    for side in table.sides:
        release_ends, public_ends, width = ends(released[:, side]), ends(public[:, side]), side.stop - side.start
        if table.channel.text.lengths is None:
            share = (np.bincount(public_ends, minlength=width + 1) + 1.0) / (len(public_ends) + width + 1)
            mask = np.arange(width) < release_ends[:, None]
            total += np.log(share)[release_ends] + np.where(mask, result[:, side], 0.0).sum(axis=1)
        else:
            total += (
                logsumexp(table.length(release_ends, public_ends), axis=1)
                - np.log(len(public_ends))
                + result[:, side].sum(axis=1)
            )
    return total


def overlap(released: IntArray, records: IntArray, size: int) -> FloatArray:
    """Return the largest cosine (C,) of a text's word counts with those of any release; rare words weigh more.

    It needs no distribution of the release, and ignores the noise.

    Args:
        released: Released texts (n, L), as numbers of words below `size` or NOTHING.
        records: Texts (C, L), in the same form.
        size: V.
    """
    draw_counts, record_counts = _counts(released, size), _counts(records, size)
    weight = np.log((1 + len(released)) / (1 + np.diff(draw_counts.tocsc().indptr)))
    draw_counts, record_counts = (_unit(counts * weight[None, :]) for counts in (draw_counts, record_counts))
    rows = max(1, _ENTRIES // len(released))
    pieces = [(record_counts[at : at + rows] @ draw_counts.T).max(axis=1) for at in range(0, len(records), rows)]
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

"""Membership inference for single records, from the outputs of the trained model and from the releases.

**From the model.** The adversary knows a record, text and label, has the model, and queries it. All evidence is larger
for records that look trained on:

- *confidence* in the record's own label (Yeom et al. 2018);
- *confidence beside drops*: the mean confidence in the record and in copies of it without some random words. A model
  that remembers a text is sure of similar texts, and the mean reduces chance (Du et al. 2023, section 4.3, drop tokens
  at random, as Wei and Zou 2019 augment texts, without saying more);
- a *shadow network*: two layers, 64 units between them, on the output. It is trained on outputs of the adversary's own
  models, whose training sets it knows (Shokri et al. 2017; in this form Arnold et al. 2023, appendix B).

**From the releases**, which the server sees before it trains any model. A model's outputs show only part of the
information in the releases. So an attack on models alone says little about the protocol.

For releases (z_i, y_i) of embeddings and labels, and a record of unit row u and label c, the evidence is the likelihood
ratio of "one of the n is this record's" against "none is",

  log mean_i p(z_i | u)·Pr[y_i | c] / q(z_i, y_i),

where q mixes the same density over public records (Neyman and Pearson, with public records for the population). For
texts, p is the channel's exact distribution, word by word. There q is an even mixture of public texts and of texts with
the same number of words, drawn one by one from public text. Few public texts alone would represent unseen texts poorly.
If a released word depends on more than the word in its place, no distribution is known. There the evidence is the
largest weighted overlap of words with any release.

**Bound of the theorem.** A coin decides whether this record or another is among the training users' records, with all
else equal. Everything that the server sees, models included, is computed from the releases. The two cases differ in one
record's release. So for any guess, Pr[guess "member" | member] - Pr[guess "member" | not] is at most the total
variation TV of that record's release under two inputs. Balanced accuracy is at most (1 + TV)/2 (`bound`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.special import logsumexp

from mechanisms.accounting import pld
from mechanisms.arrays import BoolArray, FloatArray, IntArray
from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.vocabulary import NOTHING
from sottovoce.adversary.estimators.channel import LEAST, Table, ends
from sottovoce.adversary.estimators.vectors import log_likelihood

#: A sentence, or a pair of sentences.
Text = str | tuple[str, str]

#: Hidden units of the shadow network (Arnold et al. 2023, appendix B).
HIDDEN = 64
#: Weight decay of its training, as the precision of a Gaussian prior; number of steps; most outputs to learn from.
_DECAY, _STEPS, _ROWS = 1.0, 100, 8_000
#: Least probability; smaller ones count as this.
_LEAST = 1e-300


def confidence(log_p: FloatArray, labels: IntArray) -> FloatArray:
    """Return log p of the record's own label, from log-probabilities (n, K) and labels (n,)."""
    return log_p[np.arange(len(labels)), labels]


def without_words(text: Text, *, share: float, rng: np.random.Generator) -> Text:
    """Return the text, or each side of a pair, without some random words.

    Each word is dropped with probability `share`. A text that would lose every word keeps a random one.
    """

    def kept(side: str) -> str:
        words = side.split()
        if not words:
            return side
        mask = rng.random(len(words)) >= share
        if not mask.any():
            mask[rng.integers(len(words))] = True
        return " ".join(word for word, flag in zip(words, mask, strict=True) if flag)

    return kept(text) if isinstance(text, str) else (kept(text[0]), kept(text[1]))


def threshold(evidence: FloatArray, members: BoolArray) -> float:
    """Return the τ for which "evidence > τ" has the highest balanced accuracy on known members and others, (n,)."""
    member_count, other_count = int(members.sum()), int((~members).sum())
    order = np.argsort(evidence, kind="stable")
    values = evidence[order]
    # cut i leaves the i lowest below it
    gain = np.concatenate([[0.0], np.cumsum(np.where(members[order], -1 / member_count, 1 / other_count))])
    cuts = np.concatenate([[-np.inf], (values[1:] + values[:-1]) / 2, [np.inf]])
    gain[1:-1][values[1:] == values[:-1]] = -np.inf  # equal values cannot be separated
    return float(cuts[gain.argmax()])


def shadow_network(log_p: FloatArray, members: BoolArray, *, seed: int) -> Callable[[FloatArray], FloatArray]:
    """Train a shadow network on outputs of shadow models, and return its log-odds of membership.

    The loss is cross-entropy with a weak pull to 0, minimized by L-BFGS. Inputs are standardized log-probabilities
    (n, K), at most 8,000. The result is a function from outputs (n, K) to log-odds (n,); above 0 the guess is "member".
    """
    from sklearn.neural_network import MLPClassifier  # a second, for this attack alone
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network = MLPClassifier((HIDDEN,), solver="lbfgs", alpha=_DECAY, max_iter=_STEPS, random_state=seed)
    model = make_pipeline(StandardScaler(), network)
    rows = np.random.default_rng(seed).permutation(len(log_p))[:_ROWS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the steps are over
        model.fit(np.maximum(log_p[rows], math.log(_LEAST)), members[rows])

    def evidence(outputs: FloatArray) -> FloatArray:
        other, member = model.predict_log_proba(np.maximum(outputs, math.log(_LEAST))).T
        return member - other

    return evidence


def bound(parts: Sequence[tuple[Mechanism, int]]) -> float:
    """Return the largest balanced accuracy of any guess of a record's participation: (1 + TV)/2.

    TV comes from the exact loss distributions, composed, or from the sum of the theorems' worst cases, TV <= (e^ε -
    1)/(e^ε + 1), if that is less. It includes the samplers' numerical error.

    Args:
        parts: Mechanisms of the record's releases, each with its number of releases.
    """
    pure = math.fsum(m.guarantee.worst_case() * times for m, times in parts)
    advantage = math.tanh(min(pure, 700.0) / 2)
    losses = [(m.privacy_loss(), times) for m, times in parts]
    if all(len(cells.low) for cells, _ in losses):
        exact = losses[0][0].delta(0.0) if sum(n for _, n in losses) == 1 else pld.compose(losses).delta(0.0)
        numeric_delta = math.fsum(m.guarantee.numeric_delta * times for m, times in parts)
        numeric_delta += math.expm1(math.fsum(m.guarantee.numeric_epsilon * times for m, times in parts))
        advantage = min(advantage, exact + numeric_delta)
    return (1 + advantage) / 2


# --- LiRA


#: Number of models from which each record has its own variances (Carlini et al. 2022, section VI-B).
OWN_VARIANCE = 64
#: Least standard deviation; smaller ones count as this.
_NARROW = 1e-6


def scaled(log_p: FloatArray, labels: IntArray) -> FloatArray:
    """Return log(p_y / (1 - p_y)) of log-probabilities (n, K) and labels (n,), without cancellation."""
    rows = np.arange(len(labels))
    other_log_p = log_p.astype(np.float64, copy=True)
    other_log_p[rows, labels] = -np.inf
    return log_p[rows, labels] - np.logaddexp.reduce(other_log_p, axis=1)


def halves(records: int, models: int, *, rng: np.random.Generator) -> BoolArray:
    """Return the records that each shadow model is trained on, (models, records).

    Models come in pairs that halve the records, so every record is in half of them.
    """
    members = np.zeros((models, records), dtype=bool)
    for pair in range(0, models, 2):
        members[pair, rng.permutation(records)[: records // 2]] = True
        members[pair + 1] = ~members[pair]
    return members


def likelihood_ratio(attacked: FloatArray, shadows: FloatArray, inside: BoolArray) -> FloatArray:
    """Return the log-likelihood ratio for each record, (n,); above 0 the guess is "member".

    Scaled confidences are (n,) of the attacked model, and (S, n) of the shadow models. Each record was inside the
    training set of S/2 of them, (S, n).
    """
    ratio = np.zeros(len(attacked))
    for sign, mask in ((1.0, inside), (-1.0, ~inside)):
        count = mask.sum(axis=0)
        mean = np.where(mask, shadows, 0.0).sum(axis=0) / count
        variance = np.where(mask, (shadows - mean) ** 2, 0.0).sum(axis=0) / (count - 1)
        if len(shadows) < OWN_VARIANCE:
            variance = np.full_like(variance, variance.mean())
        deviation = np.maximum(np.sqrt(variance), _NARROW)
        ratio -= sign * (0.5 * ((attacked - mean) / deviation) ** 2 + np.log(deviation))
    return ratio


# --- evidence from the releases


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

    For a mechanism that passes rows through, it is minus the least distance. Decoded releases are (n, m'), records unit
    rows (C, m'), and public records unit rows (P, m'). Labels are log Pr[y_i | label] of each release and label (n, K),
    and those of the records (C,) and of the public ones (P,).

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
    return logsumexp(pieces, axis=0) - np.log(len(z))


def text_evidence(table: Table, released: IntArray, records: IntArray, public: IntArray) -> FloatArray:
    """Return the evidence (C,) for texts (C, L) among released texts (n, L), all as numbers of words.

    The table has the words of all texts. Public texts (P, L) stand for the population.

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
    return logsumexp(pieces, axis=0) - np.log(len(released))


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

    It needs no distribution of the release, and ignores the noise. Released texts (n, L) and texts (C, L) are numbers
    of words below V, or NOTHING.
    """
    draw_counts, record_counts = _counts(released, size), _counts(records, size)
    weight = np.log((1 + len(released)) / (1 + np.diff(draw_counts.tocsc().indptr)))
    draw_counts, record_counts = (_unit(counts * weight[None, :]) for counts in (draw_counts, record_counts))
    rows = max(1, _ENTRIES // len(released))
    pieces = [(record_counts[at : at + rows] @ draw_counts.T).max(axis=1) for at in range(0, len(records), rows)]
    return np.concatenate([piece.toarray().ravel() for piece in pieces])


def _distances(z: FloatArray, x: FloatArray) -> FloatArray:
    square = (z * z).sum(axis=1)[:, None] + (x * x).sum(axis=1)[None] - 2 * z @ x.T
    return np.sqrt(np.maximum(square, 0.0))


def _counts(numbers: IntArray, size: int) -> Any:
    rows, columns = np.nonzero((numbers != NOTHING) & (numbers < size))
    return csr_array((np.ones(len(rows)), (rows, numbers[rows, columns])), shape=(len(numbers), size))


def _unit(counts: Any) -> Any:
    length = np.sqrt((counts * counts).sum(axis=1))
    return csr_array(counts / np.maximum(length, 1e-12)[:, None])

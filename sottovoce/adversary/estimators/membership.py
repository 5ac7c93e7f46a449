"""Membership inference for single records, from the outputs of the trained model.

The adversary knows a record, text and label, has the model, and queries it. All evidence is larger for records that
look trained on:

- *confidence* in the record's own label (Yeom et al. 2018);
- *confidence beside drops*: the mean confidence in the record and in copies of it without some random words. A model
  that remembers a text is sure of similar texts, and the mean reduces chance (Du et al. 2023, section 4.3, drop tokens
  at random, as Wei and Zou 2019 augment texts, without saying more);
- a *shadow network*: two layers, 64 units between them, on the output. It is trained on outputs of the adversary's own
  models, whose training sets it knows (Shokri et al. 2017; in this form Arnold et al. 2023, appendix B).

**Bound of the theorem.** A coin decides whether this record or another is among the training users' records, with all
else equal. Everything that the server sees, models included, is computed from the releases. The two cases differ in one
record's release. So for any guess, Pr[guess "member" | member] - Pr[guess "member" | not] is at most the total
variation TV of that record's release under two inputs. Balanced accuracy is at most (1 + TV)/2 (`bound`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting import pld
from mechanisms.mechanism import Mechanism

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
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
    label_log_p: FloatArray = log_p[np.arange(len(labels)), labels]
    return label_log_p


def without_words(text: Text, *, share: float, rng: np.random.Generator) -> Text:
    """Return the text, or each side of a pair, without some random words.

    A text that would lose every word keeps a random one.

    Args:
        text: Text or pair.
        share: Probability 0..1 with which each word is dropped.
        rng: Generator of the drops.
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
    """Return the τ for which "evidence > τ" has the highest balanced accuracy on known members and others.

    Args:
        evidence: Evidence (n,) of each record.
        members: Whether each record is a member, (n,).
    """
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

    The loss is cross-entropy with a weak pull to 0, minimized by L-BFGS. Inputs are standardized log-probabilities.

    Args:
        log_p: Outputs (n, K), of which at most 8,000 are used.
        members: Whether the model was trained on that record, (n,).
        seed: Seed of the weights and the choice of outputs.

    Returns:
        A function from outputs (n, K) to log-odds (n,); above 0 the guess is "member".
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
        difference: FloatArray = member - other
        return difference

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
    result: FloatArray = log_p[rows, labels] - np.logaddexp.reduce(other_log_p, axis=1)
    return result


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

    Args:
        attacked: Scaled confidences (n,) of the attacked model.
        shadows: Scaled confidences (S, n) of the shadow models.
        inside: Whether each model was trained on each record, (S, n); S/2 of them for each record.
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

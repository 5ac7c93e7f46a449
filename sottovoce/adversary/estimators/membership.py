"""Was this record trained on? Guesses from what the trained model says about it.

The adversary knows a record, text and label, has the model, and asks it. All evidence is larger for records that look
trained on:

- *confidence* in the record's own label (Yeom et al. 2018);
- *entropy* of the output (Shokri et al. 2017), and *modified entropy*, which counts certainty in the wrong label
  against membership (Song and Mittal 2021, "Systematic evaluation of privacy risks of machine learning models");
- *confidence beside drops*: the mean of that in the record and in copies of it that lack words at random. A model that
  remembers a text is sure of what is near it, and one answer's luck averages out (Du et al. 2023, section 4.3, drop
  tokens at random, as Wei and Zou 2019 augment texts, without saying more);
- a *shadow network*: two layers, 64 units between them, on the output, trained on outputs of models of the adversary's
  own making, whose training sets it knows (Shokri et al. 2017; in this form Arnold et al. 2023, appendix B).

**What the theorem allows.** A coin is tossed: among the training users' records is this one, or another in its place,
all else alike. What the server sees, models included, is computed from the releases, and the two worlds differ in one
record's. So whatever the guess, Pr[guess "member" | member] - Pr[guess "member" | not] is at most the total variation
TV of that record's release under two inputs, and balanced accuracy at most (1 + TV)/2 (`bound`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from mechanisms.accounting import pld
from mechanisms.mechanism import Mechanism

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
#: A sentence, or a pair of them.
Text = str | tuple[str, str]

#: Units of the shadow network's hidden layer (Arnold et al. 2023, appendix B).
HIDDEN = 64
#: Pull of its weights to 0, as the precision of a Gaussian prior; steps of its training; outputs that it learns from.
_DECAY, _STEPS, _ROWS = 1.0, 100, 8_000
#: Probabilities below this count as this.
_LEAST = 1e-300


def confidence(log_p: FloatArray, labels: IntArray) -> FloatArray:
    """log p of the record's own label, from log-probabilities (n, K) and labels (n,)."""
    own: FloatArray = log_p[np.arange(len(labels)), labels]
    return own


def without_words(text: Text, *, share: float, rng: np.random.Generator) -> Text:
    """The text, or each side of a pair, without each of its words with probability `share`, 0..1, but never without
    all: one that loses every word keeps a random one."""
    if not isinstance(text, str):
        first, second = text
        return without_words(first, share=share, rng=rng), without_words(second, share=share, rng=rng)
    words = text.split()
    if not words:
        return text
    kept = rng.random(len(words)) >= share
    if not kept.any():
        kept[rng.integers(len(words))] = True
    return " ".join(word for word, stays in zip(words, kept, strict=True) if stays)


def entropy(log_p: FloatArray) -> FloatArray:
    """Σ p·log p of the output (n, K): the entropy with its sign turned."""
    found: FloatArray = (np.exp(log_p) * log_p).sum(axis=1)
    return found


def modified_entropy(log_p: FloatArray, labels: IntArray) -> FloatArray:
    """(1 - p_y)·log p_y + Σ_{k≠y} p_k·log(1 - p_k): the modified entropy of Song and Mittal with its sign turned."""
    p = np.exp(log_p)
    rows = np.arange(len(labels))
    others = np.ones_like(p, dtype=bool)
    others[rows, labels] = False
    rest = np.where(others, p, 0.0)
    # 1 - p_k is the sum of the others, which does not cancel where p_k is nearly 1
    without = np.log(np.maximum(p.sum(axis=1, keepdims=True) - p, _LEAST))
    found: FloatArray = rest.sum(axis=1) * log_p[rows, labels] + (rest * without).sum(axis=1)
    return found


def threshold(evidence: FloatArray, members: BoolArray) -> float:
    """The τ for which "evidence > τ" tells the known members (n,) from the known others with the highest balanced
    accuracy. ValueError unless there are both."""
    inside, outside = int(members.sum()), int((~members).sum())
    if not inside or not outside:
        raise ValueError("threshold: members and others are needed to choose it by")
    order = np.argsort(evidence, kind="stable")
    values = evidence[order]
    # cut i leaves the i lowest below it
    gain = np.concatenate([[0.0], np.cumsum(np.where(members[order], -1 / inside, 1 / outside))])
    cuts = np.concatenate([[-np.inf], (values[1:] + values[:-1]) / 2, [np.inf]])
    gain[1:-1][values[1:] == values[:-1]] = -np.inf  # equal values cannot be told apart
    return float(cuts[gain.argmax()])


@dataclass(frozen=True, eq=False)
class ShadowNetwork:
    """logit Pr[member | output] = relu(x·W1 + b1)·w2 + b2 of standardized log-probabilities x (n, K)."""

    centre: FloatArray
    scale: FloatArray
    weights: tuple[FloatArray, FloatArray, FloatArray, FloatArray]

    @classmethod
    def fitted(cls, log_p: FloatArray, members: BoolArray, *, rng: np.random.Generator) -> ShadowNetwork:
        """From outputs of shadow models (n, K) and whether they were trained on that record (n,): cross-entropy, a weak
        pull to 0, L-BFGS from random weights; at most 8,000 outputs are used."""
        chosen = rng.permutation(len(log_p))[:_ROWS]
        x, y = np.maximum(log_p[chosen], math.log(_LEAST)), members[chosen].astype(np.float64)
        centre, scale = x.mean(axis=0), x.std(axis=0) + 1e-12
        x = (x - centre) / scale
        classes = x.shape[1]
        shapes = ((classes, HIDDEN), (HIDDEN,), (HIDDEN,), (1,))
        ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        start = np.concatenate([
            rng.standard_normal(classes * HIDDEN) * math.sqrt(2 / classes), np.zeros(HIDDEN),
            rng.standard_normal(HIDDEN) * math.sqrt(1 / HIDDEN), np.zeros(1),
        ])  # fmt: skip

        def apart(flat: FloatArray) -> list[FloatArray]:
            return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True)]

        def objective(flat: FloatArray) -> tuple[float, FloatArray]:
            w1, b1, w2, b2 = apart(flat)
            hidden = x @ w1 + b1
            lit = np.maximum(hidden, 0.0)
            logit = lit @ w2 + b2
            wrong = expit(logit) - y
            back = np.outer(wrong, w2) * (hidden > 0)
            gradient = np.concatenate([(x.T @ back).ravel(), back.sum(axis=0), lit.T @ wrong, [wrong.sum()]])
            loss = float((np.logaddexp(0.0, logit) - y * logit).sum()) + 0.5 * _DECAY * float(flat @ flat)
            return loss / len(x), (gradient + _DECAY * flat) / len(x)

        found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
        w1, b1, w2, b2 = apart(found.x)
        return cls(centre, scale, (w1, b1, w2, b2))

    def evidence(self, log_p: FloatArray) -> FloatArray:
        """Log-odds of membership (n,) of outputs (n, K); above 0 the guess is "member"."""
        w1, b1, w2, b2 = self.weights
        x = (np.maximum(log_p, math.log(_LEAST)) - self.centre) / self.scale
        found: FloatArray = np.maximum(x @ w1 + b1, 0.0) @ w2 + b2
        return found


def bound(parts: Sequence[tuple[Mechanism, int]]) -> float:
    """The largest balanced accuracy of any guess whether a record took part that releases by these mechanisms, each its
    number of times: (1 + TV)/2, TV from the exact loss distributions composed, or from the theorems' worst cases added,
    TV <= (e^ε - 1)/(e^ε + 1), if that is less. What the samplers may be off by is in it."""
    pure = math.fsum(m.guarantee.worst_case() * times for m, times in parts)
    apart = math.tanh(min(pure, 700.0) / 2)
    losses = [(m.privacy_loss(), times) for m, times in parts]  # type: ignore[attr-defined]
    if all(len(cells.low) for cells, _ in losses):
        exact = losses[0][0].delta(0.0) if sum(n for _, n in losses) == 1 else pld.compose(losses).delta(0.0)
        off = math.fsum(m.guarantee.numeric_delta * times for m, times in parts)
        off += math.expm1(math.fsum(m.guarantee.numeric_epsilon * times for m, times in parts))
        apart = min(apart, exact + off)
    return (1 + apart) / 2

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
    own: FloatArray = log_p[np.arange(len(labels)), labels]
    return own


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
        stay = rng.random(len(words)) >= share
        if not stay.any():
            stay[rng.integers(len(words))] = True
        return " ".join(word for word, stays in zip(words, stay, strict=True) if stays)

    return kept(text) if isinstance(text, str) else (kept(text[0]), kept(text[1]))


def threshold(evidence: FloatArray, members: BoolArray) -> float:
    """Return the τ for which "evidence > τ" has the highest balanced accuracy on known members and others.

    Args:
        evidence: Evidence (n,) of each record.
        members: Whether each record is a member, (n,).

    Raises:
        ValueError: Members or others are missing.
    """
    inside, outside = int(members.sum()), int((~members).sum())
    if not inside or not outside:
        raise ValueError("threshold: members and others are needed to choose it by")
    order = np.argsort(evidence, kind="stable")
    values = evidence[order]
    # cut i leaves the i lowest below it
    gain = np.concatenate([[0.0], np.cumsum(np.where(members[order], -1 / inside, 1 / outside))])
    cuts = np.concatenate([[-np.inf], (values[1:] + values[:-1]) / 2, [np.inf]])
    gain[1:-1][values[1:] == values[:-1]] = -np.inf  # equal values cannot be separated
    return float(cuts[gain.argmax()])


@dataclass(frozen=True, eq=False)
class ShadowNetwork:
    """Shadow network: logit Pr[member | output] = relu(x·W1 + b1)·w2 + b2 of standardized log-probabilities x (n, K).

    Args:
        centre: Mean of the log-probabilities.
        scale: Their standard deviation.
        weights: W1, b1, w2 and b2.
    """

    centre: FloatArray
    scale: FloatArray
    weights: tuple[FloatArray, FloatArray, FloatArray, FloatArray]

    @classmethod
    def fitted(cls, log_p: FloatArray, members: BoolArray, *, rng: np.random.Generator) -> ShadowNetwork:
        """Train a network on outputs of shadow models.

        The loss is cross-entropy with a weak pull to 0, minimized by L-BFGS from random weights.

        Args:
            log_p: Outputs (n, K), of which at most 8,000 are used.
            members: Whether the model was trained on that record, (n,).
            rng: Generator of the weights and the choice of outputs.
        """
        chosen = rng.permutation(len(log_p))[:_ROWS]
        x, y = np.maximum(log_p[chosen], math.log(_LEAST)), members[chosen].astype(np.float64)
        centre, scale = x.mean(axis=0), x.std(axis=0) + 1e-12
        x = (x - centre) / scale
        classes = x.shape[1]
        shapes = ((classes, HIDDEN), (HIDDEN,), (HIDDEN,), (1,))
        ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        start = np.concatenate(
            [
                rng.standard_normal(classes * HIDDEN) * math.sqrt(2 / classes),
                np.zeros(HIDDEN),
                rng.standard_normal(HIDDEN) * math.sqrt(1 / HIDDEN),
                np.zeros(1),
            ]
        )

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

        result = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
        w1, b1, w2, b2 = apart(result.x)
        return cls(centre, scale, (w1, b1, w2, b2))

    def evidence(self, log_p: FloatArray) -> FloatArray:
        """Return the log-odds of membership (n,) of outputs (n, K); above 0 the guess is "member"."""
        w1, b1, w2, b2 = self.weights
        x = (np.maximum(log_p, math.log(_LEAST)) - self.centre) / self.scale
        result: FloatArray = np.maximum(x @ w1 + b1, 0.0) @ w2 + b2
        return result


def bound(parts: Sequence[tuple[Mechanism, int]]) -> float:
    """Return the largest balanced accuracy of any guess of a record's participation: (1 + TV)/2.

    TV comes from the exact loss distributions, composed, or from the sum of the theorems' worst cases, TV <= (e^ε -
    1)/(e^ε + 1), if that is less. It includes the samplers' numerical error.

    Args:
        parts: Mechanisms of the record's releases, each with its number of releases.
    """
    pure = math.fsum(m.guarantee.worst_case() * times for m, times in parts)
    apart = math.tanh(min(pure, 700.0) / 2)
    losses = [(m.privacy_loss(), times) for m, times in parts]
    if all(len(cells.low) for cells, _ in losses):
        exact = losses[0][0].delta(0.0) if sum(n for _, n in losses) == 1 else pld.compose(losses).delta(0.0)
        off = math.fsum(m.guarantee.numeric_delta * times for m, times in parts)
        off += math.expm1(math.fsum(m.guarantee.numeric_epsilon * times for m, times in parts))
        apart = min(apart, exact + off)
    return (1 + apart) / 2

"""Personal head: the global model's probabilities, corrected by one user's own labelled records on their device.

Nothing of it is released: it is fitted and used on the device, from a model that everybody receives and from records
that stay there. So it costs no privacy. The server does not learn whether a device has one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: Candidate factors of the global logits, candidate ridges of the correction, and most records to learn from.
FACTORS, RIDGES, MOST = (1.0, 3.0, 10.0), (1.0, 3.0, 10.0, 30.0), 200


@dataclass(frozen=True, eq=False)
class PersonalHead:
    """Correction of a global model for one user.

    The probability of class k is that of the global model plus Σ_i k(x, x_i) α_ik, with the kernel
    k(x, x') = 1 + cos(x, x'). The constant learns how often the user has each class, the cosine what their texts are
    like.

    Attributes:
        rows: (n, m) unit rows of the user's own records.
        weights: (n, K) α; all 0 if the records do not show that a correction helps.
        factor: Factor of the global logits.
    """

    rows: FloatArray
    weights: FloatArray
    factor: float

    @property
    def corrects(self) -> bool:
        """Return True if the head differs from the global one."""
        return bool(self.weights.any())

    def scores(self, h: NDArray[np.floating], logits: FloatArray) -> FloatArray:
        """Return corrected probabilities (k, K), whose largest is the class.

        They sum to 1, and one may be below 0.

        Args:
            h: Embeddings (k, m), centred as in `fit`.
            logits: Logits (k, K) of the global model.
        """
        found: FloatArray = _softmax(self.factor * logits) + (1 + _unit(h) @ self.rows.T) @ self.weights
        return found


def fit(h: NDArray[np.floating], logits: FloatArray, labels: NDArray[np.int64]) -> PersonalHead:
    """Return the head that combines a global model with a user's own records, the last MOST of them.

    α solves kernel ridge regression of the residuals e = onehot(y) - p: α = (K + λ1)^-1 e. Without record i its value
    at i is e_i - (e_i - ê_i)/(1 - H_ii), H = K(K + λ1)^-1, exactly. By these, λ and the factor of the logits have the
    least squared error of probabilities. If the best correction is not better than the best factor alone by more than
    the standard error of their difference over the records, there is no correction. With few records that is usual.

    Args:
        h: Embeddings (n, m) of the user's records, oldest first, less the mean of public ones.
        logits: Logits (n, K) of the global model for them.
        labels: Labels (n,) of 0..K-1.

    Raises:
        ValueError: Shapes do not fit, or a label is outside.

    Source: Rasmussen and Williams 2006, section 5.4.2, for the values without a record.
    """
    n, classes = logits.shape
    if len(h) != n or labels.shape != (n,) or (n and not 0 <= labels.min() <= labels.max() < classes):
        raise ValueError(f"personal head: {len(h)} embeddings, {n} logits and {len(labels)} labels do not fit")
    h, logits, labels = h[-MOST:], logits[-MOST:], labels[-MOST:]
    n, rows, truth = len(h), _unit(h), np.eye(classes)[labels]
    kernel = 1 + rows @ rows.T
    plain = {factor: ((truth - _softmax(factor * logits)) ** 2).sum(axis=1) for factor in FACTORS}
    factor = min(plain, key=lambda each: float(plain[each].sum()))
    none = PersonalHead(rows, np.zeros((n, classes)), factor)
    if n < 2:
        return none
    best, least, chosen = none, plain[factor], float(plain[factor].sum())
    for each in FACTORS:
        residuals = truth - _softmax(each * logits)
        for ridge in RIDGES:
            inverse = np.linalg.inv(kernel + ridge * np.eye(n))
            # e - ê = λ(K + λ1)^-1 e and 1 - H_ii = λ((K + λ1)^-1)_ii, so that the error without record i is their ratio
            weights = inverse @ residuals
            errors = ((weights / np.diag(inverse)[:, None]) ** 2).sum(axis=1)
            if errors.sum() < chosen:
                best, least, chosen = PersonalHead(rows, weights, each), errors, float(errors.sum())
    gain = plain[factor] - least
    return best if gain.mean() > gain.std(ddof=1) / np.sqrt(n) else none


def _unit(h: NDArray[np.floating]) -> FloatArray:
    """Return unit rows; a row without a direction is 0."""
    centred = np.asarray(h, np.float64)
    length = np.sqrt((centred * centred).sum(axis=1, keepdims=True))
    found: FloatArray = np.divide(centred, length, out=np.zeros_like(centred), where=length > 1e-12)
    return found


def _softmax(logits: FloatArray) -> FloatArray:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: FloatArray = odds / odds.sum(axis=1, keepdims=True)
    return found

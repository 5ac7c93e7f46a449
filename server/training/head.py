"""Training of M2 and the head on users' releases. This is post-processing and costs no privacy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.projection import softmax
from server.maps import Maps

#: Strength of the pull towards the given maps: a Gaussian prior of this precision on every weight. It decides the
#: result for a few dozen rows, and does not matter from a few thousand on.
PULL = 10.0
ITERATIONS = 500


def train_head(
    maps: Maps,
    z: NDArray[np.float64],
    y: NDArray[np.int64],
    *,
    label_transition: NDArray[np.float64] | None = None,
    pull: float = PULL,
) -> Maps:
    """Return the same mean and M1, with M2 and head fitted to releases and released labels.

    The loss is the likelihood of the released labels, with the true labels summed out (forward correction, Patrini et
    al. 2017). So it is consistent under randomized response of any ε, with priors too.

    M2 and head have nothing between them, so the loss sees their product alone. L-BFGS fits the product. It starts from
    the given maps, and a weak pull keeps it near them. The head is then solved for the product; M2's rows stay. 200,000
    rows take seconds. Nothing is random.

    Args:
        maps: Maps that training starts from.
        z: Decoded releases (n, m').
        y: Released labels (n,).
        label_transition: (n, K), for row i and class k the probability of the released y[i] if k is the true class.
            None if the labels are true.
        pull: Strength of the pull towards the given maps.

    Raises:
        ValueError: Shapes do not fit, a label is out of range, or a row is impossible for all classes.
    """
    z = np.asarray(z, dtype=np.float64)
    y = np.asarray(y, dtype=np.int64)
    n, classes = len(z), maps.classes
    if z.ndim != 2 or z.shape[1] != maps.dim or y.shape != (n,):
        raise ValueError(f"training: releases {z.shape} and labels {y.shape} do not fit m' = {maps.dim}")
    if not n:
        return maps
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(f"training: released labels must be 0 to {classes - 1}")
    log = log_likelihood(np.eye(classes)[y] if label_transition is None else label_transition, n, classes)
    design = np.hstack([z, np.ones((n, 1))])
    weight, bias = maps.folded()
    start = np.vstack([weight, bias]).astype(np.float64)

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        w = flat.reshape(start.shape)
        logits = design @ w
        prior, normal = _softmax(logits)
        posterior, evidence = _softmax(logits + log)
        away = w - start
        loss = float((normal - evidence).sum()) + 0.5 * pull * float((away * away).sum())
        return loss / n, ((design.T @ (prior - posterior) + pull * away) / n).ravel()

    optimum = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS})
    fitted = optimum.x.reshape(start.shape)
    m2 = maps.m2.astype(np.float64)
    # the least change of the head that makes M2 @ head the fitted product
    head = maps.head_w + np.linalg.pinv(m2) @ (fitted[:-1] - m2 @ maps.head_w)
    return Maps(maps.mean, maps.m1, maps.m2, head, fitted[-1])


def log_transition(
    label: Mechanism, y: NDArray[np.int64], *, classes: int, z: NDArray[np.float64] | None = None, prior: Any = None
) -> NDArray[np.float64]:
    """Return log P[released label y | true class c] for each row and class, (n, K).

    It is public, because y and z were released. A label in clear has no noise: its values are zeros.

    Args:
        label: Mechanism of the labels.
        y: Released labels (n,).
        classes: K.
        z: Released embeddings (n, m'), from which the prior is computed.
        prior: (weights, bias), for a mechanism that needs one.
    """
    log_prob: Any = getattr(label, "log_prob", None)
    columns, extra = [], {}
    if prior is not None:
        assert z is not None
        extra = {"prior": softmax(z, *prior)}
    for c in range(classes):
        truth = np.full(len(y), c, np.int64)
        columns.append(np.zeros(len(y)) if isinstance(label, Identity) else log_prob(y, truth, **extra))
    return np.stack(columns, axis=1)


def log_likelihood(transition: NDArray[np.float64], rows: int, classes: int) -> NDArray[np.float64]:
    """Return the log likelihood of each class for each released label, float64, -inf at 0.

    Args:
        transition: Likelihoods (rows, classes).
        rows: Number of rows.
        classes: K.

    Raises:
        ValueError: The shape differs, or a row is no likelihood: a value is below 0, or none is above 0.
    """
    likelihood = np.asarray(transition, dtype=np.float64)
    if likelihood.shape != (rows, classes):
        raise ValueError(f"training: label_transition {likelihood.shape} must be {(rows, classes)}")
    if not (likelihood >= 0).all() or not (likelihood.max(axis=1) > 0).all():
        raise ValueError("training: a row of label_transition is not a likelihood")
    with np.errstate(divide="ignore"):
        log: NDArray[np.float64] = np.log(likelihood)
    return log


def _softmax(logits: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return probabilities (n, K) and the log of their normalizer (n,)."""
    top = logits.max(axis=1, keepdims=True)
    mass = np.exp(logits - top)
    total = mass.sum(axis=1, keepdims=True)
    return mass / total, (top + np.log(total))[:, 0]

"""Arms of the protocol `centralised`: a model of all texts and labels in clear, as an upper reference.

It is a logistic regression on the encoder's whole output, without maps and without noise. No user is queried: its
server has all texts and labels. If a private arm, or a reference with maps, is far below it, noise is not the only
loss.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from server.protocols.protocol import Public
from server.protocols.references import CENTRALISED
from simulations.experiment import Arm
from simulations.experiment.guarantees import Promise
from simulations.experiment.result import ArmResult
from simulations.experiment.sections import Data
from simulations.run.accuracy import score
from simulations.run.arm import Finished
from simulations.run.evaluation import Answers, Scored, guessed, measures, on_device
from simulations.run.prepare import Held, Prepared

log = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]

#: Candidate penalties, in mean squared lengths of centred rows; largest number of rows to try them on; share of these
#: that is held out; and number of L-BFGS steps.
PENALTIES, MOST_TRIED, HELD_OUT, STEPS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4), 20_000, 0.2, 300
STATEMENT = "no protection: the server has every text and label"


@dataclass(frozen=True, eq=False)
class Linear:
    """Linear classifier of embeddings (n, m): weights (m, K), bias (K,) and mean (m,)."""

    mean: FloatArray
    weight: FloatArray
    bias: FloatArray

    def scores(self, h: NDArray[np.floating]) -> FloatArray:
        """Return the logits (n, K) of the rows h (n, m)."""
        logits: FloatArray = (np.asarray(h, np.float64) - self.mean) @ self.weight + self.bias
        return logits


def logistic_regression(h: NDArray[np.floating], y: NDArray[np.int64], *, classes: int, seed: int) -> Linear:
    """Return the weights of least cross-entropy on rows h (n, m) with labels y (n,) of 0..K-1.

    The penalty on squared weights is the one of PENALTIES that is best on a fifth of the rows, held out by `seed`. Then
    the model is fitted to all rows. It is deterministic.

    Raises:
        ValueError: There are no rows.
    """
    if not len(h):
        raise ValueError("logistic regression: there are no rows")
    mean = np.asarray(h, np.float64).mean(axis=0)
    x = np.asarray(h, np.float64) - mean
    scale = float((x * x).sum() / len(x)) or 1.0
    order = np.random.default_rng(seed).permutation(len(x))[:MOST_TRIED]
    validation, kept = np.split(order, [max(1, round(HELD_OUT * len(order)))])
    losses, at = [], np.zeros((x.shape[1] + 1, classes))
    for penalty in PENALTIES if len(kept) else ():  # each starts from the last, which is nearer than 0
        at = _fitted(x[kept], y[kept], at, penalty * scale)
        losses.append(_loss(x[validation], y[validation], at))
    best = PENALTIES[int(np.argmin(losses))] if losses else PENALTIES[0]
    result = _fitted(x, y, np.zeros_like(at), best * scale)
    return Linear(mean, result[:-1], result[-1])


def _fitted(x: FloatArray, y: NDArray[np.int64], start: FloatArray, penalty: float) -> FloatArray:
    """Return the weights and, in the last row, the bias, (m + 1, K). The bias has no penalty."""
    n, wanted = len(x), np.arange(len(x))

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        w = flat.reshape(start.shape)
        chances, logs = _softmax(x @ w[:-1] + w[-1])
        loss = -float(logs[wanted, y].mean()) + penalty / 2 * float((w[:-1] ** 2).sum())
        chances[wanted, y] -= 1.0
        slope = np.vstack([x.T @ chances / n + penalty * w[:-1], chances.mean(axis=0)])
        return loss, slope.ravel()

    result = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    fitted: FloatArray = result.x.reshape(start.shape)
    return fitted


def _loss(x: FloatArray, y: NDArray[np.int64], w: FloatArray) -> float:
    return -float(_softmax(x @ w[:-1] + w[-1])[1][np.arange(len(x)), y].mean())


def _softmax(logits: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return probabilities and their logarithms, (n, K)."""
    logs = logits - logits.max(axis=1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    return np.exp(logs), logs


@dataclass(frozen=True)
class CentralisedArm:
    """Arm that is trained on the users' and the public texts and labels, and scored on clean test sentences."""

    arm: Arm
    data: Data
    prepared: Prepared
    seed: int

    def run(self, users: object) -> Finished:
        """Train and score the arm, as `simulations.run.arm.ArmRun.run` does, without querying users."""
        del users
        start = time.perf_counter()
        public, held, _ = self.prepared
        log.info(f"{self.arm.name}: training on every text as it is")
        h, y = _rows(public, held)
        with threadpool_limits(1, user_api="blas"):
            model = logistic_regression(h, y, classes=len(public.classes), seed=self.seed)
            scores = model.scores(np.asarray(held.test_embeddings))
        classes = scores.argmax(axis=1)
        guesses = {"sanitized": [], "on_device": guessed(held, classes)}
        answers = Answers(on_device(held, None), on_device(held, classes))
        every = Scored(scores, np.arange(len(held.test)))
        values = measures(self.data, held, seed=self.seed, sanitized=None, on_device=every)
        result = replace(self._result(h.shape[1], time.perf_counter() - start), measures=values, guessed=guesses)
        return Finished(result.scored(None, score(answers.device)), None, answers)

    def _result(self, width: int, seconds: float) -> ArmResult:
        people = self.prepared.held.holders.people
        return ArmResult(
            name=self.arm.name,
            dim=width,
            users=people,
            delivered=people,
            seconds=seconds,
            reference=True,
            way=CENTRALISED.name,
            budget=Promise(math.inf, None, STATEMENT, math.inf, math.inf),
        )


def _rows(public: Public, held: Held) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    """Return embeddings and labels of all users' texts, and of the public texts with public labels."""
    h, y = np.asarray(held.train_embeddings), held.train.labels
    if public.labels is None:
        return h, y
    mask = public.labels >= 0
    return np.concatenate([h, np.asarray(public.embeddings)[mask]]), np.concatenate([y, public.labels[mask]])

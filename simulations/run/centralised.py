"""Arms of the protocol `centralised`: a model of all texts and labels in clear, as an upper reference.

It is a logistic regression on the encoder's whole output, without maps and without noise. No user is queried: its
server has all texts and labels. If a private arm, or a reference with maps, is far below it, noise is not the only
loss.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from server.protocols.declaration import CENTRALISED
from server.protocols.protocol import Public
from simulations.experiment import Arm, Experiment
from simulations.experiment.guarantees import Promise
from simulations.experiment.result import ArmResult
from simulations.run.evaluation import Finished, Scored, evaluate
from simulations.run.prepare import Held, Prepared

log = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]

#: Candidate penalties, in mean squared lengths of centred rows; largest number of rows to try them on; share of these
#: that is held out; and number of L-BFGS steps.
PENALTIES, MOST_TRIED, HELD_OUT, STEPS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4), 20_000, 0.2, 300
STATEMENT = "no protection: the server has every text and label"


@dataclass(frozen=True, eq=False)
class Linear:
    """Regression on embeddings less their mean (m,), for K classes."""

    mean: FloatArray
    regression: LogisticRegression
    classes: int

    def scores(self, h: NDArray[np.floating]) -> FloatArray:
        """Return the log-probabilities (n, K) of the rows h (n, m); -inf of a class without a training row."""
        scores = np.full((len(h), self.classes), -np.inf)
        scores[:, self.regression.classes_] = self.regression.predict_log_proba(h - self.mean)
        return scores


def logistic_regression(h: NDArray[np.floating], y: NDArray[np.int64], *, classes: int, seed: int) -> Linear:
    """Return the model of least cross-entropy on rows h (n, m) with labels y (n,) of 0..K-1.

    The penalty on squared weights is the one of PENALTIES that is best on a fifth of the rows, held out by `seed`. Then
    the model is fitted to all rows. It is deterministic.

    Raises:
        ValueError: There are not two classes.
    """
    h = np.asarray(h, np.float64)
    mean = h.mean(axis=0)
    scale = float(((h - mean) ** 2).sum() / len(h)) or 1.0
    order = np.random.default_rng(seed).permutation(len(h))[:MOST_TRIED]
    validation, kept = np.split(order, [max(1, round(HELD_OUT * len(order)))])

    def fitted(rows: NDArray[np.int64], penalty: float) -> Linear:
        # scikit-learn has one weight vector for two classes, whose square is four times that of each of two
        weight = (2 if len(np.unique(y[rows])) == 2 else 1) / (penalty * scale * len(rows))
        regression = LogisticRegression(C=weight, max_iter=STEPS, tol=1e-5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return Linear(mean, regression.fit(h[rows] - mean, y[rows]), classes)

    def loss(penalty: float) -> float:
        return -float(fitted(kept, penalty).scores(h[validation])[np.arange(len(validation)), y[validation]].mean())

    return fitted(np.arange(len(h)), min(PENALTIES, key=loss))


@dataclass(frozen=True)
class CentralisedArm:
    """Arm that is trained on the users' and the public texts and labels, and scored on clean test sentences."""

    experiment: Experiment
    arm: Arm
    prepared: Prepared

    def run(self, users: object) -> Finished:
        """Train and score the arm, as `simulations.run.arm.ArmRun.run` does, without querying users."""
        del users
        start = time.perf_counter()
        public, held, _ = self.prepared
        log.info(f"{self.arm.name}: training on every text as it is")
        h, y = _rows(public, held)
        with threadpool_limits(1, user_api="blas"):
            model = logistic_regression(h, y, classes=len(public.classes), seed=self.experiment.seed)
            scores = model.scores(np.asarray(held.test_embeddings))
        every = Scored(scores, np.arange(len(held.test)))
        result = self._result(h.shape[1], time.perf_counter() - start)
        data, seed = self.experiment.data, self.experiment.seed
        result, answers = evaluate(result, data, held, seed=seed, sanitized=None, on_device=every)
        return Finished(result, None, answers)

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

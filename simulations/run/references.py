"""Arms whose server has every text and label: references, of which none is private.

A `centralised` arm is a logistic regression on the encoder's whole output, without maps and without noise. If a private
arm, or a reference with maps, is far below it, noise is not the only loss. An arm of the protocol `paper` is the
published procedure, without a ledger: gradients through M1 and BERT depend on raw text. It reproduces published tables.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.streams import SimulationStreams
from server.protocols.declaration import CENTRALISED
from server.protocols.protocol import Public
from server.training.public_maps import dim_of
from simulations.artifacts.encoder import pooling_of
from simulations.experiment import Arm, ArmSetup, Experiment, label_of
from simulations.experiment.guarantees import Promise
from simulations.experiment.ladder import Releases, of_run
from simulations.experiment.result import ArmResult
from simulations.progress import prefixed
from simulations.run.evaluation import Trained, predicted
from simulations.run.prepare import Held, Prepared

# Only `paper` needs torch, and imports it.

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


def centralised(experiment: Experiment, arm: Arm, prepared: Prepared) -> Trained:
    """Train an arm on the users' and the public texts and labels, and predict clean test sentences."""
    start = time.perf_counter()
    public, held, _ = prepared
    log.info(f"{arm.name}: training on every text as it is")
    h, y = _rows(public, held)
    with threadpool_limits(1, user_api="blas"):
        model = logistic_regression(h, y, classes=len(public.classes), seed=experiment.seed)
        scores = model.scores(np.asarray(held.test_embeddings))
    result = ArmResult(
        name=arm.name,
        dim=h.shape[1],
        users=held.holders.people,
        delivered=held.holders.people,
        seconds=time.perf_counter() - start,
        reference=True,
        way=CENTRALISED.name,
        budget=Promise(math.inf, None, STATEMENT, math.inf, math.inf),
    )
    predictions = {"sanitized": None, "on_device": predicted(scores, np.arange(len(held.test)))}
    return Trained(result, None, predictions)


def _rows(public: Public, held: Held) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    """Return embeddings and labels of all users' texts, and of the public texts with public labels."""
    h, y = np.asarray(held.train_embeddings), held.train.labels
    if public.labels is None:
        return h, y
    mask = public.labels >= 0
    return np.concatenate([h, np.asarray(public.embeddings)[mask]]), np.concatenate([y, public.labels[mask]])


@dataclass(frozen=True)
class _Published:
    """Pipeline (`server.model.Pipeline`) in the form from which a model's folder is written."""

    pipeline: Any
    encoder: None = None

    def save(self, folder: Path) -> None:
        self.pipeline.save_pretrained(folder)


def paper(experiment: Experiment, setup: ArmSetup, held: Held, mechanism: Mechanism) -> Trained:
    """Train an arm by the published procedure, and predict sanitized and clean test sentences."""
    from server.training.end_to_end import train_paper
    from server.training.noise import sanitize_public

    start = time.perf_counter()
    arm, test, seed, repeats = setup.arm, held.test, experiment.seed, experiment.data.test_repeats
    training, encoder = experiment.training, experiment.encoder
    labels, label = _labels(arm, held, seed)
    with prefixed(f"{arm.name}: "):
        pipeline = train_paper(
            encoder.model,
            held.train.texts,
            labels,
            mechanism=mechanism,
            dim=dim_of(mechanism),
            classes=len(test.classes),
            epochs=training.epochs,
            batch_size=training.batch_size,
            seed=seed,
            pooling=pooling_of(encoder),
            max_length=encoder.max_length,
            acknowledged=training.acknowledge_not_private,
            **training.descent,
        )
    maps = pipeline.maps()
    z = maps.project(pipeline.embed(test.texts))
    noisy = sanitize_public(mechanism, np.tile(z, (repeats, 1)), seed=seed, stage="paper-test")
    rows = np.arange(len(test))
    result = ArmResult(
        name=arm.name,
        mechanism=mechanism.name,
        label_mechanism=(arm.label or {}).get("mechanism"),
        epsilon=(arm.embedding or {}).get("epsilon"),
        label_epsilon=(arm.label or {}).get("epsilon"),
        dim=dim_of(mechanism),
        users=setup.users,
        delivered=len(held.train),
        seconds=time.perf_counter() - start,
        reference=arm.reference,
        way="paper",
        budget=_promise(mechanism, label, training.epochs),
        parameters=arm.parameters,
    )
    log.info(f"{arm.name}: accounting: what one user's releases cost, rung by rung")
    what = Releases(mechanism, label, train=(len(held.train),))
    rungs = of_run(setup, what, records=held.holders.most, test_records=None)
    predictions = {
        "sanitized": predicted(maps.logits(noisy), np.tile(rows, repeats)),
        "on_device": predicted(maps.logits(z), rows),
    }
    return Trained(replace(result, **rungs), _Published(pipeline), predictions)


def _promise(mechanism: Mechanism, label: Mechanism | None, epochs: int) -> Promise:
    embedding = mechanism.guarantee
    return Promise(
        metric_epsilon=embedding.epsilon * epochs,
        metric=embedding.metric,
        statement=(
            f"{epochs} epochs × {embedding.epsilon:g}·d_{embedding.metric} for the embeddings; "
            "∞ for the gradients, which depend on raw text"
        ),
        worst_case_epsilon=math.inf,
        label_epsilon=None if label is None else label.guarantee.worst_case(),
    )


def _labels(arm: Arm, held: Held, seed: int) -> tuple[NDArray[np.int64], Mechanism | None]:
    """Return the training labels, drawn once, and their mechanism; None if the arm names none."""
    labels, holders = held.train.labels, held.holders
    mechanism: Any = label_of(arm, len(held.train.classes))
    if isinstance(mechanism, Identity) and arm.label is None:
        return labels, None
    rng = SimulationStreams(seed).rows(holders.users, holders.records, stage="train", channel="label")
    return mechanism.sample(labels, rng=rng), mechanism

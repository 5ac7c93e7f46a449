"""An app as Flower's quickstarts have them: it trains the arrays that it is sent on its own examples, and tells the
loss and how many these are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tests.support.clients import message

FEATURES = 6


def examples(partition: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a user: 5 and more, labelled by a rule that all share, (n, 6) and (n,)."""
    rng = np.random.default_rng(partition)
    x = rng.normal(size=(5 + partition, FEATURES))
    return x, (x[:, 0] + x[:, 1] > 0).astype(np.float64)


def quickstart(mods: Sequence[Any] = ()) -> ClientApp:
    """The app; it raises, as apps do, with what it was looking at."""
    app = ClientApp(mods=[*mods])

    def loss(x: np.ndarray, y: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, float]:
        score = 1 / (1 + np.exp(-(x @ weight + bias)))
        return score - y, float(-np.mean(np.log(np.where(y > 0, score, 1 - score) + 1e-12)))

    @app.train()
    def train(asked: Message, context: Context) -> Message:
        weight, bias = (array.numpy() for array in asked.content["arrays"].values())
        x, y = examples(int(context.node_config["partition-id"]))
        if asked.content["config"].get("break"):
            raise RuntimeError(f"cannot train on {x[0].tolist()}")
        for _ in range(int(asked.content["config"].get("steps", 5))):
            error, value = loss(x, y, weight, bias)
            weight, bias = weight - 0.5 * x.T @ error / len(x), bias - 0.5 * error.mean()
        arrays = {"weight": Array(weight.astype(np.float32)), "bias": Array(np.asarray(bias, np.float32))}
        metrics = MetricRecord({"train_loss": value, "num-examples": len(x)})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=asked)

    @app.evaluate()
    def evaluate(asked: Message, context: Context) -> Message:
        weight, bias = (array.numpy() for array in asked.content["arrays"].values())
        x, y = examples(int(context.node_config["partition-id"]))
        _, value = loss(x, y, weight, bias)
        metrics = MetricRecord({"eval_loss": value, "num-examples": len(x)})
        return Message(RecordDict({"metrics": metrics}), reply_to=asked)

    @app.query()
    def query(asked: Message, context: Context) -> Message:
        x, _ = examples(int(context.node_config["partition-id"]))
        told = MetricRecord({"label": int(asked.content["config"].get("label", x[0, 0] > 0))})
        return Message(RecordDict({"metrics": told}), reply_to=asked)

    return app


def arrays(scale: float = 0.0) -> ArrayRecord:
    """A model to be sent: weights and a bias."""
    weight = np.full(FEATURES, scale, np.float32)
    return ArrayRecord({"weight": Array(weight), "bias": Array(np.full((), scale, np.float32))})


def asks(kind: str = "train", model: ArrayRecord | None = None, **config: Any) -> Message:
    """A message as FedAvg sends it."""
    content = RecordDict({"arrays": arrays() if model is None else model, "config": ConfigRecord(dict(config))})
    made = message(content)
    made.metadata._message_type = kind  # type: ignore[attr-defined]
    return made

"""Apps in the shapes of Flower's quickstarts and tutorials, rebuilt small: each is what its author would write, and
knows nothing of Sottovoce."""

from __future__ import annotations

from typing import Any

from tests.support.guarded import PROJECT

_PROJECT = (
    PROJECT.format(name="quick")
    + """seen = ""
rounds = 2
nodes = 2
strategy = "FedAvg"
"""
)
#: The ServerApp runs beside the SuperLink; it writes down everything that it was told.
_SERVER = """
import json
import numpy as np
from flwr.app import ArrayRecord, Array, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp import strategy as strategies
from quick.model import accuracy, initial

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    told = {"metrics": [], "errors": [], "updates": []}
    base = getattr(strategies, config["strategy"].partition("+")[0])

    class Watching(base):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            for reply in replies:
                if reply.has_error():
                    told["errors"].append(reply.error.reason)
                    continue
                told["metrics"].append({k: v for k, v in reply.content["metrics"].items()})
                told["updates"].append({k: a.numpy().ravel()[:4].tolist() for k, a in reply.content["arrays"].items()})
            return super().aggregate_train(server_round, replies)

    nodes = config["nodes"]
    kept = Watching(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    if config["strategy"].endswith("+clipping"):
        kept = strategies.DifferentialPrivacyServerSideFixedClipping(
            kept, noise_multiplier=0.0, clipping_norm=100.0, num_sampled_clients=nodes
        )
    result = kept.start(grid, initial(), num_rounds=config["rounds"], train_config=ConfigRecord({"lr": 0.5}))
    told["accuracy"] = accuracy({k: a.numpy() for k, a in result.arrays.items()})
    text = json.dumps(told)
    with open(config["seen"] + ".new", "w") as file:
        file.write(text)
    import os
    os.replace(config["seen"] + ".new", config["seen"])
"""
_CLIENT = """
from flwr.app import ArrayRecord, Array, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from quick.model import examples, fitted

app = ClientApp()

@app.train()
def train(msg, context):
    x, y = examples(context.node_config["partition-id"], context.node_config["data-path"])
    arrays, loss = fitted({k: a.numpy() for k, a in msg.content["arrays"].items()}, x, y, msg.content["config"]["lr"])
    print("loss-of-the-app", loss)
    record = ArrayRecord({k: Array(a) for k, a in arrays.items()})
    metrics = MetricRecord({"train_loss": float(loss), "num-examples": len(x)})
    return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=msg)

@app.evaluate()
def evaluate(msg, context):
    x, y = examples(context.node_config["partition-id"], context.node_config["data-path"])
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": len(x)})}), reply_to=msg)
"""
_DATA = """
from pathlib import Path
import numpy as np

FEATURES = 8

def world(seed, n):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, FEATURES)).astype(np.float32)
    return x, (x[:, 0] - x[:, 1] + 0.5 * x[:, 2] > 0).astype(np.int64)

def examples(partition, folder):
    return world(1000 + int(Path(folder, "seed.txt").read_text()), 200)
"""
_NUMPY = (
    _DATA
    + """
from flwr.app import Array, ArrayRecord

def initial():
    return ArrayRecord({"weight": Array(np.zeros(FEATURES, np.float32)), "bias": Array(np.zeros((), np.float32))})

def fitted(arrays, x, y, lr):
    w, b = arrays["weight"].copy(), arrays["bias"].copy()
    for _ in range(20):
        p = 1 / (1 + np.exp(-(x @ w + b)))
        w, b = w - lr * x.T @ (p - y) / len(x), b - lr * (p - y).mean()
    loss = -np.mean(np.log(np.where(y > 0, p, 1 - p) + 1e-9))
    return {"weight": w.astype(np.float32), "bias": np.asarray(b, np.float32)}, loss

def accuracy(arrays):
    x, y = world(5, 2000)
    return float(((x @ arrays["weight"] + arrays["bias"] > 0) == (y > 0)).mean())
"""
)
_SKLEARN = (
    _DATA
    + """
from flwr.app import ArrayRecord
from sklearn.linear_model import LogisticRegression

def model():
    made = LogisticRegression(max_iter=5, warm_start=True)
    made.classes_, made.coef_, made.intercept_ = np.array([0, 1]), np.zeros((1, FEATURES)), np.zeros(1)
    return made

def initial():
    made = model()
    return ArrayRecord([made.coef_, made.intercept_])

def fitted(arrays, x, y, lr):
    made = model()
    made.coef_, made.intercept_ = [a.copy() for a in arrays.values()]
    made.fit(x, y)
    return dict(zip(arrays, (made.coef_, made.intercept_))), 1 - made.score(x, y)

def accuracy(arrays):
    made = model()
    made.coef_, made.intercept_ = arrays.values()
    return float(made.score(*world(5, 2000)))
"""
)
_TORCH = (
    _DATA
    + """
import torch
from flwr.app import ArrayRecord
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 2))

def initial():
    return ArrayRecord(model().state_dict())

def fitted(arrays, x, y, lr):
    made = model()
    made.load_state_dict({k: torch.tensor(a) for k, a in arrays.items()})
    optimizer, criterion = torch.optim.SGD(made.parameters(), lr=lr), nn.CrossEntropyLoss()
    for _ in range(20):
        optimizer.zero_grad()
        loss = criterion(made(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        optimizer.step()
    return {k: v.numpy() for k, v in made.state_dict().items()}, loss.item()

def accuracy(arrays):
    x, y = world(5, 2000)
    made = model()
    made.load_state_dict({k: torch.tensor(a) for k, a in arrays.items()})
    return float((made(torch.tensor(x)).argmax(1).numpy() == y).mean())
"""
)
_TRANSFORMERS = (
    _DATA
    + """
import torch
from flwr.app import ArrayRecord
from transformers import BertConfig, BertForSequenceClassification

def tokens(x):
    return torch.tensor((x > 0).astype(np.int64) + 2 * np.arange(FEATURES))

def model():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=2 * FEATURES, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=8, max_position_embeddings=FEATURES, num_labels=2,
                        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForSequenceClassification(config)

def initial():
    return ArrayRecord(model().state_dict())

def fitted(arrays, x, y, lr):
    made = model()
    made.load_state_dict({k: torch.tensor(a) for k, a in arrays.items()})
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        loss = made(input_ids=tokens(x), labels=torch.tensor(y)).loss
        loss.backward()
        optimizer.step()
    return {k: v.numpy() for k, v in made.state_dict().items()}, loss.item()

def accuracy(arrays):
    x, y = world(5, 500)
    made = model().eval()
    made.load_state_dict({k: torch.tensor(a) for k, a in arrays.items()})
    return float((made(input_ids=tokens(x)).logits.argmax(1).numpy() == y).mean())
"""
)
#: Reads a table from the node's folder, as tutorials on hospitals' and banks' tables do.
_TABLE = _NUMPY.replace(
    'return world(1000 + int(Path(folder, "seed.txt").read_text()), 200)',
    """import csv
    rows = list(csv.reader(Path(folder, "table.csv").open()))[1:]
    table = np.array(rows, float)
    return table[:, :-1].astype(np.float32), table[:, -1].astype(np.int64)""",
)
#: Keeps a personal part in the context between rounds, as tutorials on personalization do.
_STATE_CLIENT = _CLIENT.replace(
    "    print(",
    """    from flwr.app import ConfigRecord
    before = int(context.state["head"]["rounds"]) if "head" in context.state else 0
    assert before + 1 == msg.content["config"]["server-round"], "the state of the last round is not there"
    context.state["head"] = ConfigRecord({"rounds": before + 1})
    print(""",
)


def table(seed: int) -> str:
    """The table of a node, as CSV: the same examples that other apps make up."""
    given: dict[str, Any] = {}
    exec(_DATA, given)
    x, y = given["world"](seed, 200)
    head = ",".join([f"x{i}" for i in range(x.shape[1])] + ["y"])
    return "\n".join([head, *(",".join(map(str, [*row, label])) for row, label in zip(x, y, strict=True))]) + "\n"


def _app(model: str, client: str = _CLIENT) -> dict[str, str]:
    return {
        "pyproject.toml": _PROJECT,
        "quick/__init__.py": "",
        "quick/server.py": _SERVER,
        "quick/client.py": client,
        "quick/model.py": model,
    }


#: Files of each app, by its name.
APPS = {
    "numpy": _app(_NUMPY),
    "sklearn": _app(_SKLEARN),
    "pytorch": _app(_TORCH),
    "huggingface": _app(_TRANSFORMERS),
    "table": _app(_TABLE),
    "personal": _app(_NUMPY, _STATE_CLIENT),
}

"""A small node and a request that it answers, for the tests of the client."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, Metadata, RecordDict

from client.node import write_node
from client.policy import Policy
from client.shard import write_shard
from mechanisms.messages.questions import EmbeddingQuestion, TextQuestion
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.wire import request_to_record
from mechanisms.streams import SeededUniforms
from tests.support.requests import made

ENCODER = "ab" * 32
M, DIM, CLASSES = 24, 4, 3
#: More than any test spends: a device has a total.
OPEN = Policy(embedding=math.inf, label=math.inf, total=1e12)
REFERENCE = Policy(embedding=math.inf, label=math.inf, accept_unprotected=("embedding: reference", "label: reference"))


def without(packages: set[str]) -> str:
    """How a program begins that cannot import these packages, and finds ours in the folder that it is given."""
    return f"""
import sys

BLOCKED = {packages!r}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
sys.path.insert(0, sys.argv[1])
"""


def request(**changes: Any) -> Request:
    """A valid request: Purkayastha on the embedding, randomized response on the label."""
    rng = np.random.default_rng(1)
    values: dict[str, Any] = {
        "arm": "a",
        "stage": "train",
        "split": "train",
        "encoder": ENCODER,
        "mean": rng.normal(size=M).astype(np.float32) / 10,
        "m1": rng.normal(size=(M, DIM)).astype(np.float32),
        "embedding": {"mechanism": "purkayastha", "epsilon": 10.0},
        "label": {"mechanism": "randomized-response", "epsilon": 2.0},
        "classes": CLASSES,
        "minimum_users": 100,
    }
    return made(**(values | changes))


def with_prior(**changes: Any) -> Request:
    rng = np.random.default_rng(2)
    prior = (rng.normal(size=(DIM, CLASSES)).astype(np.float32), np.zeros(CLASSES, dtype=np.float32))
    label = {"mechanism": "randomized-response-prior", "epsilon": 1.0}
    return request(prior=prior, label=label, **changes)


def honest(wanted: Request, n: int = 6, seed: int = 1, first: int = 100) -> Reply:
    """Releases that the server's validation takes, of the users first, first + 1, ..."""
    rng = np.random.default_rng(seed)
    x, uniforms = rng.normal(size=(n, 512)), SeededUniforms(seed)
    releases = []
    for question in wanted.questions:
        if isinstance(question, TextQuestion):
            payload = rng.integers(-1, 9, size=(n, 6)).astype(np.int32)
        elif isinstance(question, EmbeddingQuestion):
            rows = x[:, : question.payload_form[2][0]]
            payload = question.sampled(rows / np.linalg.norm(rows, axis=1, keepdims=True), uniforms)
        else:
            payload = question.sampled(rng.integers(CLASSES, size=n), uniforms).astype(question.payload_form[1])
        releases.append(wanted.release(question, payload))
    return Reply(np.arange(first, first + n), np.zeros(n, np.int64), tuple(releases))


def make_node(
    folder: Path,
    users: Any = (0, 1, 2, 3, 4, 5, 6, 7),
    records: Any = None,
    *,
    policy: Policy | None = None,
    seed: int | None = 7,
    labelled: bool = True,
) -> Path:
    """A node of one arm "a" (a simulation), or of a device where seed is None. A record's text, label and
    embedding depend on its user and record number alone."""
    users = np.asarray(users, dtype=np.int64)
    records = np.zeros(len(users), dtype=np.int64) if records is None else np.asarray(records, dtype=np.int64)
    rows = [np.random.default_rng([u, r]) for u, r in zip(users.tolist(), records.tolist(), strict=True)]
    embeddings = np.array([g.normal(size=M) for g in rows], dtype=np.float32).reshape(-1, M)
    labels = np.array([g.integers(CLASSES) for g in rows], dtype=np.int64) if labelled else None
    texts = [f"secret {u} {r}" for u, r in zip(users, records, strict=True)]
    write_shard(folder, "train", users, records, texts, labels, embeddings=embeddings, identity=ENCODER)
    chosen = OPEN if policy is None else policy
    if seed is None:
        write_node(folder, policy=chosen)
    else:
        write_node(folder, seed=seed, arms={"a": chosen, "b": replace(chosen)})
    return folder


def message(content: RecordDict | Request) -> Message:
    record = request_to_record(content) if isinstance(content, Request) else content
    about = Metadata(
        run_id=1,
        message_id="m",
        src_node_id=0,
        dst_node_id=1,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=3600.0,
        message_type="query.release",
    )
    return Message(record, metadata=about)


def context(partition: int | str = 0, **run_config: Any) -> Context:
    return Context(
        run_id=1, node_id=1, node_config={"partition-id": partition}, state=RecordDict(), run_config=run_config
    )

"""A small study without Flower or an encoder: embeddings made up, nodes on the disk, and a grid that calls the
client's handler in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from client.app import NODES as NODES_FOLDER
from client.app import release
from client.ledger import Ledger, LedgerRow
from server import app as server_app
from simulations.arm_base import Outcome
from simulations.corpus import Corpus, Split
from simulations.experiment import Experiment, from_table, slug
from simulations.gather import FlowerUsers
from simulations.hand_out import hand_out
from simulations.prepare import Holders, Prepared
from simulations.run import arms_of
from tests.client_cases import context, message

ENCODER = SimpleNamespace(identity="ef" * 32, folder=Path("encoder"), precision="fp32")
WIDTH, CLASSES = 8, 3
USERS, PER_NODE, PUBLIC, TEST = 60, 10, 90, 40
NODES = USERS // PER_NODE

PURKAYASTHA = {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 4}
LAPLACE = {"mechanism": "planar-laplace", "epsilon": 10.0, "dim": 4}
RANDOMIZED = {"mechanism": "randomized-response", "epsilon": 3.0}
PRIOR = {"mechanism": "randomized-response-prior", "epsilon": 3.0}


def experiment(*arms: dict[str, Any], **sections: dict[str, Any]) -> Experiment:
    """60 users on 6 nodes, 40 test users; sections' keys are added to, or replace, those of the table."""
    table: dict[str, dict[str, Any]] = {
        "data": {"source": "built-in", "public-size": PUBLIC, "test-size": TEST},
        "population": {"users": USERS, "users-per-node": PER_NODE},
        "shuffle": {"minimum-users": 10},
        "policy": {"embedding": 32.0, "label": 5.0, "accept-unprotected": ["label: public in this test"]},
    }
    for name, values in sections.items():
        table[name] = table.get(name, {}) | values
    return from_table({"name": "small", "seed": 3, "arm": list(arms), **table})


def prepared(study: Experiment) -> Prepared:
    """Rows of three classes that lie apart in 8 coordinates, one record to a user, as `prepare` would give them."""
    rng = np.random.default_rng(5)
    centres = 2 * np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0][:CLASSES]
    names = ("red", "green", "blue")

    def part(name: str, n: int) -> tuple[Corpus, np.ndarray]:
        labels = np.arange(n, dtype=np.int64) % CLASSES
        h = (centres[labels] + 0.3 * rng.normal(size=(n, WIDTH))).astype(np.float32)
        return Corpus([f"{name} secret {i}" for i in range(n)], labels, names), h

    users, repeats = study.population.users, study.data.test_repeats
    (public, h_public), (train, h_train), (test, h_test) = (
        part("public", PUBLIC), part("train", users), part("test", TEST),
    )  # fmt: skip
    rows = np.tile(np.arange(TEST, dtype=np.int64), repeats)
    return Prepared(
        split=Split(public, train, test),
        held=Holders(np.arange(users, dtype=np.int64), np.zeros(users, np.int64)),
        test_held=Holders(users + np.arange(len(rows), dtype=np.int64), np.zeros(len(rows), np.int64)),
        test_rows=rows,
        encoder=ENCODER,  # type: ignore[arg-type]
        public_embeddings=h_public,
        train_embeddings=h_train,
        test_embeddings=h_test,
        about_corpus={},
    )


class LocalGrid:
    """Nodes 1, 2, ... with their data in folders 0, 1, ...; every message goes through the client's handler.

    lost: nodes that never answer. tamper: what becomes of a node's reply, a Flower record, on its way; it is
    given the stage that was asked for.
    sent: everything that any node has answered, as it travelled.
    """

    def __init__(
        self, nodes: int, *, lost: Iterable[int] = (),
        tamper: dict[int, Callable[[RecordDict, str], RecordDict]] | None = None,
    ) -> None:  # fmt: skip
        self.nodes = nodes
        self.lost = set(lost)
        self.tamper = tamper or {}
        self.sent: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.nodes + 1))

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float) -> list[Message]:
        del timeout
        answers = []
        for asked in messages:
            node = asked.dst_node_id
            if node in self.lost:
                continue
            question = message(asked.content)
            answer = release(question, context(node - 1))
            if node in self.tamper and answer.has_content():
                stage = str(asked.content["request.about"]["stage"])
                answer = Message(self.tamper[node](answer.content, stage), reply_to=question)
            answers.append(answer)
        self.sent += answers
        return answers


def use_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's handler finds its nodes in the folder, and the server may ask outside of a Flower run."""
    monkeypatch.setenv(NODES_FOLDER, str(folder))
    monkeypatch.setattr(server_app, "Message", lambda **fields: SimpleNamespace(**fields))


def run_arms(study: Experiment, grid: LocalGrid) -> dict[str, Outcome]:
    """Every arm on the grid, one after another, by name."""
    arms = arms_of(study, prepared(study), models=Path("unused"), nodes=Path("unused"))
    users = FlowerUsers(grid, study)
    return {run.arm.name: run.run(users, progress=lambda line: None) for run in arms}


def make_nodes(study: Experiment, folder: Path) -> int:
    """The study's shards and settings under the folder; returns the number of nodes."""
    return hand_out(study, prepared(study), folder)


def ledger_rows(folder: Path, arm: str) -> list[LedgerRow]:
    """All rows of an arm's ledgers, on all nodes under the folder."""
    rows: list[LedgerRow] = []
    for path in sorted(folder.glob(f"*/ledger-{slug(arm)}.sqlite")):
        with Ledger(path, durable=False) as ledger:
            rows += ledger.rows()
    return rows

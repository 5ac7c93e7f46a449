"""A small study without Flower or an encoder: embeddings made up, nodes on the disk, and a grid that calls the
client's handler in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from client.app import NODES as NODES_FOLDER
from client.app import release
from client.store.ledger import Ledger, LedgerRow
from mechanisms.messages.wire import reply_from_record
from server import query as server_app
from server.protocols.protocol import Public, Training
from server.training.public_maps import PublicMaps
from simulations.artifacts.encoder import training_of
from simulations.artifacts.model_folder import save_model
from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.parts import load_split
from simulations.experiment import Experiment, from_table, slug, to_toml
from simulations.run.arm import ArmRun
from simulations.run.collect import FlowerUsers
from simulations.run.evaluation import evaluate
from simulations.run.partition import hand_out
from simulations.run.prepare import Held, Holders, Prepared
from tests.support.clients import context, message

ENCODER = "ef" * 32
WIDTH, CLASSES = 8, 3
USERS, PER_NODE, PUBLIC, TEST = 60, 10, 90, 40
NODES = USERS // PER_NODE
#: Records of a user where users hold several.
SEVERAL = 4

PURKAYASTHA = {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 4}
LAPLACE = {"mechanism": "planar-laplace", "epsilon": 10.0, "dim": 4}
RANDOMIZED = {"mechanism": "randomized-response", "epsilon": 3.0}
PRIOR = {"mechanism": "randomized-response-prior", "epsilon": 3.0}


#: By how and from what they are learned; the public rows are the same in every study of these.
_MAPS: dict[tuple[bool, bool, int], PublicMaps] = {}


def merged(table: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """Return a table with the keys of sections added to, or in place of, its own."""
    return table | {k: table.get(k, {}) | v if isinstance(v, dict) else v for k, v in sections.items()}


def experiment(*arms: dict[str, Any], **sections: dict[str, Any]) -> Experiment:
    """60 users on 6 nodes, 40 test users; sections' keys are added to, or replace, those of the table."""
    table: dict[str, dict[str, Any]] = {
        "data": {"source": "built-in", "public-size": PUBLIC, "test-size": TEST},
        "population": {"users": USERS, "users-per-node": PER_NODE},
        "shuffle": {"minimum-users": 10},
        "policy": {"embedding": 32.0, "label": 5.0, "accept-unprotected": ["label: public in this test"]},
    }
    return from_table({"name": "small", "seed": 3, "arm": list(arms), **merged(table, sections)})


Rows = Sequence[tuple[str, ...]]


def files_study(folder: Path, train: Rows = (), test: Rows = (), **sections: Any) -> Experiment:
    """An experiment of two files, written here if there are rows (text, label) or (text, label, user) for them."""
    data = {"source": "files", "path": str(folder), "train": "train.tsv", "test": "test.tsv"}
    data |= {"text": "text", "label": "label"}
    for name, rows in (("train", train), ("test", test)):
        if rows:
            header = ("text", "label", "who")[: len(rows[0])]
            data |= {"user": "who"} if len(header) > 2 else {}
            (folder / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in (header, *rows)), "utf-8")
    table: dict[str, Any] = {
        "name": "small",
        "data": data,
        "shuffle": {"enabled": False},
        "policy": {"embedding": 40.0, "label": 5.0},
        "arm": [{"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}],
    }
    return from_table(merged(table, sections))


@dataclass(frozen=True, eq=False)
class KnownEncoder:
    """An encoder that nobody runs: it has embeddings of some texts."""

    rows: dict[str, NDArray[np.float32]]
    identity: str = ENCODER
    folder: Path = Path("encoder")
    precision: str = "fp32"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self.rows[text] for text in texts])


def prepared(study: Experiment) -> Prepared:
    """Rows of three classes that lie apart in 8 coordinates, as `prepare` would give them: one record to a user, or
    SEVERAL where the assignment deals them out."""
    rng = np.random.default_rng(5)
    centres = 2 * np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0][:CLASSES]
    names = ("red", "green", "blue")

    def part(name: str, n: int) -> tuple[Corpus, np.ndarray]:
        labels = np.arange(n, dtype=np.int64) % CLASSES
        h = (centres[labels] + 0.3 * rng.normal(size=(n, WIDTH))).astype(np.float32)
        return Corpus([f"{name} secret {i}" for i in range(n)], labels, names), h

    each = 1 if study.population.assignment in (None, "record") else SEVERAL
    users, repeats = study.population.users, study.data.test_repeats
    (public, h_public), (train, h_train), (test, h_test) = (
        part("public", PUBLIC),
        part("train", users * each),
        part("test", TEST),
    )
    rows = np.tile(np.arange(TEST, dtype=np.int64), repeats)
    labels = public.labels if study.data.public.labels else None
    learned = study.training.maps == "learned"
    maps = _MAPS.setdefault(
        (learned, labels is None, study.seed),
        PublicMaps(h_public, labels, classes=CLASSES, learned=learned, seed=study.seed),
    )
    known = zip([*public.texts, *train.texts, *test.texts], [*h_public, *h_train, *h_test], strict=True)
    held = Held(
        train=train,
        test=test,
        holders=Holders(*np.divmod(np.arange(users * each, dtype=np.int64), each)),
        test_holders=Holders(users + np.arange(len(rows), dtype=np.int64), np.zeros(len(rows), np.int64)),
        test_rows=rows,
        train_embeddings=h_train,
        test_embeddings=h_test,
    )
    return Prepared(Public(public.texts, labels, names, KnownEncoder(dict(known)), h_public, maps), held, {})


class LocalGrid:
    """Nodes 1, 2, ... with their data in folders 0, 1, ...; every message goes through the client's handler.

    lost: nodes that never answer. tamper: what becomes of a node's reply, a Flower record, on its way; it is
    given the stage that was asked for.
    sent: everything that any node has answered, as it travelled.
    """

    def __init__(
        self,
        nodes: int,
        *,
        lost: Iterable[int] = (),
        tamper: dict[int, Callable[[RecordDict, str], RecordDict]] | None = None,
    ) -> None:
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the client's handler finds its nodes, which a test hands out."""
    use_folder(tmp_path, monkeypatch)
    return tmp_path


def in_process(
    job: Callable[..., Any], *, nodes: int, folder: Path, grid: Callable[[int], Any] = LocalGrid, **_: object
) -> Any:
    """An engine of `run` in this process: a grid in place of Flower and Ray."""
    with pytest.MonkeyPatch.context() as patch:
        use_folder(folder, patch)
        return job(grid(nodes))


def run_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies of commands run in this process."""
    monkeypatch.setattr("simulations.run.simulate.run_on_flower", in_process)


def without_work(patch: pytest.MonkeyPatch, *, made: Callable[[Experiment], Prepared] = prepared) -> None:
    """`run` encodes nothing, but has what `made` makes up, and neither accounts for anything nor reads its own code."""
    patch.setattr("simulations.run.run.prepare", lambda study, **_: made(study))
    patch.setattr("simulations.run.journal._code", lambda: "this code")
    patch.setattr("simulations.experiment.result.of_run", lambda *_, **__: {"ladder": None, "test_ladder": None})


@dataclass(frozen=True)
class Ran:
    """An arm that has run: its line, as results.json has it but for infinity, and its model."""

    line: dict[str, Any]
    model: Any


def run_arms(
    study: Experiment,
    grid: LocalGrid,
    *,
    ready: Prepared | None = None,
    models: Path = Path("unused"),
    nodes: Path = Path("unused"),
) -> dict[str, Ran]:
    """Every arm on the grid, one after another, by name. ready: of the study, where it is not `prepared`."""
    ready = ready or prepared(study)
    users = FlowerUsers(grid, study.population, ready.held, seed=study.seed, nodes=nodes)
    ran = {}
    for arm, run in [(s.arm.name, ArmRun(s, trained(study), ready, models=models)) for s in study.setups]:
        done = run.run(users)
        result, _ = evaluate(done, study.data, ready.held, seed=study.seed)
        if done.model is not None and models != Path("unused"):
            save_model(models / slug(arm), done.model, ready.public, result)
        ran[arm] = Ran(result.to_dict(), done.model)
    return ran


def make_nodes(study: Experiment, folder: Path) -> int:
    """The study's shards and settings under the folder; returns the number of nodes."""
    return placed(study, prepared(study), folder)


def placed(study: Experiment, ready: Prepared, folder: Path) -> int:
    """As `make_nodes`, of what is prepared already."""
    return hand_out(study.setups, study.population, ready.public, ready.held, folder, seed=study.seed)


def trained(study: Experiment) -> Training:
    """How the study's server trains."""
    return training_of(study)


def split_of(study: Experiment) -> tuple[Split, dict[str, object]]:
    """The parts of a study's data, and words about them."""
    return load_split(study.data, study.population, study.seed)


def ledger_rows(folder: Path, arm: str) -> list[LedgerRow]:
    """All rows of an arm's ledgers, on all nodes under the folder."""
    rows: list[LedgerRow] = []
    for path in sorted(folder.glob(f"*/ledger-{slug(arm)}.sqlite")):
        with Ledger(path, durable=False) as ledger:
            rows += ledger.rows()
    return rows


def attacked_run(study: Experiment, ready: Prepared, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder of made-up data, which attacks read again; nobody released the records of the test part."""
    use_folder(folder / "nodes", monkeypatch)
    run_arms(study, LocalGrid(make_nodes(study, folder / "nodes")), models=folder / "models")
    (folder / "experiment.toml").write_text(to_toml(study), encoding="utf-8")
    target, train, test = "sottovoce.adversary.attacks.target", ready.held.train, ready.held.test
    monkeypatch.setattr(f"{target}.prepared", lambda run: ready)
    split = Split(Corpus([], np.zeros(0, int), train.classes), train, test)
    monkeypatch.setattr(f"{target}.load_split", lambda *_: (split, {}))
    return folder


def charged(folder: Path, arm: str) -> list[tuple[Any, ...]]:
    """Return (user, record, stage, channel, digest, bytes) of every release on an arm's ledgers."""
    return sorted((r.user, r.record, r.stage, r.channel, r.digest, r.payload) for r in ledger_rows(folder, arm))


def sent(grid: LocalGrid) -> list[tuple[Any, ...]]:
    """Return the same of every release that travelled."""
    rows = []
    for reply in (reply_from_record(answer.content) for answer in grid.sent):
        for r in reply.releases:
            (values,) = r.payload.values()
            for user, record, value in zip(reply.users.tolist(), reply.records.tolist(), values, strict=True):
                rows.append((user, record, r.stage, r.channel, r.digest, value.tobytes()))
    return sorted(rows)

"""Every record lives on one node, and however users are spread over nodes, they release the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.models.embeddings import TableEmbeddings, Tables
from client.shard import Shard
from mechanisms.messages.request import Request
from simulations.experiment import Experiment
from simulations.run import partition
from simulations.run.collect import FlowerUsers
from simulations.run.prepare import Holders, Prepared
from simulations.transport.node_store import NodeStore
from tests.support.modes import nothing_narrowed, wider
from tests.support.requests import made
from tests.support.studies import (
    CLASSES,
    ENCODER,
    PRIOR,
    PURKAYASTHA,
    WIDTH,
    LocalGrid,
    experiment,
    ledger_rows,
    placed,
    prepared,
    use_folder,
)

USERS = 64
ARM = {"name": "a", "embedding": PURKAYASTHA, "label": PRIOR}


def study(per_node: int | str, **population: Any) -> Experiment:
    return experiment(ARM, population={"users": USERS, "users-per-node": per_node, **population})


def in_tables(ready: Prepared, folder: Path) -> Prepared:
    """Return the same training embeddings in one shared table, in another order."""
    embeddings = ready.held.train_embeddings
    order = np.random.default_rng(1).permutation(len(embeddings))
    folder.mkdir()
    np.save(folder / "table.npy", embeddings[order])
    rows = TableEmbeddings(Tables((folder / "table.npy",)), np.argsort(order))
    return ready._replace(held=dataclasses.replace(ready.held, train_embeddings=rows))


def request_of(stage: str, part: tuple[int, int]) -> Request:
    """Return a request for some users' embeddings, and labels by a prior from them."""
    rng = np.random.default_rng(2)
    m1, prior = (rng.normal(size=(rows, columns)).astype(np.float32) for rows, columns in ((WIDTH, 4), (4, CLASSES)))
    return made(
        arm="a",
        classes=CLASSES,
        minimum_users=10,
        stage=stage,
        split="train",
        part=part,
        encoder=ENCODER,
        mean=np.zeros(WIDTH, np.float32),
        m1=m1,
        embedding={"mechanism": "purkayastha", "epsilon": 10.0},
        label=PRIOR,
        prior=(prior, np.zeros(CLASSES, np.float32)),
    )


def batches(part: Experiment, ready: Prepared, folder: Path) -> list[Any]:
    """Return what the server gets of two stages and of the first again, and what was charged."""
    grid, result = LocalGrid(placed(part, ready, folder)), []
    users = FlowerUsers(grid, part.population, ready.held, seed=part.seed, nodes=folder)
    for stage, half in (("one", 0), ("two", 1), ("one", 0)):
        batch = users.collect(request_of(stage, (half, 2))).batch
        origin = users.origins[stage]
        result += [origin.users.tolist(), origin.records.tolist(), batch.users]
        result += [values.tobytes() for release in batch.releases for values in release.payload.values()]
    charged = [(r.user, r.record, r.stage, r.channel, r.digest, r.epsilon, r.payload) for r in ledger_rows(folder, "a")]
    return [*result, sorted(charged)]


def test_1_8_and_64_nodes_release_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users have two records each; one node has embeddings of its own, the others find theirs in a shared table."""
    ready, rows = prepared(study(USERS)), np.arange(USERS)
    ready = ready._replace(held=dataclasses.replace(ready.held, holders=Holders(rows // 2, rows % 2)))
    shared, results = in_tables(ready, tmp_path / "tables"), []
    for per_node in (USERS, 8, 1):
        folder = tmp_path / str(per_node)
        use_folder(folder, monkeypatch)
        results.append(batches(study(per_node), ready if per_node == USERS else shared, folder))
        assert len(list(folder.iterdir())) == USERS // per_node
    result = results[0]
    assert results == [result] * 3
    assert result[:5] == result[10:15] and result[2] == USERS // 4 and len(result[-1]) == 2 * USERS


@pytest.mark.parametrize(("cores", "cohort", "nodes"), [(1, 999, 1), (2, 32, 2), (2, 31, 4), (3, 10, 9)])
def test_auto_gives_all_cores_as_much_and_no_node_too_much(
    cores: int, cohort: int, nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(partition, "_COHORT", cohort)
    whole = study("auto")
    ready = prepared(whole)
    assert placed(whole, ready, tmp_path) == nodes
    shards = [Shard.load(tmp_path / str(node), "train") for node in range(nodes)]
    sizes = [len(shard) for shard in shards]
    assert sum(sizes) == USERS and max(sizes) <= cohort and max(sizes) - min(sizes) <= 1
    for node, shard in enumerate(shards):
        assert (shard.users % nodes == node).all()
        np.testing.assert_array_equal(shard.labels, ready.held.train.labels[shard.users])
        assert list(shard.texts) == [ready.held.train.texts[int(user)] for user in shard.users]
        rows = shard.embeddings(ENCODER).take(np.arange(len(shard)))
        np.testing.assert_array_equal(rows, ready.held.train_embeddings[shard.users])


def test_nodes_are_for_their_owner_alone_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records, texts, embeddings of their own and in linked tables, settings, ledgers, also those that come back."""
    part = study(8)
    ready = prepared(part)
    shared = in_tables(ready, tmp_path / "tables")
    (tmp_path / "tables" / "table.npy").chmod(0o600)  # as the cache's are
    with nothing_narrowed(monkeypatch):
        use_folder(tmp_path / "own", monkeypatch)
        batches(part, ready, tmp_path / "own")
        placed(part, shared, tmp_path / "linked")
        node_store = NodeStore(str(tmp_path / "own"), put=lambda files: files)
        assert node_store.keep("0", "ledger-b.sqlite", None, b"a ledger") == "kept"
    assert wider(tmp_path / "own") == wider(tmp_path / "linked") == {}
    assert list((tmp_path / "own").rglob("*.sqlite")) and list((tmp_path / "linked").rglob("*.table-0.npy"))

"""A deployment's training server counts its users: their devices charge, seal and refuse as in training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from client.app import answer
from client.node import load_node, write_node
from client.policy import Policy, Refused
from client.shard import write_shard
from mechanisms.messages.sealed import batch_identity, generate_keys
from mechanisms.messages.wire import record_from_bytes, sealed_from_record
from simulations.counts.asking import Budget, asked_by
from simulations.counts.result import CountResult, read
from simulations.errors import UserError
from sottovoce.cli.main import main
from sottovoce.deployment.count import count
from sottovoce.deployment.shuffler_client import Delivered
from sottovoce.deployment.training_server import RemoteShuffler
from sottovoce.report.page import page_of_count
from tests.support.studies import ENCODER, PURKAYASTHA, experiment, prepared

STUDY = experiment(
    {
        "name": "users",
        "embedding": PURKAYASTHA,
        "label": {"mechanism": "randomized-response", "epsilon": 3.0},
        "answer": {"mechanism": "randomized-response", "epsilon": 2.0},
    },
    policy={"answer": 2.0},
    population={"users": 600},
)
POLICY = Policy(answer=4.0, total=5.0, mechanisms=("randomized-response",))
Counted = Callable[..., CountResult]


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    """Two devices of 300 users each, behind a shuffler without Flower."""
    private, public = generate_keys()
    (tmp_path / "seal.key").write_text(private.hex())
    ready = prepared(STUDY)
    for node in range(2):
        rows, place = np.arange(node, 600, 2), tmp_path / "nodes" / str(node)
        write_shard(
            place,
            "train",
            rows,
            np.zeros_like(rows),
            ready.held.train.texts.take(rows),  # type: ignore[attr-defined]
            ready.held.train.labels[rows],
            embeddings=np.asarray(ready.held.train_embeddings)[rows],
            identity=ENCODER,
        )
        write_node(place, policy=POLICY, seal=public)

    class Line:
        def batch(self, stage: str, request: bytes, **_: Any) -> Delivered:
            replies = [
                sealed_from_record(answer(record_from_bytes(request), load_node(tmp_path / "nodes" / str(node))))
                for node in range(2)
            ]
            rows = np.random.default_rng(1).permutation(np.concatenate([reply.rows for reply in replies]))
            return Delivered(batch_identity(rows.tobytes()), rows, 600, 0, {}, {})

    def run(out: str = "out", *, policy: Policy = POLICY, last: CountResult | None = None, **price: Any) -> CountResult:
        bundle: Any = SimpleNamespace(policy=policy)
        line: Any = Line()
        (asked,) = asked_by(ready.public, seed=STUDY.seed)
        users = RemoteShuffler(line, seal_keys=[tmp_path / "seal.key"], timeout=1.0, bundle=bundle)
        return count(
            STUDY,
            STUDY.setups[0],
            ready.public,
            asked,
            tmp_path / out,
            users=users,
            bundle=bundle,
            budget=Budget(**({"epsilon": 2.0, "mechanism": "randomized-response"} | price)),
            last=last,
        )

    run.line, run.public = Line, ready.public  # type: ignore[attr-defined]
    return run


def charges(folder: Path) -> list[Any]:
    found = []
    for node in range(2):
        with load_node(folder / "nodes" / str(node)).ledger("") as ledger:
            found += ledger.rows()
    return found


def test_users_are_charged_on_their_devices_and_counted_without_the_truth(counted: Counted, tmp_path: Path) -> None:
    result = counted()
    assert (result.users, result.charged, result.week) == (600, 600, 1)
    assert all(row.true is None and row.low <= 1 / 3 <= row.high for row in result.rows)
    assert {(c.channel, c.stage, c.epsilon) for c in charges(tmp_path)} == {("answer", "count-1", 2.0)}
    assert result.rung("shuffled")["epsilon"] < 0.7
    assert read(tmp_path / "out").rows == result.rows
    assert "truth" not in result.text() and "What left each device?" in page_of_count(result)


def test_a_later_week_costs_anew_until_the_total_is_spent(counted: Counted, tmp_path: Path) -> None:
    second = counted("second", last=counted("first"))
    assert second.week == 2 and len(second.moved) == 3 and not any(move.found for move in second.moved)
    assert len(charges(tmp_path)) == 1200
    with pytest.raises(Refused):  # by the devices
        counted("third", last=second)
    assert len(charges(tmp_path)) == 1200


def test_what_devices_would_refuse_is_not_asked(counted: Counted, tmp_path: Path) -> None:
    for policy, price, said in (
        (POLICY, {"epsilon": 4.5}, "policy.answer: 4 is below"),
        (POLICY, {"epsilon": 1.0, "mechanism": "subset-selection"}, "--bundle: its devices would refuse"),
        (replace(POLICY, answer=0.0), {"epsilon": None, "mechanism": None, "central": 1.0}, "policy.answer: is 0"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            counted(policy=policy, **price)
        assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()
    assert charges(tmp_path) == []


def test_the_command_counts_and_errs_in_one_line(
    counted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    class Shuffler(counted.line):  # type: ignore[misc, name-defined]
        def __init__(self, address: str, **certificates: Any) -> None:
            asked.append((address, *certificates.values()))

        def __enter__(self) -> Shuffler:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("simulations.experiment.load", lambda *_: STUDY)
    monkeypatch.setattr("client.device.bundle.open_bundle", lambda *_: SimpleNamespace(policy=POLICY))
    monkeypatch.setattr("simulations.artifacts.public.load_public", lambda *_: counted.public)
    monkeypatch.setattr("sottovoce.deployment.shuffler_client.Shuffler", Shuffler)
    given = {
        "public": "public",
        "shuffler": "there:1",
        "root-certificates": "ca.pem",
        "certificate": "me.pem",
        "key": "me.key",
        "seal-key": tmp_path / "seal.key",
        "bundle": "bundle",
        "mechanism": "randomized-response",
    }
    command = ["deploy", "count", "study.toml", *(f"--{name}={value}" for name, value in given.items())]
    assert main([*command, f"--out={tmp_path / 'counts'}", "--epsilon=2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["users"] == 600 and len(read(tmp_path / "counts").rows) == 3 and len(charges(tmp_path)) == 600
    assert asked == [("there:1", Path("ca.pem"), Path("me.pem"), Path("me.key"))]
    assert main([*command, f"--out={tmp_path / 'other'}", "--epsilon=4.5"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "policy.answer: 4 is below" in said and not (tmp_path / "other").exists() and len(charges(tmp_path)) == 600

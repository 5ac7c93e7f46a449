"""What a device costs, and what its ledger says, with nothing installed but what a device has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client.app import answer
from client.device.bundle import Bundle
from client.device.statement import describe_release, format_statement
from client.node import load_node, write_node
from client.policy import Policy
from mechanisms.guarantee import Guarantee
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import generate_keys
from mechanisms.messages.wire import request_to_record
from sottovoce.cli import main as cli
from tests.support.clients import make_node, request
from tests.support.devices import PUBLISHER, make_bundle, on_a_device


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("device"))


def test_the_commands_run_where_a_device_alone_is_installed(made: Bundle, tmp_path: Path) -> None:
    node = tmp_path / "node"
    made.install(node, PUBLISHER)
    done = on_a_device("device", "ledger", node)
    assert done.returncode == 0 and "nothing has left this device" in done.stdout, done.stderr
    arm = ["--experiment", "labelled-demo", "--arm", "purkayastha-eps-10"]
    done = on_a_device("device", "bundle", *arm, "--out", tmp_path / "b")
    assert done.returncode == 2 and "pip install 'sottovoce[simulation]'" in done.stderr
    assert not (tmp_path / "b").exists()


# -- ledger -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A device of one user with three records."""
    node = make_node(tmp_path / "node", [0, 0, 0], [0, 1, 2], seed=None)
    write_node(
        node,
        policy=Policy(
            embedding=70.0,
            label=5.0,
            statistic=4.0,
            total=250.0,
            minimum_users=50,
            mechanisms=("purkayastha", "randomized-response", "identity"),
            accept_unprotected=("length: short anyway",),
        ),
        seal=generate_keys()[1],
        shuffler_seal=generate_keys()[1],
    )
    return node


def ask(device: Path, asked: Request) -> None:
    answer(request_to_record(asked), load_node(device))


def told(device: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["device", "ledger", str(device), *options]) == 0
    return capsys.readouterr().out


def test_a_ledger_in_words(device: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nothing has left this device" in told(device, capsys)
    monkeypatch.setattr("client.store.ledger.time.time", lambda: 1_795_000_000.9)
    ask(device, request(arm=""))
    ask(device, request(arm="", stage="more", embedding=None))
    ask(device, request(arm=""))  # again, at no cost
    said = told(device, capsys)
    for words in (
        "the embedding of 3 records, to the stage train: ε = 31.42 at worst each (ε = 10·d_angular)",
        "record 2: embedding ε = 31.42 at worst, label ε = 4 at worst",
        "all together, without what is declared public: ε = 106.2 at worst",
        "embedding: ε up to 70 at δ = 1e-05 for each record; the costliest one has 38.58 left",
        "label: ε up to 5 at δ = 1e-05 for each record; the costliest one has 1 left",
        "statistic: ε up to 4 at δ = 1e-05 for all records together; the costliest one has 4 left",
        "in total: ε up to 250 at δ = 1e-05, and 10,000 releases",
        "left: ε = 143.8, δ = ",
        "9,991 releases (one half of δ is the filter's)",
        "texts may show the number of tokens (short anyway)",
        "only among at least 50 users",
    ):
        assert words in said, words


def test_a_clock_that_was_set_back_is_said(
    device: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for at, stage in ((2e9, "train"), (1e9, "more")):
        monkeypatch.setattr("client.store.ledger.time.time", lambda at=at: at)
        ask(device, request(arm="", stage=stage, embedding=None))
    said = told(device, capsys)
    assert "The clock was set back" in said
    assert said.index("to the stage train") < said.index("to the stage more")
    assert json.loads(told(device, capsys, "--json"))["clock_set_back"] is True


def test_a_ledger_as_json(device: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(device, request(arm=""))
    found = json.loads(told(device, capsys, "--json"))
    assert [(a["channel"], a["records"]) for a in found["answers"]] == [("embedding", 3), ("label", 3)]
    assert found["answers"][0]["digest"] == request(arm="").digest("embedding")
    assert found["users"][0]["releases"] == 6 and len(found["records"]) == 3
    assert found["policy"]["embedding"] == 70.0


def test_what_is_declared_public_is_shown_as_unprotected(device: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_node(device, policy=Policy(embedding=70.0, total=700.0, accept_unprotected=("label: everybody knows",)))
    ask(device, request(arm="", label={"mechanism": "identity"}))
    said = told(device, capsys)
    assert "the label of 3 records, to the stage train: ε = ∞ each (in clear)" in said
    assert "label: anything, declared public (everybody knows)" in said
    assert "all together, without what is declared public: ε = 94.25 at worst" in said
    assert "in total: ε up to 700 at δ" in said


def test_a_ledger_that_cannot_be_trusted_is_not_shown(device: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(device, request(arm=""))
    path = device / "ledger.sqlite"
    kept = path.read_bytes()
    for change, line in (
        (lambda: path.write_bytes(b"x" * 5000), "file is not a database"),
        (lambda: path.unlink(), "is gone, and what was spent with it"),
    ):
        change()
        assert cli.main(["device", "ledger", str(device)]) == 2
        said = capsys.readouterr()
        assert line in said.err and said.out == "" and len(said.err.splitlines()) == 1
        path.write_bytes(kept)


def test_folders_that_are_no_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, line in ((tmp_path, "is no device's folder"), (make_node(tmp_path / "n"), "is a simulation's node")):
        assert cli.main(["device", "ledger", str(folder)]) == 2
        assert line in capsys.readouterr().err


def test_many_users_of_one_device_are_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = make_node(tmp_path / "node", range(40), seed=None)
    ask(node, request(arm="", label=None))
    ask(node, request(arm="", stage="more", embedding=None))
    said = told(node, capsys)
    assert "user 2, without what is declared public: ε = 33.42 at worst" in said and "user 3," not in said
    assert "and 37 users that cost no more than the last one above: 74 releases together" in said
    assert "of all 40 users the median has ε = 33.42 at worst" in said
    assert len(said.splitlines()) < 50 and len(json.loads(told(node, capsys, "--json"))["users"]) == 40


def test_the_cost_of_a_text_that_shows_something_public_has_its_condition() -> None:
    """Between texts that differ in it ε is infinite; so it is between any two where nobody declared it public."""
    guarantee = Guarantee(2.0, "discrete", 4.0, "sequence", exposes=("length",))
    declared = Policy(text=10.0, accept_unprotected=("length: says little",))
    condition = ", between data that agree in the number of tokens, declared public (else ε = ∞)"
    assert describe_release(guarantee, declared) == f"ε = 8 at worst{condition}"
    assert describe_release(guarantee, Policy(text=10.0)) == "ε = ∞"
    answer = {"time": 0, "records": 1, "channel": "text", "stage": "train", "digest": "", "statement": "in words"}
    answer |= {"worst_case": 8.0, "delta": 0.0, "public": ["the number of tokens"]}
    record = {"user": 0, "record": 0, "channels": {"text": 8.0}}
    account = {"user": 0, "releases": 1, "worst_case": 8.0, "delta": 0.0, "rho": 0.0, "rho_limit": 1.0}
    about = {"folder": "device", "policy": declared.to_dict(), "answers": [answer], "records": [record]}
    said = format_statement(about | {"users": [account], "clock_set_back": False, "stand_ins": 0})
    assert f"ε = 8 at worst each{condition} (in words)" in said and f"What it has cost{condition}" in said

"""Commands of a device, with nothing installed but what a device has: its ledger, questions about sentences."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from flwr.app import RecordDict

from client.app import answer
from client.device.fleet import Fleet, Lost
from client.device.https import MODEL, Server, ServerError
from client.device.statement import describe_release, format_statement, read_statement
from client.node import load_node, write_node
from client.policy import Policy
from mechanisms.guarantee import Guarantee
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import generate_keys
from mechanisms.messages.wire import request_to_record
from simulations.errors import UserError
from sottovoce.cli import main as cli
from sottovoce.deployment import shuffler_client, superlink
from sottovoce.deployment.certificates import make_keys
from sottovoce.deployment.predict import serving
from sottovoce.deployment.shuffler_client import Shuffler
from tests.support.answers import ledger_rows
from tests.support.asking import CLASSES, COST, SENTENCE, World, answered, honest, http
from tests.support.clients import make_node, request
from tests.support.devices import PUBLISHER, make_bundle, on_a_device
from tests.support.fake_superlink import Fake, grid_of

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


def asked_for(device: Path, asked: Request) -> None:
    answer(request_to_record(asked), load_node(device))


def told(device: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["device", "ledger", str(device), *options]) == 0
    return capsys.readouterr().out


def test_a_ledger_in_words(device: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nothing has left this device" in told(device, capsys)
    monkeypatch.setattr("client.store.ledger.time.time", lambda: 1_795_000_000.9)
    asked_for(device, request(arm=""))
    asked_for(device, request(arm="", stage="more", embedding=None))
    asked_for(device, request(arm=""))  # again, at no cost
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


def test_a_clock_that_was_set_back_is_said_and_a_ledger_that_is_gone(
    device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at, stage in ((2e9, "train"), (1e9, "more")):
        monkeypatch.setattr("client.store.ledger.time.time", lambda at=at: at)
        asked_for(device, request(arm="", stage=stage, embedding=None))
    statement = read_statement(device)
    assert statement["clock_set_back"] and [answer["stage"] for answer in statement["answers"]] == ["train", "more"]
    (device / "ledger.sqlite").unlink()
    with pytest.raises(ValueError, match="is gone, and what was spent with it"):
        read_statement(device)


def test_many_users_of_one_device_are_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = make_node(tmp_path / "node", range(40), seed=None)
    asked_for(node, request(arm="", label=None))
    asked_for(node, request(arm="", stage="more", embedding=None))
    said = told(node, capsys)
    assert "user 2, without what is declared public: ε = 33.42 at worst" in said and "user 3," not in said
    assert "and 37 users that cost no more than the last one above" in said
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


def command(world: World, address: str, *arguments: object) -> int:
    return cli.main(["device", "ask", *map(str, arguments), "--server", address, "--root-certificates", str(world.ca)])


def test_ask_on_the_command_line(world: World, node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(world, world.address, node, SENTENCE) == 0
    said = capsys.readouterr()
    assert said.err == "" and "ε = 31.42 at worst (ε = 10·d_angular)" in said.out and "spent" in said.out
    assert command(world, world.address, node, SENTENCE) == 0
    assert "cost   nothing: asked about before, at ε = 31.42 at worst" in capsys.readouterr().out
    assert command(world, world.address, node, SENTENCE, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["probabilities"]) == set(CLASSES) and found["class"] in CLASSES
    assert (found["cost"], found["charged"], found["delta"]) == (pytest.approx(COST), 0, 0.0)
    assert found["spent"] == pytest.approx(COST) and found["statement"] == "ε = 10·d_angular"


def file_of(folder: Path, text: bytes) -> Path:
    path = folder / "in.txt"
    path.write_bytes(text)
    return path


def test_a_file_of_sentences(world: World, node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\ufeffthe film was good\n\na bad\tbook\r\n   \nthe film was good\nof\u2028two\x0bhalves".encode()
    file, out = file_of(tmp_path, text), tmp_path / "out.tsv"
    assert command(world, world.address, node, "--file", file, "--out", out, "--json") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["lines"], found["charged"], sum(found["classes"].values())) == (6, 3, 4)
    assert "3 sentences are new" in said.err and "the policy allows 318" in said.err
    rows = [line.split("\t") for line in out.read_text(encoding="utf-8").split("\n")[:-1]]
    assert rows[0] == ["line", "class", *CLASSES, "sentence"] and len(rows) == 7
    assert {len(row) for row in rows} == {3 + len(CLASSES)}
    assert [row[0] for row in rows[1:]] == list("123456") and rows[2][1:] == [""] * 5 == rows[4][1:]
    assert rows[1][1:] == rows[5][1:] and rows[1][-1] == "the film was good" and rows[3][-1] == "a bad book"
    shares = [float(share) for share in rows[1][2:-1]]
    assert sum(shares) == pytest.approx(1, abs=1e-5) and CLASSES[int(np.argmax(shares))] == rows[1][1]


def test_a_file_comes_whole_or_not_at_all_and_goes_on_at_no_further_cost(
    world: World, node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = file_of(tmp_path, "\n".join(f"film {i}" for i in range(300)).encode()), tmp_path / "out.tsv"
    posts: list[bytes] = []

    def dies_later(body: bytes) -> bytes | None:
        posts.append(body)
        return http(answered(256)) if len(posts) == 1 else None

    with honest(world, dies_later) as server:
        assert command(world, server.address, node, "--file", file, "--out", out) == 2
    complaint = capsys.readouterr().err.splitlines()[-1]
    assert "300 sentences were charged (ε = 31.42 at worst each), and cost nothing when" in complaint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "node"] and len(ledger_rows(node)) == 300
    before = ledger_rows(node)
    assert command(world, world.address, node, "--file", file, "--out", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["charged"] == 0 and found["lines"] == 300 and ledger_rows(node) == before
    assert len(out.read_text().splitlines()) == 301


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["x"], "--server: "),
        (["--file", "f"], "--file FILE goes with"),
        (["x", "--out", "o"], 'give a "SENTENCE"'),
        (["--file", "bad.txt", "--out", "o"], "bad.txt: line 2: is not UTF-8"),
        (["--file", "empty.txt", "--out", "o"], "there is no sentence to ask about; nothing was charged"),
        (["--file", "in.txt", "--out", "in.txt"], "in.txt: is there already"),
        (["caf\udce9"], "is not Unicode"),
    ],
    ids=range(7),
)
def test_bad_input_ends_in_one_line(world, node, tmp_path, options, line, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for name, data in (("in.txt", b"x\n"), ("bad.txt", b"x\n\xff\n"), ("empty.txt", b"\n \n")):
        Path(name).write_bytes(data)
    here = sorted(os.listdir(tmp_path))
    if "--server" in line:
        assert cli.main(["device", "ask", str(node), *options]) == 2
    else:
        assert command(world, world.address, node, *options) == 2
    said = capsys.readouterr()
    assert line.rstrip(": ") in said.err.splitlines()[-1] and said.out == ""
    assert sorted(os.listdir(tmp_path)) == here
    assert not (node / "ledger.sqlite").exists()  # before `charged` opens one
    assert ledger_rows(node) == []


def test_install_and_ask_where_a_device_alone_is_installed(world: World, tmp_path: Path) -> None:
    bundle, node = make_bundle(world.place, "b", seal=generate_keys()[1], model_seal=world.public), tmp_path / "node"
    (tmp_path / "sign.pub").write_text(f"{PUBLISHER.hex()}\n")
    install = ["device", "install", "--bundle", bundle.folder, "--device", node]
    done = on_a_device(*install, "--publisher", tmp_path / "sign.pub")
    assert done.returncode == 0 and f"{node}: answers for embedding, label" in done.stdout, done.stderr
    assert len(done.stdout.splitlines()) == 1 and load_node(node).model_seal == world.public
    with serving(world.model(sealed=True), **world.pair) as address:
        where = ["--server", address, "--root-certificates", world.ca]
        done = on_a_device("device", "ask", node, SENTENCE, *where, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["charged"] == 1, done.stderr
    assert done.stderr == ""
    done = on_a_device("device", "ledger", node)
    assert done.returncode == 0 and "the embedding of 1 record" in done.stdout, done.stderr


def test_an_installation_that_cannot_be(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, node = make_bundle(world.place, "c"), tmp_path / "node"
    (tmp_path / "short").write_text("abcd")
    (tmp_path / "zero").write_text("00" * 32)
    (tmp_path / "sign.pub").write_text(f"{PUBLISHER.hex()}\n")
    install = ["device", "install", "--bundle", str(bundle.folder), "--device", str(node)]
    for key, line in (("short", "is no key"), ("none", "cannot be read"), ("zero", "trusts 0000000000000000")):
        assert cli.main([*install, "--publisher", str(tmp_path / key)]) == 2
        assert line in (said := capsys.readouterr()).err and said.out == "" and len(said.err.splitlines()) == 1
        assert not node.exists()
    assert cli.main(install) == 2 and "give the publisher's public key" in capsys.readouterr().err
    assert cli.main([*install, "--publisher", str(tmp_path / "sign.pub")]) == 0 and load_node(node).seal is None
    assert "in clear" in capsys.readouterr().out
    manifest = bundle.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("sottovoce-bundle-4", "sottovoce-bundle-9"))
    assert cli.main([*install[:-1], str(tmp_path / "other")]) == 2
    assert "is of the format 'sottovoce-bundle-9'" in capsys.readouterr().err


# --- roles of servers


def test_whoever_connects_speaks_to_the_party_it_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device, the shuffler and the operator to a SuperLink, a device to the model, the training server to the
    shuffler: with another party of the same authority, nothing passes but the handshake."""
    monkeypatch.setattr(shuffler_client, "PATIENCE", 0.0)
    make_keys(tmp_path, nodes=1, hosts={})
    ca, mine, node = tmp_path / "ca" / "ca.pem", tmp_path / "server", tmp_path / "nodes" / "0"
    with closing(Fake(mine)) as fake:

        def of_shuffler() -> None:
            grid = grid_of(fake.address, ca)
            monkeypatch.setattr(grid._retry_invoker, "max_tries", 1)
            list(superlink.ask(grid, RecordDict(), {}, timeout=0))
            list(grid.get_nodes())

        def of_user() -> None:
            with Server(f"https://{fake.address}", ca, role=MODEL) as model:
                model.get("/v1/question", limit=100)

        def of_server() -> None:
            pair = {"certificate": mine / "cert.pem", "key": mine / "cert.key"}
            with Shuffler(fake.address, root_certificates=ca, **pair) as there:
                there._patiently(lambda: there._sent("GET", "/", 0))

        for call, error, words in (
            (lambda: Fleet(fake.address, ca, node / "node.key").activate(None), Lost, "not a superlink's"),
            (lambda: superlink.register(fake.address, ca, node / "node.pub"), UserError, None),
            (of_shuffler, Exception, None),
            (of_user, ServerError, "not a model's"),
            (of_server, UserError, "not a shuffler's"),
        ):
            with pytest.raises(error, match=words):
                call()
        assert not fake.asked

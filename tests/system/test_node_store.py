"""Nodes that are answered for where their folders are not seen: what travels, and when a ledger is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client.app import respond
from client.models.embeddings import TableEmbeddings, Tables, embeddings_path
from client.node import load_node, write_node
from client.shard import Shard, write_shard
from client.store.ledger import Ledger
from mechanisms.messages.refusals import REFUSALS
from simulations.transport import node_store as transport
from simulations.transport.node_store import Files, Lent, NodeStore, answer, packed
from tests.support.answers import ledger_rows
from tests.support.clients import make_node, message, request


class Beside(NodeStore):
    """A node store of this process. fault: "lost" after it has kept a ledger; "full", "overtaken" and "gone" before."""

    def __init__(self, folder: Path, fault: str = "") -> None:
        super().__init__(str(folder), put=lambda files: files)
        self._fault = fault
        self.lent: list[str] = []

    def lend(self, node: str) -> Lent:
        self.lent.append(node)
        return super().lend(node)

    def fetch(self, put: Any) -> Files:
        files: Files = put
        return files

    def keep(self, node: str, name: str, before: str | None, ledger: bytes) -> str:
        if self._fault in ("full", "overtaken"):
            return self._fault
        kept = "" if self._fault == "gone" else super().keep(node, name, before, ledger)
        if self._fault:
            raise ConnectionError("the node store is dead")
        return kept


def content(reply: Message) -> bytes:
    assert not reply.has_error(), reply.error
    return b"".join(array.data for record in reply.content.array_records.values() for array in record.values())


def test_a_lent_node_answers_as_in_its_folder_and_its_ledger_is_the_same(tmp_path: Path) -> None:
    make_node(tmp_path / "here" / "0")
    make_node(tmp_path / "lent" / "0")
    node_store = Beside(tmp_path / "lent")
    for stage in ("train-1", "train-2", "train-1"):
        asked = message(request(stage=stage))
        expected = content(respond(asked, tmp_path / "here" / "0"))
        assert content(answer(asked, "0", node_store, tmp_path / "shared")) == expected
    plain = [
        [
            (r.user, r.record, r.stage, r.channel, r.digest, r.epsilon, r.payload, r.commit)
            for r in ledger_rows(folder / "0")
        ]
        for folder in (tmp_path / "here", tmp_path / "lent")
    ]
    assert plain[0] == plain[1] and len(plain[0]) > 8
    assert not (tmp_path / "shared").exists()


@pytest.mark.parametrize(
    ("fault", "reason"), [("full", "storage"), ("gone", "failed"), ("lost", "failed"), ("overtaken", "failed")]
)
def test_nothing_leaves_whose_ledger_is_not_kept(fault: str, reason: str, tmp_path: Path) -> None:
    make_node(tmp_path / "0")
    node_store = Beside(tmp_path, fault)
    reply = answer(message(request()), "0", node_store, tmp_path / "shared")
    assert reply.has_error() and reply.error.code == REFUSALS[reason][0]
    assert node_store.lent == ["0"] * (transport._TRIES if fault == "overtaken" else 1)
    assert (tmp_path / "0" / "ledger-a.sqlite").exists() == (fault == "lost")  # charged, though nothing left
    if fault == "lost":
        spent = ledger_rows(tmp_path / "0")
        again = content(answer(message(request()), "0", Beside(tmp_path), tmp_path / "shared"))
        assert ledger_rows(tmp_path / "0") == spent and spent[0].payload in again


def test_of_two_who_answer_at_once_one_begins_anew(tmp_path: Path) -> None:
    """The other is asked about another stage, so that a ledger that is put over its own would forget its charge."""
    make_node(tmp_path / "0")
    other: list[Message] = []

    class Slow(Beside):
        def ledger(self, node: str, name: str) -> bytes | None:
            seen = super().ledger(node, name)
            if not other:
                other.append(answer(message(request(stage="train-2")), "0", Beside(tmp_path), tmp_path / "shared"))
            return seen

    node_store = Slow(tmp_path)
    content(answer(message(request(stage="train-1")), "0", node_store, tmp_path / "shared"))
    content(other[0])
    assert {row.stage for row in ledger_rows(tmp_path / "0")} == {"train-1", "train-2"} and node_store.lent == [
        "0",
        "0",
    ]


def test_a_ledger_goes_back_on_top_of_what_was_lent_alone(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    node_store, name = NodeStore(str(tmp_path), put=lambda files: files), "ledger-a.sqlite"
    assert node_store.keep("0", name, None, b"first") == "kept"
    assert node_store.keep("0", name, None, b"second") == "overtaken" and node_store.ledger("0", name) == b"first"
    assert node_store.keep("0", name, transport._hash(b"other"), b"second") == "overtaken"
    assert node_store.keep("0", name, transport._hash(b"first"), b"second") == "kept"
    assert node_store.ledger("0", name) == b"second" and len(list((tmp_path / "0").iterdir())) == 1


def test_what_travels_of_a_node(tmp_path: Path) -> None:
    """Of shared tables its own rows; public folders once; no ledger; what is published meanwhile the next time."""
    table = tmp_path / "cache" / "values.npy"
    table.parent.mkdir()
    np.save(table, values := np.arange(20, dtype=np.float32).reshape(5, 4))
    node, ids = tmp_path / "nodes" / "0", np.arange(3)
    at = TableEmbeddings(Tables((table,)), np.array([4, 0, 4]))
    write_shard(node, "test", ids, 0 * ids, ["a", "b", "c"], None, embeddings=at, identity="ab")
    (tmp_path / "words" / "deep").mkdir(parents=True)
    (tmp_path / "words" / "deep" / "list.txt").write_bytes(b"a\nb\n")
    write_node(node, vocabulary=tmp_path / "words", seed=1, arms={})
    Ledger(node / "ledger-a.sqlite", durable=False).close()

    files = packed(node)
    kept = embeddings_path(node, "test", "ab").name
    assert set(files) == {"node.json", "test.records.npy", "test.texts", "test.texts.starts.npy", kept}
    (node / "test-old.npy").write_bytes((node / kept).read_bytes())  # of texts that were read otherwise
    (node / "test-old.json").write_text("[]")
    assert set(packed(node)) == set(files)
    for name, held in files.items():
        held.tofile((tmp_path / name).resolve())
    shard = Shard.load(tmp_path, "test")
    assert list(shard.texts) == ["a", "b", "c"]
    np.testing.assert_array_equal(shard.embeddings("ab").take(ids), values[[4, 0, 4]])

    (node / "test-old.npy").unlink()
    (node / "test-old.json").unlink()
    node_store = Beside(tmp_path / "nodes")
    first, again = node_store.lend("0"), node_store.lend("0")
    assert first.files is again.files and node_store.sees()
    ((digest, shared),) = first.public.values()
    unpacked = transport._unpacked(tmp_path / "shared", digest, shared, node_store)
    assert (unpacked / "deep" / "list.txt").read_bytes() == b"a\nb\n" and unpacked.name == digest
    assert transport._unpacked(tmp_path / "shared", digest, None, node_store) == unpacked  # it is there
    np.save(node / "test-cd.npy", np.ones((3, 2), np.float32))
    assert set(node_store.lend("0").files) == {*files, "test-cd.npy"}
    assert node_store.lend("0").public["vocabulary"] == (digest, shared)


def test_a_lent_node_finds_the_public_folders_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_node(tmp_path / "0")
    settings = json.loads((tmp_path / "0" / "node.json").read_text())
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "model").write_bytes(b"public")
    (tmp_path / "0" / "node.json").write_text(json.dumps(settings | {"encoder": "../encoder"}))
    read: list[bytes] = []

    def responded(asked: Message, folder: Path, *, load: Any) -> Message:
        node = load(folder)
        read.append((node.encoder / "model").read_bytes())
        assert node.seed == load_node(tmp_path / "0").seed and node.folder == folder
        return respond(asked, folder, load=load)

    monkeypatch.setattr(transport, "respond", responded)
    content(answer(message(request()), "0", Beside(tmp_path), tmp_path / "shared"))
    assert read == [b"public"]

"""A user's own records, put into a device's folder by hand: from a file, whole or not at all, numbered on."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.app import answer
from client.device.bundle import Bundle
from client.device.records import add_records, encode_records
from client.models.embeddings import embeddings_path, write_embeddings
from client.models.encoder import Encoder
from client.node import load_node, write_node
from client.policy import Policy
from client.shard import Shard, extend_shard, write_shard
from client.store.questions import FIRST_RECORD, QuestionRecords
from mechanisms.messages.wire import reply_from_record, request_to_record
from sottovoce.cli import main as cli
from tests.support.clients import ENCODER, make_node, request
from tests.support.devices import POLICY, PUBLISHER, SENTENCES, make_bundle
from tests.support.requests import changed

OWN = Policy(embedding=100.0, total=1000.0)
LINES = "\ufeffone film\r\n\n  two books  \nthree"
TABLE = "mood\tsentence\nbad\tone film\ngood\t two books \nbad\tthree\n"
COLUMNS = ("--text", "sentence", "--label", "mood")
IDS = np.arange(3, dtype=np.int64)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("device"))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    write_node(tmp_path / "node", policy=OWN, classes=("bad", "good"))
    return tmp_path / "node"


def add(node: Path, text: str, *options: object) -> int:
    """Add a file by the command: a table where it has a tab, else lines."""
    file = node.parent / ("a.tsv" if "\t" in text else "a.txt")
    file.write_text(text)
    return cli.main(["device", "add", str(node), "--file", str(file), *map(str, options)])


def records(node: Path, split: str = "train") -> list[tuple[int, int, object]]:
    shard = load_node(node).shard(split)
    return list(zip(shard.users.tolist(), shard.records.tolist(), shard.texts, strict=True))


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "options"), [(LINES, ()), (TABLE, COLUMNS)])
def test_kinds_of_files(node: Path, text: str, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert add(node, text, *options) == 0
    called = ", bad as class 0, good as class 1" if options else ""
    assert capsys.readouterr().out == f"{node}: 3 records of user 0 added to the split train, numbered 0 to 2{called}\n"
    assert records(node) == [(0, 0, "one film"), (0, 1, "two books"), (0, 2, "three")]
    labels = load_node(node).shard("train").labels
    assert labels is None if not options else labels is not None and labels.tolist() == [0, 1, 0]
    assert all((path.stat().st_mode & 0o077) == 0 for path in node.glob("train.*"))


def test_labels_are_numbered_as_the_bundle_numbers_them(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No option states another order, and a device whose bundle names no classes takes no labels."""
    write_node(node, policy=OWN, classes=("good", "bad"))
    assert add(node, TABLE, *COLUMNS) == 0
    labels = load_node(node).shard("train").labels
    assert labels is not None and labels.tolist() == [1, 0, 1]
    assert add(node, TABLE, *COLUMNS, "--classes", "bad,good") == 2
    write_node(node, policy=OWN)
    assert add(node, TABLE, *COLUMNS) == 2
    assert "names no classes; install a bundle that does" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "options", "line"),
    [
        ("", (), "a.txt: holds no records"),
        (TABLE, (), "name the column of the texts with --text"),
        ("secret\tone\n", ("--text", "sentence"), 'has no column "sentence"'),
        ("mood\tsentence\nfine\tone\n", COLUMNS, "line 2: its label is none of the 2 classes"),
        (LINES, ("--split", "dev"), "has no split dev; its records are of train or test"),
        (LINES, ("--user", "-1"), "--user -1: must be 0 or above"),
    ],
)
def test_what_cannot_be_added_is_one_line(
    node: Path, text: str, options: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(node.iterdir())
    assert add(node, text, *options) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1 and line in captured.err and captured.out == ""
    assert "secret" not in captured.err and sorted(node.iterdir()) == before


def test_labels_are_of_all_or_of_none(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert add(node, TABLE, *COLUMNS) == 0 and add(node, LINES) == 2
    assert "have labels, and the new ones have none" in capsys.readouterr().err
    assert add(node, LINES, "--split", "test") == 0 and add(node, TABLE, *COLUMNS, "--split", "test") == 2
    assert "have no labels, and the new ones have" in capsys.readouterr().err
    assert len(records(node)) == len(records(node, "test")) == 3


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_numbers_go_on_for_each_user_over_all_splits(node: Path) -> None:
    for user, split in ((0, "train"), (0, "test"), (7, "test"), (7, "train"), (0, "train")):
        add_records(node, split, ["one", "two"], None, user)
    numbers = [(user, record) for user, record, _ in records(node)]
    assert numbers == [(0, 0), (0, 1), (7, 2), (7, 3), (0, 4), (0, 5)]
    assert records(node, "test") == [(0, 2, "one"), (0, 3, "two"), (7, 0, "one"), (7, 1, "two")]


def test_whose_they_are_where_that_is_not_said(node: Path) -> None:
    with QuestionRecords(node) as asked:
        asked.assign(3, [b"x" * 32], above=-1)
    assert add_records(node, "train", ["one"], None) == (3, range(1))
    add_records(node, "train", ["one"], None, 5)
    with pytest.raises(ValueError, match="holds 2 users; say by --user whose records these are"):
        add_records(node, "train", ["one"], None)


def test_what_was_released_is_never_repeated_for_another_record(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node", [0, 0, 0], [0, 1, 2], seed=None)
    answer(request_to_record(request(arm="", label=None)), load_node(node))
    for path in node.glob("train*"):
        path.unlink()
    assert add_records(node, "train", ["new"], None) == (0, range(3, 4))


def test_numbers_of_sentences_are_never_reached(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node", [0, 0, 1], [0, FIRST_RECORD, FIRST_RECORD - 3], seed=None, labelled=False)
    embeddings_path(node, "train", ENCODER).unlink()
    assert add_records(node, "test", ["a"], None, 0) == (0, range(1, 2))  # what is no record's number does not count
    assert add_records(node, "test", ["a"], None, 1) == (1, range(FIRST_RECORD - 2, FIRST_RECORD - 1))
    with pytest.raises(ValueError, match="no numbers left for 1 more records of user 1"):
        add_records(node, "test", ["a"], None, 1)
    assert len(records(node, "test")) == 2


# -- the files of a shard ---------------------------------------------------------------------------------------------


def test_pairs_and_plain_texts_in_one_shard(tmp_path: Path) -> None:
    parts = [["a", "\ud800", ""], [("first", "second"), "", "x"], ["b", "漢字", "c"]]
    for i, texts in enumerate(parts):
        extend_shard(tmp_path, "train", 0 * IDS, IDS + 3 * i, texts, None)
    assert Shard.load(tmp_path, "train").texts == [text for texts in parts for text in texts]
    with pytest.raises(ValueError, match="occurs twice"):
        extend_shard(tmp_path, "train", 0 * IDS, IDS, parts[0], None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.records.npy", "train.texts", "train.texts.starts.npy"]


def test_embeddings_of_the_old_texts_are_not_taken_for_the_new(made: Bundle, tmp_path: Path) -> None:
    node, identity = tmp_path / "node", made.request.encoder
    made.install(node, PUBLISHER)
    add_records(node, "train", SENTENCES[:2], None)
    wrong = np.ones((2, 8), np.float32)
    write_embeddings(node, "train", identity, wrong)
    write_embeddings(node, "test", identity, wrong)
    add_records(node, "train", SENTENCES[2:4], None)
    assert set(node.glob(f"*-{identity}*.npy")) == {embeddings_path(node, s, identity) for s in ("train", "test")}
    found = load_node(node).shard("train").embeddings(identity).take(np.arange(4))
    assert found.shape[0] == 4 and not np.allclose(found[:2, :8], 1)
    write_shard(node, "test", IDS[:2], IDS[:2], SENTENCES[:2], None)  # other texts, as many as before
    assert not embeddings_path(node, "test", identity).exists()


def test_embeddings_that_cannot_be_made_anew_are_not_dropped(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node", [0], seed=None, labelled=False)
    with pytest.raises(ValueError, match="keeps embeddings, and has no encoder"):
        add_records(node, "train", ["a"], None)
    assert len(records(node)) == 1 and embeddings_path(node, "train", ENCODER).exists()


@pytest.mark.parametrize("point", range(8))
def test_a_disk_that_fails_leaves_what_was_there(node: Path, point: int, monkeypatch: pytest.MonkeyPatch) -> None:
    add_records(node, "train", ["one", "two"], None)
    before, files, calls = records(node), sorted(node.iterdir()), [0]

    def failing(call):
        def called(*arguments):
            calls[0] += 1
            if calls[0] > point:
                raise OSError(28, "No space left on device")
            return call(*arguments)

        return called

    with monkeypatch.context() as patch:
        patch.setattr("client.store.durable.os.replace", failing(os.replace))
        patch.setattr("client.store.durable.sync", failing(lambda path: None))
        with pytest.raises(ValueError, match=r"cannot be written \(No space left on device\); nothing was added"):
            add_records(node, "train", ["three"], None)
    assert records(node) == before and sorted(node.iterdir()) == files
    assert add_records(node, "train", ["four"], None) == (0, range(2, 3))
    assert records(node) == [*before, (0, 2, "four")]


def test_several_who_add_at_once_all_do(node: Path) -> None:
    failed: list[BaseException] = []

    def some(user: int) -> None:
        try:
            for i in range(5):
                add_records(node, "train", [f"{user} {i}"], None, user % 2)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=some, args=(user,)) for user in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    users, numbers, texts = zip(*records(node), strict=True)
    assert sorted(texts) == sorted(f"{user} {i}" for user in range(4) for i in range(5))
    assert sorted(zip(users, numbers, strict=True)) == [(user, i) for user in range(2) for i in range(10)]


# -- encoded before anybody asks: the time of an answer would show the length of a text --


@pytest.fixture
def encoding(made: Bundle, tmp_path: Path) -> Path:
    write_node(tmp_path / "node", encoder=made.encoder, policy=replace(POLICY, embedding=1000.0, total=10_000.0))
    return tmp_path / "node"


def forbid_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoder, "encode", lambda *_: pytest.fail("a text is encoded while a server waits"))


def answered(made: Bundle, node: Path, split: str = "train") -> int:
    asked = changed(made.request, split=split, label=None)
    return len(reply_from_record(answer(request_to_record(asked), load_node(node))))


def test_texts_are_encoded_when_they_are_added(made: Bundle, encoding: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_records(encoding, "train", SENTENCES[:2], None)
    add_records(encoding, "train", [*SENTENCES[2:4], "long " * 100_000], None)
    add_records(encoding, "test", SENTENCES[4:5], None)
    whole = load_node(encoding).shard("train").embeddings(made.request.encoder).take(np.arange(4))
    np.testing.assert_array_equal(whole, Encoder(made.encoder or "", threads=1).encode(SENTENCES[:4]))
    forbid_encoding(monkeypatch)
    assert answered(made, encoding) == 5 and answered(made, encoding, "test") == 1


def test_what_came_otherwise_is_encoded_before_anybody_asks(
    made: Bundle, encoding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that were written by hand, or under another bundle's encoder, and what a full disk left out."""
    write_shard(encoding, "train", 0 * IDS, IDS, SENTENCES[:3], None)
    encode_records(load_node(encoding))
    made.install(encoding.parent / "other", PUBLISHER)
    write_shard(encoding.parent / "other", "train", IDS, 0 * IDS, SENTENCES[:3], None)
    made.install(encoding.parent / "other")  # over a device that is served meanwhile, too
    kept = embeddings_path(encoding, "train", made.request.encoder)
    before = kept.stat().st_mtime_ns
    forbid_encoding(monkeypatch)
    encode_records(load_node(encoding))  # which has nothing left to do
    assert kept.stat().st_mtime_ns == before
    assert answered(made, encoding) == answered(made, encoding.parent / "other") == 3


def test_an_encoded_record_that_cannot_be_kept_is_encoded_later(
    made: Bundle, encoding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("client.device.records.write_embeddings", full)
        add_records(encoding, "train", SENTENCES[:2], None)
    assert not embeddings_path(encoding, "train", made.request.encoder).exists() and answered(made, encoding) == 2

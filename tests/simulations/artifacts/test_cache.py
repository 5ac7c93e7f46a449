"""Embeddings kept on the disk: each text once, whatever the list, the process or what was deleted meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from client.models.embeddings import TableEmbeddings
from server.checkpoint_files import fingerprint
from simulations.artifacts import cache, language_models
from simulations.artifacts import encoder as encoders
from simulations.artifacts import vocabulary as vocabularies
from simulations.artifacts.cache import cache_folder, embed
from simulations.corpora.corpus import Corpus
from tests.support.paths import ROOT
from tests.support.studies import PURKAYASTHA, RANDOMIZED, experiment
from tests.support.tiny_models import tiny_bert

WIDTH = 3


class Counting:
    """An encoder of the letters of a text, which remembers what it was asked."""

    identity, dim = "ab" * 32, WIDTH

    def __init__(self) -> None:
        self.asked: list = []

    def encode(self, texts: list) -> np.ndarray:
        self.asked += texts
        return np.array([[len(t), len("".join(t)), hash(t) % 1000] for t in texts], np.float32)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def folders() -> list[Path]:
    """Of the one encoder; beside its folder may lie the lock with which that was made."""
    return sorted((cache_folder() / "embeddings").glob("[0-9a-f]*/[0-9a-f]*"))


def test_each_text_is_encoded_once_whatever_the_list() -> None:
    encoder = Counting()
    texts = ["a", "b", ("a", "b"), "ab", ("ab", ""), "", "a", "\ud800"]
    first = embed(encoder, texts)
    assert len(encoder.asked) == 7 and set(encoder.asked) == set(texts)
    np.testing.assert_array_equal(first, Counting().encode(texts))
    assert isinstance(first, TableEmbeddings) and (len(first), first.width) == (8, WIDTH)
    second = embed(encoder, ["ab", "new", "a"])
    assert encoder.asked[7:] == ["new"]
    np.testing.assert_array_equal(second, Counting().encode(["ab", "new", "a"]))
    np.testing.assert_array_equal(second[1:], np.asarray(second)[1:])
    np.testing.assert_array_equal(second.take(np.array([2, 0])), np.asarray(second)[[2, 0]])


def test_another_encoder_and_another_runtime_have_rows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Counting()
    embed(encoder, ["a"])
    other = Counting()
    other.identity = "cd" * 32
    embed(other, ["a"])
    assert other.asked == ["a"]
    monkeypatch.setattr(cache, "version", lambda name: "0.0.0")
    embed(encoder, ["a"])
    assert encoder.asked == ["a", "a"]


#: What can become of a segment that cannot be read.
DAMAGES: dict[str, Callable[[Path], object]] = {
    "keys cut short": lambda s: os.truncate(s / "keys.npy", (s / "keys.npy").stat().st_size - 1),
    "keys of another kind": lambda s: np.save(s / "keys.npy", np.zeros(3)),
    "values empty": lambda s: os.truncate(s / "values.npy", 0),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_segment_that_cannot_be_read_is_made_again(damage: str) -> None:
    texts = ["a", "bc", "def"]
    whole = np.asarray(embed(Counting(), texts))
    embed(Counting(), ["other"])
    (segment,) = [s for s in folders() if len(np.load(s / "keys.npy")) == 3]
    DAMAGES[damage](segment)
    encoder = Counting()
    for _ in range(2):  # healed once and for all
        np.testing.assert_array_equal(embed(encoder, texts), whole)
    assert sorted(encoder.asked) == sorted(texts)


def test_what_appears_lies_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file and folder is synced before it gets its name, and the name after: or a power cut leaves a folder of
    the right name with files of the right size and nothing in them."""
    synced: list[str] = []
    events: list[tuple[str, list[str]]] = []
    fsync, rename = os.fsync, Path.rename

    def noting(number: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{number}")))
        fsync(number)

    def renaming(self: Path, target: Path) -> Path:
        events.append((self.name, list(synced)))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(Path, "rename", renaming)
    embed(Counting(), ["a"])
    ((part, before),) = events
    assert {"keys.npy", "values.npy", part} == set(before)
    assert synced[len(before) :] == [folders()[0].parent.name]


# --- what a cached thing is named by


def test_a_name_follows_all_the_code_below_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "client/a.py": "import numpy\nfrom client.b import x\n",
        "client/b.py": "def x():\n    from server import c\n",
        "server/__init__.py": "",
        "server/c.py": "y = 1\n",
        "client/other.py": "z = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cache, "_ROOT", tmp_path)

    def name(*libraries: str) -> str:
        cache._code.cache_clear()
        return cache.made_by(("client.a",), libraries)

    try:
        first = name("numpy")
        (tmp_path / "client/other.py").write_text("z = 2\n")
        assert name("numpy") == first
        (tmp_path / "server/c.py").write_text("y = 2\n")  # imported by what is imported, within a function
        second = name("numpy")
        assert len({first, second, name("numpy", "tokenizers")}) == 3
        monkeypatch.setattr(cache, "version", lambda library: "0")
        assert name("numpy") not in (first, second)
    finally:
        cache._code.cache_clear()


def test_code_and_device_are_in_the_names_of_what_depends_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under other code everything is made again; on a GPU only what is trained or sampled there."""
    bert, texts = tiny_bert(tmp_path / "bert"), ["a fine film", "a bad one"]
    corpus = Corpus(texts, np.array([1, 0]), ("bad", "good"))
    arm = {"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}

    def exported(tuned: bool) -> Path:
        settings = experiment(arm, encoder={"model": str(bert), "fine-tune-on-public": tuned}).encoder
        return encoders.encoder_folder(settings, corpus, batch_size=32, seed=1)

    makers: dict[str, Callable[[], Path]] = {
        "as it is": lambda: exported(False),
        "tuned": lambda: exported(True),
        "masked": lambda: language_models.masked_lm_folder(bert, texts, seed=1),
        "generating": lambda: language_models.generator_folder(bert, texts, kind="generator", seed=1),
        "vocabulary": lambda: vocabularies.vocabulary_folder(public_texts=texts),
    }

    def names(code: str) -> dict[str, Path]:
        for module in (encoders, language_models, vocabularies):
            monkeypatch.setattr(module, "folder_once", lambda kind, inputs, make: Path(f"{kind}/{inputs}"))
            monkeypatch.setattr(module, "made_by", lambda modules, libraries: f"{code} {modules}")
        return {name: make() for name, make in makers.items()}

    monkeypatch.setenv("SOTTOVOCE_DEVICE", "cpu")
    here, other = names("this"), names("that")
    assert not set(here.values()) & set(other.values())
    monkeypatch.delenv("SOTTOVOCE_DEVICE")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    there = names("this")
    assert {name for name in makers if here[name] != there[name]} == {"tuned", "masked", "generating"}


def test_a_hub_model_is_named_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.hub.reachable", lambda: False)
    cached, commits = tmp_path / "hub" / "models--someone--bert", ["aa11", "bb22"]

    def download(name: str, file: str, *, local_files_only: bool) -> str:
        assert (name, file, local_files_only) == ("someone/bert", "config.json", True)
        return str(cached / "snapshots" / commits.pop(0) / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert [fingerprint("someone/bert") for _ in range(2)] == ["hub:someone/bert@aa11", "hub:someone/bert@bb22"]

    def nothing(*_: object, **__: object) -> str:
        raise OSError("offline")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", nothing)
    with pytest.raises(ValueError, match="no model hub or cache gives it now"):
        fingerprint("someone/bert")


def test_keys_with_equal_first_halves_are_told_apart(tmp_path: Path) -> None:
    cache._add(tmp_path / "s", np.array([[1, 5]], np.uint64), np.ones((1, 1), np.float32))
    paths, rows = cache._find(tmp_path / "s", np.array([[1, 4], [1, 5], [2, 5]], np.uint64), 1)
    assert rows.tolist() == [-1, 0, -1] and len(paths) == 1


def test_a_long_list_is_kept_in_pieces_so_that_a_kill_loses_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_SEGMENT", 2)

    class Killed(Counting):
        def encode(self, texts: list) -> np.ndarray:
            if len(self.asked) >= 4:
                raise KeyboardInterrupt
            return super().encode(texts)

    with pytest.raises(KeyboardInterrupt):
        embed(Killed(), list("abcdef"))
    again = Counting()
    np.testing.assert_array_equal(embed(again, list("abcdef")), Counting().encode(list("abcdef")))
    assert len(again.asked) == 2


TWO = """
import sys, numpy as np
from simulations.artifacts.cache import embed

class Lengths:
    identity, dim = "ab" * 32, 3

    def encode(self, texts):
        return np.array([[len(text), int(text.split()[1]), 1] for text in texts], np.float32)

texts = [f"text {i}" for i in range(int(sys.argv[1]), int(sys.argv[1]) + 200)]
for n in range(20, 201, 20):
    assert (np.asarray(embed(Lengths(), texts[:n])) == Lengths().encode(texts[:n])).all()
"""


def test_two_processes_at_once() -> None:
    processes = [subprocess.Popen([sys.executable, "-c", TWO, start], cwd=ROOT) for start in ("0", "100")]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert not list(folders()[0].parent.glob(".*"))

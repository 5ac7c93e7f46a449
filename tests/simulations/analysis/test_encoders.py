"""A comparison of encoders on a labelled sample: what it measures, its table and its figure."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from client.models.encoder import FILES, Encoder
from simulations.analysis import encoders
from simulations.corpora.corpus import Corpus
from sottovoce.cli import main as cli
from tests.support.tiny_checkpoints import as_sentence_encoder, mpnet
from tests.support.tiny_models import reviews, tiny_bert


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """Reviews whose label one word decides, each told apart by a number of words."""
    texts, labels = reviews(600, seed=3)
    rows = sorted(set(zip(texts, labels.tolist(), strict=True)))
    file = tmp_path / "public.csv"
    file.write_text("text,label\n" + "".join(f"{text},{('no', 'yes')[label]}\n" for text, label in rows))
    return file


def test_a_comparison_in_one_command(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bert = as_sentence_encoder(tiny_bert(tmp_path / "bert"))
    other = as_sentence_encoder(mpnet(tmp_path / "mpnet"), normalize=True)
    words = ["encoders", "compare", "--data", str(sample), "--sample", "400", "--users", "100000"]
    words += ["--encoder", str(bert), "--encoder", str(other)]
    monkeypatch.setattr(encoders, "TIMED", 3)
    assert cli.main([*words, "--epsilon", "0.01", "--epsilon", "8", "--json", "--figure", str(tmp_path / "f.svg")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["users"] == 100_000 and found["classes"] == ["no", "yes"] and found["precision"] == "fp32"
    for each in found["encoders"]:
        assert list(each["accuracy"]) == list(each["error"]) == ["0.01", "8.0", "inf"]
        assert each["accuracy"]["inf"] > 0.75 > each["accuracy"]["0.01"] and each["milliseconds"] > 0
    drawn = (tmp_path / "f.svg").read_text()
    assert "no noise" in drawn and "local ε of a user vector, 100,000 users" in drawn
    assert cli.main([*words, "--epsilon", "8"]) == 0
    printed = capsys.readouterr().out
    assert "| encoder | parameters | bundle | ms a sentence | ε = 8 | no noise |" in printed
    for wrong, said in (
        (["--precision", "int2"], "--precision: must be fp32, int8 or int4, got int2"),
        (["--epsilon", "0"], "--epsilon: must be above 0 and below 100"),
        (["--figure", "f.bmp"], "must end in .pdf, .svg or .png"),
    ):
        assert cli.main([*words, *wrong]) == 2
        assert said in capsys.readouterr().err


def test_what_a_bundle_and_a_model_weigh(sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bert = as_sentence_encoder(tiny_bert(tmp_path / "bert"))
    (made,) = encoders.compare(
        sample, [str(bert)], text=None, label=None, users=1000, epsilons=[4.0], sample=300, precision="int8", seed=1
    ).encoders
    folder = encoders.encoder_folder(
        encoders.EncoderSettings(model=str(bert), precision="int8", max_length=64),
        Corpus(["a", "b"], np.array([0, 1]), ("no", "yes")),
        batch_size=1,
        seed=1,
    )
    assert Encoder(folder).precision == "int8"
    assert made.bundle == sum((folder / name).stat().st_size for name in FILES)
    assert made.parameters == encoders._parameters(str(bert)) < 40_000


def test_a_sample_that_is_too_small_is_one_line(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample.write_text("".join(sample.read_text().splitlines(keepends=True)[:100]))
    assert cli.main(["encoders", "compare", "--data", str(sample), "--encoder", "minilm"]) == 2
    assert "a comparison needs 200" in capsys.readouterr().err


def test_the_list_says_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["encoders", "list"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("minilm       here ") and "\ne5-small-en " in printed

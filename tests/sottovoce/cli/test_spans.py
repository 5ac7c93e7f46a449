"""Public spans of several words: `sanitize --spans FILE`."""

from pathlib import Path

import numpy as np
import pytest

from client.models.vocabulary import read_vectors
from mechanisms.vocabulary import Vocabulary
from simulations.artifacts.vocabulary import with_spans
from simulations.errors import UserError
from sottovoce.cli.main import main

WORDS = ["the", "film", "was", "good", "bad", "fine", "awful", "a", "it", "'s", "not", "very", "plot", ".", ",", "3"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = np.random.default_rng(0).normal(size=(len(WORDS), 4))
    lines = [f"{word} " + " ".join(f"{v:.4f}" for v in row) for word, row in zip(WORDS, rows, strict=True)]
    (tmp_path / "w.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_public_spans_are_read_and_written_as_one_word(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "spans.txt").write_text("the film\nNot very  good\n\nfilm\n")
    (place / "in.txt").write_text("The film was not very good .\nfilm\n")
    given = ("--mechanism", "santext:epsilon=1000,length=kept")
    files = ("--spans", "spans.txt", "--in", "in.txt", "--out", "out.txt")
    assert main(["text", "sanitize", "--words", "w.txt", *given, *files]) == 0
    assert (place / "out.txt").read_text() == "the film was not very good .\nfilm\n"
    said = capsys.readouterr().err
    assert "18 words" in said and "2 rows, 5 tokens" in said
    (place / "spans.txt").write_text("good grief\nqqq zzz\n")
    given = ("--words", "w.txt", "--mechanism", "random", "--spans", "spans.txt", "--in", "in.txt")
    assert main(["text", "sanitize", *given, "--out", "other.txt"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no word of 'qqq zzz'" in line and not (place / "other.txt").exists()


def test_a_span_lies_at_the_mean_of_its_words() -> None:
    words = read_vectors("w.txt")
    spans = with_spans(words, ["good film", "GOOD film", "film"])
    assert spans.words == (*words.words, "good film")
    mean = (words.vectors[words.word_id("good")] + words.vectors[words.word_id("film")]) / 2
    np.testing.assert_allclose(spans.vectors[-1], mean, rtol=1e-6)
    with pytest.raises(UserError, match="before counts"):
        with_spans(Vocabulary(words.words, words.vectors, np.ones(len(words), np.int64)), ["good film"])

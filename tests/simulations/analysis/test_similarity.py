"""How near rewritten texts are: BLEU as by hand, the cosine of the encoder, and the command on two files."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from simulations.analysis import similarity as module
from simulations.analysis.similarity import similarity
from simulations.corpora.builtin import builtin
from sottovoce.cli import main as cli

TEXTS = [" ".join(text.split()[:12]) for text in builtin(public=1, train=40, test=1, seed=3).train.texts]


@pytest.fixture
def lengths_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No encoder is made."""
    monkeypatch.setattr(module, "_cosines", lambda a, b: np.ones(len(a)))


def test_bleu_is_that_of_its_definition(lengths_alone: None) -> None:
    """Precisions 5/6, 3/5, 2/4 and 1/3 of one to four words in a row; then e^(1 - 6/5) for a text that is too short."""
    found = similarity(["the cat sat on a mat"], ["the cat sat on the mat"])
    assert found.bleu == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25, abs=1e-9)
    short = similarity(["one two three four five six"], ["one two three four five"])
    assert short.bleu == pytest.approx(100 * np.exp(1 - 6 / 5), abs=1e-9)
    assert "tok:13a" in found.bleu_signature and found.same == 0


def test_one_text_has_no_error_and_few_words_no_bleu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lengths_alone: None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("a b c\n")
    Path("b").write_text("a b c d\n")
    for other, bleu in (("a", "–, as no text has four words"), ("b", "0.00")):
        assert cli.main(["text", "similarity", other, "a"]) == 0
        said = capsys.readouterr().out
        assert f"BLEU    {bleu}" in said and "cosine  1.0000   (" in said and "±" not in said
    assert cli.main(["text", "similarity", "a", "a", "--json"]) == 0
    said = capsys.readouterr().out
    assert "NaN" not in said and json.loads(said)["bleu"] is None and json.loads(said)["cosine_error"] is None


def test_pairs_are_needed(lengths_alone: None) -> None:
    for original, rewritten in (([], []), (["a"], ["a", "b"])):
        with pytest.raises(ValueError, match="pairs of texts"):
            similarity(original, rewritten)


@pytest.mark.slow
def test_what_is_nearer_has_more_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rng = np.random.default_rng(1)

    def changed(share: float) -> list[str]:
        words = sorted({word for text in TEXTS for word in text.split()})
        return [" ".join(str(rng.choice(words)) if rng.random() < share else w for w in t.split()) for t in TEXTS]

    found = [similarity(TEXTS, changed(share)) for share in (0.0, 0.2, 0.6, 1.0)]
    assert (found[0].same, found[0].bleu) == (1.0, pytest.approx(100))
    assert found[0].cosine == pytest.approx(1, abs=1e-6) and found[0].cosine_error < 1e-6
    for nearer, further in pairwise(found):
        assert nearer.bleu > further.bleu + 5 and nearer.cosine > further.cosine + 3 * further.cosine_error
    assert found[3].bleu < 5 and found[3].cosine < 0.6


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lengths_alone: None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.tsv").write_text("text\tlabel\none two three four five\t0\nsix\t1\n")
    Path("b.tsv").write_text("label\ttext\n0\tone two three four nine\n1\tsix\n")
    assert cli.main(["text", "similarity", "a.tsv", "b.tsv", "--column", "text"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 texts, 50.0% of them unchanged\nBLEU  ") and "all-MiniLM-L6-v2" in said
    assert cli.main(["text", "similarity", "a.tsv", "b.tsv", "--column", "text", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["texts"] == 2
    Path("lines").write_text("one\ntwo\n")
    assert cli.main(["text", "similarity", "lines", "lines"]) == 0
    assert capsys.readouterr().out.startswith("2 texts, 100.0% of them unchanged")
    Path("short").write_text("one\n")
    Path("none").write_text("")
    for given, why in (
        (["lines", "short"], "has 1 rows"),
        (["none", "none"], "has no rows"),
        (["lines", "absent"], "no such file"),
        (["a.tsv", "b.tsv", "--column", "sentence"], 'no column "sentence"'),
    ):
        assert cli.main(["text", "similarity", *given]) == 2
        complaint = capsys.readouterr().err
        assert why in complaint and complaint.count("\n") == 1

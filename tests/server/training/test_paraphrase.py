"""Fine-tuning on pairs: what tiny models of each layout learn from them, and the command."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.special import log_softmax

from client.models.generator import Generator
from mechanisms.vocabulary import NOTHING
from server.generation import PARAPHRASE, export_generator
from server.training.paraphrase import _loss, finetune_paraphraser
from sottovoce.cli import main as cli
from tests.support.tiny_generators import KINDS, tiny_generator

#: What is said of a film is said of a book, and the other way round.
PAIRS = [("the film was good", "a book"), ("the book was bad", "a film"), ("good film", "book"), ("bad book", "film")]


def log_likelihood(folder: Path, pairs: list[tuple[str, str]]) -> float:
    """The mean of a token's log-probability, each given the text and those before it, the end's too."""
    model, found = Generator(folder), []
    v = model.vocabulary
    for text, paraphrase in pairs:
        target = [v.words.index(word) for word in (*paraphrase.split(), model.end)]
        scores, drawn = model.scores([text], v), np.full((1, len(target)), NOTHING)
        for at, word in enumerate(target):
            found.append(log_softmax(scores(np.array([at]), drawn, np.array([0]))[0])[word])
            drawn[0, at] = word
    return float(np.mean(found))


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_learned_token_by_token_and_the_end_with_them(kind: str, tmp_path: Path, lines: list[str]) -> None:
    """By the model as clients run it. Whoever ignores the text has log 1/2 at the word that tells the four apart, in a
    third of the tokens; wrong pairs have less."""
    source = tiny_generator(tmp_path / "model", kind)
    trained = finetune_paraphraser(
        source, [*PAIRS * 8, ("the film", "")], tmp_path / "trained", epochs=12, batch_size=4, lr=1e-2, seed=1
    )
    assert lines[-1].startswith("32 pairs, 12 epochs: loss ")
    public = [text for pair in PAIRS for text in pair]
    for place, model in ((tmp_path / "made", trained), (tmp_path / "before", source)):
        export_generator(model, place, public_texts=public, seed=0, prompt=PARAPHRASE)
    after, before = (log_likelihood(tmp_path / name, PAIRS) for name in ("made", "before"))
    wrong = log_likelihood(tmp_path / "made", [(text, PAIRS[i ^ 1][1]) for i, (text, _) in enumerate(PAIRS)])
    assert after > max(before + 0.5, wrong + 0.2), (after, before, wrong)


def test_same_arguments_same_weights(tmp_path: Path) -> None:
    source = tiny_generator(tmp_path / "model", "t5")
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        finetune_paraphraser(source, PAIRS, tmp_path / name, epochs=1, batch_size=2, seed=seed)
        found.append(load_file(tmp_path / name / "model.safetensors"))
    assert all((found[0][key] == found[1][key]).all() for key in found[0])
    assert any((found[0][key] != found[2][key]).any() for key in found[0])


def test_what_cannot_be_learned_is_refused(tmp_path: Path) -> None:
    source = tiny_generator(tmp_path / "model", "causal")
    with pytest.raises(ValueError, match="no pair has a paraphrase"):
        finetune_paraphraser(source, [("a", "")], tmp_path / "out", seed=1)
    with pytest.raises(ValueError, match="epochs and batch-size must be at least 1"):
        finetune_paraphraser(source, PAIRS, tmp_path / "out", epochs=0, seed=1)


@pytest.mark.parametrize("lr", [0.0, -1e-4, 1.01, 1e30, math.inf, math.nan])
def test_no_learning_rate(lr: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^paraphraser: lr must be above 0 and at most 1, got ") as error:
        finetune_paraphraser(tmp_path / "model", PAIRS, tmp_path / "out", lr=lr, seed=1)
    assert "\n" not in str(error.value)


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However they come about: of one step, for all that is looked at is where training ends."""
    source = tiny_generator(tmp_path / "model", "causal")

    def broken(*args: object, **given: object) -> torch.Tensor:
        return _loss(*args, **given) * math.nan

    monkeypatch.setattr("server.training.paraphrase._loss", broken)
    with pytest.raises(ValueError, match=r"^paraphraser: training ended in weights that are no numbers; "):
        finetune_paraphraser(source, PAIRS, tmp_path / "out", epochs=1, seed=1)
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file of pairs to rewritten texts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tiny_generator(Path("model"), "bart")
    Path("pairs.tsv").write_text("id\tfrom\tto\n" + "".join(f"{i}\t{a}\t{b}\n" for i, (a, b) in enumerate(PAIRS)))
    common = ["text", "paraphraser", "--model", "model", "--pairs", "pairs.tsv", "--column", "from"]
    assert cli.main([*common, "--column", "to", "--out", "made", "--epochs", "1"]) == 0
    assert capsys.readouterr().out == "made: a checkpoint that paraphrases, for --generator and text.paraphraser\n"
    Path("in.txt").write_text("the film was good\n")
    given = ["--in", "in.txt", "--public", "in.txt", "--generator", "made"]
    assert cli.main(["text", "sanitize", "--mechanism", "dp-paraphrase:epsilon=5,tokens=4", *given]) == 0
    assert "ε = 24 at worst" in capsys.readouterr().err
    for column, expected in (("from", "--column: give two"), ("too", 'has no column "too"')):
        assert cli.main([*common, "--column", column, "--out", "none"]) == 2
        assert expected in capsys.readouterr().err.splitlines()[-1] and not Path("none").exists()

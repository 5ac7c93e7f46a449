"""The command `sanitize` with models that generate text, and how their tokens spell it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from client.models import vocabulary as vocabularies
from client.rewrite import Rewriter
from mechanisms.pieces import BYTE_LEVEL, SENTENCEPIECE, WORDPIECE, spelled
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING, Vocabulary
from simulations.artifacts.language_models import generator_folder
from sottovoce.cli import main as cli
from tests.sottovoce.cli.test_sanitize import TEXTS, WORDS, complaint, place
from tests.support.tiny_generators import TOKENS, tiny_generator

__all__ = ["place"]  # a fixture


@pytest.mark.parametrize("kind", ["causal", "t5"])
def test_generated_texts(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the command writes is what Python draws with the same seed, and what it prints is what that costs: each of
    the tokens, and their number. Nothing that a row may hold makes it fail."""
    source = str(tiny_generator(Path("model"), kind))
    public = ["the film was good", "a bad book"]
    Path("public.txt").write_text("\n".join(public) + "\n")
    Path("in.txt").write_text("\n".join(TEXTS) + "\n", newline="")
    files = ("--in", "in.txt", "--public", "public.txt", "--seed", "7")
    for name, of, prompt in (("dp-prompt", "generator", "Document : {text} :"), ("dp-paraphrase", "paraphraser", None)):
        more = () if prompt is None else ("--prompt", prompt)
        given = ["sanitize", "--mechanism", f"{name}:epsilon=11,tokens=6", "--generator", source, *files, *more]
        assert cli.main(given) == 0
        captured = capsys.readouterr()
        assert captured.err.splitlines()[-1].endswith(
            " tokens. Each text: ε = 72 at worst, for any two texts (6 tokens at 11 each, their number at 6)"
        )
        folder = generator_folder(source, public, kind=of, prompt=prompt, seed=0)
        rewriter = Rewriter({"mechanism": name, "epsilon": 11.0, "tokens": 6}, model=folder)
        rows = np.arange(len(TEXTS))
        rng = SimulationStreams(7).rows(rows, np.zeros_like(rows), stage="sanitize", channel="text")
        assert captured.out.split("\n")[:-1] == rewriter.rewrite(TEXTS, rng=rng)
        assert rewriter.text.vocabulary.words == TOKENS and rewriter.text.guarantee.worst_case() == 72.0
        assert {w for line in captured.out.splitlines() for w in line.split()} <= {*TOKENS}
        explained = rewriter.explain("the film")
        assert [(t.original, t.substitute, t.epsilon, t.note) for t in explained[:2]] == [
            ("the", None, 0.0, "read"),
            ("film", None, 0.0, "read"),
        ]
        assert all(t.original is None and t.epsilon == 11.0 and t.note == "drawn" for t in explained[2:])
    # in the words of a vocabulary, and by a folder that was exported before
    given = ["sanitize", "--mechanism", "dp-prompt:epsilon=11,tokens=6", "--generator", str(folder), *files]
    assert cli.main([*given, "--words", "w.txt"]) == 0
    captured = capsys.readouterr()
    assert {w for line in captured.out.splitlines() for w in line.split()} <= set(WORDS)
    assert "16 words of 4 dimensions" in captured.err
    assert "with a prompt of its own" in complaint(capsys, *given[1:], "--prompt", "{text} :")


@pytest.mark.parametrize("kind", ["causal", "t5"])
def test_neither_side_of_a_pair_is_read_for_the_other(kind: str) -> None:
    """Whatever stands on one side, the other's draws are the same, and what is charged is that of two texts. The side
    itself is read, so the test can fail."""
    source = tiny_generator(Path("model"), kind)
    folder = generator_folder(source, ["the film was good"], kind="generator", seed=0)
    spec = {"mechanism": "dp-prompt", "epsilon": 60.0, "tokens": 6, "sides": 2, "length": 0.0}
    rewriter = Rewriter(spec, model=folder)
    assert rewriter.text.guarantee.worst_case() == 2 * 6 * 60.0
    n = 40
    rows = np.arange(n)

    def drawn(first: str, second: str) -> tuple[list[str], list[str]]:
        rng = SimulationStreams(3).rows(rows, np.zeros_like(rows), stage="s", channel="text")
        pairs = rewriter.rewrite([(first, second)] * n, rng=rng)
        return [one for one, _ in pairs], [other for _, other in pairs]

    base, moved = drawn("the film was good", "a bad book"), drawn("the film was good", "")
    assert base[0] == moved[0] and base[1] != moved[1]
    assert drawn("a", "a bad book")[1] == base[1]


def test_a_missing_generating_model_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--in", "w.txt"]
    for name in ("dp-prompt", "dp-paraphrase"):
        asked = ("--mechanism", f"{name}:epsilon=1", *common)
        missing = f"{name}: writes with a generating model; name its checkpoint with --generator FOLDER"
        assert complaint(capsys, *asked).endswith(missing)
        assert "nowhere" in complaint(capsys, *asked, "--generator", "./nowhere")
    Path("empty").mkdir()
    assert "has no config.json" in complaint(capsys, *asked, "--generator", "empty")
    for option in ("--generator", "--prompt"):
        line = complaint(capsys, "--mechanism", "dp-mlm:epsilon=1", *common, option, "empty")
        assert f"{option}: goes with a mechanism that generates" in line


# -- how pieces spell


@pytest.mark.parametrize("way", [BYTE_LEVEL, SENTENCEPIECE])
def test_pieces_spell_what_their_tokenizer_decodes(way: str) -> None:
    tokenizer = Tokenizer(models.BPE())
    of_bytes = way == BYTE_LEVEL
    before = pre_tokenizers
    tokenizer.pre_tokenizer = before.ByteLevel(add_prefix_space=True) if of_bytes else before.Metaspace()
    tokenizer.decoder = decoders.ByteLevel() if of_bytes else decoders.Metaspace()
    texts = ["the film was good", "a café, שלום 😀 it's", "naïve   films"]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if of_bytes else []
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    for text in texts:
        ids = tokenizer.encode(text).ids
        pieces = [tokenizer.id_to_token(i) for i in ids]
        assert spelled(pieces, way) == " ".join(tokenizer.decode(ids).split()) == " ".join(text.split())


def test_pieces_that_spell_nothing_do_not_fail(tmp_path: Path) -> None:
    assert spelled(["film", "##s", "##", "a"], WORDPIECE) == "films a"
    assert spelled(["▁a", "<0xC3>", "<0xA9>", "<0xC3>"], SENTENCEPIECE) == "aé\ufffd"
    assert spelled(["Ã", "Ċ", "Ġb", "日"], BYTE_LEVEL) == "\ufffd b日"
    v = Vocabulary(("Ġa", "b"), np.zeros((2, 1), np.float32), pieces=BYTE_LEVEL)
    assert v.text([0, 1, NOTHING, 2]) == "ab" and v.identity != Vocabulary(v.words, v.vectors).identity
    vocabularies.save(v, tmp_path / "v")
    assert vocabularies.load(tmp_path / "v") == v and vocabularies.load(tmp_path / "v").pieces == BYTE_LEVEL
    with pytest.raises(ValueError, match="pieces must be one of"):
        Vocabulary(("a", "b"), np.zeros((2, 1), np.float32), pieces="letters")

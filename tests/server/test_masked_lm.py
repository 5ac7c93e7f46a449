"""Masked language models: training, export and the client's reading of them, on tiny random models."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, BertTokenizerFast

from client.draw import private_arguments
from client.models.language_models import MASKED_LM, MaskedLM, identity
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.dp_mlm import DpMlm
from mechanisms.words.tables import RandomSubstitution, Verbatim
from mechanisms.words.text import TextMechanism
from server.masked_lm import ALIGNED, export_masked_lm, inputs_of, layout
from server.text_batches import pieces_of
from server.training.pretrain import pretrain
from simulations.artifacts.language_models import masked_lm_folder, sanitized
from simulations.errors import UserError
from tests.support.tiny_models import WORDS, reviews, tiny_bert, tiny_masked_lm

PUBLIC = reviews(60, seed=1)[0]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_masked_lm(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    export_masked_lm(checkpoint, folder, public_texts=PUBLIC, seed=1, max_length=40)
    return folder


#: Pieces of the model, a word of two pieces ("plots"), and one that it does not know.
NAMES = (*(word for word in WORDS if not word.startswith("##")), "plots", "zebra")
V = Vocabulary(NAMES, np.random.default_rng(0).normal(size=(len(NAMES), 4)).astype(np.float32))


def ids_of(*words):
    return np.array([[V.word_id(word) for word in words]])


def texts(n, length, seed=2):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, V.unknown + 1, size=(n, length))
    x[np.arange(length)[None] >= rng.integers(0, length + 1, size=n)[:, None]] = NOTHING
    return x


def ask(model, x, now=None, position=0):
    return model.scores(x, V)(np.full(len(x), position), x if now is None else now, np.arange(len(x)))


# --- export


@pytest.mark.parametrize("aligned", [False, True])
def test_the_client_gives_the_logits_that_torch_gives(checkpoint, tmp_path, aligned):
    """Algorithm 1's input, written out by hand: [CLS] original [SEP] masked [SEP]; aligned: positions start again."""
    if aligned:
        checkpoint = shutil.copytree(checkpoint, tmp_path / "aligned")
        config = json.loads((checkpoint / "config.json").read_text())
        (checkpoint / "config.json").write_text(json.dumps(config | {ALIGNED: True}))
    exported = tmp_path / "exported"
    export_masked_lm(checkpoint, exported, public_texts=PUBLIC, seed=1, max_length=40)
    model = AutoModelForMaskedLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    tokenizer = BertTokenizerFast.from_pretrained(checkpoint)
    x = ids_of("the", "film", "was", "good", ".")
    now = x.copy()
    now[0, 0] = V.word_id("plots")
    scores = ask(MaskedLM(exported), x, now, position=3)
    ids = tokenizer("the film was good .", "plots film was [MASK] .", return_tensors="pt")
    at = int((ids["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0, 0])
    if aligned:
        second = int((ids["input_ids"][0] == tokenizer.sep_token_id).nonzero()[0, 0]) + 1
        width = ids["input_ids"].shape[1]
        ids["position_ids"] = torch.tensor([[*range(second), *range(1, 1 + width - second)]])
    with torch.no_grad():
        logits = model(**ids).logits[0, at].numpy()
    pieces = tokenizer.convert_tokens_to_ids(V.words[:-2])
    assert np.isneginf(scores[0, -2:]).all() and np.ptp(logits) > 0.5
    np.testing.assert_allclose(scores[0, :-2], logits[pieces], atol=1e-4)
    # the server's own inputs, for training and for the clipping bounds
    texts = ("the film was good .", "plots film was a .")
    inputs, _ = inputs_of(layout(model, tokenizer), [tuple(pieces_of(tokenizer, texts))])
    expected = tokenizer(*texts, return_tensors="pt") | ({"position_ids": ids["position_ids"]} if aligned else {})
    assert inputs.keys() == expected.keys() and all(torch.equal(inputs[name], expected[name]) for name in inputs)


def test_clip_bounds_are_mean_and_four_deviations_of_public_logits(exported):
    """Other masked words of the same texts have about the same mean and deviation."""
    about, model = json.loads((exported / "masked_lm.json").read_text()), MaskedLM(exported)
    assert (about["before"], about["between"], about["after"], about["segments"]) == ([2], [3], [3], True)
    assert (model.low, model.high) == (about["low"], about["high"])
    x = np.full((60, 14), NOTHING)
    for row, text in enumerate(PUBLIC):
        words = text.split()
        x[row, : len(words)] = ids_of(*words)
    logits = ask(model, x)
    logits, deviation = logits[np.isfinite(logits)], (model.high - model.low) / 4
    assert abs(logits.mean() - model.low) < deviation and 0.5 < logits.std() / deviation < 2


@pytest.mark.parametrize(
    ("bare", "change", "words"),
    [
        (True, {}, "has no masked-LM head"),
        (False, {"public_texts": []}, "public texts are needed"),
        (False, {"max_length": 65}, "max-length must be between 8 and 64, got 65"),
    ],
)
def test_what_cannot_be_exported_is_refused(checkpoint, tmp_path, bare, change, words):
    source = tiny_bert(tmp_path / "bare") if bare else checkpoint
    with pytest.raises(ValueError, match=f"^masked-lm: [^\n]*{words}"):
        export_masked_lm(source, tmp_path / "out", **{"public_texts": PUBLIC, "seed": 1, "max_length": 40} | change)
    assert not (tmp_path / "out" / "masked_lm.json").exists()


# --- the client


def test_a_row_has_the_same_bits_alone_and_in_any_batch(exported):
    """What makes a cohort's draws those of its users alone: the width of an input depends on its own text only."""
    model = MaskedLM(exported)
    x = texts(150, 12)
    x = x[x[:, 0] != NOTHING]
    scores = model.scores(x, V)
    every = scores(np.zeros(len(x), np.int64), x, np.arange(len(x)))
    rng = np.random.default_rng(3)
    for size in (1, 2, 3, 31, 33):
        rows = rng.permutation(len(x))[:size]
        assert (scores(np.zeros(size, np.int64), x, rows) == every[rows]).all()


def test_the_context_is_the_whole_text_and_what_is_drawn(exported):
    model, x = MaskedLM(exported), ids_of("the", "film", "was", "good", ".")
    base = ask(model, x, position=1)
    there, other, masked = np.isfinite(base), x.copy(), x.copy()
    other[0, 3], masked[0, 1] = V.word_id("bad"), V.word_id("book")
    for original, now in ((other, x), (x, other)):
        assert np.abs(ask(model, original, now, position=1)[there] - base[there]).max() > 1e-3
    assert (ask(model, x, masked, position=1) == base).all()  # what stands at the mask does not count
    longer = np.concatenate([x, [[V.unknown, V.unknown]]], axis=1)  # filled up, as `TextMechanism` does
    assert np.isfinite(ask(model, x, longer, position=6)[there]).all()


def test_long_texts_are_read_through_a_window(exported):
    """max_length 40 leaves 18 pieces for each text: what is farther away does not count, what is near does."""
    model = MaskedLM(exported)
    x = np.random.default_rng(1).integers(0, 12, size=(1, 60))
    for position in (0, 5, 30, 59):
        base = ask(model, x, position=position)
        there, far, near = np.isfinite(base), x.copy(), x.copy()
        far[0, np.abs(np.arange(60) - position) > 18] = 3
        near[0, position + 1 if position < 59 else position - 1] += 1
        assert (ask(model, far, position=position) == base).all()
        assert np.abs(ask(model, near, position=position)[there] - base[there]).max() > 1e-4
    # the window is full: 18 words of the 60, on both sides where there are both
    ids, start, at = model._pair(*(model._columns(x[0], model._pieces(V)) for _ in range(2)), 30)
    assert len(ids) == 3 + 2 * 18 and start == 2 + 18 and ids[at] == model._about["mask"] and at == start + 8


# --- importance


def test_importance_is_the_attention_that_words_get(checkpoint, exported):
    model = AutoModelForMaskedLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    tokenizer = BertTokenizerFast.from_pretrained(checkpoint)
    x = np.append(ids_of("the", "plots", "was", "good"), [[NOTHING]], axis=1)
    importance = MaskedLM(exported).importance(x, V)
    with torch.no_grad():
        layers = model(**tokenizer("the plots was good", return_tensors="pt"), output_attentions=True).attentions
    mean = torch.stack(layers)[:, 0].mean(dim=(0, 1)).numpy()[1:-1, 1:-1].sum(axis=0)  # "plots" is two pieces
    expected = np.array([mean[0], mean[1] + mean[2], mean[3], mean[4], 0])
    np.testing.assert_allclose(importance[0], expected / expected.sum(), atol=1e-5)
    assert np.ptp(importance[0, :4]) > 0.01


def test_importance_of_empty_and_of_long_texts(exported):
    x = np.full((3, 90), NOTHING)
    x[1] = np.random.default_rng(1).integers(0, 15, size=90)
    x[2, :2] = 1
    importance = MaskedLM(exported).importance(x, V)
    assert importance.sum(axis=1) == pytest.approx([0, 1, 1]) and ((importance > 0) == (x != NOTHING)).all()


# --- what a mechanism reads


def test_private_arguments_are_what_the_mechanism_reads(exported):
    x, dp_mlm = texts(3, 4), TextMechanism(DpMlm(1.0, 0.0, 1.0, V), tokens=4)

    def of(*reads: str) -> SimpleNamespace:
        word = SimpleNamespace(name="other", reads=reads)
        return SimpleNamespace(word=word, name="other", vocabulary=V, slices=(slice(0, 4),), sides=1)

    assert set(private_arguments(dp_mlm, [""] * 3, x, exported)) == {"scores"}
    assert private_arguments(of(), [""] * 3, x, None) == {}
    assert private_arguments(of("importance"), [""] * 3, x, exported)["importance"].shape == (3, 4)
    for text, rows, folder, words in (
        (dp_mlm, 3, None, "dp-mlm: needs a masked language model"),
        (dp_mlm, 2, exported, "2 texts, but word ids of 3"),
        (of("diary"), 3, exported, "other: reads diary"),
    ):
        with pytest.raises(ValueError, match=words):
            private_arguments(text, [""] * rows, x, folder)


# --- training


def noisy(texts):
    """A sanitizer of sorts: every other word is "the"."""
    return [" ".join("the" if i % 2 else w for i, w in enumerate(t.split())) for t in texts]


@pytest.mark.slow
def test_pretraining_teaches_the_original_words_and_gives_a_head(tmp_path, lines):
    """A bare encoder; in each text one word says which words there are, so that a client's mask can be guessed."""
    rng = np.random.default_rng(1)
    groups = (("good", "film", "very"), ("bad", "book", "not"), ("fine", "plot", "and"))
    public = [" ".join([groups[g][rng.integers(3)] for _ in range(8)]) for g in rng.integers(3, size=600)]
    bare = tiny_bert(tmp_path / "bare")
    folder = pretrain(bare, public, tmp_path / "plain", steps=76, lr=2e-3, seed=1, max_length=40)
    assert [line.split(":")[0] for line in lines] == [f"pretraining, batch {n} of 76" for n in (5, 55, 76)]
    assert all(line.endswith(" left") and ", about " in line for line in lines)  # how long it takes, from the start
    export_masked_lm(folder, tmp_path / "out", public_texts=public, seed=1, max_length=40)
    x = np.array([[V.word_id(word) for word in text.split()] for text in public])
    assert (ask(MaskedLM(tmp_path / "out"), x, position=4).argmax(axis=1) == x[:, 4]).mean() > 0.22  # chance is 1/9


@pytest.mark.slow
def test_pretraining_is_repeatable_and_leaves_torch_alone(tmp_path):
    bare = tiny_bert(tmp_path / "bare")
    state = torch.random.get_rng_state()
    for name in ("a", "b"):
        pretrain(bare, PUBLIC, tmp_path / name, sanitizer=noisy, steps=4, seed=5, max_length=40)
    assert torch.equal(state, torch.random.get_rng_state())
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    pretrain(bare, PUBLIC, tmp_path / "c", steps=4, seed=5, max_length=40)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() != (tmp_path / "c" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("texts", "change", "words"),
    [
        (["a film"], {"sanitizer": lambda _: ["a"]}, "text 0 has 2 words, and 1 after the sanitizer"),
        (["a film"], {"sanitizer": lambda _: []}, "the sanitizer gave 0 texts for 1"),
        (["", " "], {}, "at least one word"),
        (["a film"], {"steps": 0}, "steps and batch-size"),
    ],
)
def test_what_does_not_fit_is_refused(checkpoint, tmp_path, texts, change, words):
    with pytest.raises(ValueError, match=f"^pretraining: [^\n]*{words}"):
        pretrain(checkpoint, texts, tmp_path / "x", seed=1, **change)


# --- made once, for clients


@pytest.mark.slow
def test_a_bare_encoder_becomes_a_folder_for_clients_once(tmp_path, monkeypatch, lines):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bare, text = tiny_bert(tmp_path / "bare"), TextMechanism(RandomSubstitution(V), tokens=20)
    plain, noisy, again = (
        masked_lm_folder(bare, PUBLIC, seed=1, sanitizer=by, steps=4, max_length=40) for by in (None, text, text)
    )
    assert noisy == again != plain and sum("exporting" in line for line in lines) == 2
    assert (noisy / "checkpoint" / "model.safetensors").is_file()
    assert MaskedLM(plain).identity != MaskedLM(noisy).identity
    with pytest.raises(UserError, match="dp-mlm reads scores"):
        masked_lm_folder(bare, PUBLIC, seed=1, sanitizer=TextMechanism(DpMlm(1.0, 0.0, 1.0, V)))


def test_sanitized_public_texts_keep_their_words_in_place():
    text = TextMechanism(RandomSubstitution(V), tokens=4, length="kept", punctuation="drop")
    clean, noisy = sanitized(["the elephant . was good .", "", "a very very bad film"], text, seed=1)
    assert clean == ["the elephant was good", "", "a very very bad"]
    assert [len(t.split()) for t in noisy] == [4, 0, 4]
    assert sanitized(["the elephant"], TextMechanism(Verbatim(V), length="kept"), seed=1)[1] == ["the [UNK]"]


def test_a_checkpoint_with_a_head_is_exported_as_it_is(checkpoint, exported, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = masked_lm_folder(checkpoint, PUBLIC, seed=1, max_length=40)
    known = MaskedLM(folder).identity
    assert known == MaskedLM(exported).identity == identity(exported, MASKED_LM)
    assert not (folder / "checkpoint").exists()
    for name in ("model.onnx", "tokenizer.json", "masked_lm.json"):  # requests name all of it
        other = shutil.copytree(exported, tmp_path / name)
        with (other / name).open("ab") as file:
            file.write(b" ")
        assert identity(other, MASKED_LM) != known

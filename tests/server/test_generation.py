"""DP-Prompt and DP-Paraphrase on tiny random models, causal and sequence-to-sequence, as clients run them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from client.models.language_models import Generator
from mechanisms.vocabulary import NOTHING, Vocabulary
from mechanisms.words.dp_mlm import DpPrompt
from server.generation import PARAPHRASE, _known, export_generator, read_generator
from tests.support.tiny_generators import KINDS, TOKENS, WORDS, tiny_generator

TEXTS = ["the film was good", "a bad book", "the book was a film and the film was bad", ""]
PROMPT = "Document : {text} Paraphrase :"
NUMBER = {w: i for i, w in enumerate(WORDS)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By kind, a folder with a checkpoint in model/ and its export in made/."""
    place = tmp_path_factory.mktemp("generators")
    for kind in KINDS:
        export(tiny_generator(place / kind / "model", kind), place / kind / "made")
    return {kind: place / kind for kind in KINDS}


def export(model: Path, folder: Path, **changes: Any) -> Generator:
    export_generator(model, folder, **{"public_texts": TEXTS, "seed": 0, "prompt": PROMPT} | changes)
    return Generator(folder)


def first_of(model: Generator, texts: list[str], vocabulary: Vocabulary | None = None) -> np.ndarray:
    """Scores of the first token behind each text."""
    n = len(texts)
    scores = model.scores(texts, model.vocabulary if vocabulary is None else vocabulary)
    return scores(np.zeros(n, np.int64), np.full((n, 1), NOTHING), np.arange(n))


@pytest.fixture(scope="module")
def causal(folders: dict[str, Path]) -> Generator:
    return Generator(folders["causal"] / "made")


def by_hand(folder: Path, kind: str, ids: list[int], drawn: list[int]) -> torch.Tensor:
    """One forward pass for one text, without padding, of the checkpoint itself."""
    loader = AutoModelForCausalLM if kind == "causal" else AutoModelForSeq2SeqLM
    model = loader.from_pretrained(folder / "model").eval()
    with torch.no_grad():
        if kind == "causal":
            return model(input_ids=torch.tensor([ids + drawn])).logits[0]
        start = model.config.decoder_start_token_id
        return model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([[start, *drawn]])).logits[0]


def prompt_of(text: str) -> list[int]:
    return [NUMBER.get(w, 2) for w in ["Document", ":", *text.split(), "Paraphrase", ":"]]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_the_models_logits_of_the_next_token(folders: dict[str, Path], kind: str) -> None:
    """In batches, padded, by ONNX Runtime; and in a vocabulary of words of which the model has but some."""
    model = Generator(folders[kind] / "made")
    v = model.vocabulary
    assert v.words == TOKENS and model.end == "</s>"
    drawn = np.array([[1, 2, NOTHING], [3, NOTHING, NOTHING], [4, 5, 6], [NOTHING] * 3])
    positions = np.array([2, 1, 3, 0])
    scores = model.scores(TEXTS, v)(positions, drawn, np.arange(4))
    ids = [NUMBER[w] for w in TOKENS]
    for row, text in enumerate(TEXTS):
        so_far = [ids[i] for i in drawn[row][: positions[row]]]
        logits = by_hand(folders[kind], kind, prompt_of(text), so_far)[-1]
        assert scores[row] == pytest.approx(logits[ids].numpy(), abs=1e-3)
        alone = model.scores([text], v)(positions[row : row + 1], drawn[row : row + 1], np.zeros(1, np.int64))
        assert (alone[0] == scores[row]).all()  # to the last bit: a text is sanitized alike alone and in a cohort
    words = Vocabulary(("film", "cinema", "good"), np.zeros((3, 1), np.float32))
    some, first = first_of(model, TEXTS, words), first_of(model, TEXTS)
    assert np.isneginf(some[:, 1]).all() and (some[:, [0, 2]] == first[:, [TOKENS.index("film"), 1]]).all()
    with pytest.raises(ValueError, match="no word of the vocabulary is a piece"):
        model.scores(TEXTS, Vocabulary(("x", "y"), np.zeros((2, 1), np.float32)))


@pytest.mark.parametrize("kind", ["causal", "bart"])
def test_bounds_are_those_of_public_texts_token_by_token(folders: dict[str, Path], kind: str) -> None:
    public = []
    for text in TEXTS[:3]:
        ids = [NUMBER.get(w, 2) for w in text.split()]
        logits = by_hand(folders[kind], kind, prompt_of(text), ids)[:, : len(WORDS)]
        first = len(prompt_of(text)) - 1 if kind == "causal" else 0
        public.append(logits[first : first + len(ids)])
    model = Generator(folders[kind] / "made")
    logits = np.concatenate([rows.ravel() for rows in public])
    assert (model.low, model.high) == pytest.approx((logits.mean(), logits.mean() + 4 * logits.std()), rel=1e-4)


def test_no_two_texts_make_a_whole_output_likelier_than_is_charged(causal: Generator) -> None:
    """By enumeration: all outputs of two draws, each text's law by the exported model's own logits, for texts of every
    length there is room for, one far longer, and none. Without the clipping the charge is exceeded."""
    v, epsilon = causal.vocabulary, 3.0
    private = [*TEXTS, "film " * 500, "bad", "good good good"]
    scores, rows = causal.scores(private, v), np.arange(len(private))

    def largest(log_probs: Any) -> float:
        """Largest log ratio of two texts. An output that has ended is whatever was drawn behind the end, too."""
        first = log_probs(scores(0 * rows, np.full((len(rows), 2), NOTHING), rows))
        both = []
        for word in range(len(v)):
            so_far = np.full((len(rows), 2), NOTHING)
            so_far[:, 0] = word
            both.append(first[:, word, None] + log_probs(scores(0 * rows + 1, so_far, rows)))
        law = np.concatenate(both, axis=1)
        assert np.allclose(np.exp(law).sum(axis=1), 1.0)
        return max(float((one - law).max()) for one in law)

    assert 0.1 < largest(DpPrompt(epsilon, causal.low, causal.high, v, causal.end).log_probs) <= 2 * epsilon
    temperature = 2 * (causal.high - causal.low) / epsilon
    assert largest(lambda logits: log_softmax(40 * logits / temperature, axis=1)) > 2 * epsilon


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": "no place"}, r"must name \{text\} once"),
        ({"prompt": "film " * 600 + "{text}"}, "has no room"),
        ({"public_texts": []}, "public texts are needed"),
    ],
)
def test_what_cannot_be_a_generator_is_refused(
    change: dict[str, Any], words: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        export(folders["causal"] / "model", tmp_path / "out", **change)


@pytest.mark.parametrize("kind", ["causal", "t5"])
def test_a_long_text_is_cut_and_the_prompt_is_not(folders: dict[str, Path], kind: str, tmp_path: Path) -> None:
    """Nor do many draws behind it fail, as many as a release may have, nor an empty text without a prompt."""
    model = Generator(folders[kind] / "made")
    room = json.loads((folders[kind] / "made" / "generator.json").read_text())["max_length"] - 4
    texts = ["film " * 3000, "film " * room, "😀 \ud800 \x00"]
    first, scores = first_of(model, texts), model.scores(texts, model.vocabulary)
    assert first[0] == pytest.approx(first[1], abs=1e-5)
    written = np.tile(np.arange(700) % 9, (3, 1))
    for at in (30, 31, 32, 33, 62, 63, 64, 65, 699):
        assert np.isfinite(scores(np.full(3, at), written, np.arange(3))).all()
    bare = export(folders[kind] / "model", tmp_path / "made", prompt=PARAPHRASE)
    assert np.isfinite(first_of(bare, ["", "film"])).all()


def test_tokens_that_the_model_has_no_place_for_fail_no_text(tmp_path: Path) -> None:
    """One for padding that was added to the tokenizer alone is passed over; a prompt that needs one is refused."""
    folder = tiny_generator(tmp_path / "model", "causal")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["one", "two", "three"])  # for which the model's table has room
    tokenizer.add_special_tokens({"pad_token": "[OWN]"})
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(folder)
    model = export(folder, tmp_path / "made", public_texts=[*TEXTS, "zebra film"])
    about = json.loads((tmp_path / "made" / "generator.json").read_text())
    assert about["padding"] < about["pieces"] < len(tokenizer)
    texts = [" ".join(["film"] * n) for n in range(12)] + ["zebra", "[OWN] film", "zebra " * 3000]
    assert np.isfinite(first_of(model, texts)).all()
    with pytest.raises(ValueError, match="the prompt has a token that the model does not know: 'zebra'"):
        export(folder, tmp_path / "out", prompt="zebra {text}")


def test_a_model_of_fewer_layers_than_its_weights_is_refused(tmp_path: Path) -> None:
    """It would write, by half of what it has learned."""
    folder = tiny_generator(tmp_path / "model", "causal")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": config["n_layer"] - 1}))
    with pytest.raises(ValueError, match=r"fewer layers than its weights: .*h\.\d+\..* is of none$"):
        read_generator(folder)


def test_the_end_typed_into_a_text_is_text(folders: dict[str, Path], causal: Generator, tmp_path: Path) -> None:
    """ "</s>" in a private or public text is no end; in a prompt, which is the experimenter's, it is."""
    read = causal._plain("film </s> good")
    assert NUMBER["</s>"] not in read and (read[0], read[-1]) == (NUMBER["film"], NUMBER["good"])
    model, about = folders["causal"] / "model", {"pieces": len(WORDS)}
    assert NUMBER["</s>"] not in _known(read_generator(model)[1], about, "film </s>")
    export(model, tmp_path, prompt="{text} </s> Paraphrase :")
    assert NUMBER["</s>"] in json.loads((tmp_path / "generator.json").read_text())["after"]

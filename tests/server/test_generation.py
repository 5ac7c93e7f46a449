"""DP-Prompt and DP-Paraphrase on tiny random models, causal and sequence-to-sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)  # fmt: skip

from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING
from mechanisms.words.dp_prompt import DpParaphrase, DpPrompt
from mechanisms.words.text import TextMechanism
from server.generation import PARAPHRASE, Generator

WORDS = ("<pad>", "</s>", "<unk>", "good", "bad", "film", "book", "the", "a", "was", "Document", ":", "Paraphrase")
TEXTS = ["the film was good", "a bad book", "the book was a film and the film was bad", ""]


def tiny(folder, kind):
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    size = len(WORDS) + 3  # a model's table of embeddings is often longer than its tokenizer's
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind == "causal":
            model = GPT2LMHeadModel(
                GPT2Config(
                    vocab_size=size, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5,
                    bos_token_id=1, eos_token_id=1, pad_token_id=0,
                )
            )  # fmt: skip
        else:
            model = T5ForConditionalGeneration(
                T5Config(
                    vocab_size=size, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0,
                    pad_token_id=0, eos_token_id=1, initializer_factor=3.0,
                )
            )  # fmt: skip
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["causal", "two parts"])
def checkpoint(request, tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("generator"), request.param), request.param


def test_scores_are_the_models_logits_of_the_next_token(checkpoint):
    """Against one forward pass for one text, without padding, its input written out by hand."""
    folder, kind = checkpoint
    generator = Generator(folder, prompt="Document : {text} Paraphrase :")
    drawn = np.array([[3, 4, NOTHING], [5, NOTHING, NOTHING], [6, 7, 8], [NOTHING] * 3])
    positions = np.array([2, 1, 3, 0])
    found = generator.scores(TEXTS)(positions, drawn, np.arange(4))
    number = {w: i for i, w in enumerate(WORDS)}
    loader = AutoModelForCausalLM if kind == "causal" else AutoModelForSeq2SeqLM
    model = loader.from_pretrained(folder).eval()
    for row, text in enumerate(TEXTS):
        words = ["Document", ":", *text.split(), "Paraphrase", ":"]
        ids = [number.get(w, 2) for w in words]
        so_far = drawn[row][: positions[row]].tolist()
        with torch.no_grad():
            if kind == "causal":
                logits = model(input_ids=torch.tensor([ids + so_far])).logits[0, -1]
            else:
                logits = model(
                    input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([[0, *so_far]])
                ).logits[0, -1]
        assert found[row] == pytest.approx(logits[: len(WORDS)].numpy(), abs=1e-4)


@pytest.mark.parametrize("kind", [DpPrompt, DpParaphrase])
def test_a_text_is_generated_with_a_public_number_of_draws(checkpoint, kind):
    generator = Generator(checkpoint[0], prompt=PARAPHRASE)
    low, high = generator.bounds(TEXTS)
    assert low < high
    v = generator.vocabulary
    assert v.words == WORDS and generator.end == "</s>"
    word = kind(20.0, low, high, v, generator.end)
    text = TextMechanism(word, tokens=5)
    assert text.guarantee.worst_case() == 5 * 20.0 + text.lengths.guarantee.worst_case()
    x = np.full((4, 5), NOTHING)
    x[:3, :4] = 0  # only where there is a token is read
    rng = SimulationStreams(1).rows(np.arange(4), np.zeros(4, np.int64), stage="test", channel="text")
    y = text.sample(x, rng=rng, scores=generator.scores(TEXTS))
    assert y.shape == (4, 5) and y.max() < len(WORDS) and (y != v.exact_word_id("</s>")).all()
    written = generator.decode(y)
    assert len(written) == 4 and all(set(w.split()) <= set(WORDS) for w in written)


def test_a_large_epsilon_writes_what_the_model_would(checkpoint):
    """At ε = 1000 a draw is nearly the likeliest token; at 0, any."""
    generator = Generator(checkpoint[0])
    scores = generator.scores(TEXTS)
    first = scores(np.zeros(4, np.int64), np.full((4, 1), NOTHING), np.arange(4))
    low, high = float(first.min()), float(first.max())
    n = 4
    rng = SimulationStreams(2).rows(np.arange(n), np.zeros(n, np.int64), stage="test", channel="text")
    y = DpPrompt(1000.0, low, high, generator.vocabulary).sample(np.zeros((n, 1), np.int64), rng=rng, scores=scores)
    assert (first[np.arange(n), y[:, 0]] > first.max(axis=1) - 0.1 * (high - low)).all()


def test_what_cannot_be_a_generator_is_refused(checkpoint, tmp_path):
    with pytest.raises(ValueError, match=r"must name \{text\} once"):
        Generator(checkpoint[0], prompt="no place")
    with pytest.raises(ValueError, match="leaves no room"):
        Generator(checkpoint[0], max_length=3)
    with pytest.raises(ValueError, match=r"no config\.json"):
        Generator(tmp_path)
    with pytest.raises(ValueError, match="public texts are needed"):
        Generator(checkpoint[0]).bounds([])


def test_a_long_text_is_cut_and_the_prompt_is_not(checkpoint):
    generator = Generator(checkpoint[0], prompt="Document : {text} Paraphrase :", max_length=12)
    scores = generator.scores(["film " * 300, "film " * 12])
    found = scores(np.zeros(2, np.int64), np.full((2, 1), NOTHING), np.arange(2))
    assert found[0] == pytest.approx(found[1], abs=1e-5)

"""The language model's beam finds the sequence that brute force finds, for words of several pieces too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from benchmarks import reidentify
from mechanisms.vocabulary import NOTHING
from sottovoce.adversary.estimators.beam import Candidates

#: Words by their pieces.
PIECES = [[1], [2, 3], [4], [5, 6, 2]]
PROMPTS = [[7, 1], [3]]


@pytest.fixture(scope="module")
def model() -> reidentify.LanguageModel:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    made = object.__new__(reidentify.LanguageModel)
    made.model = GPT2LMHeadModel(
        GPT2Config(vocab_size=8, n_positions=32, n_embd=16, n_layer=2, n_head=2, initializer_range=1.0)
    ).eval()
    made.words, made.pieces = ("a", "b", "c", "d"), PIECES
    made.first, made.later = made.ahead()
    made.tokenizer = lambda prompt: {"input_ids": PROMPTS[int(prompt)]}
    return made


def weight(model: reidentify.LanguageModel, prompt: list[int], words: tuple[int, ...]) -> float:
    """The log-probability of words, piece by piece in one pass."""
    pieces = [piece for word in words for piece in PIECES[word]]
    with torch.no_grad():
        logs = torch.log_softmax(model.model(torch.tensor([prompt + pieces])).logits[0], dim=-1)
    return float(sum(logs[len(prompt) + i - 1, piece] for i, piece in enumerate(pieces)))


@pytest.mark.parametrize("batch", [1, 8])
def test_the_beam_finds_what_brute_force_finds(
    model: reidentify.LanguageModel, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(reidentify, "BATCH", batch)
    monkeypatch.setattr(reidentify, "WIDTH", 64)
    rng = np.random.default_rng(0)
    words = np.tile(np.arange(4), (2, 3, 1))
    found = Candidates(words, rng.normal(size=words.shape), np.zeros(words.shape), np.array([3, 2]))
    best = model.searched(["0", "1"], found, found.logs)
    for row, end in enumerate(found.ends):
        each = {
            texts: weight(model, PROMPTS[row], texts) + sum(found.logs[row, i, w] for i, w in enumerate(texts))
            for texts in itertools.product(range(4), repeat=int(end))
        }
        assert tuple(best[row, :end]) == max(each, key=lambda texts: each[texts])
        assert (best[row, end:] == NOTHING).all()


def test_the_standard_error_of_a_share_is_that_of_texts() -> None:
    """Texts of one length: the standard error of their mean. Places that are not scored change nothing."""
    right = np.array([[True, True], [False, False], [True, False], [False, False]])
    scored = np.ones_like(right)
    shares = right.mean(axis=1)
    expected = f"{shares.mean():.3f} ± {shares.std(ddof=1) / 2:.3f}"
    assert reidentify.share(right, scored) == expected
    assert reidentify.share(np.c_[right, ~right], np.c_[scored, np.zeros_like(scored)]) == expected

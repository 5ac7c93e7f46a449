"""What tests of the server share: a tiny random BERT with a vocabulary of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizerFast

WORDS = ["good", "bad", "fine", "awful", "film", "book", "the", "a", "was", "and", "not", "very", "plot", "##s", "."]


def tiny_bert(
    folder: Path, width: int = 32, words: Sequence[str] = WORDS, *, layers: int = 2, spread: float = 0.02
) -> Path:
    """A BERT with random weights of this deviation, saved as a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=spread,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertModel(config)
    model.save_pretrained(folder)
    return folder


def tiny_masked_lm(folder: Path) -> Path:
    """`tiny_bert` with a prediction head, and weights large enough that logits differ."""
    tiny_bert(folder)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = BertForMaskedLM(BertConfig.from_pretrained(folder, initializer_range=0.2))
    model.save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `tiny_bert` that tests only read."""
    return tiny_bert(tmp_path_factory.mktemp("bert"))


def reviews(n: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Texts whose label a single word decides, of unlike lengths."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=n)
    texts = []
    for label in labels:
        word = ("bad", "good")[label]
        filler = rng.choice(["the", "film", "book", "a", "plot", "and", "very"], size=rng.integers(1, 12))
        texts.append(" ".join([*filler, word, "."]))
    return texts, labels

"""Tiny random models that generate text, one of each layout, in folders as checkpoints come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

WORDS = ("<pad>", "</s>", "<unk>", "good", "bad", "film", "book", "the", "a", "was", "Document", ":", "Paraphrase")
#: What is generated: no padding and no unknown word; the end is there, and ends a text.
TOKENS = ("</s>", *WORDS[3:])
_BART = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
_BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64}
_BART |= {"bos_token_id": 1, "decoder_start_token_id": 1, "forced_eos_token_id": 1, "init_std": 0.5}
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
_GPT2 = {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.5, "bos_token_id": 1}
_LAYOUTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "causal": (GPT2LMHeadModel, GPT2Config, _GPT2),
    "t5": (T5ForConditionalGeneration, T5Config, _T5 | {"initializer_factor": 3.0}),
    "bart": (BartForConditionalGeneration, BartConfig, _BART),
}
KINDS = tuple(_LAYOUTS)


def tiny_generator(folder: Path, kind: str = "causal", words: tuple[str, ...] = WORDS) -> Path:
    """A model of that layout over these words, whose first three are padding, end and the unknown word."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    size = len(words) + 3  # a model's table of embeddings is often longer than its tokenizer's
    layout, config, more = _LAYOUTS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = layout(config(vocab_size=size, pad_token_id=0, eos_token_id=1, **more))
    model.save_pretrained(folder)
    return folder

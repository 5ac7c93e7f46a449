"""Tiny random models that generate text, one of each layout, in folders as checkpoints come."""

from __future__ import annotations

from pathlib import Path

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
KINDS = ("causal", "t5", "bart")


def tiny_generator(folder: Path, kind: str = "causal", words: tuple[str, ...] = WORDS) -> Path:
    """A model of that layout over these words, whose first three are padding, end and the unknown word."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    size = len(words) + 3  # a model's table of embeddings is often longer than its tokenizer's
    model: torch.nn.Module
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind == "causal":
            model = GPT2LMHeadModel(
                GPT2Config(
                    vocab_size=size,
                    n_positions=64,
                    n_embd=16,
                    n_layer=2,
                    n_head=2,
                    initializer_range=0.5,
                    bos_token_id=1,
                    eos_token_id=1,
                    pad_token_id=0,
                )
            )
        elif kind == "t5":
            model = T5ForConditionalGeneration(
                T5Config(
                    vocab_size=size,
                    d_model=16,
                    d_kv=8,
                    d_ff=32,
                    num_layers=2,
                    num_heads=2,
                    decoder_start_token_id=0,
                    pad_token_id=0,
                    eos_token_id=1,
                    initializer_factor=3.0,
                )
            )
        else:
            model = BartForConditionalGeneration(
                BartConfig(
                    vocab_size=size,
                    d_model=16,
                    encoder_layers=2,
                    decoder_layers=2,
                    encoder_attention_heads=2,
                    decoder_attention_heads=2,
                    encoder_ffn_dim=32,
                    decoder_ffn_dim=32,
                    max_position_embeddings=64,
                    bos_token_id=1,
                    eos_token_id=1,
                    pad_token_id=0,
                    decoder_start_token_id=1,
                    init_std=0.5,
                    forced_eos_token_id=1,
                )
            )
    model.save_pretrained(folder)  # type: ignore[operator]
    return folder

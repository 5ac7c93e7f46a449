"""Tiny random checkpoints in the layouts in which others publish theirs: which files there are, and in what form."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    GteConfig,
    GteModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    NomicBertConfig,
    NomicBertModel,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from tests.support.tiny_models import WORDS, tiny_bert

#: Positions of each.
POSITIONS = 64
_SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
#: Ids of special tokens in RoBERTa's order, in a table of two more positions than the model has.
_ROBERTA: dict[str, Any] = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_ROBERTA["max_position_embeddings"] = POSITIONS + 2
_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>"}
_SPECIAL |= {"pad_token": "<pad>", "mask_token": "<mask>"}


def bert_pickled(folder: Path) -> Path:
    """As ClinicalBERT and other early ones: vocab.txt, and pytorch_model.bin with the names of pretraining, beside a
    head's."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    model = _made(BertModel, BertConfig, folder, len(words))
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    weights = {f"bert.{name}": value for name, value in model.state_dict().items()}
    torch.save(weights | {"cls.predictions.bias": torch.zeros(len(words))}, folder / "pytorch_model.bin")
    return folder


def roberta(folder: Path) -> Path:
    """As roberta-base: vocab.json and merges.txt."""
    merges = [("Ġ", "g"), ("o", "o"), ("Ġg", "oo"), ("Ġgoo", "d"), ("Ġ", "b"), ("a", "d"), ("Ġb", "ad")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *alphabet, *("".join(pair) for pair in merges), "<mask>"]
    _made(RobertaModel, RobertaConfig, folder, len(pieces), **_ROBERTA, type_vocab_size=1).save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges)]) + "\n")
    return folder


def deberta_v3(folder: Path) -> Path:
    """As deberta-v3-base: spm.model of SentencePiece, relative positions, no segments, weights in pytorch_model.bin."""
    import sentencepiece

    trained = io.BytesIO()
    lines = ["good film.", "bad film.", "the film was awful", "a book and the plot was very good"] * 20
    names = ("pad", "bos", "eos", "unk")
    special: dict[str, Any] = {f"{name}_id": i for i, name in enumerate(names)}
    special |= {f"{name}_piece": f"[{piece}]" for name, piece in zip(names, ("PAD", "CLS", "SEP", "UNK"), strict=True)}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=trained, vocab_size=32, minloglevel=2, **special
    )
    more: dict[str, Any] = {"type_vocab_size": 0, "position_buckets": 16, "norm_rel_ebd": "layer_norm"}
    more |= {"relative_attention": True, "share_att_key": True, "position_biased_input": False}
    more |= {"pos_att_type": ["p2c", "c2p"], "max_relative_positions": -1, "layer_norm_eps": 1e-7}
    model = _made(DebertaV2Model, DebertaV2Config, folder, 33, **more)
    torch.save({f"deberta.{name}": value for name, value in model.state_dict().items()}, folder / "pytorch_model.bin")
    (folder / "spm.model").write_bytes(trained.getvalue())
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "vocab_type": "spm"}))
    return folder


def mpnet(folder: Path) -> Path:
    """As all-mpnet-base-v2: vocab.txt with RoBERTa's special tokens."""
    words = ["<s>", "<pad>", "</s>", "[UNK]", *WORDS, "<mask>"]
    _made(MPNetModel, MPNetConfig, folder, len(words), **_ROBERTA).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    about = _SPECIAL | {"unk_token": "[UNK]", "tokenizer_class": "MPNetTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


def xlm_roberta(folder: Path) -> Path:
    """As multilingual-e5-base: SentencePiece's unigram model in tokenizer.json, XLM-RoBERTa's weights."""
    return _unigram(folder, XLMRobertaModel, XLMRobertaConfig, **_ROBERTA, type_vocab_size=1)


def e5_small(folder: Path) -> Path:
    """As multilingual-e5-small: BERT's weights, of a longer table, behind XLM-RoBERTa's tokenizer."""
    return _unigram(folder, BertModel, BertConfig, further=3, pad_token_id=1)


def gte(folder: Path) -> Path:
    """As gte-multilingual-base by `transformers`' own class: rotary positions, gated layers."""
    return _unigram(folder, GteModel, GteConfig, pad_token_id=1)


def modernbert(folder: Path) -> Path:
    """As ModernBERT-base: byte-level pieces in tokenizer.json, rotary positions, attention to near tokens in turn."""
    names = ("UNK", "CLS", "SEP", "PAD", "MASK")
    pieces = [*(f"[{name}]" for name in names), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(pieces[: len(names)])
    more = {"pad_token_id": 3, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    more |= {"local_attention": 8, "global_attn_every_n_layers": 2}
    _made(ModernBertModel, ModernBertConfig, folder, len(pieces), **more).save_pretrained(folder)
    about = {f"{name.lower()}_token": f"[{name}]" for name in names}
    about |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
    return _with_tokenizer(folder, tokenizer, about)


def nomic(folder: Path) -> Path:
    """As nomic-embed-text-v1.5: weights by the names of its own code, which config.json names and nobody runs."""
    tiny_bert(folder)  # its tokenizer
    _made(NomicBertModel, NomicBertConfig, folder, len(WORDS) + 5).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    code = {"AutoConfig": "nomic-ai/nomic-bert-2048--c.Config", "AutoModel": "nomic-ai/nomic-bert-2048--m.Model"}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": code}))
    return folder


def as_sentence_encoder(
    folder: Path,
    mode: str = "mean",
    *,
    normalize: bool = False,
    prefix: str = "",
    length: int = POSITIONS,
    old: bool = True,
) -> Path:
    """The files of sentence-transformers beside a checkpoint; old: as its versions 2 to 4 write them."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    width = {"word_embedding_dimension" if old else "embedding_dimension": _SMALL["hidden_size"]}
    flags = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken", "max": "max_tokens"}
    how: dict[str, Any] = {f"pooling_mode_{flag}": key == mode for key, flag in flags.items()}
    how = width | (how if old else {"pooling_mode": mode, "include_prompt": True})
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(how))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length, "do_lower_case": False}))
    about: dict[str, Any] = {"__version__": {"sentence_transformers": "2.0.0"}, "prompts": {"other": "passage: "}}
    about |= {"prompts": {"query": prefix, "other": "p"}, "default_prompt_name": "query"} if prefix else {}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
    return folder


def _unigram(folder: Path, kind: Any, config: Any, *, further: int = 0, **more: Any) -> Path:
    """A model behind a tokenizer as XLM-RoBERTa's. further: rows of its table beside the tokens'."""
    words = ["▁good", "▁bad", "▁film", "▁the", "▁a", "▁was", "▁plot", "▁very", "▁query", ":", "s", "▁"]
    pieces = [*((name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>"))]
    pieces += [*((word, -2.0 - i / 8) for i, word in enumerate(words)), ("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, 3, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    _made(kind, config, folder, tokenizer.get_vocab_size() + further, **more).save_pretrained(folder)
    return _with_tokenizer(folder, tokenizer, _SPECIAL | {"tokenizer_class": "XLMRobertaTokenizer"})


def _with_tokenizer(folder: Path, tokenizer: Tokenizer, about: dict[str, Any]) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


def _made(kind: Any, config: Any, folder: Path, size: int, **more: Any) -> Any:
    """A small model of random weights over `size` tokens, the same each time; its config.json lies in the folder."""
    about = config(**{"vocab_size": size, "max_position_embeddings": POSITIONS, **_SMALL, **more})
    folder.mkdir(parents=True, exist_ok=True)
    about.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(about).eval()

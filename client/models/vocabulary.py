"""Public vocabularies as files: folders of this project, and the text files in which word vectors are published."""

from __future__ import annotations

import gzip
import json
import unicodedata
import zlib
from array import array
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.store.durable import creating_folder, require_free
from mechanisms.vocabulary import Vocabulary

_ARRAYS = ("vectors", "counts", "tags")
#: A line of a text file of vectors is shorter; a binary file's "lines" need not be.
_LONGEST_LINE = 2**20


def save(vocabulary: Vocabulary, folder: Path | str) -> None:
    """Write a vocabulary as a folder, completely or not at all.

    The files are vocabulary.json (its identity and size), words.json and vectors.npy, and counts.npy and tags.npy if
    the vocabulary has them.

    Raises:
        ValueError: The folder is not empty.
    """
    folder = Path(folder)
    require_free(folder, "vocabulary")
    with creating_folder(folder) as draft:
        (draft / "words.json").write_text(json.dumps(vocabulary.words, indent=0), encoding="ascii")
        for name in _ARRAYS:
            values = getattr(vocabulary, name)
            if values is not None:
                np.save(draft / f"{name}.npy", values.astype(values.dtype.newbyteorder("<")), allow_pickle=False)
        about = {"identity": vocabulary.identity, "words": len(vocabulary), "dim": vocabulary.vectors.shape[1]}
        about |= {"pieces": vocabulary.pieces} if vocabulary.pieces else {}
        (draft / "vocabulary.json").write_text(json.dumps(about) + "\n", encoding="ascii")


def load(folder: Path | str) -> Vocabulary:
    """Return the vocabulary in a folder that `save` wrote; its arrays stay on disk until they are read.

    Raises:
        ValueError: The folder holds no vocabulary, or its content does not match its stated identity. The message is
            one line.
    """
    folder = Path(folder)
    try:
        about = json.loads((folder / "vocabulary.json").read_bytes())
        words = json.loads((folder / "words.json").read_bytes())
        arrays: dict[str, Any] = {name: _array(folder / f"{name}.npy") for name in _ARRAYS}
        vocabulary = Vocabulary(words=tuple(words), pieces=about.get("pieces", ""), **arrays)
        stated = about["identity"]
    except FileNotFoundError as error:
        raise ValueError(f"vocabulary: {error.filename} is missing; {folder} holds no vocabulary") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"vocabulary: {folder} cannot be read: {' '.join(str(reason).split())[:200]}") from None
    if vocabulary.identity != stated:
        raise ValueError(f"vocabulary: the content of {folder} is not what its vocabulary.json states; make it anew")
    return vocabulary


@lru_cache(maxsize=4)
def load_cached(folder: Path | str) -> Vocabulary:
    """Return the same as `load`, kept for the life of the process: checking the identity reads all of the content."""
    return load(folder)


def _array(file: Path) -> NDArray[Any] | None:
    if not file.exists() and file.stem != "vectors":
        return None
    values = np.load(file, mmap_mode="r", allow_pickle=False)
    return np.asarray(values)  # a view without the subclass, still on disk


def read_vectors(path: Path | str) -> Vocabulary:
    """Return the vocabulary of a text file in the format of GloVe or word2vec, gzipped or not, in the file's order.

    Each line is a word and its m numbers, separated by spaces. A first line of two whole numbers (number of words, m)
    is a header, which must be correct. The encoding is UTF-8. The *last* m fields are the numbers.

    Two kinds of words are left out: those that no text can hold as one word, because of a space or control character
    inside (GloVe 840B has some), and repetitions of an earlier word.

    Raises:
        ValueError: A line has too few numbers, a field that is no number or not finite in float32, or text that is not
            UTF-8; or the file is binary or has fewer than two words. The message is one line with the file and the
            line's number.
        OSError: The file cannot be opened.
    """
    path = Path(path)
    words: dict[str, None] = {}  # in the file's order
    numbers = array("f")
    dim = promised = count = line_number = 0
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        lines: Any = gzip.GzipFile(fileobj=file) if packed else file
        try:
            for line_number, line in enumerate(iter(partial(lines.readline, _LONGEST_LINE), b""), 1):
                fields = _fields(line)
                if line_number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                    promised, dim = map(int, fields)  # word2vec's header
                    continue
                if fields == [""]:
                    continue
                dim, count = dim or len(fields) - 1, count + 1
                if len(fields) <= dim or not dim:
                    raise ValueError(f"expected a word and {dim or 'its'} numbers, found {len(fields) - 1} numbers")
                word, vector = " ".join(fields[:-dim]), _vector(fields[-dim:])
                if is_one_word(word) and word not in words:
                    words[word] = None
                    numbers.frombytes(vector.tobytes())
            if count < promised:
                raise ValueError(f"the file ends after {count:,} of {promised:,} words; get it again")
        except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}, line {line_number}: {error}") from None
    if len(words) < 2:
        raise ValueError(f"{path}: holds {len(words)} of the words; two are needed, each with its numbers on a line")
    return Vocabulary(tuple(words), np.frombuffer(numbers, np.float32).reshape(-1, dim))


def _fields(line: bytes) -> list[str]:
    """Return the fields of a line between single spaces or tabs; one empty field for a blank line."""
    if b"\0" in line or len(line) == _LONGEST_LINE:
        raise ValueError("is binary; word vectors must be text, a word and its numbers a line")
    return line.decode("utf-8").removeprefix("\ufeff").rstrip(" \t\r\n").replace("\t", " ").split(" ")


def _vector(fields: list[str]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        vector = np.loadtxt([" ".join(fields)], comments=None, delimiter=" ", ndmin=1).astype(np.float32)
    if not np.isfinite(vector).all():
        raise ValueError("a number is not finite in single precision")
    return vector


def is_one_word(word: str) -> bool:
    """Return whether a text can hold this as one word."""
    return word.split() == [word] and not any(unicodedata.category(c) in ("Cc", "Cs") for c in word)

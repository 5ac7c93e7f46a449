"""Public vocabularies as files: folders of this project, and the text files in which word vectors are published."""

from __future__ import annotations

import gzip
import json
import unicodedata
import zlib
from collections.abc import Container, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from client.store.durable import creating_folder, require_free
from mechanisms.vocabulary import Vocabulary

_ARRAYS = ("vectors", "counts", "tags")
#: A line of a text file of vectors is shorter; a binary file's "lines" need not be.
_LONGEST_LINE = 2**20
_AT_ONCE = 1024


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


def read_vectors(path: Path | str, *, keep: Container[str] | None = None, limit: int | None = None) -> Vocabulary:
    """Return the vocabulary of a text file in the format of GloVe or word2vec, gzipped or not, in the file's order.

    Each line is a word and its m numbers, separated by spaces. A first line of two whole numbers (number of words, m)
    is a header, which must be correct unless `limit` ends the reading before. The encoding is UTF-8. The *last* m
    fields are the numbers.

    Two kinds of words are left out: those that no text can hold as one word, because of a space or control character
    inside (GloVe 840B has some), and repetitions of an earlier word.

    Args:
        path: The file.
        keep: Words to take; None takes all.
        limit: Number of words to stop after.

    Raises:
        ValueError: A line has too few numbers, a field that is no number or not finite in float32, or text that is not
            UTF-8; or the file is binary or has fewer than two words. The message is one line with the file and the
            line's number.
        OSError: The file cannot be opened.
    """
    path, dim = Path(path), 0
    words: dict[str, None] = {}  # in the file's order
    batch: list[tuple[int, bytes]] = []
    blocks: list[NDArray[np.float32]] = []
    with path.open("rb") as file:
        for line_number, word, numbers, dim in _entries(path, file):
            if is_one_word(word) and word not in words and (keep is None or word in keep):
                words[word] = None
                batch.append((line_number, numbers))
            else:
                _parsed(path, [(line_number, numbers)], dim)  # checked like all others, and forgotten
            if len(batch) == _AT_ONCE:
                blocks.append(_parsed(path, batch, dim))
                batch.clear()
            if limit is not None and len(words) >= limit:
                break
    if batch:
        blocks.append(_parsed(path, batch, dim))
    if len(words) < 2:
        which = "words to keep" if keep is not None and dim else "words"
        raise ValueError(f"{path}: holds {len(words) or 'no'} {which}; two are needed, each with its numbers on a line")
    return Vocabulary(tuple(words), _stacked(blocks, len(words), dim))


def _entries(path: Path, file: BinaryIO) -> Iterator[tuple[int, str, bytes, int]]:
    """Yield the line number, the word, its numbers as text, and their required count, for each line except a header."""
    dim = promised = count = 0
    for number, line in _lines(path, file):
        fields = line.count(b" ")
        if number == 1 and fields == 1 and all(part.isdigit() for part in line.split(b" ")):
            promised, dim = map(int, line.split(b" "))  # word2vec's header
            if not dim:
                raise ValueError(f"{path}, line 1: says that vectors have 0 numbers")
            continue
        dim = dim or fields
        if fields < dim or not dim:
            raise ValueError(f"{path}, line {number}: expected {dim or 'a word and its'} numbers, found {fields}")
        head, numbers = line.split(b" ", 1) if fields == dim else _apart(line, dim)
        try:
            word = head.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{path}, line {number}: the word is not UTF-8; convert the file") from None
        count += 1
        yield number, word, numbers, dim
    if count < promised:
        raise ValueError(f"{path}: holds {count:,} words, and line 1 says {promised:,}: cut short; get it again")


def _stacked(blocks: list[NDArray[np.float32]], rows: int, dim: int) -> NDArray[np.float32]:
    """Return the blocks in one array (rows, dim); they are emptied one by one, so that no second copy exists."""
    stacked = np.empty((rows, dim), dtype=np.float32)
    start = 0
    for i, block in enumerate(blocks):
        stacked[start : start + len(block)] = block
        start += len(block)
        blocks[i] = block[:0].copy()
    return stacked


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers: single spaces between fields, no end of line."""
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    lines: BinaryIO = gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[assignment]
    number = 0
    while True:
        try:
            line = lines.readline(_LONGEST_LINE)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}, line {number + 1}: the gzip file is broken: {error}") from None
        if not line:
            return
        number += 1
        if b"\0" in line or len(line) == _LONGEST_LINE:
            raise ValueError(
                f"{path}, line {number}: is binary; word vectors must be text, a word and its numbers a line"
            )
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        line = line.rstrip(b" \t\r\n")
        if b"\t" in line:
            line = line.replace(b"\t", b" ")
        if line:
            yield number, line


def _apart(line: bytes, dim: int) -> tuple[bytes, bytes]:
    """Return the word, with any spaces, and its last `dim` numbers."""
    head, *rest = line.rsplit(None, dim)
    return (head, b" ".join(rest)) if len(rest) == dim else (b"", b" ".join([head, *rest]))


def _parsed(path: Path, batch: list[tuple[int, bytes]], dim: int) -> NDArray[np.float32]:
    """Return the numbers (lines, dim) of several lines. Raise ValueError with the line's number if there are none."""
    try:
        values = _numbers([rest for _, rest in batch])
    except ValueError:
        values = None
    if values is None or values.shape[1] != dim or not np.isfinite(values).all():
        for number, rest in batch:
            _check(path, number, rest, dim)
        raise ValueError(f"{path}, line {batch[0][0]}: cannot be read")  # no line alone is wrong: cannot happen
    return values


def _numbers(lines: list[bytes]) -> NDArray[np.float32]:
    values = np.loadtxt([line.decode("ascii", "replace") for line in lines], comments=None, delimiter=" ", ndmin=2)
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _check(path: Path, number: int, rest: bytes, dim: int) -> None:
    """Raise ValueError if the numbers of a line are wrong."""
    fields = rest.split()
    if len(fields) != dim:
        raise ValueError(f"{path}, line {number}: expected {dim} numbers, found {len(fields)}")
    for field in fields:
        shown = field[:30].decode("utf-8", "replace")
        try:
            value = _numbers([field])
        except ValueError:
            raise ValueError(f"{path}, line {number}: {shown!r} is not a number") from None
        if not np.isfinite(value).all():
            raise ValueError(f"{path}, line {number}: {shown!r} is not finite in single precision")


def is_one_word(word: str) -> bool:
    """Return whether a text can hold this as one word."""
    return word.split() == [word] and not any(unicodedata.category(c) in ("Cc", "Cs") for c in word)

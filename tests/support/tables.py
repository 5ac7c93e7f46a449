"""Tables as people have them, made from a seed: in any encoding, format and type; some with every fault of a row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.random import Generator
from pyarrow import ipc, parquet

#: Words of texts; none is a word that the product says.
_SAID = """
quaff brine zephyr knoll vexing jocund fjord glyph waltz nymph borax quilt sphinx dwarf hymn lynx topaz wharf buzz crypt
flick jumbo kiosk mango ninja opium plaza squid tulip ulcer vodka yacht zebra cobalt donkey ermine
"""
WORDS = tuple(_SAID.split())
#: Parts of texts, labels and users that readers may trip over.
ODD = (
    "é",
    unicodedata.normalize("NFD", "é"),
    "漢字",
    "שלום",
    "😀👍🏽",
    "\u200b",
    "\u00a0",
    "ﬁ",
    "Ⅷ",
    "１",
    "ß",
    "İ",
    "&amp;",
    "<br />",
    "<b>x</b>",
    "&lt;3",
    '"',
    "''",
    ",",
    ";",
    "|",
    "\\",
    "=1+1",
    "\u2028",
    "\x85",
    "\x0b",
    "+1",
    "1e0",
    "-0",
)
NOTHING = (
    "",
    " ",
    "nan",
    "NULL",
    "None",
    "NA",
    "n/a",
    "[deleted]",
    "[removed]",
    "<NA>",
    "-",
    "unknown",
    "\u200b",
    "<br>",
)
NAMES = (
    ("text", "label", "user"),
    ("Review", "Sentiment", "Author"),
    ("sentence", "class", "user_id"),
    ("txt_de", "lbl", "wer"),
    ("How did you like it, all in all?", "What is it about then?", "Who are you?"),
    ("1", "2", "3"),
    ("评论", "标签", "用户"),
)
FORMATS = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow", ".csv.gz", ".tsv.gz", ".jsonl.gz")
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "utf-32")


@dataclass
class Made:
    """A table's file, its columns as a person would name them, and what nobody but its users wrote."""

    file: Path
    rows: int
    options: dict[str, str]
    private: set[str] = field(default_factory=set)
    headed: bool = True


def made(folder: Path, seed: int) -> Made:
    """A table of 0 to 420 rows."""
    rng = np.random.default_rng([11, seed])
    size = int(rng.choice([0, 1, 40, 230, 300, 420], p=[0.02, 0.02, 0.04, 0.12, 0.4, 0.4]))
    suffix = str(rng.choice(FORMATS))
    names = NAMES[0] if rng.random() < 0.5 else NAMES[rng.integers(len(NAMES))]
    users = rng.random() < 0.5
    columns = {names[0]: _texts(rng, size), names[1]: _labels(rng, size)}
    if users:
        columns[names[2]] = _users(rng, size)
    if rng.random() < 0.3:
        columns["id"] = list(range(size))
    if rng.random() < 0.3:
        _spoil(rng, columns, names, suffix)
    order = list(columns)
    rng.shuffle(order)
    headed = suffix in (".jsonl", ".jsonl.gz", ".parquet", ".arrow") or rng.random() < 0.75
    file = folder / f"table{suffix}"
    file.write_bytes(_bytes(rng, suffix, {name: columns[name] for name in order}, headed))
    options = {}
    if not headed or names not in NAMES[:3] or rng.random() < 0.3:
        said = ("text", "label", *(["user"] if users else []))
        place: Callable[[str], str] = (lambda name: name) if headed else lambda name: str(order.index(name) + 1)
        options = {key: place(name) for key, name in zip(said, names, strict=False)}
    if not headed and rng.random() < 0.3:
        options = {}
    private = {word for value in columns[names[0]] for word in str(value).split()}
    return Made(file, size, options, {word for word in private if word in WORDS}, headed)


def _texts(rng: Generator, size: int) -> list[Any]:
    kind = rng.choice(["words", "same", "short", "numbers", "objects", "bytes"], p=[0.7, 0.12, 0.06, 0.04, 0.04, 0.04])
    pool = [" ".join(rng.choice(WORDS, rng.integers(8, 14))) + f" {i}" for i in range(max(1, size))]
    if kind == "same":
        pool = pool[: max(1, size // int(rng.integers(2, 12)))]
    elif kind == "short":
        pool = [" ".join(rng.choice(WORDS, rng.integers(1, 4))) for _ in range(max(1, size))]
    elif kind == "numbers":
        return [int(n) for n in rng.integers(10**5, 10**9, size)]
    texts = [pool[i % len(pool)] for i in range(size)]
    for row in np.flatnonzero(rng.random(size) < 0.1).tolist():
        place = int(rng.integers(len(texts[row]) + 1))
        texts[row] = texts[row][:place] + str(rng.choice(ODD)) + texts[row][place:]
    if kind == "objects":
        return [{"en": text} if rng.random() < 0.9 else [text] for text in texts]
    return [text.encode(str(rng.choice(["utf-8", "utf-8", "utf-16"]))) for text in texts] if kind == "bytes" else texts


def _labels(rng: Generator, size: int) -> list[Any]:
    classes: list[Any] = [
        ["neg", "pos"],
        [0, 1],
        [1.0, 2.0, 3.0],
        ["0", "1.0", "1"],
        ["é", unicodedata.normalize("NFD", "é"), "x"],
        ["yes", "Yes", "no", "no."],
        [f"class {i}" for i in range(max(2, size // 12))],
        ["NA", "None", "ok"],
        ["１", "2"],
        [b"a", b"b"],
        ["+1", "-1"],
        ["a", "b"],
        ["x", "y", "z"],
        [True, False],
        ["one"],
        ["a\tb", "c"],
        [0.5, 1.5],
    ][rng.integers(16) if rng.random() < 0.3 else rng.integers(12)]
    return [classes[i] for i in rng.integers(len(classes), size=size)]


def _users(rng: Generator, size: int) -> list[Any]:
    people = max(1, size // int(rng.choice([1, 2, 3, 4, 50])))
    kind = rng.choice(["name", "number", "float", "odd", "case"], p=[0.4, 0.2, 0.1, 0.2, 0.1])
    name: dict[str, Callable[[int], Any]] = {
        "name": lambda i: f"pq{i}",
        "number": lambda i: i,
        "float": float,
        "odd": lambda i: f"pq{i}{ODD[i % 12]}",
        "case": lambda i: f"pq{i // 2}" if i % 2 else f"PQ{i // 2}",
    }
    return [name[str(kind)](int(i)) for i in rng.permutation(np.arange(size) % people)]


def _spoil(rng: Generator, columns: dict[str, list[Any]], names: tuple[str, ...], suffix: str) -> None:
    """Values that are missing, odd, or of another type, in a share of the rows."""
    for name in names:
        if name not in columns or rng.random() < 0.4:
            continue
        values = columns[name]
        for row in np.flatnonzero(rng.random(len(values)) < rng.choice([0.01, 0.05])).tolist():
            other = rng.random()
            if other < 0.7:
                values[row] = str(rng.choice(NOTHING))
            elif other < 0.72 and suffix.startswith(".jsonl"):
                values[row] = [None, float("nan"), {"a": 1}, [1], True, 3.5, "a\x00b", "a\ud800"][rng.integers(8)]
            elif other < 0.85:
                values[row] = None


def _bytes(rng: Generator, suffix: str, columns: dict[str, list[Any]], headed: bool) -> bytes:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if suffix in (".parquet", ".arrow"):
        return _typed(suffix, columns)
    if suffix.startswith(".jsonl"):
        said = "".join(json.dumps(_plain(row), ensure_ascii=bool(rng.random() < 0.5)) + "\n" for row in rows)
    else:
        said = _cells(rng, suffix, columns, rows, headed)
    coding = str(rng.choice(ENCODINGS)) if rng.random() < 0.12 else "utf-8"
    data = said.encode(coding, "surrogatepass" if coding.startswith("utf-8") else "replace")
    return gzip.compress(data, 1) if suffix.endswith(".gz") else data


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _cells(rng: Generator, suffix: str, columns: dict[str, list[Any]], rows: list[dict[str, Any]], headed: bool) -> str:
    out = io.StringIO(newline="")
    end = str(rng.choice(["\n", "\r\n"]))
    if suffix.startswith(".tsv"):
        for row in [list(columns)] * headed + [list(row.values()) for row in rows]:
            out.write("\t".join(" ".join(_cell(v).replace("\t", " ").splitlines()) for v in row) + end)
        return out.getvalue()
    quoting = csv.QUOTE_ALL if rng.random() < 0.3 else csv.QUOTE_MINIMAL
    writer = csv.writer(out, delimiter=str(rng.choice([",", ",", ";", "\t"])), quoting=quoting, lineterminator=end)
    if headed:
        writer.writerow(columns)
    writer.writerows([[_cell(value).replace("\r", " ") for value in row.values()] for row in rows])
    return out.getvalue()


def _cell(value: Any) -> str:
    return "" if value is None else str(_plain(value))


def _typed(suffix: str, columns: dict[str, list[Any]]) -> bytes:
    """Each column by the type of most of its values; what does not fit is null, or all are texts."""
    arrays = []
    for values in columns.values():
        try:
            arrays.append(pyarrow.array(values))
        except (pyarrow.ArrowException, UnicodeEncodeError):
            said = [None if v is None else str(_plain(v)).encode("utf-8", "replace").decode() for v in values]
            arrays.append(pyarrow.array(said, pyarrow.string()))
    table = pyarrow.table(arrays, names=list(columns))
    out = io.BytesIO()
    if suffix == ".parquet":
        parquet.write_table(table, out)
    else:
        with ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    return out.getvalue()

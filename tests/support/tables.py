"""Tables as people have them, made from a seed: in several formats and types, some with every fault of a row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.random import Generator
from pyarrow import parquet

_WORDS = """
quaff brine zephyr knoll vexing jocund fjord glyph waltz nymph borax quilt sphinx dwarf hymn lynx topaz wharf buzz crypt
flick jumbo kiosk mango ninja opium plaza squid tulip ulcer vodka yacht zebra cobalt donkey ermine
"""
_NFD = unicodedata.normalize("NFD", "é")
_ODD = f"é {_NFD} 漢字 שלום 😀👍🏽 \u200b ﬁ Ⅷ １ ß İ &amp; <b>x</b> \" '' , ; | \\ =1+1 +1 1e0 -0"
#: Words of texts, none of which the product says; parts of texts that readers may trip over; and values that are none.
WORDS = tuple(_WORDS.split())
ODD = (*_ODD.split(), "\u00a0", "\u2028", "\x85")
NOTHING = ["", " ", *["nan", "NULL", "None", "NA", "n/a", "[deleted]", "<NA>", "-", "unknown", "\u200b", "<br>"]]
NAMES = (
    ("text", "label", "user"),
    ("Review", "Sentiment", "Author"),
    ("txt_de", "lbl", "wer"),
    ("How did you like it, all in all?", "What is it about then?", "Who are you?"),
    ("1", "2", "3"),
    ("评论", "标签", "用户"),
)
FORMATS = (".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".jsonl.gz")


@dataclass(frozen=True)
class Made:
    """A table's file, its columns as a person would name them, and the words that nobody but its users wrote."""

    file: Path
    rows: int
    options: dict[str, str]
    private: set[str]


def made(folder: Path, seed: int) -> Made:
    """Write a table of 0 to 420 rows."""
    rng = np.random.default_rng([11, seed])
    size = int(rng.choice([0, 1, 40, 230, 300, 420], p=[0.02, 0.02, 0.04, 0.12, 0.4, 0.4]))
    suffix = str(rng.choice(FORMATS))
    names = NAMES[0] if rng.random() < 0.5 else NAMES[rng.integers(len(NAMES))]
    columns = {names[0]: _texts(rng, size), names[1]: _labels(rng, size)}
    if users := rng.random() < 0.5:
        columns[names[2]] = _users(rng, size)
    if rng.random() < 0.3:
        columns["id"] = list(range(size))
    if rng.random() < 0.3:
        _spoil(rng, columns, names)
    order = list(columns)
    rng.shuffle(order)
    headed = not suffix.startswith((".csv", ".tsv")) or rng.random() < 0.75
    file = folder / f"table{suffix}"
    file.write_bytes(_bytes(rng, suffix, {name: columns[name] for name in order}, headed))
    options = {}
    if not headed or names not in NAMES[:2] or rng.random() < 0.3:
        keys = ("text", "label", *(["user"] if users else []))
        options = {key: name if headed else str(order.index(name) + 1) for key, name in zip(keys, names, strict=False)}
    if not headed and rng.random() < 0.3:
        options = {}
    words = {word for value in columns[names[0]] for word in str(value).split()}
    return Made(file, size, options, words & set(WORDS))


def _texts(rng: Generator, size: int) -> list[Any]:
    kind = rng.choice(["words", "same", "short", "numbers", "objects"], p=[0.74, 0.12, 0.06, 0.04, 0.04])
    if kind == "numbers":
        return [int(n) for n in rng.integers(10**5, 10**9, size)]
    low, high = (1, 4) if kind == "short" else (8, 14)
    pool = [" ".join(rng.choice(WORDS, rng.integers(low, high))) for _ in range(max(1, size))]
    if kind != "short":
        pool = [f"{text} {i}" for i, text in enumerate(pool)]
    pool = pool[: max(1, size // int(rng.integers(2, 12)))] if kind == "same" else pool
    texts = [pool[i % len(pool)] for i in range(size)]
    for row in np.flatnonzero(rng.random(size) < 0.1).tolist():
        place = int(rng.integers(len(texts[row]) + 1))
        texts[row] = texts[row][:place] + str(rng.choice(ODD)) + texts[row][place:]
    return [{"en": text} if rng.random() < 0.9 else [text] for text in texts] if kind == "objects" else texts


def _labels(rng: Generator, size: int) -> list[Any]:
    plain: list[list[Any]] = [["neg", "pos"], ["a", "b"], ["x", "y", "z"], [0, 1], [1.0, 2.0, 3.0], [True, False]]
    odd: list[list[Any]] = [
        ["0", "1.0", "1"],
        ["é", _NFD, "x"],
        ["yes", "Yes", "no", "no."],
        [f"class {i}" for i in range(max(2, size // 12))],
        ["NA", "None", "ok"],
        ["１", "2"],
        ["+1", "-1"],
        ["one"],
        ["a\tb", "c"],
    ]
    choices = odd if rng.random() < 0.3 else plain
    classes = choices[rng.integers(len(choices))]
    return [classes[i] for i in rng.integers(len(classes), size=size)]


def _users(rng: Generator, size: int) -> list[Any]:
    people = max(1, size // int(rng.choice([1, 2, 3, 4, 50])))
    name: Callable[[int], Any] = [
        lambda i: f"pq{i}",
        lambda i: i,
        float,
        lambda i: f"pq{i}{ODD[i % 12]}",
        lambda i: f"pq{i // 2}" if i % 2 else f"PQ{i // 2}",
    ][rng.choice(5, p=[0.4, 0.2, 0.1, 0.2, 0.1])]
    return [name(int(i)) for i in rng.permutation(np.arange(size) % people)]


def _spoil(rng: Generator, columns: dict[str, list[Any]], names: tuple[str, ...]) -> None:
    """Put values that are missing or of another type in a share of the rows."""
    for name in names:
        values = columns.get(name, [])
        if rng.random() < 0.6:
            for row in np.flatnonzero(rng.random(len(values)) < rng.choice([0.01, 0.05])).tolist():
                values[row] = str(rng.choice(NOTHING)) if rng.random() < 0.8 else None


def _bytes(rng: Generator, suffix: str, columns: dict[str, list[Any]], headed: bool) -> bytes:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    out = io.StringIO(newline="")
    if suffix == ".parquet":
        return _typed(columns)
    if suffix.startswith(".jsonl"):
        out.writelines(json.dumps(row, ensure_ascii=bool(rng.random() < 0.5)) + "\n" for row in rows)
    elif suffix == ".tsv":
        for row in [list(columns)] * headed + [list(row.values()) for row in rows]:
            out.write("\t".join(" ".join(_cell(value).replace("\t", " ").splitlines()) for value in row) + "\n")
    else:
        quoting = csv.QUOTE_ALL if rng.random() < 0.3 else csv.QUOTE_MINIMAL
        end = str(rng.choice(["\n", "\r\n"]))
        writer = csv.writer(out, delimiter=str(rng.choice([",", ",", ";", "\t"])), quoting=quoting, lineterminator=end)
        writer.writerows([list(columns)] * headed + [[_cell(value) for value in row.values()] for row in rows])
    coding = str(rng.choice(["utf-8-sig", "utf-16", "latin-1"])) if rng.random() < 0.12 else "utf-8"
    data = out.getvalue().encode(coding, "replace")
    return gzip.compress(data, 1) if suffix.endswith(".gz") else data


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def _typed(columns: dict[str, list[Any]]) -> bytes:
    """Write each column by the type of its values; texts where they have several."""
    arrays = []
    for values in columns.values():
        try:
            arrays.append(pyarrow.array(values))
        except pyarrow.ArrowException:
            arrays.append(pyarrow.array([None if value is None else _cell(value) for value in values]))
    out = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays, names=list(columns)), out)
    return out.getvalue()

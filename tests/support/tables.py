"""Tables as people have them, made from a seed: in several formats and types, some with every fault of a row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
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
#: Classes: plain ones, and such as are easily taken for one another, for numbers or for nothing.
PLAIN: tuple[tuple[Any, ...], ...] = (("neg", "pos"), ("x", "y", "z"), (0, 1), (1.0, 2.0, 3.0), (True, False))
HARD = (
    *(("0", "1.0", "1"), ("é", _NFD, "x"), ("yes", "Yes", "no", "no."), ("NA", "None", "ok")),
    *(("１", "2"), ("+1", "-1"), ("one",), ("a\tb", "c"), tuple(f"class {i}" for i in range(25))),
)


@dataclass(frozen=True)
class Made:
    """A table's file, its columns as a person would name them, and the words that nobody but its users wrote."""

    file: Path
    rows: int
    options: dict[str, str]
    private: set[str]


def made(folder: Path, seed: int) -> Made:
    """Write a table of 0 to 420 rows."""
    rng = random.Random(seed)
    size = rng.choice((0, 1, 40, 230, 230, *[300] * 5, *[420] * 6))
    suffix, names = rng.choice(FORMATS), rng.choice((NAMES[0], *NAMES))
    classes = rng.choice(HARD if rng.random() < 0.3 else PLAIN)
    columns = {names[0]: _texts(rng, size), names[1]: [rng.choice(classes) for _ in range(size)]}
    if users := rng.random() < 0.5:
        columns[names[2]] = _users(rng, size)
    if rng.random() < 0.3:
        columns["id"] = list(range(size))
    for name in names if rng.random() < 0.3 else ():  # values that are missing or of another type
        values, share = columns.get(name, []), rng.choice((0.0, 0.01, 0.05))
        for row in (row for row in range(len(values)) if rng.random() < share):
            values[row] = rng.choice((*NOTHING, None, None))
    order = rng.sample(list(columns), len(columns))
    headed = not suffix.startswith((".csv", ".tsv")) or rng.random() < 0.75
    file = folder / f"table{suffix}"
    file.write_bytes(_bytes(rng, suffix, {name: columns[name] for name in order}, headed))
    options = {}
    if (not headed and rng.random() < 0.7) or (headed and (names not in NAMES[:2] or rng.random() < 0.3)):
        keys = ("text", "label", *(["user"] if users else []))
        options = {key: name if headed else str(order.index(name) + 1) for key, name in zip(keys, names, strict=False)}
    words = {word for value in columns[names[0]] for word in str(value).split()}
    return Made(file, size, options, words & set(WORDS))


def _texts(rng: random.Random, size: int) -> list[Any]:
    kind = rng.choice((*["words"] * 17, *["same"] * 3, "short", "numbers", "objects"))
    if kind == "numbers":
        return [rng.randrange(10**5, 10**9) for _ in range(size)]
    low, high = (1, 3) if kind == "short" else (8, 13)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(low, high))) for _ in range(size)]
    if kind != "short":
        texts = [f"{text} {i}" for i, text in enumerate(texts)]
    if kind == "same":
        texts = [texts[i % max(1, size // 7)] for i in range(size)]
    for row in (row for row in range(size) if rng.random() < 0.1):
        at = rng.randint(0, len(texts[row]))
        texts[row] = texts[row][:at] + rng.choice(ODD) + texts[row][at:]
    return [{"en": text} if rng.random() < 0.9 else [text] for text in texts] if kind == "objects" else texts


def _users(rng: random.Random, size: int) -> list[Any]:
    people, kind = max(1, size // rng.choice((1, 2, 3, 4, 50))), rng.randrange(5)
    names = (
        (f"pq{i}", i, float(i), f"pq{i}{ODD[i % 12]}", f"pq{i // 2}" if i % 2 else f"PQ{i // 2}")[kind]
        for i in (i % people for i in range(size))
    )
    return rng.sample(list(names), size)


def _bytes(rng: random.Random, suffix: str, columns: dict[str, list[Any]], headed: bool) -> bytes:
    rows = list(zip(*columns.values(), strict=True))
    lines = [list(columns)] * headed + [["" if value is None else str(value) for value in row] for row in rows]
    out = io.StringIO(newline="")
    if suffix == ".parquet":
        return _typed(columns)
    if suffix.startswith(".jsonl"):
        plain = rng.random() < 0.5
        out.writelines(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=plain) + "\n" for row in rows)
    elif suffix == ".tsv":
        for line in lines:
            out.write("\t".join(" ".join(cell.replace("\t", " ").splitlines()) for cell in line) + "\n")
    else:
        quoting, end = rng.choice((csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL)), rng.choice(("\n", "\r\n"))
        csv.writer(out, delimiter=rng.choice(",,;\t"), quoting=quoting, lineterminator=end).writerows(lines)
    coding = rng.choice(("utf-8-sig", "utf-16", "latin-1")) if rng.random() < 0.12 else "utf-8"
    data = out.getvalue().encode(coding, "replace")
    return gzip.compress(data, 1) if suffix.endswith(".gz") else data


def _typed(columns: dict[str, list[Any]]) -> bytes:
    """Write each column by the type of its values; texts where they have several."""
    arrays = []
    for values in columns.values():
        try:
            arrays.append(pyarrow.array(values))
        except pyarrow.ArrowException:
            arrays.append(pyarrow.array([None if value is None else str(value) for value in values]))
    out = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays, names=list(columns)), out)
    return out.getvalue()

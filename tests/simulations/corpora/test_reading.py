"""One rule for all readers: whatever a file holds becomes texts, labels and users, or ends in one line."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from simulations.corpora.columns import LONGEST_NAME
from simulations.corpora.corpus import Corpus
from simulations.corpora.files import read_files
from simulations.corpora.rewriting import blocks
from simulations.errors import UserError
from tests.support.paths import ROOT

FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")


def read(folder: Path, suffix: str, train: bytes, test: bytes | None = None, **columns: str) -> Corpus:
    (folder / f"a{suffix}").write_bytes(train)
    (folder / f"b{suffix}").write_bytes(train if test is None else test)
    named = {"text": "text", "label": "label"} | columns
    return read_files(folder, f"a{suffix}", f"b{suffix}", **named)[0]


def rewritten(path: Path) -> bytes | None:
    """The file with its texts as they are, by the reader that streams; None for Parquet, which has no bytes."""
    made = [block.with_texts(block.texts) for block in blocks(path, io.BytesIO(), ["text"], 3)]
    return None if path.suffix == ".parquet" else b"".join(made)


def refused(match: str, action: Callable[[], object]) -> None:
    with pytest.raises(UserError, match=match) as caught:
        action()
    assert len(str(caught.value).splitlines()) == 1 and str(caught.value).isprintable()


# -- what once went wrong ---------------------------------------------------------------------------------------------


def test_a_long_text_is_a_text(tmp_path: Path) -> None:
    csv.field_size_limit(131_072)  # as a new process has it
    long = b"x " * 80_000
    assert len(read(tmp_path, ".csv", b"text,label\n" + long + b",1\nb,0\n").texts[0]) == len(long) - 1
    assert rewritten(tmp_path / "a.csv").count(b"x") == 80_001  # and that of the header


@pytest.mark.parametrize(
    "label", ["nan", "NaN", " nan ", "<NA>", "NaT", "", "x" * (LONGEST_NAME + 1), "1" * 5000, "a\x07"]
)
def test_what_is_no_label(tmp_path: Path, label: str) -> None:
    why = "label is (missing|a text)"
    refused(f"line 3: {why}", lambda: read(tmp_path, ".tsv", f"text\tlabel\na\t1\nb\t{label}\n".encode()))
    line = json.dumps({"text": "b", "label": label})
    refused(f"line 2: {why}", lambda: read(tmp_path, ".jsonl", f'{{"text": "a", "label": 1}}\n{line}'.encode()))


@pytest.mark.parametrize("name", ["nan", "", "true", "null", "1.5", '"\\ud800"', '"a\\nb"', '"nan"'])
def test_what_is_no_user(tmp_path: Path, name: str) -> None:
    rows = f'{{"text": "a", "label": 1, "who": "ann"}}\n{{"text": "b", "label": 0, "who": {name or chr(34) * 2}}}'
    refused(r'line 2: ("who" is|is not valid JSON)', lambda: read(tmp_path, ".jsonl", rows.encode(), user="who"))


def test_classes_are_in_one_order_whatever_the_hashes(tmp_path: Path) -> None:
    for labels in (("-0", "0", "1"), ("01", "1", "2"), ("1.0", "1", "2"), ("1", "١", "2")):
        rows = "text\tlabel\n" + "".join(f"a\t{label}\n" for label in labels)
        refused("are one number; write it one way", lambda rows=rows: read(tmp_path, ".tsv", rows.encode()))
    assert read(tmp_path, ".tsv", b"text\tlabel\na\t10.0\nb\t2.0\nc\t-1\n").classes == ("-1", "2.0", "10.0")
    odd = "text\tlabel\na\t²\nb\t½\nc\t--1\nd\t1\ne\tz\n"
    (tmp_path / "a.tsv").write_text(odd)
    code = (
        "import sys; from pathlib import Path; from simulations.corpora.files import read_files; "
        "print(read_files(Path(sys.argv[1]), 'a.tsv', 'a.tsv', text='text', label='label')[0].classes)"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            cwd=ROOT,
            env={"PYTHONHASHSEED": str(seed), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(said) == 1 and said.pop().strip() == str(("--1", "1", "z", "²", "½"))


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (b'{"text": "a\\ud800", "label": 0}', "holds NUL or half of a surrogate pair"),
        (b'{"text": "a\\u0000", "label": 0}', "holds NUL or half of a surrogate pair"),
        (b'{"text": "a", "label": 0, "n": ' + b"1" * 5000 + b"}", "a number of thousands of digits"),
        (b'{"text": "a", "label": 0, "n": ' + b"[" * 101 + b"]" * 101 + b"}", "nested deeper than 100 levels"),
        (b"[" * 10**5, "nested deeper than 100 levels"),
        (b'{"text": "a", "label": 0, "text": "b"}', 'names "text" twice'),
        (b'{"text": "a", "label": 0, "n": {"\\n": 1, "\\n": 2}}', "names a key twice"),
        (b'["text"]', "must be an object"),
        (b'{"te\\nxt\\ud800": "a", "label": 0}', "has no column"),
        (b'{"text": "a\x00", "label": 0}', "holds a NUL byte"),
    ],
)
def test_objects_that_are_none(tmp_path: Path, line: bytes, match: str) -> None:
    """Said by both readers, the one of whole files and the one that rewrites."""
    whole = b'{"text": "a", "label": 1}\n' + line + b"\n"
    refused(f"a.jsonl: line 2: .*({match})", lambda: read(tmp_path, ".jsonl", whole))
    refused(f"a.jsonl: line 2: .*({match})", lambda: rewritten(tmp_path / "a.jsonl"))


def test_as_deep_as_may_be(tmp_path: Path) -> None:
    deep = b'{"text": "a", "label": %d, "n": ' + b"[" * 99 + b"[]" * 1 + b"]" * 99 + b"}\n"
    assert len(read(tmp_path, ".jsonl", deep % 0 + deep % 1)) == 2
    assert rewritten(tmp_path / "a.jsonl") == deep % 0 + deep % 1


def test_a_column_of_another_name_is_no_label(tmp_path: Path) -> None:
    train = b"sentence\tlabel\none\t0\ntwo\t1\n"
    for other in (b"sentence\tprediction", b"sentence\tlabels", b"prediction\tlabels"):
        test = other + b"\nthree\t1\n"
        refused("b.tsv: has no column", lambda test=test: read(tmp_path, ".tsv", train, test, text="sentence"))
    assert read(tmp_path, ".tsv", train, b"content\tlabel\nthree\t1\n", text="sentence").classes == ("0", "1")


def test_headers(tmp_path: Path) -> None:
    for suffix, header in ((".tsv", b"text\tlabel\ra\t1\n"), (".csv", b'text,"label\nof"\na,1\n')):
        refused("line 1: a name holds the end of a line", lambda s=suffix, h=header: read(tmp_path, s, h))
        refused("line 1: a name holds the end of a line", lambda s=suffix: rewritten(tmp_path / f"a{s}"))
    for header in (b"text,label\rgood,1\rbad,0\r", b"text\rgood\r", b"text;label\rgood;1\n"):
        refused(r"line 1: a line ends in \\r alone", lambda h=header: read(tmp_path, ".csv", h))
        refused(r"line 1: a line ends in \\r alone", lambda: rewritten(tmp_path / "a.csv"))
    for suffix, header in ((".tsv", b"text\ttext\tlabel\n"), (".csv", b"text,text,label\n")):
        refused('names column "text" twice', lambda s=suffix, h=header: read(tmp_path, s, h))
        refused('names column "text" twice', lambda s=suffix: rewritten(tmp_path / f"a{s}"))
    table = pyarrow.table([["a"], ["b"], ["1"]], names=["text", "text", "label"])
    parquet.write_table(table, tmp_path / "two.parquet")
    refused('names column "text" twice', lambda: rewritten(tmp_path / "two.parquet"))
    refused('names column "text" twice', lambda: read(tmp_path, ".parquet", (tmp_path / "two.parquet").read_bytes()))


# -- anything at all --------------------------------------------------------------------------------------------------

NASTY = (
    b"",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b"\t",
    b",",
    b'"',
    b"{",
    b"[",
    b":",
    b"\\",
    b"\\ud800",
    b"nan",
    b"-0",
    b"1e999",
    b"null",
    b"1" * 5000,
    b'{"a":' * 2000,
    b"x" * 140_000,
    "\u2028".encode(),
    "ß漢😀".encode(),
    b"text",
    b"label",
    b"PAR1",
    *(b"a", b" b", b"1", b"") * 6,
)


def good(suffix: str, rng: np.random.Generator) -> bytes:
    rows = [{"text": f"film {i}", "label": ("no", "yes")[i % 2], "who": f"u{i % 3}"} for i in range(rng.integers(2, 7))]
    if suffix == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if suffix == ".parquet":
        out = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist(rows), out)
        return out.getvalue()
    between = "\t" if suffix == ".tsv" else ","
    return "".join(between.join(row) + "\n" for row in [list(rows[0]), *(list(row.values()) for row in rows)]).encode()


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Some places cut out, written over by nasty pieces, or by pieces of the file itself."""
    for _ in range(rng.integers(1, 3)):
        start = int(rng.integers(0, len(data) + 1))
        end = min(len(data), start + int(rng.integers(0, 12)) * int(rng.integers(2)))
        own = int(rng.integers(0, len(data) + 1))
        piece = NASTY[rng.integers(len(NASTY))] if rng.random() < 0.7 else data[own : own + int(rng.integers(0, 30))]
        data = data[:start] + piece + data[end:]
    return data


def fuzz(folder: Path, suffix: str, seed: int, times: int) -> tuple[int, int]:
    """How many damaged files were read, and how many refused: nothing else may happen."""
    rng = np.random.default_rng([seed, FORMATS.index(suffix)])
    taken = 0
    for _ in range(times):
        data = damaged(good(suffix, rng), rng)
        try:
            corpus = read(folder, suffix, data, user="who")
        except UserError as error:
            said = str(error)
            assert len(said.splitlines()) == 1 and len(said) < 600 and said.encode(), data
        else:
            taken += 1
            again = read(folder, suffix, data, user="who")
            assert again.classes == corpus.classes and (again.labels == corpus.labels).all(), data
            for name in (*corpus.classes, *corpus.users):
                assert name == name.strip() and len(name.splitlines()) == 1 and name.encode(), data
            assert all(text == text.strip() and "\0" not in text and text.encode() for text in corpus.texts), data
        try:
            same = rewritten(folder / f"a{suffix}")
        except UserError as error:
            assert len(str(error).splitlines()) == 1 and str(error).encode(), data
        else:
            if same is not None:
                (folder / f"a{suffix}").write_bytes(same)
                assert rewritten(folder / f"a{suffix}") == same, data
    return taken, times - taken


@pytest.mark.parametrize("suffix", FORMATS)
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path: Path, suffix: str) -> None:
    taken, refusals = fuzz(tmp_path, suffix, 1, 100 if suffix == ".parquet" else 150)
    assert min(taken, refusals) > 0  # of both some, or the damage is none, or all

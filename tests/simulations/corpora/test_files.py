"""Readers of data files: valid files become corpora, all others one line that quotes nothing private."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import threading
from decimal import Decimal
from pathlib import Path
from unittest.mock import Mock

import datasets
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from simulations.corpora import headers
from simulations.corpora.columns import LONGEST_NAME
from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.files import read as read_columns
from simulations.corpora.files import read_files
from simulations.corpora.hub import read_hub
from simulations.corpora.rewriting import blocks
from simulations.errors import UserError, other_encoding
from simulations.experiment import load
from sottovoce.cli import main as cli
from tests.support.commands import refused

FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")
ROWS = [
    {"text": 'a "quoted" line', "label": "good", "who": "ann", "more": "x"},
    {"text": "duller, and longer", "label": "bad", "who": "bob", "more": "y"},
    {"text": "çağ ☕", "label": "good", "who": "ann", "more": "z"},
]
UGLY = ROWS[1] | {"label": "ugly"}


def encoded(kind: str, rows: list[dict]) -> bytes:
    if kind.endswith(".gz"):
        return gzip.compress(encoded(kind.removesuffix(".gz"), rows), mtime=0)
    if kind == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind == ".parquet":
        table = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist(rows), table)
        return table.getvalue()
    if kind == ".csv":
        out = io.StringIO(newline="")
        csv.writer(out).writerows([list(rows[0]), *(list(row.values()) for row in rows)])
        return out.getvalue().encode()
    return "".join("\t".join(map(str, row)) + "\n" for row in (rows[0], *(row.values() for row in rows))).encode()


def read(folder: Path, kind: str, train: bytes, test: bytes | None = None, **columns: str) -> Corpus:
    (folder / f"a{kind}").write_bytes(train)
    (folder / f"b{kind}").write_bytes(train if test is None else test)
    return read_files(folder, f"a{kind}", f"b{kind}", **({"text": "text", "label": "label"} | columns))[0]


def rewritten(path: Path, columns: tuple[str, ...] = ("text",)) -> bytes | None:
    """The file with the same texts, by the reader that streams; None for Parquet, which has no bytes."""
    parts = [block.with_texts(block.texts) for block in blocks(path, io.BytesIO(), columns, 3)]
    return None if path.suffix == ".parquet" else b"".join(parts)


@pytest.mark.parametrize("kind", [*FORMATS, ".txt", ".csv.gz"])
def test_every_format_gives_the_same_corpus(tmp_path: Path, kind: str) -> None:
    data, other = encoded(kind, ROWS), encoded(kind, [ROWS[1] | {"who": "eve"}])
    corpus = read(tmp_path, kind, data, other, user="who")
    assert list(corpus.texts) == [row["text"] for row in ROWS] and corpus.users == ["ann", "bob", "ann"]
    assert corpus.classes == ("bad", "good") and corpus.labels.tolist() == [1, 0, 1]
    assert read(tmp_path, kind, data, second_text="more").texts[0] == (ROWS[0]["text"], "x")
    _, test = read_files(tmp_path, f"a{kind}", f"a{kind}", text="text", label="label")
    assert test.classes == corpus.classes


@pytest.mark.parametrize("kind", FORMATS)
def test_an_invalid_row_is_named_by_its_place(tmp_path: Path, kind: str) -> None:
    data, ugly, empty = (encoded(kind, rows) for rows in (ROWS, [*ROWS[:1], UGLY], [*ROWS, ROWS[0] | {"text": "  "}]))
    for match, test, columns in (
        ('no column "lable"; did you mean "label"', data, {"label": "lable"}),
        ('no column "zzz"; there are: text', data, {"text": "zzz"}),
        ("(line 3|line 2|row 2): its label is none of the 2 classes", ugly, {}),
        ('(line 5|line 4|row 4): "text" is empty', empty, {}),
    ):
        refused(match, read, tmp_path, kind, data, test, **columns)


@pytest.mark.parametrize(
    ("kind", "data", "match"),
    [
        (".tsv", b"text\tlabel\nok\t1\ncaf\xe9\t0\n", "line 3: is not UTF-8"),
        (".tsv", b"text\tlabel\nno label\n", "line 2: has 1 cells, and the header names 2"),
        (".tsv", b"", "is empty"),
        (".tsv", b"text\tlabel\n", "holds no records"),
        (".tsv", b"text\tlabel\none\t1\n", "one class only"),
        (".csv", b'text,label\n"open,1\n', "is not valid CSV"),
        (".csv", b"text;label\na;1\n", "line 1: has no commas"),
        (".csv", b"text,label\rgood,1\rbad,0\r", r"line 1: a line ends in \\r alone"),
        (".csv", b'text,"label\nof"\na,1\n', "line 1: a name holds the end of a line"),
        (".tsv", b"text\ttext\tlabel\n", 'names column "text" twice'),
        (".jsonl", b'{"text": 3, "label": 0}\n{"text": "b", "label": 1}\n', '"text" is a number, not a text'),
        (".jsonl", b'{"text": "a", "label": null}\n', "line 1: label is missing"),
        (".parquet", b"PAR1 and then something else", "is not a readable Parquet file"),
        (".xls", b"", "unknown kind of file; use .tsv"),
        (".parquet.gz", gzip.compress(b"PAR1", mtime=0), "unknown kind of file"),
        (".tsv.gz", b"no gzip at all", "is not a whole gzip file"),
        (".tsv.gz", gzip.compress(b"text\tlabel\n" + b"a\tb\n" * 5000, mtime=0)[:40], "is not a whole gzip file"),
        (".tsv.gz", gzip.compress(b"text\tlabel\na\0b\tc\n", mtime=0), "line 2: holds a NUL byte"),
        *(
            (".csv", "text,label\na fine film,1\n".encode(name), f"is {name[:6].upper()}; convert it")
            for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")
        ),
    ],
)
def test_damaged_files(tmp_path: Path, kind: str, data: bytes, match: str) -> None:
    refused(match, read, tmp_path, kind, data)


def test_paths_that_are_no_data_files(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\na\t1\n")
    for folder, match in (
        (tmp_path, r"b\.tsv: there is no such file; .* holds a\.tsv"),
        (tmp_path / "x", "there is no such folder"),
    ):
        refused(match, read_files, folder, "a.tsv", "b.tsv", text="text", label="label")


def test_only_the_text_column_may_have_another_name_in_the_test_file(tmp_path: Path) -> None:
    train = b"label\tsentence\n0\tone\n1\ttwo\n"
    assert len(read(tmp_path, ".tsv", train, b"label\tcontent\n1\tthree\n", text="sentence")) == 2
    for other in (b"target\tcontent", b"labels\tsentence", b"sentence\tprediction"):
        refused("b.tsv: has no column", read, tmp_path, ".tsv", train, other + b"\n1\tthree\n", text="sentence")


def test_classes_are_in_numerical_or_alphabetical_order(tmp_path: Path) -> None:
    for labels, classes in (
        (("10.0", "2.0", "-1"), ("-1", "2.0", "10.0")),
        (("²", "½", "--1", "1", "z"), ("--1", "1", "z", "²", "½")),
    ):
        rows = "text\tlabel\n" + "".join(f"a\t{label}\n" for label in labels)
        assert read(tmp_path, ".tsv", rows.encode()).classes == classes


@pytest.mark.parametrize("label", ["NaN", " nan ", "<NA>", "", "x" * (LONGEST_NAME + 1), "1" * 5000, "a\x07"])
def test_values_that_are_no_label(tmp_path: Path, label: str) -> None:
    rows = encoded(".jsonl", [{"text": "a", "label": 1}, {"text": "b", "label": label}])
    refused("line 2: label is (missing|a text)", read, tmp_path, ".jsonl", rows)


@pytest.mark.parametrize("name", ["", True, None, 1.5, "\ud800", "a\nb", "nan"])
def test_values_that_are_no_user(tmp_path: Path, name: object) -> None:
    rows = encoded(".jsonl", [{"text": "a", "label": 1, "who": "ann"}, {"text": "b", "label": 0, "who": name}])
    refused('line 2: "who" is', read, tmp_path, ".jsonl", rows, user="who")


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (b'{"text"', "is not valid JSON"),
        (b'{"text": "a\\ud800", "label": 0}', "holds NUL or half of a surrogate pair"),
        (b'{"text": "a\\u0000", "label": 0}', "holds NUL or half of a surrogate pair"),
        (b'{"text": "a", "label": 0, "n": ' + b"1" * 5000 + b"}", "a number of thousands of digits"),
        (b'{"text": "a", "label": 0, "n": ' + b"[" * 101 + b"]" * 101 + b"}", "nested deeper than 100 levels"),
        (b"[" * 10**5, "nested deeper than 100 levels"),
        (b'{"text": "a", "label": 0, "text": "b"}', 'names "text" twice'),
        (b'{"text": "a", "label": 0, "n": {"\\n": 1, "\\n": 2}}', "names a key twice"),
        (b'["text"]', "must be an object"),
        (b'{"te\\nxt\\ud800": "a", "label": 0}', "has no column"),
    ],
)
def test_both_readers_refuse_the_same_objects(tmp_path: Path, line: bytes, match: str) -> None:
    whole = b'{"text": "a", "label": 1}\n' + line + b"\n"
    refused(f"a.jsonl: line 2: .*({match})", read, tmp_path, ".jsonl", whole)
    refused(f"a.jsonl: line 2: .*({match})", rewritten, tmp_path / "a.jsonl")


def test_long_texts_and_deep_objects_at_the_limit_are_read(tmp_path: Path) -> None:
    csv.field_size_limit(131_072)  # as in a new process
    long = b"x " * 80_000
    assert len(read(tmp_path, ".csv", b"text,label\n" + long + b",1\nb,0\n").texts[0]) == len(long) - 1
    deep = b'{"text": "a", "label": %d, "n": ' + b"[" * 99 + b"[]" + b"]" * 99 + b"}\n"
    assert len(read(tmp_path, ".jsonl", deep % 0 + deep % 1)) == 2
    assert rewritten(tmp_path / "a.jsonl") == deep % 0 + deep % 1


def test_decimals_are_numbers_and_suffixes_may_be_in_capitals(tmp_path: Path) -> None:
    labels = [Decimal("1.00"), Decimal("0.00"), None, Decimal("0.5")]
    parquet.write_table(pyarrow.table({"label": labels}), tmp_path / "A.PARQUET")
    assert read_columns(tmp_path / "A.PARQUET", ["label"]).values["label"] == [1, 0, None, 0.5]
    (tmp_path / "B.CSV.GZ").write_bytes(gzip.compress(b"\xef\xbb\xbftext,label\na film,1\n"))
    assert list(read_columns(tmp_path / "B.CSV.GZ", ["text"]).values["text"]) == ["a film"]
    assert [other_encoding(data) for data in (b"", b"a", b"a\0", b"\0\0\0\0", b"text")] == [None] * 5


NASTY = (b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n", b"\t", b",", b'"', b"{", b"[", b"\\ud800", b"nan", b"null")
NASTY += (b"1e999", b"1" * 5000, b'{"a":' * 2000, b"x" * 140_000, "\u2028".encode(), b"label", *(b"a", b" b", b"") * 6)


@pytest.mark.parametrize("kind", FORMATS)
def test_randomly_damaged_files_are_read_or_refused(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(FORMATS.index(kind))
    outcomes = set()
    for _ in range(80):
        data = encoded(kind, ROWS)
        for _ in range(rng.integers(1, 3)):
            start = int(rng.integers(0, len(data) + 1))
            data = data[:start] + NASTY[rng.integers(len(NASTY))] + data[start + int(rng.integers(0, 12)) :]
        try:
            corpus = read(tmp_path, kind, data, user="who")
            outcomes.add("read")
            assert all(
                name == name.strip() and len(name.splitlines()) == 1 for name in (*corpus.classes, *corpus.users)
            )
            assert all(text == text.strip() and "\0" not in text and text.encode() for text in corpus.texts), data
            same = rewritten(tmp_path / f"a{kind}")
            (tmp_path / f"b{kind}").write_bytes(same or b"")
            assert same is None or rewritten(tmp_path / f"b{kind}") == same, data
        except UserError as error:
            outcomes.add("refused")
            assert len(str(error).splitlines()) == 1 and len(str(error)) < 600 and str(error).encode(), data
    assert len(outcomes) == 2


# --- first lines that are records: nothing of them is shown

PRIVATE = ("Call", "Anna", "tomorrow", "lar", "ham")


@pytest.mark.parametrize("columns", [("text",), ()])
def test_no_cell_of_a_missing_header_is_shown(tmp_path: Path, columns: tuple[str, ...]) -> None:
    for name, data in (("in.csv", "ham,Call me at 5 tomorrow\nham,Ok lar see you\n"), ("in.tsv", "Call Anna\nOk\n")):
        (tmp_path / name).write_text(data)
        line = refused("put a line of names above it", rewritten, tmp_path / name, columns)
        assert not any(word in line for word in PRIVATE)


def test_only_listed_names_are_shown_and_make_a_header_of_one_column(tmp_path: Path) -> None:
    assert headers.shown_names(["text", "Anna", "label"]) == "text, label, 1 more"
    assert headers.shown_names(["Anna", "Bob"]).startswith("2 of names that are not shown")
    assert headers.nearest("labels_", ["Anna", "label"]) == "label" and headers.nearest("Ann", ["Anna"]) is None
    (tmp_path / "in.tsv").write_text("text\nOk\n")
    assert rewritten(tmp_path / "in.tsv", ()) == b"text\nOk\n"
    names = ("text", "Review Text", "", "étiquette", "评论内容")
    texts = ("Call me at 5 Anna", "0171234567", "ann@example.org", "明天下午五点给我打电话", "x" * 41)
    assert all(map(headers.is_name, names)) and not any(map(headers.is_name, texts))


STUDY = 'name = "a"\n[[arm]]\nname = "b"\nembedding = { mechanism = "identity" }\nreference = true\n'


def test_pipes_are_read_where_once_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = "text,label\na fine film,1\n"
    for name, data in (("in.csv", table), ("study", STUDY)):
        os.mkfifo(name)
        threading.Thread(target=Path(name).write_text, args=(data,), daemon=True).start()
    assert rewritten(Path("in.csv")) == table.encode()
    assert load("study").name == "a"


@pytest.mark.parametrize(
    "command",
    [
        ["init", "x", "--from", "in.csv"],
        ["device", "add", "node", "--file", "in.csv", "--text", "text"],
        ["sanitize", "--mechanism", "identity", "--words", "in.csv"],
    ],
)
def test_pipes_are_refused_elsewhere(
    tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("in.csv")
    assert cli.main(command) == 2
    assert "in.csv: is a pipe or a device, which can be read only once" in capsys.readouterr().err


# --- corpora and the hub


def test_a_corpus_refuses_columns_that_do_not_fit() -> None:
    for match, texts, labels, more in (
        ("record 1: label 2 is outside", ["a", "b"], [0, 2], {}),
        ("record 1: the text is empty", ["a", " "], [0, 1], {}),
        ("users: 1 values for 2 texts", ["a", "b"], [0, 1], {"users": ["u"]}),
        ("all strings or all pairs", ["a", ("b", "c")], [0, 1], {}),
    ):
        refused(match, Corpus, texts, np.array(labels), ("no", "yes"), **more)
    one, other = (Corpus(["a"], np.array([0]), (name, "yes")) for name in ("no", "nay"))
    refused("public: classes", Split, public=other, train=one, test=one)


def test_the_hub_gives_pairs_of_sentences_with_its_own_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.hub.reachable", lambda: True)
    text = datasets.Value("string")
    classes = datasets.ClassLabel(names=["entailment", "not_entailment"])
    features = datasets.Features(question=text, sentence=text, label=classes)
    rows = {"question": ["who?", "why?"], "sentence": ["ann", "because"], "label": [1, 0]}
    requests = []

    def load_dataset(name: str, configuration: str, *, split: str) -> datasets.Dataset:
        requests.append((name, configuration, split))
        labels = [-1, -1] if split == "test" else rows["label"]
        return datasets.Dataset.from_dict(rows | {"label": labels}, features=features)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    columns = {"text": "question", "second_text": "sentence", "label": "label"}
    train, test = read_hub("glue/qnli", **columns)
    assert requests == [("nyu-mll/glue", "qnli", "train"), ("nyu-mll/glue", "qnli", "validation")]
    assert train.texts == [("who?", "ann"), ("why?", "because")] and train.labels.tolist() == [1, 0]
    assert train.classes == test.classes == ("entailment", "not_entailment")
    refused("row 0: its label is none of the 2 classes", read_hub, "glue/qnli", test="test", **columns)
    refused('no column "x"', read_hub, "glue/qnli", **(columns | {"second_text": "x"}))


def test_errors_of_the_hub_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.hub.reachable", lambda: True)
    for error, match in (
        (ConnectionError("Couldn't reach it\nat all"), "imdb: no data hub can be reached"),
        (datasets.exceptions.DatasetNotFoundError("gone"), "imdb: the hub has no such data set"),
        (ValueError('Unknown split "validation".\nmore'), 'imdb train: Unknown split "validation".'),
    ):
        monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=error))
        refused(match, read_hub, "imdb", text="text", label="label")
    refused("is no name of a data set", read_hub, "a/b/c/d", text="text", label="label")


def test_only_the_cache_is_read_if_no_hub_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("server.hub.reachable", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr("httpx.Client.send", lambda *_, **__: pytest.fail("the hub was queried"))
    before = datasets.config.HF_HUB_OFFLINE
    refused("glue/sst2: no data hub can be reached", read_hub, "glue/sst2", text="sentence", label="label")
    assert before == datasets.config.HF_HUB_OFFLINE

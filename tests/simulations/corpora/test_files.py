"""What a person may type wrong in a data file ends in one line; what is right becomes a corpus."""

import csv
import gzip
import json
from decimal import Decimal
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from simulations.corpora.corpus import Corpus, Split
from simulations.corpora.files import read as read_columns
from simulations.corpora.files import read_files
from simulations.corpora.hub import read_hub
from simulations.errors import UserError

TRAIN = [
    {"text": 'a "quoted" line', "label": "good", "who": "ann", "more": "x"},
    {"text": "duller, and longer", "label": "bad", "who": "bob", "more": "y"},
    {"text": "çağ ☕", "label": "good", "who": "ann", "more": "z"},
]
TEST = [{"text": "again", "label": "bad", "who": "eve", "more": "w"}]


def write(file: Path, rows: list[dict]) -> None:
    if file.suffix == ".gz":
        write(file.with_suffix(""), rows)
        file.write_bytes(gzip.compress(file.with_suffix("").read_bytes()))
    elif file.suffix in (".tsv", ".txt"):
        lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif file.suffix == ".csv":
        with file.open("w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif file.suffix == ".jsonl":
        file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)


def read(folder: Path, suffix: str = ".tsv", **columns) -> tuple[Corpus, Corpus]:
    return read_files(folder, f"a{suffix}", f"b{suffix}", **({"text": "text", "label": "label"} | columns))


def refused(match: str, folder: Path, suffix: str = ".tsv", **columns) -> None:
    with pytest.raises(UserError, match=match) as caught:
        read(folder, suffix, **columns)
    assert "\n" not in str(caught.value)


@pytest.fixture(params=[".tsv", ".csv", ".jsonl", ".parquet"])
def suffix(request) -> str:
    return request.param


@pytest.mark.parametrize("kind", [".tsv", ".txt", ".csv", ".jsonl", ".parquet", ".csv.gz", ".tsv.gz", ".jsonl.gz"])
def test_every_format_gives_the_same_corpus(tmp_path, kind):
    write(tmp_path / f"a{kind}", TRAIN)
    write(tmp_path / f"b{kind}", TEST)
    train, test = read(tmp_path, kind, user="who")
    assert list(train.texts) == [row["text"] for row in TRAIN]
    assert train.classes == test.classes == ("bad", "good")
    assert train.labels.tolist() == [1, 0, 1] and test.labels.tolist() == [0]
    assert train.users == ["ann", "bob", "ann"]
    pairs, _ = read(tmp_path, kind, second_text="more")
    assert pairs.texts[0] == (TRAIN[0]["text"], "x")


def test_bad_input_is_named_in_one_line(tmp_path, suffix):
    write(tmp_path / f"a{suffix}", TRAIN)
    refused(r"b\..*: there is no such file; the folder holds a\.", tmp_path, suffix)
    refused("there is no such folder", tmp_path / "nowhere", suffix)
    write(tmp_path / f"b{suffix}", TEST)
    refused('no column "lable"; did you mean "label"', tmp_path, suffix, label="lable")
    refused('no column "zzz"; there are: text', tmp_path, suffix, text="zzz")
    write(tmp_path / f"b{suffix}", [*TEST, TEST[0] | {"label": "ugly"}])
    refused(r"(line 3|line 2|row 2): its label is none of the 2 classes", tmp_path, suffix)
    write(tmp_path / f"a{suffix}", [*TRAIN, TRAIN[0] | {"text": "  "}])
    refused(r'(line 5|line 4|row 4): "text" is empty', tmp_path, suffix)


def test_bad_files_are_named_in_one_line(tmp_path):
    for suffix in (".tsv", ".csv", ".jsonl", ".parquet"):
        write(tmp_path / f"b{suffix}", TEST)
    (tmp_path / "a.tsv").write_bytes(b"text\tlabel\nok\t1\ncaf\xe9\t0\n")
    refused("a.tsv: line 3: is not UTF-8", tmp_path)
    (tmp_path / "a.tsv").write_text("text\tlabel\nno label\n")
    refused("line 2: has 1 cells, and the header names 2", tmp_path)
    (tmp_path / "a.tsv").write_text("")
    refused("is empty", tmp_path)
    (tmp_path / "a.tsv").write_text("text\tlabel\n")
    refused("holds no records", tmp_path)
    (tmp_path / "a.tsv").write_text("text\tlabel\none\t1\n")
    refused("one class only", tmp_path)
    (tmp_path / "a.csv").write_text('text,label\n"open,1\n')
    refused("is not valid CSV", tmp_path, ".csv")
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 0}\n{"text"\n')
    refused("line 2: is not valid JSON", tmp_path, ".jsonl")
    (tmp_path / "a.jsonl").write_text('{"text": 3, "label": 0}\n{"text": "b", "label": 1}\n')
    refused('line 1: "text" is a number, not a text', tmp_path, ".jsonl")
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": null}\n')
    refused("line 1: label is missing", tmp_path, ".jsonl")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then something else")
    refused("is not a readable Parquet file", tmp_path, ".parquet")
    (tmp_path / "a.csv").write_text("text;label\na;1\n")
    refused("line 1: has no commas; put commas between cells", tmp_path, ".csv")
    (tmp_path / "a.xls").write_bytes(b"")
    refused("unknown kind of file; use .tsv", tmp_path, ".xls")


def test_a_test_column_may_have_another_name_only_if_nothing_else_differs(tmp_path):
    (tmp_path / "a.tsv").write_text("label\ttext\n0\tone\n1\ttwo\n")
    (tmp_path / "b.tsv").write_text("label\tcontent\n1\tthree\n")
    assert read(tmp_path)[1].texts == ["three"]
    (tmp_path / "b.tsv").write_text("target\tcontent\n1\tthree\n")
    refused('b.tsv: has no column "text"', tmp_path)


def test_numbered_classes_are_in_numerical_order(tmp_path):
    write(tmp_path / "a.tsv", [{"text": "t", "label": n} for n in (10, 2, 0)])
    write(tmp_path / "b.tsv", [{"text": "t", "label": 2}])
    assert read(tmp_path)[0].classes == ("0", "2", "10")


def test_a_corpus_refuses_columns_that_do_not_fit():
    with pytest.raises(UserError, match="record 1: label 2 is outside"):
        Corpus(["a", "b"], np.array([0, 2]), ("no", "yes"))
    with pytest.raises(UserError, match="record 1: the text is empty"):
        Corpus(["a", " "], np.array([0, 1]), ("no", "yes"))
    with pytest.raises(UserError, match="users: 1 values for 2 texts"):
        Corpus(["a", "b"], np.array([0, 1]), ("no", "yes"), users=["u"])
    with pytest.raises(UserError, match="all strings or all pairs"):
        Corpus(["a", ("b", "c")], np.array([0, 1]), ("no", "yes"))
    one, other = (Corpus(["a"], np.array([0]), (name, "yes")) for name in ("no", "nay"))
    with pytest.raises(UserError, match="public: classes"):
        Split(public=other, train=one, test=one)


@pytest.fixture
def hub_answers(monkeypatch):
    monkeypatch.setattr("server.hub.reachable", lambda: True)


@pytest.mark.usefixtures("hub_answers")
def test_hub_gives_sentence_pairs_with_the_hubs_classes(monkeypatch):
    features = datasets.Features(
        question=datasets.Value("string"),
        sentence=datasets.Value("string"),
        label=datasets.ClassLabel(names=["entailment", "not_entailment"]),
    )
    rows = {"question": ["who?", "why?"], "sentence": ["ann", "because"], "label": [1, 0]}
    requests = []

    def load_dataset(name, configuration, *, split):
        requests.append((name, configuration, split))
        labels = [-1, -1] if split == "test" else rows["label"]
        return datasets.Dataset.from_dict(rows | {"label": labels}, features=features)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    columns = {"text": "question", "second_text": "sentence", "label": "label"}
    train, test = read_hub("glue/qnli", **columns)
    assert requests == [("nyu-mll/glue", "qnli", "train"), ("nyu-mll/glue", "qnli", "validation")]
    assert train.texts == [("who?", "ann"), ("why?", "because")]
    assert train.classes == test.classes == ("entailment", "not_entailment")
    assert train.labels.tolist() == [1, 0]
    with pytest.raises(UserError, match=r"glue/qnli test: row 0: its label is none of the 2 classes"):
        read_hub("glue/qnli", test="test", **columns)
    with pytest.raises(UserError, match='glue/qnli train: has no column "sentance"; did you mean "sentence"'):
        read_hub("glue/qnli", **(columns | {"second_text": "sentance"}))


@pytest.mark.usefixtures("hub_answers")
@pytest.mark.parametrize(
    ("error", "match"),
    [
        (ConnectionError("Couldn't reach it\nat all"), "imdb: no data hub can be reached"),
        (datasets.exceptions.DatasetNotFoundError("gone"), "imdb: the hub has no such data set"),
        (ValueError('Unknown split "validation".\nmore'), 'imdb train: Unknown split "validation".'),
    ],
)
def test_hub_errors_are_one_line(monkeypatch, error, match):
    def load_dataset(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UserError, match=match) as caught:
        read_hub("imdb", text="text", label="label")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a//b", "a/b/c/d"])
def test_hub_names_that_are_none(name):
    with pytest.raises(UserError, match="is no name of a data set"):
        read_hub(name, text="text", label="label")


def test_where_no_hub_answers_only_the_cache_is_asked(monkeypatch, tmp_path):
    monkeypatch.setattr("server.hub.reachable", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr("httpx.Client.send", lambda *_, **__: pytest.fail("the hub was asked"))
    before = datasets.config.HF_HUB_OFFLINE
    with pytest.raises(UserError, match="glue/sst2: no data hub can be reached and no copy is cached"):
        read_hub("glue/sst2", text="sentence", label="label")
    assert before == datasets.config.HF_HUB_OFFLINE


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.tsv.gz", b"no gzip at all", "is not a whole gzip file"),
        ("a.tsv.gz", gzip.compress(b"text\tlabel\n" + b"a\tb\n" * 5000, mtime=0)[:40], "is not a whole gzip file"),
        ("a.tsv.gz", gzip.compress(b"text\tlabel\na\0b\tc\n", mtime=0), "line 2: holds a NUL byte"),
        ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), "unknown kind of file"),
        ("a.gz", gzip.compress(b"text\tlabel\na\tb\n", mtime=0), "unknown kind of file"),
    ],
)
def test_damage_of_other_kinds_is_one_line(name, data, says, tmp_path):
    (tmp_path / name).write_bytes(data)
    write(tmp_path / "b.tsv", TEST)
    with pytest.raises(UserError, match=says) as caught:
        read_files(tmp_path, name, "b.tsv", text="text", label="label")
    assert "\n" not in str(caught.value) and name in str(caught.value)


def test_decimals_are_read_as_numbers_and_endings_in_capitals(tmp_path: Path) -> None:
    labels = [Decimal("1.00"), Decimal("0.00"), None, Decimal("0.5")]
    parquet.write_table(pyarrow.table({"label": labels}), tmp_path / "A.PARQUET")
    assert read_columns(tmp_path / "A.PARQUET", ["label"]).values["label"] == [1, 0, None, 0.5]
    (tmp_path / "B.CSV.GZ").write_bytes(gzip.compress(b"text,label\na film,1\n"))
    assert list(read_columns(tmp_path / "B.CSV.GZ", ["text"]).values["text"]) == ["a film"]

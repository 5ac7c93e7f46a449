"""The command `sanitize` and its Python API: a row out for each row in, whatever the rows hold."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client.models import vocabulary as vocabularies
from client.rewrite import Rewriter, describe_cost
from mechanisms.catalogue import build
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import Vocabulary
from simulations.artifacts.vocabulary import with_spans
from simulations.errors import UserError
from sottovoce.cli import main as cli

WORDS = ["the", "film", "was", "good", "bad", "fine", "awful", "a", "it", "'s", "not", "very", "plot", ".", ",", "3"]
#: What a text may be: unknown, empty, controls, emoji, right to left, very long.
TEXTS = [
    "the film was good .",
    "",
    "zzz qqq",
    "😀 👍🏽",
    "שלום עולם مرحبا",
    "a\x07\x1bthe",
    "it's not",
    "film " * 5_000,
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own, with a file of word vectors in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SOTTOVOCE_DEBUG", raising=False)
    for name in cli.QUIET:
        monkeypatch.delenv(name, raising=False)
    rng = np.random.default_rng(0)
    lines = [f"{word} " + " ".join(f"{v:.4f}" for v in rng.normal(size=4)) for word in WORDS]
    (tmp_path / "w.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def vocabulary() -> Vocabulary:
    return vocabularies.read_vectors("w.txt")


def run(*arguments: str, code: int = 0) -> None:
    assert cli.main(["sanitize", "--words", "w.txt", *arguments]) == code


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that fails; nothing on stdout, no file left behind."""

    def there() -> list[str]:
        return sorted(p.name for p in Path().iterdir() if p.name != "cache")

    capsys.readouterr()
    before = there()
    assert cli.main(["sanitize", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err and there() == before
    line = captured.err.splitlines()[-1]
    assert line.startswith("sottovoce: ")
    return line


def through_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


SANTEXT = ("--mechanism", "santext:epsilon=2")
MECHANISMS = [("--mechanism", "identity"), SANTEXT, ("--mechanism", "random:length=kept")]


# -- rows


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m[1])
def test_lines_out_equal_lines_in(mechanism: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("\n".join(TEXTS) + "\n", newline="")
    run(*mechanism, "--in", "in.txt", "--out", "out.txt")
    out = Path("out.txt").read_bytes().decode()
    assert out.count("\n") == len(TEXTS) and len(out.splitlines()) == len(TEXTS)
    assert {w for line in out.splitlines() for w in line.split()} <= set(WORDS)
    captured = capsys.readouterr()
    assert captured.out == "" and f"{len(TEXTS)} rows" in captured.err.splitlines()[-1]
    assert not [p for p in Path().iterdir() if p.name.startswith(".")]


def test_identity_gives_each_word_its_own_row(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_bytes(b"\xef\xbb\xbfthe FILM\r\n\r\n\nzzz\ngood")
    run("--mechanism", "identity:length=kept", "--in", "in.txt")
    assert capsys.readouterr().out.encode() == b"the film\n\n\n\ngood\n"


def test_lines_through_pipes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    through_stdin(monkeypatch, "the film\n\n😀 שלום\n".encode())
    run("--mechanism", "identity:length=kept")
    assert capsys.readouterr().out == "the film\n\n\n"
    through_stdin(monkeypatch, b"")
    run(*SANTEXT)
    assert capsys.readouterr().out == ""


def test_tsv(capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{i}\t{t}\tx{i}\n" for i, t in enumerate(TEXTS))
    Path("in.tsv").write_text('label\tsentence\t"odd"\n' + rows + "\n9\t\t\n", newline="")
    run(*SANTEXT, "--in", "in.tsv", "--out", "out.tsv", "--column", "sentence")
    found = [line.split("\t") for line in Path("out.tsv").read_text().split("\n")]
    assert found[0] == ["label", "sentence", '"odd"'] and found[-1] == [""]
    assert [(r[0], r[2]) for r in found[1:-2]] == [(str(i), f"x{i}") for i in range(len(TEXTS))]
    assert found[-2][0] == "9" and found[-2][2] == ""
    assert 'passed through unchanged, without any protection: label, "odd"' in capsys.readouterr().err


def test_csv() -> None:
    with open("in.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        writer.writerows((f'a "q",\n{i}', t + "\nthe" * (i == 0)) for i, t in enumerate(TEXTS))
    run(*SANTEXT, "--in", "in.csv", "--out", "out.csv", "--column", "text")
    with open("out.csv", newline="") as file:
        found = list(csv.reader(file))
    assert found[0] == ["id", "text"] and [r[0] for r in found[1:]] == [f'a "q",\n{i}' for i in range(len(TEXTS))]
    assert not any("\n" in r[1] for r in found)
    Path("one.csv").write_text("text\nthe film\n\nfilm\n")  # a blank line of one column is an empty text
    run("--mechanism", "identity:length=kept", "--in", "one.csv", "--out", "two.csv")
    assert Path("two.csv").read_text() == 'text\nthe film\n""\nfilm\n'


def test_jsonl() -> None:
    records = [{"n": i, "t": t, "more": [1.5, None]} for i, t in enumerate([*TEXTS, None])]
    Path("in.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n\n" + '{"t": "a", "é": "\\ud800"}')
    run(*SANTEXT, "--in", "in.jsonl", "--out", "out.jsonl", "--column", "t")
    lines = Path("out.jsonl").read_text().split("\n")
    found = [json.loads(line) for line in lines if line]
    assert len(found) == len(records) + 1
    assert [(r["n"], r["more"]) for r in found[:-1]] == [(i, [1.5, None]) for i in range(len(records))]
    assert all(isinstance(r["t"], str) for r in found) and list(found[0]) == ["n", "t", "more"]
    assert found[-1]["é"] == "\ud800"


def test_parquet() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
        texts = pyarrow.array([*TEXTS, None], pyarrow.string()).cast(kind)
        table = pyarrow.table({"id": list(range(len(texts))), "t": texts, "x": [[i] for i in range(len(texts))]})
        parquet.write_table(table, "in.parquet", row_group_size=3)
        run(*SANTEXT, "--in", "in.parquet", "--out", "out.parquet", "--column", "t")
        found = parquet.read_table("out.parquet")
        assert found.column_names == ["id", "t", "x"] and found.num_rows == len(texts)
        assert found["id"] == table["id"] and found["x"] == table["x"] and found["t"].null_count == 0
    parquet.write_table(table.slice(0, 0), "none.parquet")
    run(*SANTEXT, "--in", "none.parquet", "--out", "out.parquet", "--column", "t")
    assert parquet.read_table("out.parquet").num_rows == 0


def test_memory_does_not_grow_with_the_rows() -> None:
    """Ten times the rows in at most 1 MiB more; were they kept, 10,000 rows of 200 characters would need 2 MiB."""
    from simulations.corpora.rewriting import block_writer
    from sottovoce.cli import text as sanitize

    rewriter = Rewriter({"mechanism": "identity", "tokens": 8, "length": "kept"}, vocabulary())

    rewriter.batch_size = 256

    def peak(rows: int) -> int:
        with open("in.txt", "w") as file:
            file.writelines("the film was good " * 11 + "\n" for _ in range(rows))
        tracemalloc.start()
        try:
            with block_writer(Path("out.txt"), io.BytesIO()) as put:
                counts = sanitize._stream(rewriter, Path("in.txt"), (), None, False, put)
            assert counts == (rows, 8 * rows)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(100)
    assert peak(11_000) < peak(1_100) + 2**20


def test_an_output_in_the_place_of_its_input() -> None:
    Path("in.txt").write_text("the film\nzzz\n")
    run("--mechanism", "identity:length=kept", "--in", "in.txt", "--out", "in.txt")
    assert Path("in.txt").read_text() == "the film\n\n"


# -- randomness


def test_a_seed_reproduces_and_warns(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("the film was good\n" * 50)

    def out(*more: str) -> str:
        run(*SANTEXT, "--in", "in.txt", *more)
        captured = capsys.readouterr()
        assert ("not private" in captured.err) == bool(more)
        return captured.out

    assert out("--seed", "1") == out("--seed", "1") != out("--seed", "2")
    assert out() != out()


def test_results_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("\n".join(TEXTS * 10))
    found = []
    for at_once in (1, 7, 2**14):
        monkeypatch.setattr("client.models.texts._TEXTS", at_once)
        run(*SANTEXT, "--in", "in.txt", "--seed", "1")
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] == found[2]


# -- what it says


def test_explain_shows_each_token(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("the zzz FILM was good\n\nit's \x1b[31mbad\n")
    run("--mechanism", "santext:epsilon=2,length=kept,stop-words=keep", "--in", "in.txt", "--explain")
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 3 and "\x1b" not in captured.err
    rows = captured.err.split("\nrow ")
    assert len(rows) == 4
    lines = [line.split() for line in rows[1].splitlines()[2:]]
    assert [line[0] for line in lines] == ["the", "zzz", "FILM", "was", "good"]
    assert lines[0][:4] == ["the", "the", "1", "∞"] and lines[0][4] == "kept" and lines[1][-1] == "unknown"
    chances = [float(line[2]) for line in lines]
    assert all(0 < p <= 1 for p in chances)
    last = captured.err.splitlines()[-1]
    assert (
        last.startswith("3 rows, ") and "exposed: the number of tokens and stop words" in last and "any others" in last
    )


def test_charges_in_words() -> None:
    def said(**spec: object) -> str:
        return describe_cost(
            build({"mechanism": "santext", "epsilon": 1.0, "tokens": 4, **spec}, channel="text", vocabulary=v)
        )

    v = vocabulary()
    text = build({"mechanism": "santext", "epsilon": 1.0, "tokens": 4}, channel="text", vocabulary=v)
    assert said() == (
        f"ε = {text.guarantee.worst_case():,.5g} at worst, for any two texts "
        f"(4 tokens at {text.word.guarantee.worst_case():,.5g} each, their number at 4)"
    )
    assert said(length="kept", stop_words="keep").startswith(
        "exposed: the number of tokens and stop words; texts that agree in that: ε = "
    )
    identity = build({"mechanism": "identity"}, channel="text", vocabulary=v)
    assert describe_cost(identity) == "no protection: ε = ∞ for any two texts that differ"


# -- bad input


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--mechanism", "santexts:epsilon=1"], "unknown mechanism 'santexts'; did you mean 'santext'?"),
        (["--mechanism", "gaussian:epsilon=1"], "gaussian: sanitizes the embedding, not texts"),
        (["--mechanism", "santext"], "santext: missing parameter epsilon"),
        (["--mechanism", "santext:epsilon=-1"], "santext: epsilon must be"),
        (["--mechanism", "identity:epsilon=1"], "identity: unknown parameter 'epsilon'"),
        (["--mechanism", "santext+:epsilon=1"], "santext+: needs to know which words are rare"),
        ([*SANTEXT, "--words", "none.txt"], "none.txt: there is no such file"),
        ([*SANTEXT, "--words", "bad.txt"], "bad.txt, line 2: expected"),
        ([*SANTEXT, "--words", "binary"], "binary, line 1: is binary"),
        ([*SANTEXT, "--in", "none.txt"], "none.txt: there is no such file"),
        ([*SANTEXT, "--in", "binary"], "binary: line 1: holds a NUL byte"),
        ([*SANTEXT, "--in", "utf16.txt"], "utf16.txt: is UTF-16; convert it to UTF-8"),
        ([*SANTEXT, "--in", "latin.txt"], "latin.txt: line 2: is not UTF-8"),
        ([*SANTEXT, "--in", "in.txt", "--column", "t"], "--column: in.txt is read as lines"),
        ([*SANTEXT, "--in", "a.tsv"], "a.tsv: name the column of the texts with --column; there are: label, text"),
        ([*SANTEXT, "--in", "a.tsv", "--column", "txt"], 'a.tsv: has no column "txt"; did you mean "text"?'),
        ([*SANTEXT, "--in", "short.tsv", "--column", "text"], "short.tsv: line 3: has 1 cells"),
        ([*SANTEXT, "--in", "bad.csv", "--column", "text"], "bad.csv: line 2: has 3 cells"),
        ([*SANTEXT, "--in", "open.csv", "--column", "text"], "open.csv: line 2: is not valid CSV"),
        ([*SANTEXT, "--in", "bad.jsonl", "--column", "text"], "bad.jsonl: line 2: is not valid JSON"),
        ([*SANTEXT, "--in", "kind.jsonl", "--column", "text"], 'kind.jsonl: line 1: "text" is a number, not a text'),
        ([*SANTEXT, "--in", "kind.jsonl"], "kind.jsonl: name the key of the texts"),
        ([*SANTEXT, "--in", "empty.csv", "--column", "text"], "empty.csv: is empty"),
        ([*SANTEXT, "--in", "bad.parquet", "--column", "text", "--out", "o.parquet"], "is not a readable Parquet file"),
        ([*SANTEXT, "--in", "bad.parquet", "--column", "text"], "name a file with --out"),
        ([*SANTEXT, "--in", "in.txt", "--out", "o.csv"], "o.csv: would be .csv, and the input is lines"),
        ([*SANTEXT, "--in", "in.txt", "--out", "no/o.txt"], "its folder does not exist"),
        ([*SANTEXT, "--in", "in.txt", "--out", "."], "is a folder"),
        (["--mechanism", "santext:epsilon=2,mode=paperish"], "mode must be"),
        (["--mechanism", "santext:epsilon=2,x="], "write NAME or NAME:key=value"),
        (["--mechanism", "santext:epsilon=2,epsilon=3"], "epsilon is given twice"),
        (
            ["--mechanism", "santext:epsilon=2,stopwords=keep"],
            "unknown parameter 'stopwords'; did you mean 'stop_words'?",
        ),
        (["--mechanism", "santext:epsilon=2,length=long"], "length must be an ε"),
        (["--mechanism", "santext:epsilon=2,tokens=0"], "tokens must be from 1"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "in.txt": b"the film\n",
        "bad.txt": b"the 1 2 3 4\nfilm 1\n",
        "binary": b"\x00\x01\xff" * 99,
        "utf16.txt": "the film\n".encode("utf-16"),
        "latin.txt": b"the film\ncaf\xe9\n",
        "a.tsv": b"label\ttext\n1\tthe film\n",
        "short.tsv": b"label\ttext\n1\tthe film\n2\n",
        "bad.csv": b"label,text\n1,the film,more\n",
        "open.csv": b'label,text\n1,"the film\n',
        "bad.jsonl": b'{"text": "a"}\n{"text": \n',
        "kind.jsonl": b'{"text": 7}\n',
        "empty.csv": b"",
        "bad.parquet": b"PAR1 nonsense",
    }
    for name, data in files.items():
        Path(name).write_bytes(data)
    if "--words" not in arguments:
        arguments = [*arguments, "--words", "w.txt"]
    if "--in" not in arguments:
        arguments = [*arguments, "--in", "in.txt"]
    if expected.startswith(("short", "bad.csv", "open", "bad.jsonl", "kind.jsonl: l", "latin", "binary: line")):
        arguments = [*arguments, "--out", "o" + Path(arguments[arguments.index("--in") + 1]).suffix]
    assert expected in complaint(capsys, *arguments)


def test_a_binary_pipe_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    through_stdin(monkeypatch, b"\x89PNG\r\n\x00\x00")
    assert "standard input: line 1: is not UTF-8" in complaint(capsys, *SANTEXT, "--words", "w.txt")
    through_stdin(monkeypatch, b"ok\x00\n")
    assert "standard input: line 1: holds a NUL byte" in complaint(capsys, *SANTEXT, "--words", "w.txt")


def test_dp_mlm(capsys: pytest.CaptureFixture[str]) -> None:
    """Each row is drawn in context, by the folder's model and between its bounds."""
    from simulations.artifacts.language_models import masked_lm_folder
    from tests.support.tiny_models import reviews, tiny_bert

    public = reviews(40, seed=1)[0]
    bert = tiny_bert(Path("bert"))
    folder = masked_lm_folder(bert, public, seed=0, steps=100, max_length=64)
    Path("in.txt").write_text("\n".join(TEXTS))
    options = ["--words", "bert", "--masked-lm", str(folder), "--explain"]
    capsys.readouterr()
    assert cli.main(["sanitize", "--mechanism", "dp-mlm:epsilon=50,tokens=4", *options, "--in", "in.txt"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == len(TEXTS)
    assert captured.err.splitlines()[-1].startswith(f"{len(TEXTS)} rows, ")


# -- the Python API


def test_the_api_draws_what_the_mechanism_draws() -> None:
    text = build({"mechanism": "santext", "epsilon": 2.0, "tokens": 6}, channel="text", vocabulary=vocabulary())
    rows = np.arange(len(TEXTS))

    def rng() -> object:
        return SimulationStreams(3).rows(rows, np.zeros_like(rows), stage="s", channel="text")

    from client.models import tokens

    rewriter = Rewriter(text)
    drawn = text.sample(tokens.padded_word_ids(TEXTS, text), rng=rng())  # type: ignore[arg-type]
    assert rewriter.rewrite(TEXTS, rng=rng()) == [text.vocabulary.text(row) for row in drawn]  # type: ignore[arg-type]


def test_no_word_can_break_a_row() -> None:
    odd = ("a\nb", "c\td", "e\u2028f", "\r", "g")
    v = Vocabulary(odd, np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32))
    text = build({"mechanism": "random", "tokens": 9, "length": 0.0}, channel="text", vocabulary=v)
    found = Rewriter(text).rewrite(["g g g"] * 200)
    assert all(len(t.splitlines()) <= 1 and "\t" not in t for t in found) and any("a b" in t for t in found)


def test_explained_tokens() -> None:
    spec = {
        "mechanism": "santext",
        "epsilon": 2.0,
        "tokens": 3,
        "length": "kept",
        "stop_words": "drop",
        "numbers": "keep",
    }
    rewriter = Rewriter(spec, vocabulary())
    found = rewriter.explain("the film 3 zzz good .")
    assert [(t.original, t.note) for t in found] == [
        ("the", "dropped"),
        ("film", ""),
        ("3", "kept"),
        ("zzz", "unknown"),
        ("good", "left out"),
        (".", "left out"),
    ]
    assert found[2].substitute == "3" and found[2].epsilon == math.inf and found[2].probability == 1.0
    v, word = rewriter.text.vocabulary, rewriter.text.word
    for token in (found[1], found[3]):
        pair = [np.array([v.word_id(w)]) for w in (token.substitute or "", token.original or "")]
        assert token.probability == pytest.approx(float(np.exp(word.log_prob(*pair))[0]))  # type: ignore[attr-defined]
        assert token.epsilon == word.guarantee.worst_case()
    longer = Rewriter(spec | {"length": 0.0, "tokens": 40}, vocabulary())
    filled = [t for _ in range(50) for t in longer.explain("film") if t.note == "filled"]
    assert filled and all(t.original is None and t.substitute for t in filled)  # none: 1 in 20^50


@pytest.fixture(scope="module", autouse=True)
def forget() -> Iterator[None]:
    yield
    vocabularies.load_cached.cache_clear()


# -- pairs


def _two_columns(kind: str, name: str, rows: list[tuple[str, str, str]]) -> None:
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        columns = list(zip(*rows, strict=True))
        parquet.write_table(pyarrow.table(dict(zip(("q", "id", "s"), map(list, columns), strict=True))), name)
    elif kind == "jsonl":
        lines = [json.dumps(dict(zip(("q", "id", "s"), row, strict=True))) for row in rows]
        Path(name).write_text("\n".join(lines) + "\n")
    else:
        mark = "\t" if kind == "tsv" else ","
        Path(name).write_text("\n".join(mark.join(row) for row in [("q", "id", "s"), *rows]) + "\n")


def _read(kind: str, name: str) -> list[tuple[str, ...]]:
    if kind == "parquet":
        from pyarrow import parquet

        return [tuple(row[c] for c in ("q", "id", "s")) for row in parquet.read_table(name).to_pylist()]
    if kind == "jsonl":
        return [tuple(json.loads(line)[c] for c in ("q", "id", "s")) for line in Path(name).read_text().splitlines()]
    mark = "\t" if kind == "tsv" else ","
    with open(name, newline="") as file:
        return [tuple(row) for row in csv.reader(file, delimiter=mark)][1:]


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet"])
def test_both_columns_of_a_pair_are_sanitized(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither passes in clear, and neither's words come out on the other side."""
    rows = [("secret the film", str(i), "unknown was good") for i in range(40)]
    _two_columns(kind, f"in.{kind}", rows)
    files = ("--in", f"in.{kind}", "--out", f"out.{kind}", "--column", "q", "--column", "s")
    run(*SANTEXT, "--seed", "1", *files)
    out = _read(kind, f"out.{kind}")
    assert [row[1] for row in out] == [row[1] for row in rows]
    for side in (0, 2):
        assert {word for row in out for word in row[side].split()} <= set(WORDS)
        assert len({row[side] for row in out}) > 10
    said = capsys.readouterr().err
    assert "without any protection: id\n" in said and "on each of 2 sides" in said
    run("--mechanism", "identity:length=kept", *files)
    assert {(row[0], row[2]) for row in _read(kind, f"out.{kind}")} == {("the film", "was good")}


def test_columns_that_are_no_pair_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    _two_columns("tsv", "in.tsv", [("a", "1", "the")])
    options = (*SANTEXT, "--words", "w.txt", "--in", "in.tsv")
    assert "the two of a pair" in complaint(capsys, *options, "--column", "q", "--column", "q")
    assert "got q, id, s" in complaint(capsys, *options, "--column", "q", "--column", "id", "--column", "s")
    assert 'has no column "t"' in complaint(capsys, *options, "--column", "q", "--column", "t")
    assert "sides follows from the number" in complaint(
        capsys, "--mechanism", "santext:epsilon=2,sides=2", *options[2:], "--column", "q"
    )
    Path("in.txt").write_text("the film\n")
    pair = (*SANTEXT, "--words", "w.txt", "--in", "in.txt", "--public", "in.tsv", "--column", "q", "--column", "s")
    assert "has no columns" in complaint(capsys, *pair)


# -- public spans of several words


def test_public_spans_are_read_and_written_as_one_word(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "spans.txt").write_text("the film\nNot very  good\n\nfilm\n")
    (place / "in.txt").write_text("The film was not very good .\nfilm\n")
    given = ("--mechanism", "santext:epsilon=1000,length=kept")
    files = ("--spans", "spans.txt", "--in", "in.txt", "--out", "out.txt")
    assert cli.main(["sanitize", "--words", "w.txt", *given, *files]) == 0
    assert (place / "out.txt").read_text() == "the film was not very good .\nfilm\n"
    said = capsys.readouterr().err
    assert "18 words" in said and "2 rows, 5 tokens" in said
    (place / "spans.txt").write_text("good grief\nqqq zzz\n")
    given = ("--words", "w.txt", "--mechanism", "random", "--spans", "spans.txt", "--in", "in.txt")
    assert cli.main(["sanitize", *given, "--out", "other.txt"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no word of 'qqq zzz'" in line and not (place / "other.txt").exists()


def test_a_span_lies_at_the_mean_of_its_words() -> None:
    words = vocabulary()
    spans = with_spans(words, ["good film", "GOOD film", "film"])
    assert spans.words == (*words.words, "good film")
    mean = (words.vectors[words.word_id("good")] + words.vectors[words.word_id("film")]) / 2
    np.testing.assert_allclose(spans.vectors[-1], mean, rtol=1e-6)
    with pytest.raises(UserError, match="before counts"):
        with_spans(Vocabulary(words.words, words.vectors, np.ones(len(words), np.int64)), ["good film"])

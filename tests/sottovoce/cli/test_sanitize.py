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
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from client.models import vocabulary as vocabularies
from client.rewrite import Rewriter, describe_cost
from mechanisms.catalogue import build
from mechanisms.pieces import BYTE_LEVEL, SENTENCEPIECE, WORDPIECE, spelled
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING, Vocabulary
from simulations.artifacts.language_models import generator_folder
from sottovoce.cli import main as cli
from tests.support.commands import complaint
from tests.support.tiny_generators import TOKENS, tiny_generator

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
    rng = np.random.default_rng(0)
    lines = [f"{word} " + " ".join(f"{v:.4f}" for v in rng.normal(size=4)) for word in WORDS]
    (tmp_path / "w.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def vocabulary() -> Vocabulary:
    return vocabularies.read_vectors("w.txt")


def run(*arguments: str, code: int = 0) -> None:
    assert cli.main(["sanitize", "--words", "w.txt", *arguments]) == code


def through_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


SANTEXT = ("--mechanism", "santext:epsilon=2")


# -- rows


def test_lines_out_equal_lines_in(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("\n".join(TEXTS) + "\n", newline="")
    run(*SANTEXT, "--in", "in.txt", "--out", "out.txt")
    out = Path("out.txt").read_bytes().decode()
    assert out.count("\n") == len(TEXTS) and len(out.splitlines()) == len(TEXTS)
    assert {w for line in out.splitlines() for w in line.split()} <= set(WORDS)
    captured = capsys.readouterr()
    assert captured.out == "" and f"{len(TEXTS)} rows" in captured.err.splitlines()[-1]
    assert "of the words of the first 8 rows are outside the vocabulary" in captured.err
    assert not [p for p in Path().iterdir() if p.name.startswith(".")]


def test_lines_of_a_file_and_of_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_bytes(b"\xef\xbb\xbfthe FILM\r\n\r\n\nzzz\ngood")
    run("--mechanism", "identity:length=kept", "--in", "in.txt", "--out", "in.txt")  # in the place of its input
    assert Path("in.txt").read_bytes() == b"the film\n\n\n\ngood\n"
    for data, out in (("the film\n\n😀 שלום\n", "the film\n\n\n"), ("", "")):
        through_stdin(monkeypatch, data.encode())
        run("--mechanism", "identity:length=kept")
        assert capsys.readouterr().out == out
    for binary, said in ((b"\x89PNG\r\n\x00\x00", "is not UTF-8"), (b"ok\x00\n", "holds a NUL byte")):
        through_stdin(monkeypatch, binary)
        assert f"standard input: line 1: {said}" in complaint(capsys, "sanitize", *SANTEXT, "--words", "w.txt")


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


def test_parquet() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    texts = pyarrow.array([*TEXTS, None]).cast(pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))
    table = pyarrow.table({"id": list(range(len(texts))), "t": texts, "x": [[i] for i in range(len(texts))]})
    parquet.write_table(table, "in.parquet", row_group_size=3)
    run(*SANTEXT, "--in", "in.parquet", "--out", "out.parquet", "--column", "t")
    found = parquet.read_table("out.parquet")
    assert found.column_names == ["id", "t", "x"] and found.num_rows == len(texts)
    assert found["id"] == table["id"] and found["x"] == table["x"] and found["t"].null_count == 0


def test_memory_does_not_grow_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the rows in at most 1 MiB more; were they kept, 10,000 rows of 200 characters would need 2 MiB."""
    monkeypatch.setattr("client.draw._TEXTS", 256)

    def peak(rows: int) -> int:
        with open("in.txt", "w") as file:
            file.writelines("the film was good " * 11 + "\n" for _ in range(rows))
        tracemalloc.start()
        try:
            run("--mechanism", "identity:tokens=8,length=kept", "--in", "in.txt", "--out", "out.txt")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(100)
    assert peak(11_000) < peak(1_100) + 2**20


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
        monkeypatch.setattr("client.draw._TEXTS", at_once)
        run(*SANTEXT, "--in", "in.txt", "--seed", "1")
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] == found[2]


# -- what it says


def test_explain_shows_each_token(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("the zzz FILM was good\n\nit's \x1b[31mbad\n")
    run("--mechanism", "santext:epsilon=2,length=kept,stop-words=keep", "--in", "in.txt", "--explain")
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 3 and "\x1b" not in captured.err
    lines = [line.split() for line in captured.err.split("\nrow ")[1].splitlines()[2:]]
    assert [line[0] for line in lines] == ["the", "zzz", "FILM", "was", "good"]
    assert lines[0] == ["the", "the", "1", "∞", "kept"] and lines[1][-1] == "unknown"


def test_charges_in_words() -> None:
    def said(**spec: object) -> str:
        return describe_cost(build({"tokens": 4, **spec}, channel="text", vocabulary=v))

    v, santext = vocabulary(), {"mechanism": "santext", "epsilon": 1.0}
    word = build(santext, channel="text", vocabulary=v).word.guarantee.worst_case()
    whole = f"ε = {4 * word + 4:,.5g} at worst, for any two texts (4 tokens at {word:,.5g} each, their number at 4)"
    assert said(**santext) == whole
    kept = said(**santext, length="kept", stop_words="keep")
    assert kept.startswith("exposed: the number of tokens and stop words; texts that agree in that: ε = ")
    assert said(mechanism="identity") == "no protection: ε = ∞ for any two texts that differ"


# -- bad input


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--mechanism santexts:epsilon=1", "unknown mechanism 'santexts'; did you mean 'santext'?"),
        ("--mechanism gaussian:epsilon=1", "gaussian: sanitizes the embedding, not texts"),
        ("--mechanism santext+:epsilon=1", "santext+: needs to know which words are rare"),
        ("--mechanism santext:epsilon=2,mode=paperish", "mode must be"),
        ("--mechanism santext:epsilon=2,sides=2", "sides follows from the number"),
        ("--words bad.txt", "bad.txt, line 2: expected"),
        ("--words binary", "binary, line 1: is binary"),
        ("--in none.txt", "none.txt: there is no such file"),
        ("--in in.txt --column t", "--column: in.txt is read as lines"),
        ("--in in.txt --public a.tsv --column label --column text", "--column: in.txt is read as lines"),
        ("--in a.tsv", "a.tsv: name the column of the texts with --column; there are: label, text"),
        ("--in a.tsv --column txt", 'a.tsv: has no column "txt"; did you mean "text"?'),
        ("--in a.tsv --column text --column text", "the two of a pair"),
        ("--in bad.parquet --column text", "name a file with --out"),
        ("--in in.txt --out o.csv", "o.csv: would be .csv, and the input is lines"),
        ("--in in.txt --out no/o.txt", "its folder does not exist"),
        ("--mechanism dp-prompt:epsilon=1", "name its checkpoint with --generator FOLDER"),
        ("--mechanism dp-prompt:epsilon=1 --generator ./nowhere", "nowhere"),
        ("--mechanism dp-prompt:epsilon=1 --generator empty", "has no config.json"),
        ("--mechanism dp-mlm:epsilon=1 --prompt x", "--prompt: goes with a mechanism that generates"),
    ],
)
def test_mistakes_are_one_line(arguments: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "in.txt": b"the film\n",
        "bad.txt": b"the 1 2 3 4\nfilm 1\n",
        "binary": b"\x00\x01\xff" * 99,
        "a.tsv": b"label\ttext\n1\tthe film\n",
        "bad.parquet": b"PAR1 nonsense",
    }
    for name, data in files.items():
        Path(name).write_bytes(data)
    Path("empty").mkdir()
    given = arguments.split()
    defaults = {"--mechanism": "santext:epsilon=2", "--words": "w.txt", "--in": "in.txt"}
    assert expected in complaint(
        capsys, "sanitize", *given, *(w for d in defaults.items() if d[0] not in given for w in d)
    )


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


def _pairs(kind: str, name: str, rows: list[tuple[str, ...]] | None = None) -> list[tuple[str, ...]]:
    """Write rows to a file, or return its rows."""
    columns, path = ("q", "id", "s"), Path(name)
    if rows is not None:
        dicts = (json.dumps(dict(zip(columns, row, strict=True))) for row in rows)
        lines = dicts if kind == "jsonl" else map("\t".join, [columns, *rows])
        path.write_text("\n".join(lines) + "\n")
        return rows
    lines = path.read_text().splitlines()
    if kind == "jsonl":
        return [tuple(json.loads(line)[name] for name in columns) for line in lines]
    return [tuple(line.split("\t")) for line in lines[1:]]


@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
def test_both_columns_of_a_pair_are_sanitized(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither passes in clear, and neither's words come out on the other side."""
    rows = [("secret the film", str(i), "unknown was good") for i in range(40)]
    _pairs(kind, f"in.{kind}", rows)
    files = ("--in", f"in.{kind}", "--out", f"out.{kind}", "--column", "q", "--column", "s")
    run(*SANTEXT, "--seed", "1", *files)
    out = _pairs(kind, f"out.{kind}")
    assert [row[1] for row in out] == [row[1] for row in rows]
    for side in (0, 2):
        assert {word for row in out for word in row[side].split()} <= set(WORDS)
        assert len({row[side] for row in out}) > 10
    said = capsys.readouterr().err
    assert "without any protection: id\n" in said and "on each of 2 sides" in said
    run("--mechanism", "identity:length=kept", *files)
    assert {(row[0], row[2]) for row in _pairs(kind, f"out.{kind}")} == {("the film", "was good")}


# -- models that generate text


@pytest.mark.parametrize(
    ("kind", "name", "of", "prompt"),
    [("causal", "dp-prompt", "generator", "Document : {text} :"), ("t5", "dp-paraphrase", "paraphraser", None)],
)
def test_generated_texts(kind: str, name: str, of: str, prompt: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """What the command writes is what Python draws with the same seed, and what it prints is what that costs."""
    source = str(tiny_generator(Path("model"), kind))
    public = ["the film was good", "a bad book"]
    Path("public.txt").write_text("\n".join(public) + "\n")
    Path("in.txt").write_text("\n".join(TEXTS) + "\n", newline="")
    files = ("--in", "in.txt", "--public", "public.txt", "--seed", "7")
    spec = f"{name}:epsilon=11,tokens=6"
    more = () if prompt is None else ("--prompt", prompt)
    assert cli.main(["sanitize", "--mechanism", spec, "--generator", source, *files, *more]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].endswith(
        " tokens. Each text: ε = 72 at worst, for any two texts (6 tokens at 11 each, their number at 6)"
    )
    folder = generator_folder(source, public, kind=of, prompt=prompt, seed=0)
    rewriter = Rewriter({"mechanism": name, "epsilon": 11.0, "tokens": 6}, model=folder)
    rows = np.arange(len(TEXTS))
    rng = SimulationStreams(7).rows(rows, np.zeros_like(rows), stage="sanitize", channel="text")
    assert captured.out.split("\n")[:-1] == rewriter.rewrite(TEXTS, rng=rng)
    assert rewriter.text.vocabulary.words == TOKENS and rewriter.text.guarantee.worst_case() == 72.0
    explained = rewriter.explain("the film")
    assert [(t.original, t.substitute, t.epsilon, t.note) for t in explained[:2]] == [
        ("the", None, 0.0, "read"),
        ("film", None, 0.0, "read"),
    ]
    assert all(t.original is None and t.epsilon == 11.0 and t.note == "drawn" for t in explained[2:])
    if prompt is None:
        return
    # in the words of a vocabulary, and by a folder that was exported before
    run("--mechanism", spec, "--generator", str(folder), *files)
    assert {w for line in capsys.readouterr().out.splitlines() for w in line.split()} <= set(WORDS)
    given = ["--mechanism", spec, "--generator", str(folder), *files]
    assert "with a prompt of its own" in complaint(capsys, "sanitize", *given, "--prompt", "{text} :")


def test_neither_side_of_a_pair_is_read_for_the_other() -> None:
    """The side itself is read, so the test can fail."""
    source = tiny_generator(Path("model"), "causal")
    folder = generator_folder(source, ["the film was good"], kind="generator", seed=0)
    spec = {"mechanism": "dp-prompt", "epsilon": 60.0, "tokens": 6, "sides": 2, "length": 0.0}
    rewriter = Rewriter(spec, model=folder)
    assert rewriter.text.guarantee.worst_case() == 2 * 6 * 60.0
    n = 40
    rows = np.arange(n)

    def drawn(first: str, second: str) -> tuple[list[str], list[str]]:
        rng = SimulationStreams(3).rows(rows, np.zeros_like(rows), stage="s", channel="text")
        pairs = rewriter.rewrite([(first, second)] * n, rng=rng)
        return [one for one, _ in pairs], [other for _, other in pairs]

    base, moved = drawn("the film was good", "a bad book"), drawn("the film was good", "")
    assert base[0] == moved[0] and base[1] != moved[1]
    assert drawn("a", "a bad book")[1] == base[1]


# -- how pieces spell


@pytest.mark.parametrize("way", [BYTE_LEVEL, SENTENCEPIECE])
def test_pieces_spell_what_their_tokenizer_decodes(way: str) -> None:
    tokenizer = Tokenizer(models.BPE())
    of_bytes = way == BYTE_LEVEL
    before = pre_tokenizers
    tokenizer.pre_tokenizer = before.ByteLevel(add_prefix_space=True) if of_bytes else before.Metaspace()
    tokenizer.decoder = decoders.ByteLevel() if of_bytes else decoders.Metaspace()
    texts = ["the film was good", "a café, שלום 😀 it's", "naïve   films"]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if of_bytes else []
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    for text in texts:
        ids = tokenizer.encode(text).ids
        pieces = [tokenizer.id_to_token(i) for i in ids]
        assert spelled(pieces, way) == " ".join(tokenizer.decode(ids).split()) == " ".join(text.split())


def test_pieces_that_spell_nothing_do_not_fail(tmp_path: Path) -> None:
    assert spelled(["film", "##s", "##", "a"], WORDPIECE) == "films a"
    assert spelled(["▁a", "<0xC3>", "<0xA9>", "<0xC3>"], SENTENCEPIECE) == "aé\ufffd"
    assert spelled(["Ã", "Ċ", "Ġb", "日"], BYTE_LEVEL) == "\ufffd b日"
    v = Vocabulary(("Ġa", "b"), np.zeros((2, 1), np.float32), pieces=BYTE_LEVEL)
    assert v.text([0, 1, NOTHING, 2]) == "ab" and v.identity != Vocabulary(v.words, v.vectors).identity
    vocabularies.save(v, tmp_path / "v")
    assert vocabularies.load(tmp_path / "v") == v and vocabularies.load(tmp_path / "v").pieces == BYTE_LEVEL
    with pytest.raises(ValueError, match="pieces must be one of"):
        Vocabulary(("a", "b"), np.zeros((2, 1), np.float32), pieces="letters")

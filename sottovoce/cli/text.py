"""Commands `sottovoce sanitize` and `compare`: sanitized texts, and how often word mechanisms keep a word."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulations.errors import UserError, can_be_read, no_file
from simulations.output.streams import standard_input
from sottovoce.cli.options import show_progress

if TYPE_CHECKING:
    from client.rewrite import Rewriter, Token

# This file must not import NumPy, torch or the mechanisms before a command runs, because `--help` must start fast.

_PROGRESS_SECONDS = 5.0


def sanitize(
    mechanism: Annotated[str, typer.Option("--mechanism", metavar="SPEC", help="As santext:epsilon=5,tokens=64.")],
    in_: Annotated[
        Path | None,
        typer.Option("--in", metavar="FILE", help="TSV, CSV, JSONL, Parquet or lines (default: stdin)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The same format (default: stdout).")
    ] = None,
    column: Annotated[list[str] | None, typer.Option("--column", help="Column of texts; twice for pairs.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show each token and its substitute on stderr.")] = False,
    words: Annotated[
        str | None, typer.Option("--words", help="Word vectors, a file or a checkpoint (default: minilm).")
    ] = None,
    public: Annotated[
        Path | None, typer.Option("--public", metavar="FILE", help="Public texts, for counts or a model.")
    ] = None,
    masked_lm: Annotated[str, typer.Option("--masked-lm", help="Masked model: folder or checkpoint.")] = "minilm",
    generator: Annotated[str | None, typer.Option("--generator", help="Generating model: folder or hub name.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="For dp-prompt; {text} is the private text.")] = None,
    seed: Annotated[int | None, typer.Option(help="Reproducible, and not private.")] = None,
) -> None:
    """Sanitize the texts of a file.

    One row is written for each row read: all rows or none.
    """
    from client.rewrite import describe_cost
    from simulations.corpora.rewriting import block_writer

    columns = tuple(column or ())
    _check_files(in_, out, columns, public)
    spec = _spec(mechanism, sides=max(1, len(columns)))
    models: dict[str, Any] = {"masked_lm": masked_lm, "generator": generator, "prompt": prompt}
    rewriter = _rewriter(spec, words, public, columns, **models)
    with block_writer(out, sys.stdout.buffer) as write_block:
        rows, tokens = _stream(rewriter, in_, columns, seed, explain, write_block)
    _say(f"{rows:,} rows, {tokens:,} tokens. Each text: {describe_cost(rewriter.text)}")


def _check_files(in_: Path | None, out: Path | None, columns: tuple[str, ...], public: Path | None) -> None:
    """Raise UserError if formats, files and columns do not go together."""
    from simulations.corpora.rewriting import FORMATS, format_of

    if out is not None and format_of(out) != format_of(in_):
        form, kind = format_of(out) or "lines", format_of(in_) or "lines"
        raise UserError(f"{out}: would be {form}, and the input is {kind}; the output has the input's format")
    if out is None and format_of(in_) == ".parquet":
        raise UserError(f"{in_}: Parquet does not go to the terminal; name a file with --out")
    if in_ is not None and not can_be_read(in_):
        raise UserError(f"{no_file(in_)}; give {', '.join(FORMATS)}, or a file of lines")
    if len(columns) > 2 or len(set(columns)) < len(columns):
        raise UserError(f"--column: give one, or the two of a pair, by different names; got {', '.join(columns)}")
    if columns and not format_of(in_) and (len(columns) == 2 or not format_of(public)):
        raise UserError(f"--column: {in_ or 'standard input'} is read as lines, and has no columns")


def _spec(text: str, *, sides: int) -> dict[str, Any]:
    """Return the description of the text mechanism in --mechanism; raise UserError if it contradicts the columns."""
    from mechanisms.catalogue import admit
    from mechanisms.mechanism_text import read_mechanism

    spec = read_mechanism(text)
    kind, mode = admit(spec["mechanism"]), spec.get("mode", "repaired")
    if mode not in ("repaired", "paper"):
        raise UserError(f'--mechanism {text}: mode must be "repaired" or "paper", got "{mode}"')
    if "sides" in spec:
        raise UserError("--mechanism: sides follows from the number of columns; leave it out")
    if "mode" not in {field.name for field in fields(kind)}:
        spec.pop("mode", None)
    if mode == "paper" and not getattr(kind, "whole", False):
        spec.setdefault("length", "kept")  # no published mechanism of words hides the length
    return spec | {"sides": sides}


def _rewriter(
    spec: dict[str, Any],
    words: str | None,
    public: Path | None,
    columns: tuple[str, ...],
    *,
    masked_lm: str,
    generator: str | None,
    prompt: str | None,
) -> Rewriter:
    """Return the rewriter, with its language model."""
    from client.models import language_models
    from client.models import vocabulary as vocabularies
    from client.rewrite import Rewriter
    from mechanisms.catalogue import admit
    from mechanisms.channels import TEXT
    from mechanisms.facts import AboutWords, facts_of
    from simulations.artifacts.vocabulary import MINILM, vocabulary_folder

    name = spec["mechanism"]
    kind = admit(name)
    channel = getattr(kind, "channel", TEXT.name)
    if channel != TEXT.name:
        raise UserError(f"{name}: sanitizes the {channel}, not texts")
    reads, needs = getattr(kind, "reads", ()), facts_of(kind).needs
    generates = bool(reads) and language_models.kind_of(kind) != language_models.MASKED_LM
    if generates and generator is None:
        raise UserError(f"{name}: writes with a generating model; name its checkpoint with --generator FOLDER")
    for option, value in (("--generator", generator), ("--prompt", prompt)):
        if value is not None and not generates:
            raise UserError(f"{option}: goes with a mechanism that generates, as dp-prompt; {name} reads none")
    with redirect_stdout(sys.stderr):  # for libraries that load a checkpoint
        texts = None if public is None else list(_texts(public, columns))
        vocabulary = None
        if not generates or words is not None:
            counts_on = texts if AboutWords.COUNTS in needs else None
            tags = AboutWords.TAGS in needs
            folder = vocabulary_folder(words or MINILM, public_texts=counts_on, tags=tags)
            vocabulary = vocabularies.load(folder)
        model = None
        if reads:
            show_progress(clock=False)
            if generates:
                from simulations.artifacts.language_models import generator_folder, public_sentences

                public_texts = public_sentences() if texts is None else texts
                kind_ = language_models.kind_of(kind)
                model = generator_folder(generator or "", public_texts, prompt=prompt, kind=kind_, seed=0)
            else:
                model = _language_model(masked_lm, texts)
    if AboutWords.COUNTS in needs and vocabulary is not None and vocabulary.counts is None:
        raise UserError(f"{name}: needs to know which words are rare; name a file of public texts with --public")
    rewriter = Rewriter(spec, vocabulary, model=model)
    text_words = rewriter.text.vocabulary
    if vocabulary is None:
        _say(f"{name}: {len(text_words):,} tokens of {generator}")
    else:
        _say(f"{name}: {len(text_words):,} words of {text_words.vectors.shape[1]} dimensions from {words or MINILM}")
    return rewriter


def _language_model(name: str, public_texts: Sequence[Any] | None) -> Path:
    """Return the folder of a masked language model in client form; for a checkpoint, it is made and cached."""
    folder = Path(name).expanduser()
    if (folder / "masked_lm.json").is_file():
        return folder
    from simulations.artifacts.language_models import bundled_masked_lm, masked_lm_folder, public_sentences
    from simulations.artifacts.vocabulary import MINILM

    if public_texts is None and name == MINILM:
        _say(f"{name}: with the prediction head that comes with sottovoce; made ready once, in seconds")
        return bundled_masked_lm()
    if public_texts is None:
        public_texts = public_sentences()
    _say(f"{name}: preparing the language model, once; a prediction head that it lacks takes minutes")
    return masked_lm_folder(name, public_texts, seed=0)


def _texts(path: Path, columns: tuple[str, ...]) -> Iterator[str]:
    """Yield the texts of a public file, the columns of each row in turn."""
    from simulations.corpora.rewriting import blocks

    for block in blocks(path, BytesIO(), columns, 1024):
        for cells in block.texts:
            yield from cells


def _stream(
    rewriter: Rewriter, in_: Path | None, columns: tuple[str, ...], seed: int | None, explain: bool, put: Any
) -> tuple[int, int]:
    """Rewrite all rows, and return the numbers of rows and input tokens."""
    import numpy as np

    from mechanisms.streams import SimulationStreams
    from simulations.artifacts.lengths import SAMPLE
    from simulations.corpora.columns import plain_name
    from simulations.corpora.rewriting import blocks

    if seed is not None:
        _say(f"--seed {seed}: the output is reproducible, and not private: whoever knows the seed knows the noise")
    streams = None if seed is None else SimulationStreams(seed)
    stdin = BytesIO() if in_ is not None else standard_input("name a file with --in")
    block_rows = 1 if in_ is None and sys.stdin.isatty() else rewriter.batch_size
    sample: list[str] = []  # of which words are outside the vocabulary
    rows = tokens = 0
    start = last_time = time.monotonic()
    others: tuple[str, ...] = ()
    for block in blocks(in_, stdin, columns, block_rows):
        if block.others != others:
            others = block.others
            _say(f"passed through unchanged, without any protection: {', '.join(map(plain_name, others))}")
        rng = None
        if streams is not None:
            users = np.arange(rows, rows + len(block.texts))
            rng = streams.rows(users, np.zeros_like(users), stage="sanitize", channel="text")
        texts: list[Any] = block.texts if rewriter.text.sides == 2 else [text for (text,) in block.texts]
        drawn, read = rewriter.draw(texts, rng=rng) if texts else (None, 0)
        lines = [] if drawn is None else rewriter.decoded(drawn)
        put(block.with_texts(lines if rewriter.text.sides == 2 else [(text,) for text in lines]))
        if explain and drawn is not None:
            for i, text in enumerate(texts):
                _show(rows + i + 1, rewriter.explain_draw(text, drawn[i]))
        sample += [text for texts in block.texts[: max(0, SAMPLE - rows)] for text in texts]
        rows += len(block.texts)
        tokens += read
        if time.monotonic() - last_time >= _PROGRESS_SECONDS and not explain:
            last_time = time.monotonic()
            _say(f"{last_time - start:7.1f} s  {rows:,} rows")
    _say_unknown(rewriter, sample, min(rows, SAMPLE))
    return rows, tokens


def _say_unknown(rewriter: Rewriter, sample: list[str], rows: int) -> None:
    """How many words of the first rows the vocabulary does not have; nothing of a model that writes by itself."""
    from client.models.language_models import MASKED_LM, kind_of
    from simulations.artifacts.lengths import MANY_UNKNOWN, outside

    if not sample or kind_of(rewriter.text) != MASKED_LM:
        return
    share = outside(rewriter.text.vocabulary, sample)
    _say(f"{share:.1%} of the words of the first {rows:,} rows are outside the vocabulary")
    if share > MANY_UNKNOWN:
        _say("Look at --words: these are many; are the vectors made for this language?")


def _show(row: int, tokens: Sequence[Token]) -> None:
    """Print a table of one text on stderr: token, substitute, probability, charge."""
    _say(f"\nrow {row}")
    table = [("original", "substitute", "probability", "ε at worst", "")]
    for token in tokens:
        chance = "" if token.probability is None else f"{token.probability:.3g}"
        cost = "∞" if token.epsilon == float("inf") else f"{token.epsilon:,.4g}"
        table.append((_plain(token.original), _plain(token.substitute), chance, cost, token.note))
    widths = [max(len(line[i]) for line in table) for i in range(4)]
    for line in table:
        _say("  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, [*widths, 0], strict=True)).rstrip())


def _plain(word: str | None) -> str:
    """Return a word for a terminal: without control sequences, at most as wide as a column."""
    printable = "–" if word is None else "".join(c if c.isprintable() else "�" for c in word)
    return printable if len(printable) <= 30 else printable[:29] + "…"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def compare(
    mechanism: Annotated[
        list[str],
        typer.Option(
            "--mechanism", metavar="NAME:KEY=VALUE,...", help="Mechanism and its parameters; repeat to compare."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the table; new or empty.")],
    epsilon: Annotated[
        list[float] | None,
        typer.Option("--epsilon", min=0, max=1000, help="ε to try; may be repeated (default: 5, 10, 25)."),
    ] = None,
    words: Annotated[
        str, typer.Option("--words", help="Public word vectors: a text file, or a checkpoint's own words.")
    ] = "minilm",
    sample: Annotated[int, typer.Option("--sample", min=1, max=10**6, help="Words to draw from, at random.")] = 1000,
    draws: Annotated[int, typer.Option("--draws", min=2, max=10**5, help="Draws of each word.")] = 100,
    quantile: Annotated[
        float, typer.Option("--quantile", min=0, max=1, help="With --target: of N_x over the words.")
    ] = 0.5,
    target: Annotated[
        float | None,
        typer.Option("--target", min=0, max=1, help="Compare where this N_x is reached, not at given ε."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Root seed.")] = 1,
) -> None:
    """Compare word mechanisms: how often do words stay?"""
    from simulations.analysis.deniability import Study, check, load_words, run, table, write
    from simulations.output.atomic import staged

    if target is not None and epsilon:
        raise UserError("--target: finds each mechanism's ε itself; leave --epsilon out")
    study = Study(tuple(mechanism), tuple(epsilon or Study.epsilons), words, sample, draws, quantile, target, seed)
    check(study)
    show_progress()
    with staged(out) as part:
        results = run(study, load_words(study.words))
        write(results, part)
    print(table(results))
    print(f"\nTable and numbers: {out}")

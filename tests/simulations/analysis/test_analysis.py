"""Plausible deniability, exact and sampled, the ε of a wanted figure, parts of speech, and the command.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats

from client.models import vocabulary as vocabularies
from mechanisms.vocabulary import TAGS, Vocabulary
from mechanisms.words import deniability
from mechanisms.words.madlib import Madlib
from mechanisms.words.madlib_syntax import MadlibSyntax
from mechanisms.words.santext import SanText
from simulations.analysis import deniability as command
from simulations.artifacts.vocabulary import tag
from sottovoce.cli.main import main
from tests.support.words import streams

ALARM = 1e-6


def words_of(size):
    rng = np.random.default_rng(0)
    tags = rng.integers(0, 4, size).astype(np.int8)
    return Vocabulary(tuple(f"w{i}" for i in range(size)), rng.normal(size=(size, 6)).astype(np.float32), tags=tags)


SIXTY = words_of(60)


@dataclass(frozen=True)
class Given:
    """A mechanism of three words whose probabilities are written down."""

    table: tuple
    name = "given"
    reads = ()
    vocabulary = Vocabulary(("a", "b", "c"), np.eye(3, dtype=np.float32))

    def log_probs(self, x):
        with np.errstate(divide="ignore"):
            return np.log(np.array(self.table))[x]

    def log_prob(self, y, x):
        return self.log_probs(x)[np.arange(len(x)), y]

    def sample(self, x, *, rng):
        edges = np.cumsum(np.array(self.table), axis=1)
        u = rng.uniform(len(x), x.shape[1])
        return (edges[x] <= u[..., None]).sum(axis=-1)


THREE = Given(((0.5, 0.5, 0.0), (0.0, 1.0, 0.0), (0.2, 0.2, 0.6)))


# --- the figures


def test_figures_of_three_words_are_those_of_pencil_and_paper(monkeypatch):
    monkeypatch.setattr(deniability, "_MASS", 0.8)
    figures = deniability.exact(THREE, np.arange(3), draws=2)
    np.testing.assert_allclose(figures.stays, [0.5, 1.0, 0.6])
    # two draws: 1 - (1 - p)² summed over the outputs
    np.testing.assert_allclose(figures.distinct, [1.5, 1.0, 0.36 + 0.36 + 0.84])
    np.testing.assert_array_equal(figures.core, [2, 1, 2])
    np.testing.assert_allclose(figures.origins, [0.75 + 0.36, 0.75 + 1.0 + 0.36, 0.84])
    assert figures.exact
    np.testing.assert_allclose(deniability.stays(THREE, np.array([2, 0])), [0.6, 0.5])


def test_tallies_are_those_of_a_set(monkeypatch):
    monkeypatch.setattr(deniability, "_MASS", 0.5)
    rng = np.random.default_rng(3)
    outputs = rng.integers(0, 60, (40, 30))
    outputs[3] = 3
    figures = deniability.tallied(SanText(1.0, SIXTY), np.arange(40), outputs)
    np.testing.assert_array_equal(figures.distinct, [len(set(row)) for row in outputs.tolist()])
    np.testing.assert_array_equal(figures.origins, [sum(y in row for row in outputs.tolist()) for y in range(60)])
    np.testing.assert_array_equal(figures.stays, [(row == i).mean() for i, row in enumerate(outputs)])
    for row, core in zip(outputs, figures.core, strict=True):
        counts = np.sort(np.bincount(row))[::-1]
        assert counts[:core].sum() >= 15 > counts[: core - 1].sum()


def test_draws_stay_as_often_as_the_exact_figures():
    mechanism, n, x = MadlibSyntax(2.0, SIXTY, penalty=1.0), 2000, np.arange(60)
    true, outputs = deniability.exact(mechanism, x, draws=n), deniability.draw(mechanism, x, draws=n, rng=streams(60))
    for p, count in zip(true.stays, (outputs == x[:, None]).sum(axis=1), strict=True):
        assert stats.binomtest(int(count), n, p).pvalue > ALARM / 60
    wrong = deniability.exact(replace(mechanism, epsilon=3.0), x, draws=n)
    assert max(abs((outputs == x[:, None]).mean(axis=1) - wrong.stays)) > 0.05


def test_the_unknown_word_never_stays_and_blocks_do_not_matter(monkeypatch):
    mechanism = SanText(2.0, SIXTY)
    x = np.array([5, 60, 7])
    whole = deniability.exact(mechanism, x)
    assert whole.stays[1] == 0 == deniability.stays(mechanism, x)[1]
    np.testing.assert_allclose(deniability.stays(mechanism, x), whole.stays, atol=1e-15)
    monkeypatch.setattr(deniability, "_CELLS", 60)
    parts = deniability.exact(mechanism, x)
    for name in ("stays", "distinct", "core", "origins"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "precision"), [(SanText, 1e-3), (Madlib, 0.02), (lambda e, v: MadlibSyntax(e, v, mode="paper", k=5), 0.02)]
)
def test_calibration_hits_its_target(kind, precision):
    x = np.arange(60)

    def level(epsilon):
        shares = deniability.stays(kind(epsilon, SIXTY), x, draws=200, rng=lambda: streams(60))
        return float(np.quantile(shares, 0.9))

    epsilon = deniability.calibrate(level, 0.6, low=0.01, high=100.0, slack=0.02)
    assert 0.6 - precision <= level(epsilon) <= 0.6 < level(epsilon * 1.02) + 1e-12


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: deniability.exact(Madlib(1.0, SIXTY), np.arange(3)), "no closed probabilities"),
        (lambda: deniability.stays(Madlib(1.0, SIXTY), np.arange(3)), "give streams"),
        (lambda: deniability.exact(THREE, np.array([0, 0])), "distinct"),
        (lambda: deniability.exact(THREE, np.array([7])), "outside"),
        (lambda: deniability.calibrate(lambda e: 0.5, 0.6, low=0.1), r"is not reached: the figure is 0\.5 at ε = 0\.1"),
        (
            lambda: deniability.calibrate(lambda e: abs(math.sin(3 * math.log(e))) + (e > 50), 0.99, low=1, high=60),
            "does not rise",
        ),
    ],
)
def test_invalid_arguments_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# --- parts of speech

TAGGED = {
    "NOUN": "dog movie film performance years time music city teachers happiness",
    "VERB": "is was have run walked enjoy says making thought would destroy",
    "ADJ": "good beautiful happy dull enjoyable best great second",
    "ADV": "quickly very never really always not when",
    "PRON": "he she they it who something themselves",
    "DET": "the a this every which",
    "ADP": "of in with from without",
    "NUM": "two million 1979 3,5 100",
    "CONJ": "and or but because",
    "PRT": "to up out 's",
    ".": ". , ! -- ( …",
    "X": "oh yeah",
}


def test_parts_of_speech_of_common_words_are_the_usual_ones():
    pytest.importorskip("HanTa")
    pairs = [(word, name) for name, line in TAGGED.items() for word in line.split()]
    result = tag([word for word, _ in pairs])
    assert result.dtype == np.int8 and len(pairs) > 60
    wrong = [(w, name, TAGS[t]) for (w, name), t in zip(pairs, result, strict=True) if TAGS[t] != name]
    assert len(wrong) <= 0.05 * len(pairs), wrong
    again = tag([word for word, _ in reversed(pairs)])[::-1]
    np.testing.assert_array_equal(result, again)  # a word's tag depends on no other word
    assert len(tag([])) == 0
    assert (tag(["👍", "العربية", "日本", "Ünïcødé", "x" * 5000]) < len(TAGS)).all()


# --- the command


def test_a_study_holds_every_mechanism_at_every_epsilon_or_at_equal_deniability():
    mechanisms = ("madlib", "madlib-syntax:mode=paper,k=5", "madlib-syntax:penalty=2", "identity")
    study = command.Study(mechanisms, (1.0, 3.0), sample=30, draws=40)
    runs = {(r["mechanism"], r["epsilon"]): r for r in command.run(study, words_of(80))["runs"]}
    assert len(runs) == 3 * 2 + 1 and ("identity", None) in runs
    for r in runs.values():
        assert r["confusion"].sum() == 30 * 40
        assert r["tag_kept"] == pytest.approx(np.trace(r["confusion"]) / (30 * 40))
        assert (r["distance"]["q0.5"] > 0) == (r["mechanism"] != "identity")
    assert runs["identity", None]["tag_kept"] == 1 == runs["identity", None]["stays"]["mean"]
    plain, paper = runs["madlib", 1.0], runs["madlib-syntax:mode=paper,k=5", 1.0]
    assert paper["tag_kept"] > plain["tag_kept"] + 0.1 and paper["exposes"] == ["unknown-words", "tag"]
    assert runs["madlib-syntax:penalty=2", 1.0]["exact"] and not plain["exact"]
    result = command.run(replace(study, target=0.4, draws=100), words_of(80))
    taken = [r for r in result["runs"] if r["epsilon"] is not None]
    assert len({r["epsilon"] for r in taken}) == 3
    assert all(r["stays"]["q0.5"] == pytest.approx(0.4, abs=0.03) for r in taken)
    assert "at equal deniability: quantile 0.5 of N_x is 0.4" in command.markdown(result)


def test_the_command_prints_the_table_and_keeps_the_folder(tmp_path, capsys):
    vocabularies.save(words_of(40), tmp_path / "words")
    line = ["compare", "--mechanism", "madlib", "--words", str(tmp_path / "words"), "--out", str(tmp_path / "out")]
    for more, words in (
        (["--epsilon", "-1"], "-1.0 is not in the range 0<=x<=1000"),
        (["--target", ".5", "--epsilon", "1"], "leave --epsilon out"),
        *(([option, "nan"], f"{option}: must be a number") for option in ("--epsilon", "--quantile", "--target")),
        (["--mechanism", "madlib:epsilom=2"], "did you mean 'epsilon'"),
        (["--mechanism", "dp-mlm"], "dp-mlm: a language model reads the whole text for each draw"),
    ):
        assert main([*line, *more]) == 2 and words in capsys.readouterr().err and not (tmp_path / "out").exists()
    pytest.importorskip("HanTa")
    assert main([*line, "--epsilon", "2", "--sample", "10", "--draws", "20"]) == 0
    assert "| madlib | 2 |" in capsys.readouterr().out and (tmp_path / "out" / "deniability.md").is_file()

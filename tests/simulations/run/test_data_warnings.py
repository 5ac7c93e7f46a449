"""What of the data is named before a run: language, people with many rows, classes that a limit or a spelling hides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mechanisms.vocabulary import Vocabulary
from simulations.artifacts.lengths import MANY_UNKNOWN, outside, unknown_share
from simulations.corpora.builtin import builtin
from simulations.experiment import Experiment, from_table
from simulations.run.check import check
from simulations.run.prepare import parts
from simulations.run.report import data_notes
from sottovoce.cli import check as check_command
from sottovoce.cli import main as cli
from tests.support.studies import PURKAYASTHA, RANDOMIZED

GERMAN = [
    "Der Film war leider ziemlich langweilig und viel zu lang.",
    "Das Essen war kalt und der Kellner unfreundlich.",
    "Ich habe selten so eine schöne Geschichte gesehen.",
    "Die Schauspieler überzeugen, das Drehbuch ist schwach.",
    "Nach drei Tagen ist der Akku schon kaputt gegangen.",
    "Meine Bestellung wurde pünktlich geliefert, danke!",
    "Der Kundendienst hat meine Beschwerde einfach ignoriert.",
    "Für diesen Preis hätte ich deutlich mehr erwartet.",
]
Rows = list[tuple[str, ...]]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def study(folder: Path, train: Rows, test: Rows, **data: object) -> Experiment:
    """A study of rows (text, label) or (text, label, user)."""
    header = ("text", "label", "who")[: len(train[0])]
    for name, rows in (("train", train), ("test", test)):
        (folder / f"{name}.tsv").write_text("\n".join("\t".join(row) for row in (header, *rows)) + "\n", "utf-8")
    people = len({row[2] for row in train}) if len(header) > 2 else len(train)
    own = {"user": "who"} if len(header) > 2 else {}
    return from_table(
        {
            "name": "small",
            "data": {
                "source": "files",
                "path": str(folder),
                "train": "train.tsv",
                "test": "test.tsv",
                "text": "text",
                "label": "label",
                "public": {"split": "built-in", "labels": False},
                "overlap": "tested elsewhere",
                **own,
                **data,
            },
            "population": {"users": people, "assignment": "column" if own else "record"},
            "shuffle": {"enabled": False},
            "policy": {"embedding": 40.0, "label": 5.0},
            "arm": [{"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}],
        }
    )


def said(experiment: Experiment) -> dict[str, Any]:
    return check(experiment)


def written(texts: list[str], n: int) -> Rows:
    return [(f"{texts[i % len(texts)]} {i}", str(i % 2)) for i in range(n)]


def english(n: int, seed: int) -> list[str]:
    return [str(text) for text in builtin(public=1, train=1, test=n, seed=seed).test.texts]


def test_an_english_encoder_says_that_it_does_not_know_german(tmp_path: Path) -> None:
    found = said(study(tmp_path, written(GERMAN, 40), written(GERMAN[::-1], 20)))
    (encoder,) = found["unknown"]
    assert encoder["share"] > 0.5 and any("made for this language?" in line for line in found["warnings"])
    assert any(line.startswith("encoder.model minilm: does not have 6") for line in check_command.lines(found))
    plain = said(study(tmp_path, written(english(30, 1), 40), written(english(20, 2), 20)))
    assert plain["unknown"][0]["share"] < 0.1 and not any("language" in line for line in plain["warnings"])


def test_the_share_of_unknown_words() -> None:
    """Letters alone count; numbers and marks are of no language. Of no word: 0."""
    assert unknown_share("minilm", []) == unknown_share("minilm", ["12 :-) ..."]) == 0.0
    assert unknown_share("minilm", ["the film was good", "xqzzk blorfnik"]) == pytest.approx(2 / 6)
    assert unknown_share("minilm", [("the film", "was good"), ("xqzzk", "blorfnik")]) == pytest.approx(2 / 6)
    assert unknown_share("minilm", ["这部电影非常无聊"]) > MANY_UNKNOWN


def test_sanitize_says_how_many_words_are_outside_the_vocabulary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, lines, many in (("de", GERMAN, True), ("en", english(20, 3), False)):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
        arguments = ["--mechanism", "santext:epsilon=5", "--in", f"{name}.txt", "--out", f"{name}.out.txt"]
        assert cli.main(["text", "sanitize", *arguments]) == 0
        told = capsys.readouterr().err
        assert f"of the words of the first {len(lines)} rows are outside the vocabulary" in told
        assert ("made for this language?" in told) == many


def test_a_user_with_a_large_share_of_the_rows_is_named(tmp_path: Path) -> None:
    texts = english(200, 4)
    train = [(text, str(i % 2), "Bot" if i < 30 else f"u{i % 50}") for i, text in enumerate(texts[:150])]
    test = [(text, str(i % 2), f"t{i}") for i, text in enumerate(texts[150:])]
    lines = said(study(tmp_path, train, test))["warnings"]
    assert [line for line in lines if "user " in line] == [
        'train: user "Bot" holds 30 of 150 rows (20%): a figure over rows is largely this person\'s; take some of '
        "these rows out, or give more users"
    ]
    five = [(text, str(i % 2), f"u{i % 5}") for i, text in enumerate(texts[:150])]
    assert not any("user " in line for line in said(study(tmp_path, five, test))["warnings"])


def test_classes_that_a_limit_leaves_without_a_row_are_named(tmp_path: Path) -> None:
    """970 of 1,000 test rows are of one class: .97 of 100 rows are too, and the classes that lost their rows are named
    once, before a run and in its results."""
    labels = ["big", *(f"rare{i:02}" for i in range(30))]
    train = [(f"a film {i}", labels[i % 31]) for i in range(62)]
    test = [(f"some book {i}", "big" if i >= 30 else labels[1 + i]) for i in range(1000)]
    experiment = study(tmp_path, train, test, **{"test-limit": 100})
    split, _, about = parts(experiment)
    counts = np.bincount(split.test.labels, minlength=31)
    assert counts[0] == 97 and counts.sum() == 100
    assert about["untested"] == [label for label, n in zip(split.test.classes, counts, strict=True) if not n]
    assert any("Classes without a row under data.test-limit" in line for line in data_notes(about))
    lines = said(experiment)["warnings"]
    assert sum(about["untested"][0] in line for line in lines if "test" in line.split(":")[0]) == 1


def test_classes_that_differ_in_case_alone_are_named(tmp_path: Path) -> None:
    labels = ("yes", "no", "Yes")
    rows = [(text, labels[i % 3]) for i, text in enumerate(english(60, 5))]
    lines = said(study(tmp_path, rows[:40], rows[40:]))["warnings"]
    assert any(line.startswith('data.label: classes "Yes", "yes" differ in case or width alone') for line in lines)


def test_the_vocabulary_of_words() -> None:
    words = Vocabulary(("the", "film"), np.eye(2, dtype=np.float32))
    assert outside(words, ["the film", "der Film war"]) == pytest.approx(2 / 5) and outside(words, []) == 0.0

"""What `init` makes of the rows of a table: texts are texts, people keep theirs, and each row is used or named."""

from __future__ import annotations

import csv
import datetime
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from simulations.corpora.files import read
from simulations.errors import UserError
from simulations.experiment import load
from simulations.run.proposal import Proposal, propose
from sottovoce.cli import main as cli
from tests.support.paths import DATA
from tests.support.studies import split_of

_WORDS = "good bad fine awful film book plot story actor scene long short dull bright sharp loud calm warm cold plain"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def texts(rows: int) -> list[str]:
    rng = np.random.default_rng(5)
    return [" ".join(rng.choice(_WORDS.split(), 12)) + f" {i}" for i in range(rows)]


def written(name: str, header: Sequence[str] | None, rows: Sequence[Sequence[Any]]) -> Path:
    with open(name, "w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([*([header] if header else []), *rows])
    return Path(name)


def proposed(file: Path, **columns: Any) -> Proposal:
    """Its rows are all accounted for: used, or named under why."""
    made = propose(file, Path("mine"), **columns)
    rows = re.search(r": ([\d,]+) of ([\d,]+) rows, ", made.found[0])
    assert rows is not None and [int(number.replace(",", "")) for number in rows.groups()] == [
        len(made.used),
        len(made.used) + sum(made.left.values()),
    ]
    assert set(made.left) <= set(made.found) and all(f"{number:,} row" in line for line, number in made.left.items())
    return made


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["init", "mine", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and not Path("mine").exists()
    return said


def complaint_of_another(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["init", "other", "--from", "in.csv", *options]) == 2
    return capsys.readouterr().err


# -- what is a text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"en": "a fine film"}, "an object"),
        (["a fine film"], "a list"),
        (7171, "a number"),
        (1.5, "a number"),
        (True, "true or false"),
        (None, '"text" is missing, not a text'),
    ],
)
def test_what_is_no_text(value: object, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": value, "label": i % 2} for i in range(300)]
    Path("in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = complaint(capsys, "--from", "in.jsonl")
    assert said in found and "fine" not in found and "7171" not in found


def test_a_time_and_a_list_are_no_users(capsys: pytest.CaptureFixture[str]) -> None:
    for value, said in ((datetime.datetime(2020, 1, 2), "a time"), (["ann"], "a list"), ({"a": 1}, "an object")):
        table = pyarrow.table({"text": texts(220), "label": ["a", "b"] * 110, "user": [value] * 220})
        parquet.write_table(table, "in.parquet")
        found = complaint(capsys, "--from", "in.parquet")
        assert f'row 1: "user" is {said}' in found and "2020" not in found and "ann" not in found


def test_a_table_that_is_too_short_says_what_became_of_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    said = texts(70)
    rows = [(text, i % 2) for i, text in enumerate([*said[:40], *said[30:35]])]
    found = complaint(capsys, "--from", str(written("in.csv", ("text", "label"), rows)))
    assert (
        "40 of 45 rows can be used, and 50 are needed for ten test texts; give more rows (5 rows with a text" in found
    )
    enough = written("in.csv", ("text", "label"), [(text, i % 2) for i, text in enumerate(said)])
    assert len(proposed(enough).used) == 70


def test_a_short_table_says_how_much_its_accuracies_are_worth() -> None:
    for rows, error in ((60, "0.14"), (500, None)):
        written("in.csv", ("text", "label"), [(text, i % 2) for i, text in enumerate(texts(rows))])
        made = propose(Path("in.csv"), Path(f"mine-{rows}"))
        warned = [line for line in made.found if line.startswith("Only ")]
        assert len(warned) == (error is not None) and all(f"about {error};" in line for line in warned)


# -- whose a row is


def annotated(groups: int, each: int) -> Path:
    """Users of a group have all labelled the 50 texts of the group."""
    said = texts(50 * groups)
    rows = [
        (said[50 * group + i], i % 3, f"ann {group} {person}")
        for group in range(groups)
        for person in range(each)
        for i in range(50)
    ]
    return written("in.csv", ("text", "label", "user"), rows)


def test_annotators_of_the_same_texts_keep_theirs() -> None:
    made = proposed(annotated(6, 10))
    assert len(made.used) == 3000 and len(set(made.used.users or ())) == 60 and not made.left
    for seed in range(4):
        split, about = split_of(load("mine/experiment.toml", [f"seed={seed}"]))
        parts = (split.public, split.train, split.test)
        assert about["dropped"] == 0 and sum(map(len, parts)) == 3000
        said = [set(part.texts) for part in parts]
        assert sum(map(len, said)) == len(set.union(*said)) == 300
        assert sum(len(set(part.users or ())) for part in parts) == 60


def test_texts_of_users_of_two_parts_are_left_out_of_one_and_named() -> None:
    rng, said = np.random.default_rng(1), texts(300)
    rows = [(str(rng.choice(said)), i % 3, f"ann {i % 60}") for i in range(1800)]
    made = proposed(written("in.csv", ("text", "label", "user"), rows))
    (line,) = made.left
    assert re.fullmatch(r"[\d,]+ rows with texts of users of the other part, test or train: left out", line)
    split, about = split_of(made.experiment)
    assert not {*split.train.texts, *split.public.texts} & set(split.test.texts)
    assert sum(map(len, (split.public, split.train, split.test))) + int(str(about["dropped"])) == len(made.used)


def test_labels_that_name_people_are_remarked_on() -> None:
    rows = [(text, f"ann {i % 4}") for i, text in enumerate(texts(240))]
    made = proposed(written("in.csv", ("text", "author"), rows), label="author")
    assert 'Labels are by "author", and no user is named' in made.found[2]


# -- labels


def test_many_classes() -> None:
    made = proposed(
        written("in.csv", ("text", "label"), [(text, f"class {i % 80}") for i, text in enumerate(texts(800))])
    )
    assert len(made.used.classes) == 80 and made.found[1].endswith(" and 50 more of 10 to 10.")


def test_a_rare_label_that_may_be_somebody_s_words_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(text, i % 2) for i, text in enumerate(texts(240))]
    rows[0] = (rows[0][0], "this is no label but somebody's words")
    said = complaint(capsys, "--from", str(written("in.csv", ("text", "label"), rows)))
    assert "label of 37 characters has 1 row" in said and "somebody" not in said


def test_classes_that_only_one_part_would_have_are_left_out() -> None:
    rows = [(text, i % 2, f"u{i % 60}") for i, text in enumerate(texts(300))]
    rows += [(text, "of one", "u1") for text in texts(308)[300:]]
    made = proposed(written("in.csv", ("text", "label", "user"), rows))
    assert made.used.classes == ("0", "1") and len(made.used) == 300
    assert "8 rows of classes that only test or only train would have: left out" in made.left


# -- pairs, numbers, several labels, columns to keep


@pytest.mark.parametrize(
    "names", [("premise", "hypothesis"), ("sentence1", "sentence2"), ("question", "sentence"), ("left", "right")]
)
def test_pairs_are_found_by_their_names_or_named(names: tuple[str, str]) -> None:
    said = texts(480)
    rows = [*zip(said[:240], said[240:], ["yes", "no"] * 120, strict=True)]
    rows += [(said[0], said[241], "yes"), (said[1].upper(), said[241], "yes")]
    file = written("in.csv", [*names, "label"], rows)
    named = {"text": names[0], "second": names[1]} if names[0] == "left" else {}
    made = proposed(file, **named)
    assert len(made.used) == 241  # one pair repeats another
    assert made.found[1].startswith(f"Pairs by {names[0]} and {names[1]}, ")
    data = load("mine/experiment.toml").data
    assert (data.text, data.second_text, data.label) == (*names, "label")
    split, _ = split_of(load("mine/experiment.toml"))
    assert all(isinstance(text, tuple) and text in {row[:2] for row in rows} for text in split.test.texts)
    assert not any(arm.public_only for arm in made.experiment.arms)  # a name describes no pair


def test_labels_that_are_numbers_are_refused_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = np.random.default_rng(1).random(240).round(2) * 4 + 0.5
    written("in.csv", ["text", "score"], [*zip(texts(240), numbers, strict=True)])
    assert "numbers need data.label-range" in complaint(capsys, "--from", "in.csv")


def test_a_column_to_keep_is_copied_and_its_groups_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    said = texts(240)
    rows = [[text, "ab"[i % 2], ("north", "south", "")[i % 3], f"remark {i}"] for i, text in enumerate(said)]
    file = written("in.csv", ["text", "label", "region", "remark"], rows)
    made = proposed(file, kept=("remark", "region"))
    assert "Kept: remark, region; results are by the groups of region." in made.found
    assert len(made.used) == 240  # an empty cell of it leaves no row out
    study = load("mine/experiment.toml")
    split, _ = split_of(study)
    kept = dict(zip(map(str, split.test.texts), split.test.extra["region"], strict=True))
    assert kept == {text: region or "not given" for text, _, region, _ in rows if text in kept}
    copied = read(Path("mine/test.csv"), ["text", "remark"]).values
    assert set(zip(*copied.values(), strict=True)) <= {(row[0], row[3]) for row in rows}
    assert 'has no column "area"' in complaint_of_another(capsys, "--keep", "area")
    assert "--label and --keep are one column" in complaint_of_another(capsys, "--keep", "label", "--label", "label")


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "banking77").is_dir(), reason="the data are not part of the repository")
def test_files_that_are_published() -> None:
    made = propose(DATA / "banking77" / "train.tsv", Path("banking"))
    assert len(made.used.classes) == 77 and len(made.used) + sum(made.left.values()) == 10_003
    with pytest.raises(UserError, match=r'label "pers109" has 3 rows, and 14 more classes have too few'):
        propose(DATA / "synthpai" / "comments.tsv", Path("synth"), text="sentence", label="author")
    with pytest.raises(UserError, match=r'column "score": labels "0" and "0\.00" are one number'):
        propose(DATA / "stsb" / "train.tsv", Path("similar"))
    assert propose(DATA / "rte" / "train.tsv", Path("entailed")).used.classes == ("entailment", "not_entailment")

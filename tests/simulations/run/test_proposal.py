"""From a table to an experiment that runs as it stands, and what is said of the table."""

from __future__ import annotations

import csv
import datetime
import json
import re
import shutil
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from simulations.corpora.files import read
from simulations.corpora.overlap import normalized
from simulations.errors import UserError
from simulations.experiment import load, to_toml
from simulations.experiment.schema import keys
from simulations.experiment.toml import commented
from simulations.run.prepare import parts
from simulations.run.proposal import Proposal, propose
from simulations.sweep.definition import load_study
from sottovoce.cli import main as cli
from tests.support.modes import nothing_narrowed
from tests.support.studies import split_of
from tests.support.tables import made

_WORDS = "good bad fine awful film book plot story actor scene long short dull bright sharp loud calm warm cold plain"


def texts(rows: int, seed: int = 5, words: int = 12) -> list[str]:
    """Texts of which no two are alike."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(_WORDS.split(), words)) + f" {i}" for i in range(rows)]


def written(name: Path | str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    with open(name, "w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([header, *rows])
    return Path(name)


def table(folder: Path, *, users: int | None = None, more: Sequence[list[str]] = ()) -> Path:
    """A CSV of 260 rows with columns id, review, sentiment (and author), and more rows."""
    header = ["id", "review", "sentiment", *(["author"] if users else [])]
    rows = [[str(i), text, ("positive", "negative")[i % 2]] for i, text in enumerate(texts(260, 2, 16))]
    rows = [[*row, f"person {i % users}"] if users else row for i, row in enumerate(rows)]
    return written(folder / "reviews.csv", header, [*rows, *more])


ALIKE = [
    ["x", "it was the very best of all the books that anybody had lent me", "negative"],
    ["x", "It was the very best of all the books that anybody had lent me!", "positive"],
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_experiment_is_one_and_its_parts_are_divided_as_it_says(tmp_path: Path) -> None:
    made = propose(table(tmp_path, more=ALIKE), Path("mine"))
    experiment = load("mine/experiment.toml")
    assert experiment == made.experiment
    runs = load_study("mine/experiment.toml").runs
    assert [run.experiment.seed for run in runs] == [1, 2, 3]
    assert [arm.name for arm in runs[0].experiment.arms] == [
        "centralised, not private",
        "class names alone, no users",
        "no noise",
        *(f"one vector, ε = {epsilon}" for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0)),
    ]
    split, holders, about = parts(experiment)
    assert holders.people == experiment.population.users == len(split.train)
    shares = [np.bincount(part.labels) / len(part) for part in (split.train, split.test)]
    assert made.left == {"1 row with a text that another row has: left out": 1}
    assert abs(len(split.test) / 261 - 0.2) < 0.01 and np.allclose(shares[0], shares[1], atol=0.05)
    assert not any(sum(counts.values()) - counts["rows"] for counts in about["overlap"].values())
    kept = [*read(Path("mine/train.csv"), ["review"]).values["review"], *split.test.texts]
    assert len(kept) == len({normalized(str(text)) for text in kept}) == 261
    tests = []
    for name, seed in (("again", 1), ("other", 2)):
        propose(tmp_path / "reviews.csv", Path(name), seed=seed)
        tests.append(Path(name, "test.csv").read_bytes() == Path("mine/test.csv").read_bytes())
    assert tests == [True, False]


def test_people_are_in_one_part_each(tmp_path: Path) -> None:
    made = propose(table(tmp_path, users=65), Path("mine"))
    assert made.experiment.data.user == "author" and made.experiment.population.assignment == "column"
    split, holders, _ = parts(made.experiment)
    people = [set(part.users or ()) for part in (split.public, split.train, split.test)]
    assert sum(map(len, people)) == len(set.union(*people)) == 65
    assert holders.people == made.experiment.population.users == len(people[1])
    # a person states the typical number of records, or it is counted of those who are public
    counts = sorted(Counter(split.public.users or ()).values())
    assert made.experiment.training.records == int(np.median(counts)) > 1
    stated = propose(tmp_path / "reviews.csv", Path("stated"), records=7)
    assert stated.experiment.training.records == load("stated/experiment.toml").training.records == 7


def test_mechanisms_of_texts_are_compared_on_a_table(tmp_path: Path) -> None:
    """At the demo's ε for each word, for as many words as the texts of the table have."""
    study, demo = propose(table(tmp_path), Path("mine"), kind="texts").experiment, load("text-demo")
    assert [arm.name for arm in study.arms] == ["centralised, not private", *(arm.name for arm in demo.arms)]
    assert {arm.text["tokens"] for arm in study.arms if arm.text} == {32} and study.policy.text == 1200
    assert all("decide about it" in reason for reason in study.policy.accept_unprotected)
    assert len(load_study("mine/experiment.toml").runs) == 3


def test_a_file_with_comments_reads_back_the_same_and_names_every_key() -> None:
    for name in ("demo", "sst2-paper"):
        experiment = load(name)
        text = commented(experiment, {"arm": "why"}, first="one\ntwo")
        Path("x.toml").write_text(text, encoding="utf-8")
        assert to_toml(load("x.toml")) == to_toml(experiment)
    for key, words, *_ in keys():
        last = key.rpartition(".")[2]
        if not key.startswith("arm."):
            assert re.search(rf"^#?{last} = .*# {re.escape(words)}", text, re.MULTILINE), key


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["init", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


FLAT = "text,label\n" + "".join(f"text number {i},x\n" for i in range(300))
WIDE = "text,label\n" + "".join(f"text number {i},{i % 1001}\n" for i in range(5005))


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (None, [], "there is no such file"),
        ("a,b\n1,2\n", [], "--text NAME; there are: 2 of names that are not shown"),
        ("a,b\n1,2\n", ["--text", "a"], "--label NAME; there are: 2 of names"),
        (FLAT, ["--text", "texts"], 'did you mean "text"?'),
        (FLAT, ["--text", "text", "--user", "text"], "--text and --user are one column; name two"),
        ("", [], "must name the columns"),
        (FLAT, [], 'column "label" has one class only'),
        (WIDE, [], 'column "label" has 1001 values'),
        ("text,label,empty\n", [], "holds no records"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    content: str | None, options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path("in.csv").write_text(content)
    assert words in complaint(capsys, "mine", "--from", "in.csv", *options)
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (["x", "", "positive", "ann"], 'line 262: "review" is empty; fill it in or remove the record'),
        (["x", "a row without an author", "positive", ""], 'line 262: "author" is missing; name the user'),
        (["x", "a row of three cells", "positive"], "line 262: has 3 cells, and the header names 4"),
        (["x", "of a class of its own", "postive", "ann"], 'label "postive" has 1 row; a class needs 5'),
        (["x", "of a class in two spellings", "posi\u200btive", "ann"], "are one name; write it one way"),
        (["x", "of a user in two spellings", "positive", "Person 1"], "differ in case or width alone"),
    ],
)
def test_a_table_that_is_not_clean_is_refused_with_its_row(
    row: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = table(tmp_path, users=65, more=[row])
    assert said in complaint(capsys, "mine", "--from", str(file)) and not Path("mine").exists()


def test_the_copies_are_for_their_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nothing_narrowed(monkeypatch):
        propose(table(tmp_path), Path("mine"))
    modes = {name: stat.S_IMODE(Path("mine", name).stat().st_mode) for name in (".", "train.csv", "test.csv")}
    assert modes == {".": 0o700, "train.csv": 0o600, "test.csv": 0o600}


# --- what becomes of rows: each is used or named


def proposed(file: Path, **columns: Any) -> Proposal:
    """Its rows are all accounted for: used, or named under why."""
    made = propose(file, Path("mine"), **columns)
    rows = re.search(r": ([\d,]+) of ([\d,]+) rows, ", made.findings[0])
    assert rows is not None and [int(number.replace(",", "")) for number in rows.groups()] == [
        len(made.used),
        len(made.used) + sum(made.left.values()),
    ]
    assert set(made.left) <= set(made.findings) and all(f"{number:,} row" in line for line, number in made.left.items())
    return made


def test_cells_of_another_kind_are_named_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for value, words in (({"en": "a fine film"}, "an object"), (7171, "a number"), (None, "is missing, not a text")):
        Path("in.jsonl").write_text("\n".join(json.dumps({"text": value, "label": i % 2}) for i in range(300)))
        line = complaint(capsys, "--from", "in.jsonl")
        assert words in line and "fine" not in line and "7171" not in line
    for value, words in ((datetime.datetime(2020, 1, 2), "a time"), (["ann"], "a list")):
        table = pyarrow.table({"text": texts(220), "label": ["a", "b"] * 110, "user": [value] * 220})
        parquet.write_table(table, "in.parquet")
        line = complaint(capsys, "--from", "in.parquet")
        assert f'row 1: "user" is {words}' in line and "2020" not in line and "ann" not in line


def test_a_table_that_is_too_short_says_what_became_of_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    said = texts(70)
    rows = [(text, i % 2) for i, text in enumerate([*said[:40], *said[30:35]])]
    result = complaint(capsys, "--from", str(written("in.csv", ("text", "label"), rows)))
    assert (
        "40 of 45 rows can be used, and 50 are needed for ten test texts; give more rows (5 rows with a text" in result
    )
    enough = written("in.csv", ("text", "label"), [(text, i % 2) for i, text in enumerate(said)])
    assert len(proposed(enough).used) == 70


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
    for seed in range(2):
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
    assert re.fullmatch(r"[\d,]+ rows with a text that also occurs in the other part: left out", line)
    split, about = split_of(made.experiment)
    assert not {*split.train.texts, *split.public.texts} & set(split.test.texts)
    assert sum(map(len, (split.public, split.train, split.test))) + int(str(about["dropped"])) == len(made.used)


# -- labels


def test_a_rare_label_that_may_be_somebody_s_words_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(text, i % 2) for i, text in enumerate(texts(240))]
    rows[0] = (rows[0][0], "this is no label but somebody's words")
    said = complaint(capsys, "--from", str(written("in.csv", ("text", "label"), rows)))
    assert "label of 37 characters has 1 row" in said and "somebody" not in said


# -- pairs, numbers, several labels, columns to keep


def test_pairs_are_found_by_their_names() -> None:
    said, names = texts(480), ("premise", "hypothesis")
    rows = [*zip(said[:240], said[240:], ["yes", "no"] * 120, strict=True)]
    rows += [(said[0], said[241], "yes"), (said[1].upper(), said[241], "yes")]
    file = written("in.csv", [*names, "label"], rows)
    made = proposed(file)
    assert len(made.used) == 241  # one pair repeats another
    assert made.findings[1].startswith(f"Pairs by {names[0]} and {names[1]}, ")
    data = load("mine/experiment.toml").data
    assert (data.text, data.second_text, data.label) == (*names, "label")
    split, _ = split_of(load("mine/experiment.toml"))
    assert all(isinstance(text, tuple) and text in {row[:2] for row in rows} for text in split.test.texts)
    assert not any(arm.public_only for arm in made.experiment.arms)  # a name describes no pair


def test_a_column_to_keep_is_copied_and_its_groups_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    said = texts(240)
    rows = [[text, "ab"[i % 2], ("north", "south", "")[i % 3], f"remark {i}"] for i, text in enumerate(said)]
    file = written("in.csv", ["text", "label", "region", "remark"], rows)
    made = proposed(file, kept=("remark", "region"))
    assert "Kept: remark, region; results are by the groups of region." in made.findings
    assert len(made.used) == 240  # an empty cell of it leaves no row out
    study = load("mine/experiment.toml")
    split, _ = split_of(study)
    kept = dict(zip(map(str, split.test.texts), split.test.extra["region"], strict=True))
    assert kept == {text: region or "not given" for text, _, region, _ in rows if text in kept}
    copied = read(Path("mine/test.csv"), ["text", "remark"]).values
    assert set(zip(*copied.values(), strict=True)) <= {(row[0], row[3]) for row in rows}
    other = ("other", "--from", "in.csv", "--keep")
    assert 'has no column "area"' in complaint(capsys, *other, "area")
    assert "--label and --keep are one column" in complaint(capsys, *other, "label", "--label", "label")


# -- any table


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 600), marks=pytest.mark.soak)])
def test_any_table_is_refused_in_one_line_or_all_its_rows_are_used_or_named(seeds: range, tmp_path: Path) -> None:
    """No error has a word of anybody's, and no user is in two parts."""
    outcomes = Counter[str]()
    for seed in seeds:
        table, out = made(tmp_path, seed), tmp_path / "out"
        try:
            proposal = propose(table.file, out, **table.options)
            outcomes["init"] += 1
            split, about = split_of(proposal.experiment)
        except UserError as error:
            text = str(error).replace(str(table.file), "")
            assert text.isprintable() and len(text) < 600 and ".part" not in text, (seed, text)
            assert not [word for word in table.private if word in text], (seed, text)
            outcomes["refused"] += 1
        else:
            used, left = proposal.used, proposal.left
            assert table.rows == len(used) + sum(left.values()) and set(left) <= set(proposal.findings), seed
            parts = (split.public, split.train, split.test)
            assert sum(map(len, parts)) + int(str(about.get("dropped", 0))) == len(used), seed
            whose = [set(part.users or ()) for part in parts]
            assert not whose[0] & whose[1] and not (whose[0] | whose[1]) & whose[2], seed
        shutil.rmtree(out, ignore_errors=True)
    assert min(outcomes["init"], outcomes["refused"]) > len(seeds) / 8, outcomes

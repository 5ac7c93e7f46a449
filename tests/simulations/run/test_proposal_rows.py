"""What `init` makes of the rows of a table: texts are texts, people keep theirs, and each row is used or named."""

from __future__ import annotations

import csv
import datetime
import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from simulations.corpora.files import read
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
    table = made.table
    assert table.rows == len(table.texts) + sum(table.left.values()) and set(table.left) <= set(made.found)
    for line, number in table.left.items():
        assert f"{number:,}" in line and ("left out" in line or "the first is kept" in line), line
    return made


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["init", "mine", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and not Path("mine").exists()
    return said


# -- columns by position


def test_a_file_without_a_header_goes_by_positions(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("ham" if i % 2 else "spam", text) for i, text in enumerate(texts(240))]
    file = written("in.csv", None, rows)
    made = proposed(file, text="2", label="1")
    assert made.table.rows == 240 and made.found[1].startswith("Texts by column 2,")
    data = load("mine/experiment.toml").data
    assert (data.text, data.label, data.user) == ("text", "label", None)
    kept = [str(text) for part in ("train", "test") for text in read(Path(f"mine/{part}.csv"), ["text"]).values["text"]]
    assert sorted(kept) == sorted(text for _, text in rows)
    two = ("--text", "2")
    for options in ((), two, (*two, "--label", "2"), ("--text", "x"), (*two, "--label", "ham")):
        said = complaint_of_another(capsys, *options)
        assert not any(word in said for word in _WORDS.split()) and "spam" not in said and " ham" not in said, said


def complaint_of_another(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["init", "other", "--from", "in.csv", *options]) == 2
    return capsys.readouterr().err


def test_the_copies_have_a_header_that_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the columns are called in a schema, and whatever rows say."""
    said = texts(240)
    said[3] = "text"
    rows = [{"How did you like it, all in all?": text, "1": i % 2} for i, text in enumerate(said)]
    Path("in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    proposed(Path("in.jsonl"), text="How did you like it, all in all?", label="1")
    assert load("mine/experiment.toml").data.text == "text_"
    assert cli.main(["check", "mine/experiment.toml"]) == 0


# -- what is a text


def test_bytes_that_are_texts_and_bytes_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    said = [f"{text} é" for text in texts(240)]
    labels = [b"a" if i % 2 else b"b" for i in range(240)]
    parquet.write_table(pyarrow.table({"text": [text.encode() for text in said], "label": labels}), "in.parquet")
    made = proposed(Path("in.parquet"))
    assert sorted(made.table.texts) == sorted(said) and made.table.classes == ("a", "b")
    assert 'column "text" holds bytes, which are read as UTF-8' in made.found
    latin = pyarrow.table({"text": [text.encode("latin-1") for text in said], "label": labels})
    parquet.write_table(latin, "latin.parquet")
    assert cli.main(["init", "x", "--from", "latin.parquet"]) == 2
    assert 'row 1: "text" is bytes that are no UTF-8 text' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"en": "a fine film"}, "an object"),
        (["a fine film"], "a list"),
        (7171, "a number"),
        (1.5, "a number"),
        (True, "true or false"),
        ("7171", 'column "text" holds numbers alone'),
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


def test_broken_characters_are_replaced_and_counted() -> None:
    said = texts(240)
    odd = {3: "\ud800", 4: "\0x"}
    rows = [{"text": text + odd.get(i, ""), "label": i % 2} for i, text in enumerate(said)]
    Path("in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = proposed(Path("in.jsonl"))
    assert "2 texts hold NUL or half of a surrogate pair: replaced" in made.found
    assert f"{said[3]}\ufffd" in made.table.texts and f"{said[4]} x" in made.table.texts


def test_rows_of_markup_alone_are_counted_and_white_space_is_no_html() -> None:
    markup = ["<br />", "<p></p>&nbsp;", "\u200b"] * 10
    said = [*(text.replace(" ", "  \n", 2) for text in texts(270)), *markup]
    rows = [{"text": text, "label": i % 2} for i, text in enumerate(said)]
    Path("in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = proposed(Path("in.jsonl"))
    assert made.table.left == {
        # a zero-width space is nothing
        "10 of 300 rows have nothing in column text or label: left out; fill them in to keep them (first: line "
        "273)": 10,
        "20 rows with no text but markup, or what nobody sees: left out (first: line 271)": 20,
    }
    assert not any("HTML" in line for line in made.found)


def test_a_table_that_is_too_short_says_what_became_of_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    said = texts(70)
    rows = [(text, "" if i < 20 else i % 2) for i, text in enumerate([*said[:40], *said[30:35]])]
    found = complaint(capsys, "--from", str(written("in.csv", ("text", "label"), rows)))
    assert "20 of 45 rows can be used, and 50 are needed for ten test texts; give more rows (" in found
    assert "20 of 45 rows have nothing in column text or label: left out" in found and "5 texts are repeated" in found
    enough = written("in.csv", ("text", "label"), [(text, i % 2) for i, text in enumerate(said)])
    assert len(proposed(enough).table.texts) == 70


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
    assert len(made.table.texts) == 3000 and len(set(made.table.users or ())) == 60 and not made.table.left
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
    (line,) = made.table.left
    assert re.fullmatch(r"[\d,]+ rows with texts of users of the other part, test or train: left out", line)
    split, about = split_of(made.experiment)
    assert not {*split.train.texts, *split.public.texts} & set(split.test.texts)
    assert sum(map(len, (split.public, split.train, split.test))) + int(str(about["dropped"])) == len(made.table.texts)


def test_nobody_is_no_user_and_what_may_be_no_label_is_named() -> None:
    nobody = ["[deleted]", "NULL", "NA", "None", "nan", ""]
    rows = [(text, "None" if i % 3 == 0 else i % 3, f"u{i % 80}") for i, text in enumerate(texts(400))]
    rows = [(text, label, nobody[i // 5] if i < 30 else user) for i, (text, label, user) in enumerate(rows)]
    made = proposed(written("in.csv", ("text", "label", "user"), rows))
    assert made.table.left == {
        "10 of 400 rows have nothing in column text, label or user: left out; fill them in to keep them (first: line "
        "22)": 10,
        '20 rows with "[deleted]" or "na" or "none" or "null" in place of a user: left out (first: line 2)': 20,
    }
    assert any(line.startswith('label "none" (') and "may stand for no label" in line for line in made.found)
    assert made.table.classes == ("1", "2", "None")


def test_a_text_that_stands_for_none_is_named() -> None:
    rows = [("[removed]" if i < 7 else text, i % 2) for i, text in enumerate(texts(300))]
    made = proposed(written("in.csv", ("text", "label"), rows))
    assert made.table.left == {'7 rows with "[removed]" in place of a text: left out (first: line 2)': 7}


def test_labels_that_name_people_are_remarked_on() -> None:
    rows = [(text, f"ann {i % 4}") for i, text in enumerate(texts(240))]
    made = proposed(written("in.csv", ("text", "author"), rows), label="author")
    assert 'Labels are by "author", and no user is named' in made.found[2]


# -- labels


@pytest.mark.parametrize(
    ("one", "other"), [("1.0", "1"), ("é", unicodedata.normalize("NFD", "é")), ("１", "1"), ("+1", "1"), ("1e0", "1")]
)
def test_one_label_in_two_forms_is_one_class(one: str, other: str) -> None:
    rows = [(text, "0" if i % 2 else (one if i % 4 else other)) for i, text in enumerate(texts(240))]
    made = proposed(written("in.csv", ("text", "label"), rows))
    assert len(made.table.classes) == 2 and any("is also spelled" in line for line in made.found)
    assert cli.main(["check", "mine/experiment.toml"]) == 0


def test_many_classes_and_rare_ones() -> None:
    said = texts(900)
    rows = [(text, f"class {i % 80}") for i, text in enumerate(said[:800])]
    rows += [(text, f"rare {i // 2}") for i, text in enumerate(said[800:814])]
    rows += [(text, f"this is no label but somebody's words, number {i}") for i, text in enumerate(said[814:816])]
    made = proposed(written("in.csv", ("text", "label"), rows))
    assert len(made.table.classes) == 80 and sum(made.table.left.values()) == 16
    assert made.found[1].endswith(" and 50 more of 10 to 10.")
    assert "4 more labels of fewer than 5 rows have 6 rows: left out (first: line 812)" in made.found
    assert not any("somebody" in line for line in made.found)


def test_classes_that_only_one_part_would_have_are_left_out() -> None:
    rows = [(text, i % 2, f"u{i % 60}") for i, text in enumerate(texts(300))]
    rows += [(text, "of one", "u1") for text in texts(308)[300:]]
    made = proposed(written("in.csv", ("text", "label", "user"), rows))
    assert made.table.classes == ("0", "1") and len(made.table.texts) == 300
    assert "8 rows of a class that only test or only train would have: left out" in made.table.left


# -- pairs, numbers, several labels, columns to keep


@pytest.mark.parametrize(
    "names", [("premise", "hypothesis"), ("sentence1", "sentence2"), ("question", "sentence"), ("left", "right")]
)
def test_pairs_are_found_by_their_names_or_named(names: tuple[str, str]) -> None:
    said = texts(480)
    rows = [*zip(said[:240], said[240:], ["yes", "no"] * 120, strict=True)]
    rows += [(said[0], said[241], "yes"), (said[1].upper(), said[241], "yes"), (said[2], "<br>", "no")]
    file = written("in.csv", [*names, "label"], rows)
    named = {"text": names[0], "second": names[1]} if names[0] == "left" else {}
    made = proposed(file, **named)
    assert len(made.table.texts) == 241  # one pair repeats another, and one has no second text
    assert made.found[1].startswith(f"Pairs by {names[0]} and {names[1]}, ")
    data = load("mine/experiment.toml").data
    assert (data.text, data.second_text, data.label) == (*names, "label")
    split, _ = split_of(load("mine/experiment.toml"))
    assert all(isinstance(text, tuple) and text in {row[:2] for row in rows} for text in split.test.texts)
    assert not any(arm.public_only for arm in made.experiment.arms)  # a name describes no pair


def test_labels_that_are_numbers_have_levels_and_whole_ones_are_classes() -> None:
    numbers = np.random.default_rng(1).random(240).round(2) * 4 + 0.5
    made = proposed(written("in.csv", ["text", "score"], [*zip(texts(240), numbers, strict=True)]))
    data = load("mine/experiment.toml").data
    assert data.label_range == (0.0, 5.0) and data.levels == 21 and data.measures == ("pearson", "spearman")
    assert "labels by score: 0 to 5." in made.found[1] and not any(arm.public_only for arm in made.experiment.arms)
    assert "labels are numbers: each is rounded to the nearest of 21 levels" in made.found
    split, _ = split_of(load("mine/experiment.toml"))
    assert split.test.classes[1] == "0.25" and len(split.test) == 48
    rows = [*zip(texts(300), np.arange(300) % 30, strict=True)]
    assert propose(written("b.csv", ["text", "score"], rows), Path("b")).experiment.data.label_range is None


@pytest.mark.parametrize("several", ["a|b", "b, c", "a;b;c", '["a", "c"]'])
def test_several_labels_in_a_row_are_refused(several: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[text, "abc"[i % 3] if i % 4 else several] for i, text in enumerate(texts(240))]
    written("in.csv", ["text", "label"], rows)
    said = complaint(capsys, "--from", "in.csv")
    assert 'line 2: "label" holds several labels; make a row for each, or name a column of one label' in said
    lines = [json.dumps({"text": text, "label": ["a", "b"]}) for text in texts(240)]
    Path("in.jsonl").write_text("\n".join(lines))
    assert "holds several labels" in complaint(capsys, "--from", "in.jsonl")


def test_one_label_with_a_mark_in_it_is_one() -> None:
    rows = [[text, ("science/art", "sport, outdoors")[i % 2]] for i, text in enumerate(texts(240))]
    assert proposed(written("in.csv", ["text", "label"], rows)).table.classes == ("science/art", "sport, outdoors")


def test_a_column_to_keep_is_copied_and_its_groups_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    said = texts(240)
    rows = [[text, "ab"[i % 2], ("north", "south", "")[i % 3], f"remark {i}"] for i, text in enumerate(said)]
    file = written("in.csv", ["text", "label", "region", "remark"], rows)
    made = proposed(file, kept=("remark", "region"))
    assert "Kept: remark, region; results are by the groups of region." in made.found
    assert len(made.table.texts) == 240  # an empty cell of it leaves no row out
    study = load("mine/experiment.toml")
    split, _ = split_of(study)
    kept = dict(zip(map(str, split.test.texts), split.test.extra["region"], strict=True))
    assert kept == {text: region or "not given" for text, _, region, _ in rows if text in kept}
    copied = read(Path("mine/test.csv"), ["text", "remark"]).values
    assert set(zip(*copied.values(), strict=True)) <= {(row[0], row[3]) for row in rows}
    bare = propose(written("b.csv", None, rows), Path("b"), text="1", label="2", kept=("4", "3"))
    assert load("b/experiment.toml").data.group == "kept2" and "results are by the groups of column 3." in bare.found[2]
    assert 'has no column "area"' in complaint_of_another(capsys, "--keep", "area")
    assert "--label and --keep are one column" in complaint_of_another(capsys, "--keep", "label", "--label", "label")


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "banking77").is_dir(), reason="the data are not part of the repository")
def test_files_that_are_published() -> None:
    made = propose(DATA / "banking77" / "train.tsv", Path("banking"))
    assert len(made.table.classes) == 77 and made.table.rows == 10_003
    made = propose(DATA / "synthpai" / "comments.tsv", Path("synth"), text="sentence", label="author")
    assert made.table.rows == 7_822 == len(made.table.texts) + sum(made.table.left.values())
    assert len(made.table.classes) == 285
    made = propose(DATA / "stsb" / "train.tsv", Path("similar"))
    assert made.experiment.data.label_range == (0.0, 5.0) and made.experiment.data.second_text == "sentence2"
    assert propose(DATA / "rte" / "train.tsv", Path("entailed")).table.classes == ("entailment", "not_entailment")

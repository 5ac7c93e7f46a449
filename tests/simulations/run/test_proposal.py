"""From a table to an experiment that runs as it stands, and what is said of the table."""

from __future__ import annotations

import csv
import json
import re
import stat
from pathlib import Path

import numpy as np
import pytest

from simulations.corpora.files import read
from simulations.corpora.overlap import NEARLY, SHINGLE, nearly, normalized
from simulations.corpora.overlap import near_another as left_out
from simulations.errors import UserError
from simulations.experiment import load, to_toml
from simulations.experiment.schema import keys
from simulations.experiment.toml import commented
from simulations.run.prepare import parts
from simulations.run.proposal import propose
from simulations.sweep.definition import load_study
from sottovoce.cli import main as cli
from tests.support.modes import nothing_narrowed

_WORDS = "good bad fine awful film book plot story actor scene long short dull bright sharp loud calm warm cold plain"


def table(folder: Path, rows: int = 260, *, users: int | None = None, more: list[list[str]] | None = None) -> Path:
    """A CSV with columns id, review, sentiment (and author), and more rows."""
    rng = np.random.default_rng(2)
    words = np.array(_WORDS.split())
    lines = [["id", "review", "sentiment", *(["author"] if users else [])]]
    for i in range(rows):
        label = ("positive", "negative")[i % 2]
        owner = [f"person {i % users}"] if users else []
        lines.append([str(i), " ".join(rng.choice(words, 14)) + f", says {i}", label, *owner])
    for line in more or []:
        lines.append(line)
    file = folder / "reviews.csv"
    with open(file, "w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows(lines)
    return file


ALIKE = [
    ["x", "it was the very best of all the books that anybody had lent me", "negative"],
    ["x", "It was the very best of all the books that anybody had lent me!", "positive"],
    ["x", "it was the very best of all the books that anybody has lent me", "negative"],
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_no_two_texts_that_are_left_are_nearly_the_same_and_none_is_left_out_for_nothing() -> None:
    rng = np.random.default_rng(0)
    words = _WORDS.split()
    base = [" ".join(rng.choice(words, 12)) for _ in range(60)]
    texts = list(dict.fromkeys(base + [f"{text[:-3]}xyz" for text in base[:20]] + ["ab", "abc"]))
    gone = left_out(texts)

    def shingles(text: str) -> set[str]:
        return {text[i : i + SHINGLE] for i in range(len(text) - SHINGLE + 1)}

    def index(one: str, other: str) -> float:
        a, b = shingles(one), shingles(other)
        return len(a & b) / max(1, len(a | b))

    left = [text for text in texts if text not in gone]
    assert all(index(a, b) < NEARLY for i, a in enumerate(left) for b in left[:i])
    assert 0 < len(gone) <= 20 and all(any(index(a, b) >= NEARLY for b in texts if b != a) for a in gone)
    assert gone == {text for text in gone if nearly([text], [other for other in texts if other != text])}


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
    assert made.left == {"2 rows with a text that another row has, or nearly: left out": 2}
    assert abs(len(split.test) / 261 - 0.2) < 0.01 and np.allclose(shares[0], shares[1], atol=0.05)
    assert not any(sum(counts.values()) - counts["rows"] for counts in about["overlap"].values())
    kept = [*read(Path("mine/train.csv"), ["review"]).values["review"], *split.test.texts]
    assert len(kept) == len({normalized(str(text)) for text in kept}) == 261
    written = made.file.read_text(encoding="utf-8")
    assert all(line in written for line in made.found) or max(map(len, made.found)) > 116
    again = propose(tmp_path / "reviews.csv", Path("again"))
    assert Path("again/test.csv").read_bytes() == Path("mine/test.csv").read_bytes() and again.found == made.found
    assert Path(propose(tmp_path / "reviews.csv", Path("other"), seed=2).file.parent / "test.csv").read_bytes() != (
        Path("mine/test.csv").read_bytes()
    )


def test_people_are_in_one_part_each(tmp_path: Path) -> None:
    made = propose(table(tmp_path, users=65), Path("mine"))
    assert made.experiment.data.user == "author" and made.experiment.population.assignment == "column"
    split, holders, _ = parts(made.experiment)
    people = [set(part.users or ()) for part in (split.public, split.train, split.test)]
    assert sum(map(len, people)) == len(set.union(*people)) == 65
    assert holders.people == made.experiment.population.users == len(people[1])


def test_mechanisms_of_texts_are_compared_on_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At one worst case, for as many words as the texts of the table have, within the policy."""
    file = table(tmp_path)
    assert cli.main(["init", "mine", "--from", str(file), "--kind", "texts"]) == 0
    assert "three seeds: a figure" in capsys.readouterr().out
    study, demo = load("mine/experiment.toml"), load("text-demo")
    assert [arm.name for arm in study.arms] == ["centralised, not private", *(arm.name for arm in demo.arms)]
    texts = {arm.name: arm for arm in study.arms if arm.text is not None}
    assert {arm.text["tokens"] for arm in texts.values() if arm.text} == {32} and study.policy.text == 1200
    assert all("decide about it" in reason for reason in study.policy.accept_unprotected)
    assert len(load_study("mine/experiment.toml").runs) == 3
    assert cli.main(["check", "mine/experiment.toml", "--json"]) == 0
    arms = {arm["arm"]: arm for arm in json.loads(capsys.readouterr().out)["arms"]}
    worst = {
        name: next(rung["worst_case"] for rung in arms[name]["test_ladder"] if rung["rung"] == "user")
        for name, arm in texts.items()
        if not arm.reference and "∞" not in name
    }
    assert len(worst) == 3 and all(0.99 * 1200 < each <= 1200 for each in worst.values()), worst
    assert cli.main(["init", "other", "--from", str(file), "--kind", "text"]) == 2
    assert "--kind text: is one of vectors, texts" in capsys.readouterr().err


def test_a_file_with_comments_reads_back_the_same_and_names_every_key() -> None:
    for name in ("demo", "text-demo", "sst2-paper"):
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


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(table(tmp_path))
    Path("taken").mkdir()
    Path("odd.csv").write_text("a,b\n1,2\n")
    Path("none.csv").write_text("")
    Path("flat.csv").write_text("text,label\n" + "".join(f"text number {i},x\n" for i in range(300)))
    Path("ids.csv").write_text("text,label\n" + "".join(f"text number {i},{i}\n" for i in range(300)))
    assert "there is no such file" in complaint(capsys, "--from", "gone.csv")
    assert "--text NAME; there are: 2 of names that are not shown" in complaint(capsys, "--from", "odd.csv")
    assert "--label NAME; there are: 2 of names" in complaint(capsys, "--from", "odd.csv", "--text", "a")
    assert 'did you mean "review"?' in complaint(capsys, "--from", file, "--text", "reviews")
    assert "--text and --user are one column; name two" in complaint(
        capsys, "--from", file, "--text", "review", "--user", "review"
    )
    assert "taken: is there already; name another" in complaint(capsys, "taken", "--from", file)
    assert "names no columns" in complaint(capsys, "--from", "none.csv")
    assert 'column "label" has one class only' in complaint(capsys, "--from", "flat.csv")
    said = complaint(capsys, "--from", "ids.csv")
    assert 'label "0" has 1 row, and 299 more classes have too few; a class needs 5' in said
    Path("wide.csv").write_text("text,label\n" + "".join(f"text number {i},{i % 1001}\n" for i in range(5005)))
    assert 'column "label" has 1001 values' in complaint(capsys, "--from", "wide.csv")
    Path("head.csv").write_text("text,label,empty\n")
    assert "holds no records" in complaint(capsys, "--from", "head.csv")
    assert "40 of 40 rows can be used, and 50 are needed" in complaint(capsys, "--from", str(table(tmp_path, 40)))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "flat.csv",
        "head.csv",
        "ids.csv",
        "none.csv",
        "odd.csv",
        "reviews.csv",
        "taken",
        "wide.csv",
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (["x", "", "positive", "ann"], 'line 262: "review" is empty; fill it in or remove the record'),
        (["x", "a row without a label", "NaN", "ann"], "line 262: label is missing"),
        (["x", "a row without a label", " ", "ann"], "line 262: label is missing"),
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


def test_other_kinds_of_tables(tmp_path: Path) -> None:
    rows = list(csv.DictReader(table(tmp_path).read_text(encoding="utf-8").splitlines()))
    lines = [json.dumps({"text": row["review"], "label": int(row["sentiment"] == "positive")}) for row in rows]
    Path("reviews.jsonl").write_text("\n".join(lines))
    made = propose(Path("reviews.jsonl"), Path("mine"))
    assert load("mine/experiment.toml").data.label == "label" and "labels by label: 0 130, 1 130." in made.found[1]
    with pytest.raises(UserError, match="unknown kind of file"):
        propose(Path("mine/experiment.toml"), Path("no"))


def test_the_copies_are_for_their_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nothing_narrowed(monkeypatch):
        propose(table(tmp_path), Path("mine"))
    modes = {name: stat.S_IMODE(Path("mine", name).stat().st_mode) for name in (".", "train.csv", "test.csv")}
    assert modes == {".": 0o700, "train.csv": 0o600, "test.csv": 0o600}

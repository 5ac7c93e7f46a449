"""A researcher walks from a table of her own to a figure of mechanisms and seeds, by docs/how-to/experiments.md, and
errs on the way."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from simulations.sweep import worker
from simulations.sweep.run import Job
from tests.support.newcomers import Newcomer

ROWS = 300
STUDY = "mine/experiment.toml --set encoder.model=bert"
ARMS = (
    "centralised, not private †",
    "no noise †",
    "one vector, ε = 8",
    "one vector, ε = 2",
    "as published: Purkayastha, ε = 10, label ε = 2",
)


def table(file: Path, *more: list[str]) -> None:
    """Reviews with semicolons between, one of them twice."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(ROWS):
        said = " ".join(rng.choice(["the", "film", "book", "a", "plot", "and", "very"], size=10))
        rows.append([f"{said} {('bad', 'good')[i % 2]}; seen {i} times", ("negative", "positive")[i % 2]])
    rows += [[rows[1][0].upper(), "positive"], *more]
    with open(file, "w", encoding="utf-8", newline="") as opened:
        csv.writer(opened, delimiter=";").writerows([["review", "sentiment"], *rows])


def begins(newcomer: Newcomer) -> None:
    """Commands and mistakes until there is an experiment that she knows the price of."""
    errs, types = newcomer.errs, newcomer.types
    errs("init mine --from review.csv", "review.csv: there is no such file")
    errs("init mine --from bert", "bert: is a folder; name a file in it")
    errs("init mine --from reviews.csv --text reviw", 'reviews.csv: has no column "reviw"; did you mean "review"?')
    errs(
        "init mine --from reviews.csv --text review --label review",
        "reviews.csv: --text and --label are one column; name two",
    )
    errs("init mine --from reviews.csv --seed 1.5", "Invalid value for '--seed': '1.5' is not a valid integer.")
    for row, why in (
        (["", "negative"], 'reviews.csv: line 303: "review" is empty; fill it in or remove the record'),
        (
            ["who can say what it was", "Positive "],
            'reviews.csv: label "Positive" has 1 row; a class needs 5: take such rows out, or name the column that '
            "holds classes with --label (numbers need data.label-range)",
        ),
    ):
        table(newcomer.home / "reviews.csv", row)
        errs("init mine --from reviews.csv --text review --label sentiment", why)
    table(newcomer.home / "reviews.csv")
    said = types("init mine --from reviews.csv --text review --label sentiment")
    for found in (
        "300 of 301 rows",
        "1 row with a text that another row has, or nearly: left out",
        "sottovoce simulate mine/experiment.toml",
    ):
        assert found in said, said
    errs("init mine --from reviews.csv", "mine: is there already; name another: sottovoce init NAME")

    errs("check mine", "mine: is a folder; name the file, as mine/experiment.toml")
    assert "as published: Purkayastha" in types(f"check {STUDY}")


def runs_it(newcomer: Newcomer) -> None:
    """And until it has run with two seeds."""
    errs, out = newcomer.errs, f"{STUDY} --out runs/seed-1"
    errs(
        "simulate mine/experiment.toml --set encoder.modle=bert",
        'mine/experiment.toml: encoder.modle: unknown key; did you mean "model"?',
    )
    errs(
        f"simulate {out} --set population.users=many",
        "mine/experiment.toml: population.users: must be a whole number of at least 1, got 'many'",
    )
    errs(
        f"simulate {out} --set arm.3.vector.epsilon=20",
        'mine/experiment.toml: arm "one vector, ε = 8": vector: worst-case ε 20 is above policy.vector = 8, so its '
        "users refuse; raise the limit or lower epsilon",
    )
    named = "arm.one vector, ε = 8.vector.epsilon=4"
    errs(
        f'simulate {out} --set "{named}"',
        f"mine/experiment.toml: --set {named}: number the arm, from 0 to 6, as arm.0.embedding.epsilon=4",
    )
    errs(f"simulate {out} --data reviews.csv", "reviews.csv: is a file; name the folder that holds train.csv")
    errs("report runs/seed-1", "runs/seed-1: holds no results.json; name the folder of a finished run")
    for seed in (1, 2):
        newcomer.types(f"simulate {STUDY} --set seed={seed} --out runs/seed-{seed}")


def test_from_a_table_to_a_report(newcomer: Newcomer) -> None:
    table(newcomer.home / "reviews.csv")
    begins(newcomer)
    runs_it(newcomer)
    newcomer.errs("report runs/seed-1 --out x.jpg", "--out x.jpg: must end in .html")
    newcomer.types("report runs/seed-1 runs/seed-2")
    assert (newcomer.home / "report.html").is_file()
    assert len(newcomer.commands) <= 6 and len(newcomer.mistakes) >= 8


@pytest.mark.slow
def test_from_a_table_to_a_sweep_and_a_page_in_four_commands(
    newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five ε by three seeds, with a figure and a LaTeX table, and no command is a retry."""

    def here(jobs: Sequence[Job], at_once: int) -> Iterator[str]:
        for job in jobs:
            worker._run(job.file, str(job.out), 1)
            yield job.name

    monkeypatch.setattr("simulations.sweep.run.processes", here)
    table(newcomer.home / "reviews.csv")
    newcomer.types("init mine --from reviews.csv")
    assert "NOT met" not in newcomer.types(f"check {STUDY}")
    said = newcomer.types("sweep mine/experiment.toml --set encoder.model=bert")
    assert all(f"| one vector, ε = {epsilon}" in said for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0))
    newcomer.types("report studies/mine-sweep")
    out = newcomer.home / "studies" / "mine-sweep"
    assert (out / "accuracy.pdf").read_bytes().startswith(b"%PDF")
    tex = (out / "study.tex").read_text(encoding="utf-8")
    assert r"\toprule" in tex and tex.count("one vector") == 5 and "centralised, not private" in tex
    with open(out / "tidy.csv", encoding="utf-8", newline="") as opened:
        rows = [row for row in csv.DictReader(opened) if (row["metric"], row["split"]) == ("accuracy", "on_device")]
    assert {(row["arm"], row["seed"]) for row in rows if row["reference"] == "False"} == {
        (name, seed)
        for name in ("class names alone, no users", *(f"one vector, ε = {e}" for e in (0.5, 1.0, 2.0, 4.0, 8.0)))
        for seed in "123"
    }
    page = (newcomer.home / "report.html").read_text(encoding="utf-8")
    assert "The study mine-sweep" in page and "&lt;p&gt;" not in page
    assert len(newcomer.commands) == 4

"""The report of a count, and its label."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from mechanisms.accounting.ladder import ladder
from mechanisms.mechanism import parameters
from mechanisms.subset_selection import SubsetSelection
from server.counts import change, estimate
from simulations.counts.result import CountResult, moved, rows_of
from simulations.errors import UserError
from sottovoce.report.write import report

NAMES = ("<bills>", "praise", "faults & more", "other", "none")


def result(weeks: int = 1) -> CountResult:
    """A made-up count of 5,000 users."""
    mechanism, rng = SubsetSelection(1.0, 5, 1), np.random.default_rng(0)
    counts = [estimate(mechanism, mechanism_draws(mechanism, rng)) for _ in range(2)]
    rungs = [rung.to_dict() for rung in ladder(None, None, answer=mechanism, stages=weeks, users=5_000, delta=1e-6)]
    rows = rows_of(NAMES, counts[1], None, None)
    changed = moved(NAMES, change(counts[0], counts[1])) if weeks > 1 else ()
    return CountResult(
        "complaints",
        1,
        "the nearest class name",
        parameters(mechanism),
        True,
        5_000,
        0.95,
        rows,
        (),
        0.01,
        rungs,
        5_000 * weeks,
        week=weeks,
        least=5_000,
        moved=changed,
        dropped={},
    )


def mechanism_draws(mechanism: SubsetSelection, rng: np.random.Generator) -> np.ndarray:
    from mechanisms.streams import SeededUniforms

    return mechanism.sample(rng.integers(0, 5, 5_000), rng=SeededUniforms(int(rng.integers(1000))))


class Words(HTMLParser):
    """Text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.said = ""
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.said += data


@pytest.mark.parametrize("weeks", [1, 2])
def test_a_privacy_officer_reads_counts_costs_and_their_certainty(tmp_path: Path, weeks: int) -> None:
    (tmp_path / "count").mkdir()
    counted = result(weeks)
    counted.write(tmp_path / "count")
    html, label = report([tmp_path / "count"], tmp_path / "report.html")
    page = html.read_text()
    said = " ".join(Words(page).said.split())
    assert "&lt;bills&gt;" in page and "<bills>" not in page
    assert "5,000 users were asked which of 5 classes" in said and "a set of 1 classes" in said
    assert f"ε = {weeks}, with nobody trusted" in said and "Behind a trusted shuffler" in said
    assert "hold together with probability 95%" in said and "where it errs, so does the count" in said
    assert ("Changes since the last count" in said) == (weeks > 1)
    told = json.loads(label.read_text())["counts"][0]
    assert told["ladder"] == counted.ladder and told["mechanism"]["mechanism"] == "subset-selection"


def test_a_count_is_reported_alone(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        result().write(tmp_path / name)
    with pytest.raises(UserError, match="name it alone"):
        report([tmp_path / "one", tmp_path / "two"], tmp_path / "report.html")

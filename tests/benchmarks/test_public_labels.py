"""Runs of one study that differ in the number of public labels: one table, one figure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from benchmarks.summary import by_labels, labels_figure, main, read, summarize
from simulations.errors import UserError


def run(at: Path, seed: int, labelled: int | None, alone: float | None, users: float, *, users_too: int = 9) -> Path:
    """A finished run of two arms; `alone` is None where there is no label."""
    arms = [
        {"name": name, "accuracy_clean_test": accuracy, "accuracy_clean_test_se": error, "reference": False, "way": way}
        for name, accuracy, error, way in (
            ("alone", alone, 0.004 * seed, "public-only"),
            ("users", users, 0.015, "statistics"),
        )
    ]
    gap = None if alone is None else {"difference": users - alone, "error": 0.01 * seed}
    results: dict[str, Any] = {
        "name": "study",
        "seed": seed,
        "arms": arms,
        "way_sentence": None,
        "differences": [{"arm": "users", "less": "alone", "users_added": True, "sanitized": None, "on_device": gap}],
    }
    folder = at / f"{seed}-{labelled}"
    folder.mkdir()
    public = {} if labelled is None else {"labelled": labelled}
    study = {"name": "study", "seed": seed, "data": {"public": public}, "population": {"users": users_too}}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "experiment.toml").write_text(tomli_w.dumps(study))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Of all labels first: order is by number, not by what was named first."""
    return [
        run(tmp_path, seed, labelled, alone and alone + more, users + 2 * more)
        for labelled, alone, users in ((None, 0.8, 0.81), (0, None, 0.75), (1000, 0.7, 0.78))
        for seed, more in ((1, 0.0), (2, 0.02))
    ]


def test_a_row_for_each_number_and_gains_paired_by_seed(folders: list[Path]) -> None:
    lines = summarize(folders).splitlines()
    assert lines[0] == "study, seeds 1, 2: accuracy on the device, mean ± standard error over seeds (and by text)"
    assert lines[2] == "| public labels | alone | users | users: users added |"
    # by hand: .78 and .82; .70 and .72; gains of .08 and .10; by text the mean of both seeds
    assert lines[4:] == [
        "| 0 | – | 0.770 ± 0.020 (0.015) | – |",
        "| 1,000 | 0.710 ± 0.010 (0.006) | 0.800 ± 0.020 (0.015) | +0.090 ± 0.010 (0.015) |",
        "| all | 0.810 ± 0.010 (0.006) | 0.830 ± 0.020 (0.015) | +0.020 ± 0.010 (0.015) |",
    ]


def test_the_figure_has_no_point_where_nobody_knows_a_label(folders: list[Path], tmp_path: Path) -> None:
    axes = labels_figure(by_labels(read(folders))).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1,000", "all"]
    alone, users = (list(line[0].get_ydata()) for line in axes.containers)
    assert alone == pytest.approx([math.nan, 0.71, 0.81], nan_ok=True) and users == pytest.approx([0.77, 0.8, 0.83])
    assert main([*map(str, folders), "--figure", str(tmp_path / "a.svg")]) == 0
    assert b"public texts with a label" in (tmp_path / "a.svg").read_bytes()


def test_numbers_of_other_seeds_or_other_studies_are_not_compared(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.public\.labelled: runs of each number need the same seeds$"):
        summarize(folders[:3])
    with pytest.raises(UserError, match="two runs have the same seed"):
        summarize([folders[0], folders[2], folders[0], folders[2]])
    with pytest.raises(UserError, match=r"population\.users is 8 there, and 9 here"):
        summarize([folders[0], run(tmp_path, 3, 30, 0.6, 0.7, users_too=8)])

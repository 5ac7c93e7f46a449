"""Which arms are set against each other, and how differences are shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rich.console import Console

from simulations.run.accuracy import Counts
from simulations.run.comparison import added, baseline, conclusion, differences, gap, matrices
from simulations.run.evaluation import Answers
from simulations.run.report import markdown, print_table
from tests.support.results import demo
from tests.support.studies import LAPLACE, PURKAYASTHA, RANDOMIZED, experiment


def answers(sanitized: float, device: float, n: int = 100) -> Answers:
    """Of so many texts the first ones are right."""
    one = np.ones(n, np.int64)
    return Answers(*(Counts(one, (np.arange(n) < share * n).astype(np.int64)) for share in (sanitized, device)))


WIDE = PURKAYASTHA | {"dim": 8}
STUDY = experiment(
    {"name": "alone, wide", "protocol": "public-only", "embedding": WIDE},
    {"name": "users", "embedding": PURKAYASTHA, "label": RANDOMIZED},
    {"name": "alone", "protocol": "public-only", "embedding": PURKAYASTHA},
    {"name": "users, wide", "embedding": WIDE},
    {"name": "other", "embedding": LAPLACE},
    population={"users": 60},
)
FOUND = {
    "alone, wide": answers(0.5, 0.5),
    "users": answers(0.72, 0.8),
    "alone": answers(0.7, 0.8),
    "users, wide": answers(0.6, 0.8),
    "other": answers(0.6, 0.0, n=0),
}


def test_users_added_is_less_the_public_only_arm_that_is_the_same_down_to_m() -> None:
    """Mechanism and ε are the same in both: by these alone users would have added .22."""
    of = {arm.name: base.name for arm in STUDY.arms if (base := baseline(STUDY.arms, arm)) is not None}
    assert of == {"users": "alone", "users, wide": "alone, wide"}
    results = {"differences": differences(STUDY.arms, FOUND)}
    gains = added(results)
    assert gains.keys() == of.keys() and len(results["differences"]) == 10
    assert round(gains["users"]["difference"], 6) == 0.02 and round(gains["users, wide"]["difference"], 6) == 0.1
    silent = [pair | {"sanitized": None} for pair in results["differences"]]  # nobody sends a request
    device = added({"differences": silent})["users"]
    assert device == {"difference": 0.0, "error": pytest.approx((2 / 102 / 101) ** 0.5)}
    one, other = (gap(results, *pair, "sanitized") for pair in (("users", "users, wide"), ("users, wide", "users")))
    assert one is not None and other is not None
    assert one["difference"] == -other["difference"] and one["error"] == other["error"]
    assert gap(results, "other", "users", "on_device") is None
    assert differences(STUDY.arms, {"users": FOUND["users"]}) == []  # a deployment runs one arm


def test_arms_that_have_not_run_are_left_out() -> None:
    """A deployment runs one arm of its study."""
    assert differences(STUDY.arms, {"users": FOUND["users"]}) == []
    (pair,) = differences(STUDY.arms, {name: FOUND[name] for name in ("other", "users")})
    assert (pair["arm"], pair["less"]) == ("other", "users")


def compared() -> dict[str, Any]:
    results = demo()
    names = [arm["name"] for arm in results["arms"]]
    pairs = [(names[j], names[i]) for j in range(6) for i in range(j)]
    gaps = {"sanitized": {"difference": 0.0094, "error": 0.0036}, "on_device": {"difference": -0.002, "error": None}}
    added = (names[2], names[0])
    results["differences"] = [
        {"arm": arm, "less": less, "users_added": (arm, less) == added} | gaps for arm, less in pairs
    ]
    return results


def test_tables_show_what_users_added_and_every_gap_with_its_error() -> None:
    results = compared()
    text = markdown(results)
    (row,) = [line for line in text.splitlines() if line.startswith("| Purkayastha, ε = 10 |")][:1]
    assert "| 0.900 ± 0.012 | 0.900 | +0.009 ± 0.004 | 31.42 ‡ |" in row
    assert "| public-only | 0.810 ± 0.012 | 0.830 | – |" in text and "less that of the public-only arm" in text
    assert "paired by test text, on sanitized test sentences" in text and "| 1 public-only |  |  |" in text
    assert "| 2 no noise | +0.009 ± 0.004 |  |" in text and "| 2 no noise | -0.002 |  |" in text
    console = Console(width=120, record=True, file=None, highlight=False, quiet=False)
    with console.capture() as captured:
        print_table(results, console)
    said = captured.get()
    assert "users" in said and said.count("+0.009 ± 0.004") == 1 + 15


def test_a_study_of_many_arms_or_without_pairs_has_no_matrix() -> None:
    assert matrices(demo(), most=12) == [] and matrices(compared(), most=5) == []
    assert "Difference" not in markdown(demo()) and "users added" not in markdown(demo())


def test_the_conclusion_is_what_users_teach_beside_the_best_guess_without_them() -> None:
    """The commonest class, or a public-only arm if it is right more often."""
    results = compared()
    said = conclusion(results)
    alone = next(arm for arm in results["arms"] if arm["name"] == "public-only")
    assert said.startswith('Without users the best guess is right 0.830 of the time ("public-only"); with them ')
    assert said in markdown(results) and said.count(" at ε = ") == 4 and "0.880 ± 0.010 at ε = 1.571" in said
    results["chance"] = 0.99
    assert "0.990 of the time (the commonest class)" in conclusion(results)
    unknown = [arm | {"ladder": None} for arm in results["arms"]]
    for arms in ([alone], unknown):  # nobody taught, or nobody knows what they paid
        assert conclusion(results | {"arms": arms}) == ""

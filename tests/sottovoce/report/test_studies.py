"""The report of a study, whose runs differ in a grid and seeds, and of a protocol that has not run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sottovoce.cli import main as cli
from sottovoce.report.write import report, report_of_plan
from tests.sottovoce.report.test_report import Page, attacked, folder, results
from tests.support.paths import ROOT

ONE = "Purkayastha, ε = 10"


def study(place: Path) -> Path:
    """Two points of one seed more than one, the second of which was attacked at its last seed."""
    points = []
    for users in (40, 60):
        names = [f"users-{users}-seed-{seed}" for seed in (1, 2)]
        for seed, name in enumerate(names, 1):
            content = results("grid") | {"seed": seed}
            content["arms"][1]["accuracy_clean_test"] = 0.5 + users / 1000 + seed / 100
            content["arms"][0]["ladder"] = None  # as of what has none
            content["differences"] = [
                {
                    "arm": ONE,
                    "less": "no noise",
                    "users_added": False,
                    "sanitized": None,
                    "on_device": {"difference": 0.05, "error": 0.01},
                }
            ]
            folder(place / "runs" / name, content, attacked(ONE) if (users, seed) == (60, 2) else None)
        points.append({"point": {"population.users": users}, "runs": names})
    (place / "study.json").write_text(json.dumps({"name": "how many", "axes": ["population.users"], "points": points}))
    return place


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page, dict[str, Any]]:
    place = study(tmp_path_factory.mktemp("studies") / "s")
    html, label = report([place], place.parent / "report.html")
    text = html.read_text(encoding="utf-8")
    return text, Page(text), json.loads(label.read_text(encoding="utf-8"))


def test_a_study_is_told_of_by_its_means_figure_and_rows(told: tuple[str, Page, dict[str, Any]]) -> None:
    text, page, label = told
    assert page.texts("title")[0] == "Privacy report: how many"
    assert "4 runs: 2 points of the grid, each with the seeds 1, 2." in text
    assert '<td data-value="0.555">0.555 ± 0.005</td>' in text and '<td data-value="0.575">0.575 ± 0.005</td>' in text
    assert text.count("lies below") == 2 + 3  # of each point, and of each of the three runs that are told of
    assert f"users 60: no noise: lies below {ONE}, which are private" in text
    assert "All rows: one a run, arm, metric and split (" in text
    assert '<th scope="row" data-value="60">60</th>\n<td>users-60-seed-2</td>\n<td data-value="2">2</td>' in text
    (found,) = label["studies"]
    assert (found["name"], found["runs"], found["axes"]) == ("how many", 4, ["population.users"])
    wanted = (ONE, "accuracy", "on_device")
    means = [row for row in found["means"] if (row["arm"], row["metric"], row["split"]) == wanted]
    assert [(row["population.users"], row["n"]) for row in means] == [(40, 2), (60, 2)]
    assert means[0]["mean"] == pytest.approx(0.555) and means[0]["error"] == pytest.approx(0.005)


def test_of_each_point_one_run_is_shown_and_those_that_were_attacked(told: tuple[str, Page, dict[str, Any]]) -> None:
    text, page, label = told
    assert [run["seed"] for run in label["runs"]] == [1, 1, 2] and all(run["has_run"] for run in label["runs"])
    assert "success 0.310, where a guess without any release has 0.020" in text
    ids = [given["id"] for _, given in page.elements if "id" in given]
    assert len(ids) == len(set(ids))


def test_a_study_that_is_not_finished_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = study(tmp_path / "s")
    (place / "runs" / "users-60-seed-1" / "results.json").unlink()
    out = tmp_path / "report.html"
    assert cli.main(["report", str(place), "--out", str(out)]) == 2
    said = f"sottovoce: {place}: holds no finished study; run it again to go on: sottovoce sweep FILE.toml\n"
    assert capsys.readouterr().err == said and not out.exists()


PLAN = """
name = "plan"
shuffle = { enabled = false }
policy = { embedding = 32.0, label = 5.0 }
[data]
source = "built-in"
[[arm]]
name = "in clear"
reference = true
embedding = { mechanism = "identity", dim = 4 }
[[arm]]
name = "private"
embedding = { mechanism = "purkayastha", epsilon = 2.0, dim = 4 }
label = { mechanism = "randomized-response", epsilon = 1.5 }
[[arm]]
name = "all"
reference = true
protocol = "centralised"
"""


def test_a_protocol_that_has_not_run_has_the_same_page_without_what_only_a_run_can_tell(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(PLAN, encoding="utf-8")
    html, label = report_of_plan(file, tmp_path / "report.html")
    text = html.read_text(encoding="utf-8")
    Page(text)
    worst = 2 * math.pi + 1.5
    assert f"ε = {worst:.4g} (“private”" in text and f"ε = {math.pi * 3 + 1.5:.4g}" not in text
    assert "Nothing has run, so nobody was attacked" in text and "What would it cost at worst?" in text
    for absent in ("accuracy", "were run", "This run was not attacked", "<svg "):
        assert absent not in text.partition("The words</h2>")[0].partition("</style>")[2]
    assert f"sottovoce simulate {file} --out run" in text
    bare, private, everything = json.loads(label.read_text(encoding="utf-8"))["runs"][0]["arms"]
    assert not bare["protected"] and not everything["protected"]
    assert private["protected"] and private["trust"]["nobody"]["training"]["epsilon"] == pytest.approx(worst)
    assert private["accuracy"] == {"sanitized": None, "on_device": None}


def test_the_smallest_protocol_costs_what_the_page_for_privacy_officers_quotes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "privacy-review.md").read_text(encoding="utf-8")
    quoted = next(line for line in page.splitlines() if line.startswith("> For everything one user has"))
    html, label = report_of_plan("one-vector", tmp_path / "report.html")
    text = html.read_text(encoding="utf-8")
    assert quoted.removeprefix("> ").replace("**", "") in text
    assert "In all, one user may spend\nε = 2" in text and "policy.total</code> is infinite" not in text
    allowed = json.loads(label.read_text(encoding="utf-8"))["runs"][0]["policy"]
    assert allowed["total_epsilon"] == 2.0 and allowed["limits"] == [{"channel": "vector", "epsilon": 2.0}]
    report_of_plan("demo", tmp_path / "other.html")
    assert "policy.total</code> is infinite" in (tmp_path / "other.html").read_text(encoding="utf-8")


def test_the_command_of_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "plan.toml", tmp_path / "plan.html"
    file.write_text(PLAN, encoding="utf-8")
    ask = ["report", str(file), "--out", str(out)]
    assert cli.main([*ask, "--set", "arm.1.embedding.epsilon=1"]) == 0
    assert capsys.readouterr().out == f"{out}\n{out.with_suffix('.json')}\n"
    assert f"ε = {math.pi + 1.5:.4g} (“private”" in out.read_text(encoding="utf-8")
    out.unlink()
    assert cli.main([*ask, "--set", "arm.1.embedding.epsilon=100"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "its users refuse" in said and not out.exists()
    assert cli.main(["report", str(file), "--out", str(tmp_path / "plan.pdf")]) == 2
    assert "must end in .html" in capsys.readouterr().err

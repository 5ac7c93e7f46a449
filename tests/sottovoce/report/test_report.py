"""The report: well-formed, of itself, honest about what is infinite or was not tried, and its label for machines."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from server.card import Price
from simulations.output.jsonable import json_ready
from sottovoce.adversary.attacks.run import about
from sottovoce.cli import main as cli
from sottovoce.report import facts
from sottovoce.report.write import report, report_of_plan
from tests.support.paths import ROOT
from tests.support.results import demo

ONE = "Purkayastha, ε = 10"


def rung(name: str, epsilon: float | None, worst: float | None = None, **more: Any) -> dict[str, Any]:
    return {
        "rung": name,
        "epsilon": epsilon,
        "delta": 0.0,
        "unit": name,
        "neighbours": f"any two {name}s",
        "assumption": "drawn once",
        "worst_case": epsilon if worst is None else worst,
        "statement": None,
        "unprotected": [name] if epsilon == math.inf else [],
        "crowd": None,
    } | more


def results(name: str = "demo") -> dict[str, Any]:
    """One arm in clear, one under PrivUnit with a shuffler, one of texts that exposes their length."""
    made = demo()
    bare, one, text = made["arms"][1:4]
    bare |= {"ladder": [rung("embedding", math.inf), rung("user", math.inf), rung("shuffled", math.inf)]}
    bare["test_ladder"] = text["test_ladder"] = None
    shuffled = rung("shuffled", 0.5, 4.0, delta=1e-6, crowd=2000, assumption="a trusted shuffler")
    asked = [rung("answer", 2.0), rung("user", 2.0), shuffled | {"epsilon": 0.25, "worst_case": 2.0}]
    one |= {"ladder": [rung("statistic", 4.0), rung("user", 4.0), shuffled], "test_ladder": asked}
    one["budget"] |= {"worst_case_epsilon": 4.0}
    agree = "any two users' data, the same label (public), that agree in the number of tokens (public)"
    label = rung("label", None, assumption="declared public: sent in clear (why not)")
    text |= {"way": "sanitized-text", "ladder": [rung("text", 30.0), label, rung("user", 30.0, neighbours=agree)]}
    made |= {"name": name, "arms": [bare, one, text]}
    return made


def folder(place: Path, content: dict[str, Any], attacks: dict[str, Any] | None = None) -> Path:
    place.mkdir(parents=True)
    (place / "results.json").write_text(json.dumps(json_ready(content)))
    if attacks is not None:
        (place / "attacks.json").write_text(json.dumps(json_ready(attacks)))
    return place


def attacked(arm: str, attack: str = "vector-text", **more: Any) -> dict[str, Any]:
    entry = {
        "attack": attack,
        "arm": arm,
        "success": 0.31,
        "baseline": 0.02,
        "bound": 0.8,
        "interval": [0.2, 0.4],
        "alarm": False,
        "note": "",
        "about": about(attack),
        "worst_case_epsilon": 4.0,
    }
    return {"name": "demo", "entries": [entry | more], "skipped": []}


class Page(HTMLParser):
    """Refuses what is not well-formed. elements: with their attributes; data: text by element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.data.append((self.open[-1] if self.open else "", data))

    def ids(self) -> set[str | None]:
        ids = [given["id"] for _, given in self.elements if "id" in given]
        assert len(ids) == len(set(ids))
        return set(ids)

    def texts(self, tag: str) -> list[str]:
        return [data for name, data in self.data if name == tag]


def paid(epsilon: float | None, delta: float | None = 0.0, *, why: str | None = None) -> dict[str, Any]:
    """Return an entry of the label for what one user pays."""
    return {"epsilon": epsilon, "delta": delta, "public": [], "why": why}


Written = tuple[str, Page, dict[str, Any]]


def read(html: Path, label: Path) -> Written:
    text = html.read_text(encoding="utf-8")
    return text, Page(text), json.loads(label.read_text(encoding="utf-8"))


def made(*runs: Path) -> Written:
    return read(*report(runs, runs[0].parent / "report.html"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return made(folder(tmp_path_factory.mktemp("report") / "run", results()))


def test_is_a_page_of_itself(plain: Written) -> None:
    text, page, _ = plain
    names = [name for name, _ in page.elements]
    assert text.startswith("<!DOCTYPE html>") and page.elements[0] == ("html", {"lang": "en"})
    assert not {"link", "img", "iframe", "object", "base"} & set(names) and names.count("script") == 1
    asked = [value for _, given in page.elements for key, value in given.items() if key in ("src", "href")]
    assert asked and all(str(value).startswith("#") for value in asked)
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert {str(value)[1:] for value in asked} | set(re.findall(r"url\(#([^)]*)\)", text)) <= page.ids()
    assert text.count("<svg ") == 1 and len(re.findall(r'<svg role="img"[^>]*>\s*<title>[^<]+', text)) == 1
    policy = next(given["content"] for name, given in page.elements if given.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'")


def test_an_infinite_epsilon_is_no_number(plain: Written) -> None:
    _, page, told = plain
    said = "".join(data for name, data in page.data if name not in ("script", "style", "text"))
    assert not re.search(r"\binf\b|∞ *\d|\bnan\b|Infinity", said.replace("ε = ∞ where", ""))
    assert "NOT PROTECTED" in said and "REFERENCE, NOT FOR USE" in said
    bare, one, _ = told["runs"][0]["arms"]
    assert not bare["protected"] and bare["reference"] and bare["trust"]["nobody"]["training"]["epsilon"] is None
    assert all(each["epsilon"] is None and each["unprotected"] for each in bare["users"]["training"]["rungs"])
    assert one["protected"] and one["trust"]["nobody"]["training"] == paid(4.0)
    assert "Infinity" not in json.dumps(told) and '"inf"' not in json.dumps(told)


def test_says_what_left_what_it_cost_and_that_nobody_attacked(plain: Written) -> None:
    text, _, told = plain
    assert "one vector of numbers that sums up" in text and "WITHOUT PROTECTION" in text
    assert "the number of tokens of each text, declared public" in text
    assert "ε = 0.5 at δ = 1e-06, trusting the shuffler" in text
    assert "This run was not attacked" in text and "sottovoce attack " in text
    assert "at most 98.21 in 100 guesses" in text  # e^4/(1 + e^4) = 0.98201
    _, one, third = told["runs"][0]["arms"]
    assert one["users"]["training"]["amplification"]["crowd"] == 2000 and one["attacks"] is None
    assert one["trust"]["nobody"]["training"]["epsilon"] == 4
    assert third["users"]["training"]["exposed"][-1] == "the number of tokens of each text, declared public"
    assert "the true labels" not in " ".join(third["stays_on_device"])


def test_training_and_inference_have_prices_of_their_own(tmp_path: Path) -> None:
    content = results()
    unknown = "unknown how many records a user holds"
    for name, epsilon, price in (
        ("run", 200.0, paid(200.0)),
        ("unknown", None, paid(None, None, why=unknown)),
        ("silent", None, None),
    ):
        user = rung("user", epsilon, assumption=f"{unknown}; say how many")
        for arm in content["arms"]:
            arm["test_ladder"] = None
        content["arms"][1]["test_ladder"] = None if price is None else [user, rung("shuffled", None)]
        text, page, told = made(folder(tmp_path / name, content))
        one = told["runs"][0]["arms"][1]
        assert one["trust"]["nobody"] == {"training": paid(4.0), "inference": price}
        # the shuffler hides the training users, and no test user
        shuffled = paid(0.5, 1e-6) | {"whom": "the shuffler"}
        assert one["trust"]["with_trust"] == {"training": shuffled, "inference": None}
        assert ("For all requests of a user at inference, beside that: ε = 200" in text) == (name == "run")
        headings = [" ".join(each.split()) for each in page.texts("th")]
        assert ("inference: ε" in headings) == (name != "silent") and "training: ε" in headings


def test_no_finite_epsilon_stands_without_its_condition(tmp_path: Path) -> None:
    """In the page every ε of the arm is followed by what data agree in; in the label it stands beside it."""
    content, agree = results(), {"neighbours": "any two users' data, the same label (public)"}
    content["arms"][1]["ladder"] = [rung("user", 4.25, **agree), rung("shuffled", 0.53, delta=1e-6, **agree)]
    content["arms"][1]["test_ladder"] = None
    content["arms"][0]["ladder"] = [rung("text", math.inf), rung("user", math.inf)]
    text, _, told = made(folder(tmp_path / "run", content))
    # who sends the text keeps nothing that follows from it
    assert told["runs"][0]["arms"][0]["stays_on_device"] == ["the true labels, or which class a text belongs to"]
    said = " ".join(re.sub("<svg.*?</svg>|<[^>]*>", "", text, flags=re.S).split())
    behind = ", between data that agree in label, declared public (else ε = ∞)"
    for epsilon in ("ε = 4.25", "ε = 0.53 at δ = 1e-06"):
        assert said.count(epsilon) == said.count(epsilon + behind) >= 1
    one = told["runs"][0]["arms"][1]
    assert one["trust"]["nobody"]["training"]["public"] == one["trust"]["with_trust"]["training"]["public"] == ["label"]


@pytest.mark.parametrize("how", ["paper", "trusted"])
def test_where_somebody_has_to_be_trusted_nothing_is_called_protected(how: str, tmp_path: Path) -> None:
    content = results()
    arm = content["arms"][1]
    if how == "paper":
        arm["way"] = "paper"
    else:
        arm["budget"] |= {"worst_case_epsilon": math.inf, "central_epsilon": 0.25, "central_delta": 1e-6}
        arm["ladder"] = [rung("statistic", math.inf), rung("user", math.inf)]
    text, _, told = made(folder(tmp_path / "run", content))
    label = told["runs"][0]["arms"][1]
    assert not label["protected"] and label["trust"]["nobody"]["training"]["epsilon"] is None
    assert "In 1 of 3 arms" in text
    said = {"paper": "gradients depend", "trusted": "Everything, to a server"}
    assert said[how] in text


def test_names_are_escaped(tmp_path: Path) -> None:
    made_up = results("<b>run</b> & 'more'")
    name = '<script>alert("1")</script>'
    for arm in made_up["arms"]:
        arm["name"] = f"{name}{arm['name']}"
    made_up["versions"] = {"<i>": "</pre><script>"}
    run = folder(tmp_path / "run", made_up, attacked(f"{name}Purkayastha, ε = 10", note="<u>note</u>"))
    text, page, told = made(run)
    assert [name for name, _ in page.elements].count("script") == 1
    assert not {"b", "i", "u"} & {name for name, _ in page.elements}
    assert "&lt;script&gt;alert(" in text and "<script>alert" not in text
    assert told["runs"][0]["arms"][0]["name"].startswith(name)


def test_what_attacks_got_stands_beside_what_is_allowed(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", results(), attacked(ONE))
    (run / "audit").mkdir()
    entry = {"name": "laplace", "pair": "0 and 1", "verdict": "violated"}
    (run / "audit" / "audit.json").write_text(json.dumps({"entries": [entry], "violated": 1, "draws": 10}))
    text, _, told = made(run)
    assert "1 violated a claim" in text and "laplace: 0 and 1" in text and told["runs"][0]["audit"]["violated"] == 1
    assert "success 0.310, where a guess without any release has 0.020, and the theorem allows 0.800" in text
    assert "Nobody has attacked" not in text and "None got more than is promised" in text
    assert told["runs"][0]["arms"][1]["attacks"][0]["success"] == 0.31 and text.count("<svg ") == 2
    loud, _, _ = made(folder(tmp_path / "loud", results(), attacked(ONE, alarm=True, success=0.9)))
    assert "ALARM: 1 attacks got more" in loud and "ALARM: more than a true theorem allows" in loud


def test_several_runs_stand_side_by_side(tmp_path: Path) -> None:
    runs = [folder(tmp_path / name, results(name) | {"seed": seed}) for seed, name in enumerate("ab")]
    twin = folder(tmp_path / "twin", results("a") | {"seed": 0})
    text, page, told = made(*runs, twin)
    assert [run["name"] for run in told["runs"]] == ["a", "b", "a"]
    assert text.count("<svg ") == 3 and f"a, seed 0 ({twin})" in text
    assert page.ids() and '<th scope="col">run</th>' in text
    assert made(*runs, twin)[0] == text


BROKEN = results()
del BROKEN["arms"][0]["ladder"][0]["assumption"]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("results.json", None, "holds no results.json"),
        ("results.json", "[]", "is not readable"),
        ("results.json", "{}", "is no result"),
        ("results.json", json.dumps(json_ready(BROKEN)), "results.json"),
        ("attacks.json", '{"entries": [{"arm": "a"}]}', "attacks.json"),
        ("audit/audit.json", "{}", "audit/audit.json"),
    ],
)
def test_what_is_no_run_or_of_another_version_is_one_line(
    file: str, content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = folder(tmp_path / "run", results(), attacked(ONE)), tmp_path / "report.html"
    (run / "audit").mkdir()
    (run / file).unlink() if content is None else (run / file).write_text(content)
    assert cli.main(["report", str(run), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and str(run) in error and not out.exists()


def test_where_it_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(folder(tmp_path / "run", results()))
    for arguments, said in (
        ((run, "--out", str(tmp_path / "report.pdf")), "must end in .html"),
        ((run, "--out", str(tmp_path / "no" / "where.html")), "there is no folder"),
        ((run, run, "--out", str(tmp_path / "a.html")), "named twice"),
    ):
        assert cli.main(["report", *arguments]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (1.0, 0.1), (4.0, 1e-3)])
def test_the_best_guess_is_that_of_the_worst_pair(epsilon: float, delta: float) -> None:
    """Of randomized response that shows the truth with probability δ: (ε, δ)-private, and its best guess is known."""
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert facts.best_guess(Price(epsilon, delta)) == pytest.approx(delta + (1 - delta) * truth)
    assert facts.best_guess(Price(math.inf)) == 1.0 and facts.best_guess(Price(None)) is None


# --- studies, whose runs differ in a grid and seeds


def study(place: Path) -> Path:
    """Two points of one seed more than one, the second of which was attacked at its last seed."""
    points = []
    for users in (40, 60):
        names = [f"users-{users}-seed-{seed}" for seed in (1, 2)]
        for seed, name in enumerate(names, 1):
            content = results("grid") | {"seed": seed}
            content["arms"][1]["accuracy_clean_test"] = 0.5 + users / 1000 + seed / 100
            content["arms"][0]["ladder"] = None  # as of what has none
            difference = {"arm": ONE, "less": "no noise", "users_added": False, "sanitized": None}
            content["differences"] = [difference | {"on_device": {"difference": 0.05, "error": 0.01}}]
            folder(place / "runs" / name, content, attacked(ONE) if (users, seed) == (60, 2) else None)
        points.append({"point": {"population.users": users}, "runs": names})
    (place / "study.json").write_text(json.dumps({"name": "how many", "axes": ["population.users"], "points": points}))
    return place


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return made(study(tmp_path_factory.mktemp("studies") / "s"))


def test_a_study_is_told_of_by_its_means_figure_and_rows(grid: Written) -> None:
    text, page, label = grid
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


def test_of_each_point_one_run_is_shown_and_those_that_were_attacked(grid: Written) -> None:
    text, page, label = grid
    assert [run["seed"] for run in label["runs"]] == [1, 1, 2] and all(run["has_run"] for run in label["runs"])
    assert "success 0.310, where a guess without any release has 0.020" in text and page.ids()


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


def test_an_experiment_that_has_not_run_has_the_page_without_what_a_run_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "plan.toml", tmp_path / "plan.html"
    file.write_text(PLAN, encoding="utf-8")
    assert cli.main(["report", str(file), "--out", str(out), "--set", "arm.1.embedding.epsilon=1"]) == 0
    assert capsys.readouterr().out == f"{out}\n{out.with_suffix('.json')}\n"
    text, _, label = read(out, out.with_suffix(".json"))
    worst = math.pi + 1.5
    assert "policy.total</code> is infinite" in text
    assert f"ε = {worst:.4g} (“private”" in text and f"ε = {math.pi * 2 + 1.5:.4g}" not in text
    assert "Nothing has run, so nobody was attacked" in text and "What would it cost at worst?" in text
    for absent in ("accuracy", "were run", "This run was not attacked", "<svg "):
        assert absent not in text.partition("The words</h2>")[0].partition("</style>")[2]
    assert f"sottovoce simulate {file} --out run" in text
    bare, private, everything = label["runs"][0]["arms"]
    assert not bare["protected"] and not everything["protected"]
    assert private["protected"] and private["trust"]["nobody"]["training"]["epsilon"] == pytest.approx(worst)
    assert private["accuracy"] == {"sanitized": None, "on_device": None}


def test_the_smallest_protocol_costs_what_the_page_for_privacy_officers_quotes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "privacy-review.md").read_text(encoding="utf-8")
    quoted = next(line for line in page.splitlines() if line.startswith("> For everything one user has"))
    text, _, label = read(*report_of_plan("one-vector", tmp_path / "report.html"))
    assert quoted.removeprefix("> ").replace("**", "") in text
    assert "In all, one user may spend\nε = 2" in text and "policy.total</code> is infinite" not in text
    allowed = label["runs"][0]["policy"]
    assert allowed["total_epsilon"] == 2.0 and allowed["limits"] == [{"channel": "vector", "epsilon": 2.0}]

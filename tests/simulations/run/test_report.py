"""The report: a folder that is whole or absent, JSON that reads back, an honest table, figures."""

from __future__ import annotations

import copy
import json
import math
import tarfile
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from simulations.experiment import to_toml
from simulations.experiment.result import SHOWN, ArmResult, arms_of
from simulations.output.jsonable import json_ready
from simulations.run import report, trust
from simulations.run.accuracy import Counts
from simulations.run.comparison import added, baseline, conclusion, differences, gap
from simulations.run.evaluation import Answers
from simulations.run.figures import spent_figure
from simulations.run.frontier import frontier_figure
from simulations.run.measures import MEASURES, Guesses, Measure, Value, measures_of
from simulations.run.report import markdown, notes, print_table, table, undelivered, write
from simulations.run.table import COLUMNS, estimates, tidy
from simulations.sweep import tables
from sottovoce.report.write import report as report_html
from tests.support.paths import ROOT
from tests.support.results import demo, user
from tests.support.studies import (
    CLASSES,
    LAPLACE,
    PURKAYASTHA,
    RANDOMIZED,
    LocalGrid,
    experiment,
    placed,
    prepared,
    run_arms,
    use_folder,
)


def frontier(results: dict[str, Any]) -> Any:
    return frontier_figure([results])


def cells(results: dict[str, Any]) -> dict[str, list[str]]:
    """Return the cells of each row, by the arm's name."""
    return {arm.name: row for arm, row in zip(arms_of(results), table(results)[1:], strict=True)}


def printed(results: dict[str, Any], width: int = 120) -> str:
    text = StringIO()
    print_table(results, Console(file=text, width=width))
    return text.getvalue()


def test_json_has_infinity_as_a_text_and_no_numpy() -> None:
    value = {"a": math.inf, "b": np.float64(-np.inf), "c": math.nan, "d": np.arange(2), "e": (np.int64(3), None, True)}
    expected = {"a": "inf", "b": "-inf", "c": None, "d": [0, 1], "e": [3, None, True]}
    assert json.loads(json.dumps(json_ready(value), allow_nan=False)) == expected


def test_the_table_shows_what_was_spent() -> None:
    """Of all that one user releases: an embedding and its label, and a request."""
    arms = cells(demo())
    paid = ["33.42", "31.42"]
    assert arms["Purkayastha, ε = 10, label ε = 2"][1:] == ["0.885 ± 0.012", "0.900", *paid, "2,000", "34", "8.2"]
    assert arms["no noise"][0] == "no noise †" and arms["no noise"][3:5] == ["∞", "∞"]
    assert arms["public-only"][3:5] == ["–", "31.42"] and arms["Purkayastha, ε = 10"][3:5] == ["31.42 ‡", "31.42"]
    silent = demo()
    for arm in silent["arms"]:
        arm["test_ladder"] = None
    assert "ε,\ninference" not in table(silent)[0], "nobody sends a request"
    text = printed(demo())
    for words in ("Purkayastha, ε = 10, label ε = 2 ", "not private", "0.507, of 2 classes"):
        assert words in text
    assert all(len(row) <= 120 for row in text.splitlines())


def test_notes_count_what_was_lost_and_name_references_only_where_there_are_any() -> None:
    results = demo()
    lost = "Purkayastha, ε = 10: 3 not on the sphere (dropped), 1 the request could not be answered (errors)."
    assert lost in notes(results)
    results["arms"] = [arm for arm in results["arms"] if not arm["reference"]]
    assert not any("not private" in note for note in notes(results))


def test_the_way_sentence_is_on_every_output() -> None:
    results = demo() | {"way": "paper", "way_sentence": "A trusted simulation, not private."}
    assert "A trusted simulation, not private." in printed(results)
    assert "**A trusted simulation, not private.**" in markdown(results)
    for figure in (frontier(results), spent_figure(results)):
        assert "A trusted simulation, not private." in " ".join(figure.axes[0].get_title(loc="left").split())


def test_a_price_has_the_delta_of_gaussian_noise() -> None:
    results = demo()
    results["arms"][4]["ladder"] = user(4.0, worst_case=math.inf, delta=1e-6)
    assert cells(results)[results["arms"][4]["name"]][3] == "4 (δ 1e-06)" and "| 4 (δ 1e-06) |" in markdown(results)


def test_the_files_of_a_run(tmp_path: Path) -> None:
    paths = write(demo(), tmp_path)
    assert [p.name for p in paths] == ["results.json", "results.md", "accuracy.png", "spent.png"]
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["arms"][1]["budget"]["worst_case_epsilon"] == "inf"
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths[2:])
    table = (tmp_path / "results.md").read_text(encoding="utf-8").split("\n\n")[1].splitlines()
    assert len(table) == 2 + 6 and len({row.count("|") for row in table}) == 1


def test_what_protects_nothing_is_marked_whether_or_not_it_is_a_reference() -> None:
    results = demo()
    assert "| Purkayastha, ε = 10 |" in markdown(results)
    for name in ("worst_case_epsilon", "label_epsilon", "asking_epsilon"):
        for infinite in (math.inf, "inf"):
            arm = copy.deepcopy(results["arms"][4])
            arm["budget"][name] = infinite
            assert not trust.unprotected(arms_of(results)[4]) and trust.unprotected(ArmResult.from_dict(arm))
    results["arms"][4]["budget"]["worst_case_epsilon"] = math.inf
    assert "Purkayastha, ε = 10, label ε = 2 †" in markdown(results)


def test_a_table_says_whom_a_user_trusts_where_anybody_is_trusted() -> None:
    """The server with everything, the shuffler for a central ε, nobody for the worst case; no column where there is
    nothing of the kind to compare."""
    results = demo()
    assert "trusts" not in printed(results) and "trusts" not in markdown(results)
    first, second, *rest = (dict(arm) for arm in results["arms"])
    first |= {"reference": True, "budget": dict(first["budget"]) | {"central_epsilon": 1.0, "central_delta": 1e-6}}
    shuffled = {"rung": "shuffled", "epsilon": 0.5, "delta": 1e-6}
    second |= {"reference": False, "ladder": [shuffled]}
    third = second | {"ladder": [shuffled | {"epsilon": None}]}
    trusted = results | {"arms": [first, second, third, second | {"reference": True}, *rest]}
    headings, *rows = table(trusted)
    at = headings.index("trusts")
    told = [tuple(row[at - 1 : at + 1]) for row in rows[:4]]
    assert told == [("1", "the server"), ("0.5", "the shuffler"), ("–", "nobody"), ("–", "the server")]
    assert "trusts" in printed(trusted) and "| central ε | trusts |" in markdown(trusted)
    assert any("The other ε trust nobody" in note for note in notes(trusted))


def test_users_who_release_nothing_but_noise_are_said_to_teach_nothing() -> None:
    results = demo()
    first, *rest = results["arms"]
    none = {"accuracy": None, "accuracy_clean_test": None, "delivered": 1924, "way": "statistics"}
    others = {"accuracy_clean_test": 0.7}, {"delivered": 0}, {"way": "release-once"}
    for change, said in (({}, 1), *((other, 0) for other in others)):
        lines = [each for each in notes(results | {"arms": [first | none | change, *rest]}) if "no model" in each]
        assert len(lines) == said and all("1,924 users" in line for line in lines)


def test_users_who_were_not_queried_are_no_loss() -> None:
    results = demo()
    first, *rest = results["arms"]
    silent = {"users": 2000, "delivered": 0, "queried": False}
    lines = notes(results | {"arms": [first | silent, *rest]})
    assert len([line for line in lines if "none of its 2,000 users was queried" in line]) == 1
    assert undelivered(results | {"arms": [first | silent, *rest]}) == []
    assert len(undelivered(results | {"arms": [first | silent | {"queried": True}, *rest]})) == 1


def test_what_a_user_pays_is_of_all_records() -> None:
    results = demo()
    results["arms"][2] |= {"ladder": user(6.0), "test_ladder": user(200.0)}
    results["arms"][4] |= {"ladder": user(7.5), "test_ladder": user(None)}
    one, other = (results["arms"][i]["name"] for i in (2, 4))
    assert cells(results)[one][3:5] == ["6", "200"] and cells(results)[other][3:5] == ["7.5", "not known"]
    assert [trust.asking(arm) for arm in arms_of(results)][2:5:2] == [200.0, None]


def test_an_epsilon_between_data_that_agree_in_something_public_says_so_everywhere(tmp_path: Path) -> None:
    """Results, means, sweeps and figures: between data that differ in it, ε is infinite."""
    results, agreed = demo(), ("label", "the number of tokens")
    said = "ε is between data that agree in label and the number of tokens, declared public; between others it is ∞."
    assert said not in "\n".join(notes(results))
    results["arms"][2]["ladder"] = user(6.0, public=agreed)
    results["arms"][1]["ladder"] = user(math.inf)
    name = results["arms"][2]["name"]
    assert [line for line in notes(results) if said in line] == [f"‡ {name}: {said}"]
    assert cells(results)[name][3] == "6 ‡" and said in " ".join(printed(results).split())
    points = [tables.Point({"population.users": n}, [tmp_path, tmp_path], [results, results]) for n in (10, 20)]
    assert tables._notes(points).count(f"‡ {name}: {said}") == 1
    rows = tables.overview(tables.Finished("demo", ["population.users"], points))
    assert sum("6 ‡" in row for row in rows) == 2
    (priced,) = {each.metric for each in estimates(arms_of(results)[2]) if each.metric.startswith("local_epsilon:")}
    assert priced == "local_epsilon: same label and length"
    shown = [text.get_text() for text in frontier(results).legends[0].get_texts()]
    assert any("label and the number of tokens public" in " ".join(text.split()) for text in shown)
    assert "‡: between data that agree in what is declared public" in spent_figure(results).axes[0].get_xlabel()


# --- which arms are set against each other


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


def test_tables_show_what_users_added_with_its_error() -> None:
    results = compared()
    text = markdown(results)
    (row,) = [line for line in text.splitlines() if line.startswith("| Purkayastha, ε = 10 |")][:1]
    assert "| 0.900 ± 0.012 | 0.900 | +0.009 ± 0.004 | 31.42 ‡ |" in row
    assert "| public-only | 0.810 ± 0.012 | 0.830 | – |" in text and "less that of the public-only arm" in text
    assert printed(results).count("+0.009 ± 0.004") == 1


def test_the_conclusion_is_what_users_teach_beside_the_best_guess_without_them() -> None:
    """The commonest class, or a public-only arm if it is right more often."""
    results = compared()
    text = conclusion(results)
    alone = next(arm for arm in results["arms"] if arm["name"] == "public-only")
    assert text.startswith('Without users the best guess is right 0.830 of the time ("public-only"); with them ')
    assert text in markdown(results) and text.count(" at ε = ") == 4 and "0.880 ± 0.010 at ε = 1.571" in text
    results["chance"] = 0.99
    assert "0.990 of the time (the commonest class)" in conclusion(results)
    unknown = [arm | {"ladder": None} for arm in results["arms"]]
    for arms in ([alone], unknown):  # nobody taught, or nobody knows what they paid
        assert conclusion(results | {"arms": arms}) == ""


# --- a column of results costs one place that computes it and one that shows it

HEADING = "worst tenth of users, on device"


@pytest.fixture
def two_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracy of each class, as groups are compared; and of the tenth of users whose texts are predicted worst."""

    def by_class(guesses: Guesses) -> dict[str, Value]:
        def accuracy(group: Guesses) -> Value:
            right = group.guessed == group.labels
            return group.value(lambda weights: float(weights @ right / weights.sum()))

        return {guesses.classes[k]: accuracy(guesses.of(guesses.labels == k)) for k in np.unique(guesses.labels)}

    def worst_tenth(guesses: Guesses) -> Value:
        right = guesses.guessed == guesses.labels
        user = np.unique(guesses.users, return_inverse=True)[1]

        def worst(weights: np.ndarray) -> float:
            shares = np.bincount(user, weights * right) / np.maximum(np.bincount(user, weights), 1)
            return float(np.sort(shares)[: -(-len(shares) // 10)].mean())

        return guesses.value(worst)

    for name, column, heading in (
        ("recall", by_class, "accuracy by class"),
        ("worst-tenth", worst_tenth, "worst tenth of users"),
    ):
        monkeypatch.setitem(MEASURES, name, Measure(column, wanted=lambda data, held: True))
        monkeypatch.setitem(SHOWN, name, heading)


@pytest.mark.usefixtures("two_columns")
def test_a_new_column_is_in_every_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "study"
    use_folder(place / "nodes", monkeypatch)
    study = experiment({"name": "users", "embedding": PURKAYASTHA | {"epsilon": 0.5}, "label": RANDOMIZED})
    ready = prepared(study)
    nodes = placed(study, ready, place / "nodes")
    line = run_arms(study, LocalGrid(nodes), ready=ready, models=place / "models")["users"].line
    names = measures_of(study.data, ready.held)
    results = demo() | {"arms": [line], "measures": list(names), "classes": list(ready.public.classes)}
    run = place / "runs" / "a"
    run.mkdir(parents=True)
    (run / "experiment.toml").write_text(to_toml(study), encoding="utf-8")
    report.write(results, run)
    about = {"name": "s", "axes": [], "points": [{"point": {}, "runs": ["a"]}]}
    (place / "study.json").write_text(json.dumps(about), encoding="utf-8")
    (arm,) = arms_of(json.loads((run / "results.json").read_text(encoding="utf-8")))
    groups = [each for each in arm.estimates() if each.metric.startswith("recall: ") and each.split == "on_device"]
    assert len(groups) == CLASSES and sum(each.n or 0 for each in groups) == 40
    worst = arm.estimate("worst-tenth", "on_device")
    assert worst is not None and worst.value <= (arm.accuracy_clean_test or 0) and worst.n == 40

    table = tidy({"a": results})
    assert tuple(table.columns) == COLUMNS and {each.metric for each in groups} <= set(table["metric"])
    said = f"{worst.value:.3f} ± {worst.standard_error:.3f}"
    text = (run / "results.md").read_text(encoding="utf-8")
    assert said in text and HEADING in text and "## accuracy by class, on device" in text
    said_by_group = f"{groups[0].value:.3f} ± {groups[0].standard_error:.3f}"
    assert said_by_group in text
    html, label = report_html([run, tmp_path / "study"], tmp_path / "report.html")
    assert html.read_text(encoding="utf-8").count(HEADING) == 3  # of the run, of the study, and of the study's run
    assert json.loads(label.read_text())["runs"][0]["arms"][0]["measures"]["worst-tenth"]["on_device"] == worst.value
    result = tables.read(tmp_path / "study")
    assert HEADING in tables.overview(result)[0]
    card = (tmp_path / "study" / "models" / "users" / "README.md").read_text(encoding="utf-8")
    assert f"| Worst tenth of users, clean test sentences | {worst.value:.4g} |" in card


def test_arms_of_a_kept_run_are_read_and_written_unchanged() -> None:
    with tarfile.open(ROOT / "tests" / "golden" / "runs-0.2.0.tar.gz") as archive:
        for name in ("release-once", "statistics"):
            lines = json.load(archive.extractfile(f"./{name}/results.json"))["arms"]  # type: ignore[arg-type]
            again = [json_ready(ArmResult.from_dict(line).to_dict()) for line in lines]
            # which that version did not have
            new = {"guessed": {}, "liars": "", "batch_tests": [], "queried": True, "doubts": []}
            for line in lines:
                line["budget"] = {"public": []} | line["budget"]
                del line["budget"]["simulated_epsilon"]  # of curators that are gone
            assert again == [new | line for line in lines] and lines

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

from simulations.experiment.result import ArmResult, arms_of
from simulations.output.jsonable import json_ready
from simulations.run import trust
from simulations.run.accuracy import Counts
from simulations.run.comparison import added, baseline, conclusion, differences, gap
from simulations.run.evaluation import Answers
from simulations.run.figures import frontier_figure
from simulations.run.report import markdown, notes, print_table, table, undelivered, write
from simulations.run.table import estimates
from tests.support.paths import ROOT
from tests.support.results import demo, user
from tests.support.studies import (
    LAPLACE,
    PURKAYASTHA,
    RANDOMIZED,
    experiment,
)


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
    assert all(len(row) <= 120 for row in printed(demo()).splitlines())
    gaussian = demo()
    gaussian["arms"][4]["ladder"] = user(4.0, worst_case=math.inf, delta=1e-6)
    gaussian["arms"][2] |= {"ladder": user(6.0), "test_ladder": user(None)}
    assert cells(gaussian)["Purkayastha, ε = 10, label ε = 2"][3] == "4 (δ 1e-06)"
    assert cells(gaussian)["Purkayastha, ε = 10"][3:5] == ["6", "not known"]
    assert trust.local(arms_of(gaussian)[2], whose="test user") is None


def test_notes_count_what_was_lost_and_name_references_only_where_there_are_any() -> None:
    results = demo()
    lost = "Purkayastha, ε = 10: 3 not on the sphere (dropped), 1 the request could not be answered (errors)."
    assert lost in notes(results) and not any(note.startswith("Words") for note in notes(results))
    words = {"train": {"words": 2000, "perturbed": 500}, "test": {"words": 9, "perturbed": 0}}
    changed = notes(results | {"arms": [results["arms"][0] | {"name": "a", "perturbed": words}]})
    assert "Words replaced or removed: a: 25.0% of 2,000 in training, 0.0% of 9 to ask." in changed
    results["arms"] = [arm for arm in results["arms"] if not arm["reference"]]
    assert not any("not private" in note for note in notes(results))


def test_the_files_of_a_run(tmp_path: Path) -> None:
    paths = write(demo(), tmp_path)
    assert [p.name for p in paths] == ["results.json", "results.md", "accuracy.png"]
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["arms"][1]["budget"]["worst_case_epsilon"] == "inf"
    sentence = {"way_sentence": "A trusted simulation, not private."}
    assert all(sentence["way_sentence"] in text(demo() | sentence) for text in (markdown, printed))
    assert paths[2].read_bytes().startswith(b"\x89PNG")
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


@pytest.mark.parametrize(
    ("change", "lines", "lost"),
    [
        ({"accuracy": None, "accuracy_clean_test": None, "way": "statistics"}, ["no model comes of it: what 2,000"], 0),
        ({"accuracy": None, "accuracy_clean_test": None}, [], 0),
        ({"delivered": 0, "queried": False}, ["none of its 2,000 users was queried"], 0),
        ({"delivered": 0}, ["none of 2,000 users was delivered"], 1),
    ],
)
def test_an_arm_without_a_model_or_users_has_its_reason(change: dict[str, Any], lines: list[str], lost: int) -> None:
    results = demo()
    results["arms"][4] |= change
    name = results["arms"][4]["name"]
    mine = [note for note in notes(results) if note.startswith(f"{name}: ")]
    assert len(mine) == len(lines) and all(words in note for words, note in zip(lines, mine, strict=True))
    assert len(undelivered(arms_of(results))) == lost


def test_an_epsilon_between_data_that_agree_in_something_public_says_so() -> None:
    """Between data that differ in it, ε is infinite."""
    results, agreed = demo(), ("label", "the number of tokens")
    said = "ε is between data that agree in label and the number of tokens, declared public; between others it is ∞."
    assert said not in "\n".join(notes(results))
    results["arms"][2]["ladder"] = user(6.0, public=agreed)
    results["arms"][1]["ladder"] = user(math.inf)
    name = results["arms"][2]["name"]
    assert [line for line in notes(results) if said in line] == [f"‡ {name}: {said}"]
    assert cells(results)[name][3] == "6 ‡" and said in " ".join(printed(results).split())
    (priced,) = {each.metric for each in estimates(arms_of(results)[2]) if each.metric.startswith("local_epsilon:")}
    assert priced == "local_epsilon: same label and length"
    shown = [text.get_text() for text in frontier_figure([results]).legends[0].get_texts()]
    assert any("label and the number of tokens public" in " ".join(text.split()) for text in shown)


# --- which arms are set against each other


def answers(sanitized: float, device: float, n: int = 100) -> Answers:
    """Of so many texts the first ones are right."""
    one = np.ones(n, np.int64)
    shares = {"sanitized": sanitized, "on_device": device}
    return {split: Counts(one, (np.arange(n) < share * n).astype(np.int64)) for split, share in shares.items()}


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
    # a deployment runs one arm of its study
    (pair,) = differences(STUDY.arms, {name: FOUND[name] for name in ("other", "users")})
    assert (pair["arm"], pair["less"]) == ("other", "users") and not differences(STUDY.arms, {"users": FOUND["users"]})


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

"""The report: a folder that is whole or absent, JSON that reads back, an honest table, figures."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from simulations.errors import UserError
from simulations.experiment.result import ArmResult, arms_of
from simulations.output.atomic import staged
from simulations.output.jsonable import json_ready
from simulations.run import trust
from simulations.run.figures import spent_figure
from simulations.run.frontier import frontier_figure
from simulations.run.report import markdown, notes, print_table, table, undelivered, write
from simulations.run.table import estimates
from simulations.sweep import tables
from tests.support.results import curve, demo, genre, user

CASES = (demo, genre, curve)


def frontier(results: dict[str, Any]) -> Any:
    return frontier_figure({"": [results]})


def cells(results: dict[str, Any]) -> dict[str, list[str]]:
    """Return the cells of each row, by the arm's name."""
    return {arm.name: row for arm, row in zip(arms_of(results), table(results)[1:], strict=True)}


def printed(results: dict[str, Any], width: int = 120) -> str:
    text = StringIO()
    print_table(results, Console(file=text, width=width))
    return text.getvalue()


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    with staged(out) as part:
        (part / "a").write_text("1")
        assert not out.exists() and part.parent == out.parent
    assert [p.name for p in out.parent.iterdir()] == ["run"]
    assert (out / "a").read_text() == "1" and out.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_fails_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), staged(tmp_path / "deep" / "deeper" / "run") as part:
        (part / "a").write_text("1")
        raise error
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_is_taken_and_a_full_one_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with staged(out) as part:
        (part / "a").write_text("1")
    assert (out / "a").exists()
    with pytest.raises(UserError, match="not an empty folder"), staged(out):
        pytest.fail("a full folder was accepted")
    with pytest.raises(UserError, match="not an empty folder"), staged(out / "a"):
        pytest.fail("a file was accepted")
    with pytest.raises(UserError, match="cannot be written"), staged(out / "a" / "b"):
        pytest.fail("a folder inside a file was accepted")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


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


def test_a_narrow_terminal_cuts_no_number() -> None:
    rows = printed(demo(), width=80)
    assert "0.885 ± 0.012" in rows and "31.42" in rows and "Purkayastha" in rows
    assert all(len(row) <= 80 for row in rows.splitlines())


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


def test_what_does_not_apply_is_a_dash() -> None:
    results = demo()
    empty = dict.fromkeys(results["arms"][0]) | {
        "name": "public-only",
        "way": "public-only",
        "accuracy_clean_test": 0.8,
    }
    results["arms"][0] = empty
    assert cells(results)["public-only"][1:] == ["–", "0.800", "–", "–", "–", "–", "–"]
    for draw in (frontier, spent_figure):
        draw(results).canvas.draw()


def test_every_epsilon_stands_with_its_own_delta() -> None:
    """One arm's label costs its ε at δ = 0: the other figures of the table are not at that δ for it."""
    results = demo()
    rung = {"unprotected": [], "assumption": "", "neighbours": "", "unit": "", "statement": None, "crowd": None}
    first, second = results["arms"][3], results["arms"][4]
    first["ladder"] = [rung | {"rung": "embedding", "epsilon": 2.066, "delta": 1e-6, "worst_case": 3.142}]
    second["ladder"] = [
        rung | {"rung": "embedding", "epsilon": 2.066, "delta": 1e-6, "worst_case": 3.142},
        rung | {"rung": "label", "epsilon": 2.0, "delta": 0.0, "worst_case": 2.0},
        rung | {"rung": "record", "epsilon": "inf", "delta": 1e-6, "worst_case": "inf"},
        rung | {"rung": "shuffled", "epsilon": 0.171, "delta": 1e-6, "worst_case": 5.142, "crowd": 8500},
    ]
    text = markdown(results)
    assert "At δ" not in text and text.count("2.066 (1e-06)") == 2 and "| 2 (0) | ∞ |" in text
    assert "0.171 (1e-06, crowd 8,500)" in text
    second["ladder"] = user(4.0, worst_case=math.inf, delta=1e-6)  # Gaussian noise
    assert cells(results)[second["name"]][3] == "4 (δ 1e-06)" and "| 4 (δ 1e-06) |" in markdown(results)


def test_the_files_of_a_run(tmp_path: Path) -> None:
    paths = write(demo(), tmp_path)
    assert [p.name for p in paths] == ["results.json", "results.md", "accuracy.png", "spent.png"]
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["arms"][1]["budget"]["worst_case_epsilon"] == "inf"
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths[2:])
    table = (tmp_path / "results.md").read_text(encoding="utf-8").split("\n\n")[1].splitlines()
    assert len(table) == 2 + 6 and len({row.count("|") for row in table}) == 1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("draw", [frontier, spent_figure])
def test_nothing_in_a_figure_is_cut_off(case: Callable[[], dict[str, Any]], draw: Callable[..., Any]) -> None:
    figure = draw(case())
    figure.canvas.draw()
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height


@pytest.mark.parametrize("draw", [frontier, spent_figure])
def test_long_names_leave_room_for_what_is_drawn(draw: Callable[..., Any]) -> None:
    results = demo()
    for arm in results["arms"]:
        arm["name"] = f"{arm['name']}: {'as somebody has called it who had a great deal to say of it, ' * 3}"
        arm["mechanism"] = f"{arm['mechanism']} of somebody else's package with a long name"
    figure = draw(results)
    figure.canvas.draw()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width + 0.01 and box.y1 <= height + 0.01
    drawn = figure.axes[0].get_position()
    assert drawn.width * len(figure.axes) > 0.45 and drawn.height > 0.3


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


def test_an_encoder_in_int8_is_named() -> None:
    results = demo()
    results["encoder"] = {"model": "minilm", "precision": "fp32", "sha256": "00"}
    assert not any("Encoder" in note for note in notes(results))
    results["encoder"]["precision"] = "int8"
    assert "Encoder: minilm in int8" in markdown(results)


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


def test_a_reference_that_a_private_arm_beats_is_remarked() -> None:
    results = demo()
    names = [arm["name"] for arm in results["arms"]]

    def pair(difference: float) -> dict[str, Any]:
        gap = {"difference": difference, "error": 0.01}
        return {"arm": names[4], "less": "no noise", "users_added": False, "sanitized": gap, "on_device": gap}

    for difference, said in ((0.036, 1), (0.009, 0), (-0.036, 0)):
        lines = [line for line in notes(results | {"differences": [pair(difference)]}) if "lies below" in line]
        assert len(lines) == said and all(line.startswith(f"no noise: lies below {names[4]}") for line in lines)


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

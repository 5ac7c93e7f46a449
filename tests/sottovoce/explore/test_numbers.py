"""The numbers on the page are those of the command line, of ten settings; most are slow, as both compute them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from simulations.errors import UserError
from simulations.experiment import load
from sottovoce.explore.protocol import Protocol, worst_cases
from sottovoce.explore.settings import Settings
from sottovoce.explore.world import World
from tests.sottovoce.explore.conftest import Ask
from tests.support.budgets import answer, rung
from tests.support.exploring import TOKEN

SETTINGS: list[Any] = [
    {"epsilon": 2.0, "dim": 8, "users": 1, "delta": 1e-5},
    {"channel": "statistic", "epsilon": 1.0, "dim": 8, "users": 2, "delta": 1e-8},
    {"channel": "label", "epsilon": 0.5, "users": 2},
    *(
        pytest.param(about, marks=pytest.mark.slow)
        for about in (
            {"epsilon": 2.0, "dim": 8, "users": 1000, "delta": 1e-5},
            {"epsilon": 4.0, "dim": 16, "users": 20_000},
            {"epsilon": 3.0, "dim": 16, "label_epsilon": 1.0, "users": 5000},
            {"mechanism": "planar-laplace", "epsilon": 4.0, "dim": 16},
            {"mechanism": "gaussian", "epsilon": 4.0, "dim": 16, "delta": 1e-5},
            {"channel": "statistic", "epsilon": 4.0, "dim": 16, "users": 10_000},
            {"channel": "label", "epsilon": 2.0, "users": 10_000},
            {"channel": "label", "epsilon": 6.0, "users": 10_000_000, "delta": 1e-9},
        )
    ),
]


def options(settings: Settings, classes: int) -> list[str]:
    size = settings.size(classes)
    sized = "" if size is None else f",dim={size}"
    label = settings.label_epsilon
    beside = [] if label is None else ["--mechanism", f"randomized-response:epsilon={label}"]
    own = f"{settings.mechanism}:epsilon={settings.epsilon}{sized}"
    return ["--mechanism", own, *beside, "--delta", str(settings.delta), "--users", str(settings.users)]


@pytest.mark.parametrize("about", SETTINGS)
def test_ten_settings_cost_what_the_command_line_says(
    about: dict[str, Any], ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings.of(about)
    same = options(settings, 2)
    price, loss, crowd = ask("price", about, text=""), ask("loss", about), ask("crowd", about)
    found = answer(capsys, "ladder", *same)
    record, shuffled = rung(found["ladder"], "record"), rung(found["ladder"], "shuffled")
    assert price["worst_case"] == record["worst_case"] and loss["local"] == record["epsilon"]
    assert price["mechanisms"] == found["mechanisms"]
    hidden = shuffled["epsilon"] is not None
    assert crowd["epsilon"] == pytest.approx(shuffled["epsilon"] if hidden else record["epsilon"], rel=1e-4)


#: A label alone, a vector, an embedding with a label in rounds of several records, and a label beside by its own.
STACKS: list[Any] = [
    [{"channel": "label", "epsilon": 1.0, "users": 1}],
    [{"mechanism": "gaussian", "epsilon": 2.0, "dim": 3, "users": 1}],
    *(
        pytest.param(stack, marks=marks)
        for stack, *marks in (
            (
                [{"channel": "statistic", "epsilon": 2.0, "dim": 8, "rounds": 4, "users": 5000, "delta": 1e-7}],
                pytest.mark.slow,
            ),
            ([{"epsilon": 1.0, "dim": 3, "label_epsilon": 0.5, "records": 2, "users": 200}], pytest.mark.slow),
            (
                [{"epsilon": 1.0, "dim": 3}, {"channel": "label", "epsilon": 0.5, "rounds": 2, "users": 200}],
                pytest.mark.slow,
                pytest.mark.soak,
            ),
        )
    ),
]


@pytest.mark.parametrize("stack", STACKS)
def test_the_command_that_is_copied_prints_the_ladder_of_the_page(
    stack: list[dict[str, Any]], ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask("protocol", stack=stack)
    program, *arguments = found["command"].split()
    assert program == "sottovoce" and arguments[:2] == ["budget", "ladder"]
    assert answer(capsys, *arguments[1:])["ladder"] == found["ladder"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "stack",
    [
        [{"epsilon": 2.0, "dim": 8, "users": 2000}, {"channel": "label", "epsilon": 1.0, "users": 2000}],
        [{"channel": "statistic", "epsilon": 4.0, "dim": 16, "users": 2000}],
        [{"epsilon": 2.0, "dim": 8, "users": 2000}],
        [{"mechanism": "gaussian", "epsilon": 2.0, "dim": 8, "users": 2000}],
    ],
)
def test_the_experiment_that_is_copied_costs_what_the_page_says(
    stack: list[dict[str, Any]], ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask("protocol", stack=stack)
    (tmp_path / "explored.toml").write_text(found["toml"], encoding="utf-8")
    (arm,) = answer(capsys, "ladder", str(tmp_path / "explored.toml"), "--records", "1")["arms"]
    for name in ("embedding", "statistic"):
        if any(stacked.get("channel", "embedding") == name for stacked in stack):
            assert rung(arm["ladder"], name)["worst_case"] == rung(found["ladder"], name)["worst_case"]
            assert rung(arm["ladder"], name)["epsilon"] == rung(found["ladder"], name)["epsilon"]


@pytest.mark.slow
def test_a_text_as_an_experiment_is_one_that_can_be_read(ask: Ask, tmp_path: Path) -> None:
    found = ask("protocol", stack=[{"channel": "text", "epsilon": 2.0, "label_epsilon": 1.0, "users": 3}])
    (tmp_path / "explored.toml").write_text(found["toml"], encoding="utf-8")
    (arm,) = load(str(tmp_path / "explored.toml"), []).arms
    assert arm.text is not None and arm.text["epsilon"] == 2.0 and found["command"].endswith("explored.toml")


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        ([], "must be a list of 1 to 4 questions"),
        ([{}, {}], "asked for twice in one round"),
        ([{"channel": "statistic"}, {}], "nothing goes beside it"),
        ([{"label_epsilon": 1.0}, {"channel": "label"}], "the label is asked for twice"),
        ([{"rounds": 0}], "rounds must be a whole number"),
    ],
)
def test_questions_that_do_not_go_together_are_one_line(stack: list[Any], said: str, client: TestClient) -> None:
    refused = client.post(f"/{TOKEN}/api/protocol", json={"stack": stack})
    assert refused.status_code == 400 and said in refused.json()["error"]


@pytest.mark.parametrize(
    ("stack", "why"),
    [
        ([{"channel": "label", "epsilon": 1.0, "users": 1}], "a label alone"),
        ([{"epsilon": 1.0, "dim": 3}, {"channel": "text", "epsilon": 1.0, "users": 1}], "texts or embeddings"),
        ([{"channel": "text", "mechanism": "custext", "k": 3}], "without protection"),
        ([{"channel": "statistic", "dim": 2, "epsilon": 0.5, "users": 10**5}], "at most 98,000 users"),
    ],
)
def test_what_no_experiment_can_be_is_said(stack: list[Any], why: str, world: World) -> None:
    protocol = Protocol.of(stack)
    made = [mechanism for settings in protocol.stack for mechanism in settings.mechanisms(2, world.vocabulary)]
    with pytest.raises(UserError, match=why):
        protocol.experiment({}, {}, worst_cases(made, {"length": "shown"}))


def test_where_there_is_no_experiment_the_ladder_stands_and_says_why(ask: Ask) -> None:
    found = ask("protocol", stack=[{"channel": "label", "epsilon": 1.0, "users": 1}])
    assert found["toml"] is None and "a label alone" in found["why"] and len(found["ladder"]) == 7

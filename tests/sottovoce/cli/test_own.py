"""Somebody else's mechanism by its place or its entry point, wherever a command takes a mechanism's name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mechanisms import catalogue
from mechanisms.mechanism_text import read_mechanism
from simulations.experiment.schema import schema
from sottovoce.cli.main import main
from tests.support.own_package import write_package
from tests.support.studies import LocalGrid, experiment, ledger_rows, make_nodes, run_arms, use_folder

COIN = {"mechanism": "quiet.noise:Open", "epsilon": 3.0}
SIGNS = {"mechanism": "quiet.noise:Direction", "epsilon": 12.0, "dim": 4}


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_ADMITTED", {})
    monkeypatch.syspath_prepend(str(write_package(tmp_path / "installed")))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["quiet.noise:Open", "quiet-coin"])
def test_a_study_runs_with_it_and_its_ledgers_are_charged(name, tmp_path, monkeypatch):
    study = experiment({"name": "theirs", "embedding": SIGNS, "label": COIN | {"mechanism": name}})
    nodes = make_nodes(study, tmp_path / "nodes")
    use_folder(tmp_path / "nodes", monkeypatch)
    catalogue._ADMITTED.clear()  # a client is another process, and knows what its folder names
    ran = run_arms(study, LocalGrid(nodes))["theirs"]
    assert ran.model is not None and ran.line["accuracy"] is not None
    costs = {(row.channel, row.guarantee.worst_case()) for row in ledger_rows(tmp_path / "nodes", "theirs")}
    assert costs == {("embedding", 12.0), ("label", 3.0)}


def test_only_what_arms_name_is_allowed_beside_the_catalogue():
    study = experiment({"name": "theirs", "embedding": SIGNS, "label": COIN | {"mechanism": "quiet.noise:Installed"}})
    allowed = study.setups[0].policy.mechanisms
    assert {*allowed} - {*catalogue.CATALOGUE} == {"quiet.noise:Direction", "quiet-coin"}


def test_editors_take_a_place_and_what_is_installed():
    known = schema()["properties"]["arm"]["items"]["properties"]
    names, place = known["label"]["properties"]["mechanism"]["anyOf"]
    assert "quiet-coin" in names["enum"] and place["pattern"] == ":"
    assert len(known["curator"]["properties"]["mechanism"]["anyOf"]) == 1


def test_budgets_and_plans(capsys):
    assert main(["budget", "ladder", "--mechanism", "quiet-coin:epsilon=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ladder"][-2]["worst_case"] == 2.0
    asked = ["budget", "plan", "--mechanism", "quiet.noise:Direction:dim=4", "--users", "20000"]
    assert main([*asked, "--central-epsilon", "1", "--delta", "1e-6", "--label-epsilon", "1", "--json"]) == 0
    (split,) = json.loads(capsys.readouterr().out)["splits"]
    assert split["central_epsilon"] <= 1 and split["worst_case"] == pytest.approx(split["embedding_epsilon"])


def test_texts_are_rewritten(tmp_path, capsys):
    Path("words.txt").write_text("fine 1 0\ndull 0 1\nfilm 1 1\n")
    Path("in.txt").write_text("a fine film\nfine\n")
    asked = ["sanitize", "--words", "words.txt", "--in", "in.txt", "--out", "out.txt"]
    assert main([*asked, "--mechanism", "quiet.noise:Words:epsilon=3"]) == 0
    assert len(Path("out.txt").read_text().splitlines()) == 2 and "ε" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["quiet.noise:Nobody", "os:system", "quiet.noise:Coin"])
def test_a_wrong_name_is_one_line_exit_2_and_nothing_is_written(name, capsys):
    Path("words.txt").write_text("fine 1 0\ndull 0 1\n")
    Path("in.txt").write_text("fine\n")
    Path("study.toml").write_text(
        f'name = "s"\n[[arm]]\nname = "a"\nembedding = {{ mechanism = "{name}", epsilon = 1.0, dim = 4 }}\n'
    )
    for asked in (
        ["sanitize", "--words", "words.txt", "--in", "in.txt", "--mechanism", f"{name}:epsilon=3"],
        ["budget", "plan", "--mechanism", name, "--users", "9", "--central-epsilon", "1", "--delta", "1e-6"],
        ["simulate", "study.toml", "--out", "out"],
    ):
        assert main(asked) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert name in line and not Path("out").exists()


ANSWER = """

@dataclass(frozen=True)
class Says(OwnMechanism):
    epsilon: float
    classes: int
    metric: ClassVar[str] = "discrete"
    channel: ClassVar[str] = "answer"

    def sample(self, x, *, rng):
        return x

"""


def test_a_ladder_leaves_out_nothing_that_is_released(tmp_path, monkeypatch, capsys):
    """A release of a channel that was not looked for was dropped, and the ladder of the rest was printed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "quiet"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(write_package(tmp_path / "more", more=ANSWER)))
    asked = ["budget", "ladder", "--mechanism", "quiet.noise:Says:epsilon=3", "--classes", "4", "--users", "9"]
    assert main([*asked, "--json"]) == 0
    rungs = {rung["rung"]: rung for rung in json.loads(capsys.readouterr().out)["ladder"]}
    assert rungs["answer"]["worst_case"] == rungs["user"]["worst_case"] == 3.0
    assert main([*asked, "--mechanism", "randomized-response:epsilon=1"]) == 2


def test_a_mechanism_and_its_parameters_are_one_word() -> None:
    assert read_mechanism("package.module:Class:epsilon=3,values=[1,2]") == {
        "mechanism": "package.module:Class",
        "epsilon": 3,
        "values": [1, 2],
    }
    assert read_mechanism("santext:stop-words=keep,length=.5") == {
        "mechanism": "santext",
        "stop_words": "keep",
        "length": 0.5,
    }
    for wrong in (":epsilon=1", "a:b=1,b=2", "a:b="):
        with pytest.raises(ValueError, match="--mechanism"):
            read_mechanism(wrong)

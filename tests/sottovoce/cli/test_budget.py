"""The commands `sottovoce budget`: exact keys, one line for every mistake, ladders of every bundled experiment."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.device.statement import format_statement, read_statement
from client.models import vocabulary
from client.node import write_node
from client.policy import Policy
from client.store.ledger import Charge, Ledger
from mechanisms import Identity, Purkayastha, RandomizedResponse
from mechanisms.accounting.compose import compose
from mechanisms.channels import EMBEDDING, LABEL, VECTOR
from mechanisms.privunit import PrivUnit
from mechanisms.randomized_response import RandomizedAnswer
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.custext import CusText
from mechanisms.words.text import TextMechanism
from server.card import model_card
from simulations.experiment import Arm, Experiment, bundled, load, text_mechanism
from simulations.experiment.ladder import PAPER, Spent, of_experiment, of_run
from simulations.output.jsonable import json_ready
from sottovoce import ladder
from sottovoce.cli import main as cli
from tests.support.budgets import PURKAYASTHA, answer, printed, rung
from tests.support.paths import DATA, ROOT
from tests.support.results import demo


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- ladders of mechanisms


def test_a_monthly_protocol_of_three_channels_for_a_year(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    """By hand: 20 words at ε times the largest distance, 1 for each unit of length; ε·π; ε; all of it twelve times."""
    vectors = np.random.default_rng(3).normal(size=(24, 3)).astype(np.float32)
    vocabulary.save(Vocabulary(tuple(f"word{i}" for i in range(24)), vectors), place / "words")
    farthest = max(np.linalg.norm(vectors[:, None].astype(float) - vectors, axis=2).ravel())
    month = 20 * 10 * farthest + 20 + 10 * math.pi + 2
    parts = ["santext:epsilon=10,tokens=20", "purkayastha:epsilon=10,dim=16", "randomized-response:epsilon=2"]
    asked = [word for part in parts for word in ("--mechanism", part)]
    asked += ["--words", "words", "--stages", "12", "--users", "5000"]
    rungs = answer(capsys, "ladder", *asked)["ladder"]
    assert rung(rungs, "record")["worst_case"] == pytest.approx(month, rel=1e-6)
    user = rung(rungs, "user")
    assert user["worst_case"] == pytest.approx(12 * month, rel=1e-6)
    others = compose([(Purkayastha(16, 10.0), 12), (RandomizedResponse(2.0, 2), 12)], delta=1e-6).epsilon
    assert user["epsilon"] == pytest.approx(12 * (month - 10 * math.pi - 2) + others, rel=1e-4)
    assert rung(rungs, "shuffled")["epsilon"] is None and "user's own ε stands" in rung(rungs, "shuffled")["assumption"]
    shown = printed(capsys, "ladder", *asked)
    assert f"{12 * month:,.2f}" in shown and ", among 24 words" in shown
    same = {each.name: each for each in ladder(parts, words="words", stages=12, users=5000)}
    assert same["user"].worst_case == user["worst_case"] and same["user"].epsilon == user["epsilon"]
    kept = ["--mechanism", "santext:epsilon=10,tokens=20,length=kept", "--words", "words", "--users", "5000"]
    assert rung(answer(capsys, "ladder", *kept)["ladder"], "user")["epsilon"] == "inf"
    public = answer(capsys, "ladder", *kept, "--accept-unprotected", "length: all are alike", "--crowd", "50")["ladder"]
    assert rung(public, "user")["worst_case"] == pytest.approx(200 * farthest, rel=1e-6)
    assert rung(public, "shuffled")["epsilon"] is None


def test_a_crowd_shares_what_is_public(capsys: pytest.CaptureFixture[str]) -> None:
    """A label in clear splits the users; how far, the one who declares it must say."""
    public = (*PURKAYASTHA, "--users", "67349", "--accept-unprotected", "label: topics are known")
    assert rung(answer(capsys, "ladder", *public)["ladder"], "shuffled")["epsilon"] is None
    some = rung(answer(capsys, "ladder", *public, "--crowd", "20000")["ladder"], "shuffled")
    alike = rung(answer(capsys, "ladder", *PURKAYASTHA, "--users", "20000")["ladder"], "shuffled")
    assert some["epsilon"] == alike["epsilon"] and some["crowd"] == 20_000


def test_a_shuffled_rung_has_every_bound(capsys: pytest.CaptureFixture[str]) -> None:
    rungs = answer(capsys, "ladder", *PURKAYASTHA, "--users", "67349", "--delta", "1e-6")["ladder"]
    assert rung(rungs, "record")["worst_case"] == pytest.approx(4 * math.pi, rel=1e-6)
    assert rung(rungs, "record")["epsilon"] == pytest.approx(9.38, rel=0.005)  # the table
    bounds = rung(rungs, "shuffled")["details"]["bounds"]
    assert 1.0 < bounds["blanket"] <= 1.097 * 1.05 and bounds["variation_ratio"] is None
    assert rung(rungs, "shuffled")["epsilon"] == min(v for v in bounds.values() if v is not None)
    both = (*PURKAYASTHA, "--mechanism", "randomized-response:epsilon=1", "--users", "67349")
    assert rung(answer(capsys, "ladder", *both)["ladder"], "shuffled")["epsilon"] > min(
        v for v in bounds.values() if v is not None
    )


def test_how_many_users(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("plan", "--mechanism", "purkayastha:epsilon=1,dim=16", "--central-epsilon", "0.04", "--delta", "1e-6")
    found = answer(capsys, *asked)
    assert 3000 < found["users"] < 11_000  # by a prototype's blanket 0.040 at n = 10,000; a better bound asks for fewer
    assert f"{found['users']:,} users delivered, of one crowd" in printed(capsys, *asked)
    enough = answer(capsys, "ladder", *asked[1:3], "--users", str(found["users"]))
    assert rung(enough["ladder"], "shuffled")["epsilon"] <= 0.04
    assert answer(capsys, *asked, "--label-epsilon", "1")["users"] > found["users"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ladder", *PURKAYASTHA, "--users", "-3"], "users"),
        (["ladder", *PURKAYASTHA, "--users", "2.5"], "not a valid int"),
        (["ladder", *PURKAYASTHA, "--users", "100", "--delta", "0"], "--delta: must be above 0"),
        (["ladder", *PURKAYASTHA, "--users", "100", "--delta", "1"], "--delta: must be above 0"),
        (["ladder", *PURKAYASTHA, "--users", "100", "--delta", "nan"], "--delta: must be above 0"),
        (["ladder", "--mechanism", "purkayastha:epsilon=nan,dim=16", "--users", "9"], "epsilon"),
        (["ladder", "--mechanism", "purkayastha:epsilon=-1,dim=16", "--users", "9"], "epsilon"),
        (["ladder", "--mechanism", "purkayastha:epsilon=4", "--users", "9"], "missing parameter dim"),
        (["ladder", "--mechanism", "purkayastha:dim=4", "--users", "9"], "missing parameter epsilon"),
        (["ladder", "--mechanism", "purkayasta", "--users", "9"], "did you mean 'purkayastha'"),
        (["ladder", *PURKAYASTHA, "--mechanism", "randomized-response:epsilon=nan"], "epsilon"),
        (["ladder", *PURKAYASTHA, *PURKAYASTHA], "two mechanisms are of the channel embedding"),
        (["ladder", *PURKAYASTHA, "--words", "minilm"], "--words: is about texts"),
        (["ladder", *PURKAYASTHA, "--crowd", "9"], "--crowd: without --users"),
        (["ladder", "--mechanism", "santext:tokens=9"], "santext: missing parameter epsilon"),
        (
            ["ladder", "--mechanism", "privunit:epsilon=1,dim=8", "--accept-unprotected", "label: known"],
            "give it alone",
        ),
        (
            ["ladder", "--mechanism", "randomized-response:epsilon=1", "--accept-unprotected", "label: known"],
            "label: is declared public, and released by a mechanism",
        ),
        (["ladder", "labelled-demo", "--crowd", "9"], "--crowd goes with --mechanism"),
        (["ladder", "labelled-demo", "--user", "9"], "--user goes with --ledger"),
        (["ladder"], "give one of FILE.toml"),
        (["ladder", "labelled-demo", *PURKAYASTHA], "give one of FILE.toml"),
        (["ladder", "absent.toml"], "absent.toml: there is no such file"),
        (["ladder", "labelled-demo", "--set", "population.user=3"], 'did you mean "users"'),
        (["ladder", "labelled-demo", "--delta", "2"], "--delta: must be above 0"),
        (["ladder", "labelled-demo", "--records", "0"], "--records: must be at least 1"),
        (["ladder", *PURKAYASTHA, "--users", "-1"], "users"),
        (["ladder", "--ledger", "absent.sqlite"], "there is no such file"),
        (["ladder", "--ledger", "."], "name the ledger in it, as ledger.sqlite"),
        (
            ["plan", "--central-epsilon", "1", "--delta", "1e-6", "--users", "9", "--crowd", "3"],
            "--crowd: is about texts",
        ),
        (["plan", "--central-epsilon", "0", "--delta", "1e-6", "--users", "10"], "epsilon must be above 0"),
        (["plan", "--central-epsilon", "nan", "--delta", "1e-6", "--users", "10"], "epsilon"),
        (["plan", "--central-epsilon", "1", "--delta", "1", "--users", "10"], "--delta: must be above 0"),
        (["plan", "--central-epsilon", "1", "--delta", "1e-6", "--users", "0"], "users"),
        (["plan", "--central-epsilon", "1", "--delta", "1e-6", "--users", "10", "--dropout", "1"], "--dropout"),
        (
            ["plan", "--central-epsilon", "1", "--delta", "1e-6", "--users", "9", "--mechanism", "x"],
            "unknown mechanism",
        ),
        (["figur"], "No such command"),
    ],
)
def test_mistakes(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], place: Path) -> None:
    assert cli.main(["budget", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("sottovoce: ") and words in captured.err, captured.err
    assert not list(place.iterdir())


# --- ladders of experiments


#: Of these another experiment has the channels and the way: they take a quarter of a minute each.
DEAR = ("frontier", "text-demo", "sst2-text", "sst2-words", "sst2-other-domain")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow, pytest.mark.soak] if name in DEAR else []) for name in bundled()],
)
def test_every_bundled_experiment_has_a_ladder(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulations.experiment.ladder.CANDIDATES", (8, 384))  # of twelve numbers of features
    study = load(name)
    if study.data.source == "files" and any(arm.text for arm in study.arms):  # words have their distances in a file
        if not DATA.is_dir():
            pytest.skip(f"{DATA} is missing (SST-2 and word vectors)")
        monkeypatch.chdir(ROOT)
    found = answer(capsys, "ladder", name)
    assert [a["arm"] for a in found["arms"]] == [a.name for a in study.arms]
    for arm in found["arms"]:
        ladders = [r for r in (arm["ladder"], arm["test_ladder"]) if r is not None]
        assert ladders or arm["way"] == "public-only"
        for rungs in ladders:
            first = rungs[0]["rung"]  # two channels stand alone
            channels = [first] if first in ("statistic", "answer") else ["token", "text", "embedding", "label"]
            assert [r["rung"] for r in rungs if r["rung"] != "gradients"] == [*channels, "record", "user", "shuffled"]
        assert (arm["way"] == "statistics") == (ladders != [] and ladders[0][0]["rung"] == "statistic")
        if arm["reference"]:
            assert rung(ladders[0], "record")["epsilon"] == "inf"
            assert rung(ladders[0], "record")["unprotected"]


def study(**sections: Any) -> Experiment:
    overrides = [f"{k.replace('__', '.').replace('_', '-')}={v}" for k, v in sections.items()]
    return load("labelled-demo", overrides)


def test_users_are_those_expected_to_be_delivered() -> None:
    arms = of_experiment(study(population__users=20_000, population__dropout=0.25, training__label_stages=3))
    shuffled = rung(arms[5]["ladder"], "shuffled")
    assert shuffled["crowd"] == 900
    assert "a crowd of 900 users who agree in label, sent in clear, of 5,000 users" in shuffled["assumption"]
    quiet = of_experiment(study(shuffle__enabled="false"))
    assert "no shuffler" in rung(quiet[2]["ladder"], "shuffled")["assumption"]
    several = of_experiment(study(population__assignment="column"))
    assert rung(several[2]["ladder"], "user")["epsilon"] is None
    known = of_experiment(study(population__assignment="column"), records=5)
    once = of_experiment(study())
    assert rung(known[2]["ladder"], "user")["epsilon"] > rung(once[2]["ladder"], "user")["epsilon"]


def test_several_dimensions_show_the_largest() -> None:
    wide = study(arm__2__embedding__dim="[2,16]")
    for m in (2, 16):
        one = of_experiment(study(arm__2__embedding__dim=m))[2]["ladder"]
        both = of_experiment(wide)[2]["ladder"]
        assert rung(both, "embedding")["epsilon"] >= rung(one, "embedding")["epsilon"]
    assert "chosen from" in rung(both, "embedding")["assumption"]


def test_a_run_counts_what_was_delivered() -> None:
    experiment = study(training__label_stages=2, population__users=4000)
    arm = Arm(
        name="a",
        embedding={"mechanism": "purkayastha", "epsilon": 1.0, "dim": 16},
        label={"mechanism": "randomized-response", "epsilon": 1.0},
    )
    mechanisms = Purkayastha(16, 1.0), RandomizedResponse(1.0, 2)
    run = of_run(experiment.setup(arm), Spent(*mechanisms, train=(1700, 1500), test=900), records=1, test_records=1)
    last = rung(run["ladder"], "shuffled")
    assert "1,500 users delivered" in last["assumption"] and "1,700, 1,500" in last["assumption"]
    fewer = of_run(experiment.setup(arm), Spent(*mechanisms, train=(1700, 700), test=900), records=1, test_records=1)
    assert rung(fewer["ladder"], "shuffled")["epsilon"] > last["epsilon"]
    assert rung(run["test_ladder"], "label")["epsilon"] is None
    discarded = of_run(experiment.setup(arm), Spent(*mechanisms, train=(1700, 0), test=None), records=1, test_records=1)
    assert "no batch was delivered" in rung(discarded["ladder"], "shuffled")["assumption"]
    assert discarded["test_ladder"] is None
    twice = of_run(experiment.setup(arm), Spent(*mechanisms, train=(1700, 1500), test=900), records=2, test_records=1)
    assert rung(twice["ladder"], "user")["epsilon"] > rung(run["ladder"], "user")["epsilon"]
    spent = Spent(None, None, None, None)
    nobody = of_run(experiment.setup(Arm(name="p", way="public-only")), spent, records=1, test_records=1)
    assert nobody == {"ladder": None, "test_ladder": None}


def test_labels_in_clear_are_counted_and_what_texts_expose_is_stated() -> None:
    experiment = study(population__users=20_000)
    arm = Arm(name="a", embedding={"mechanism": "purkayastha", "epsilon": 1.0, "dim": 16}, smallest_crowd=5000)
    spent = Spent(Purkayastha(16, 1.0), Identity("label", 2), train=(9000, 8000), test=900, classes=(4000, 700))
    run = of_run(experiment.setup(arm), spent, records=1, test_records=1)
    last = rung(run["ladder"], "shuffled")
    assert last["crowd"] == 700 and "a crowd of 700 users who agree in label, sent in clear" in last["assumption"]
    assert rung(run["test_ladder"], "shuffled")["crowd"] == 900  # who asks sends no label
    # 700 rows of one class may be 234 users of three records each, or fewer
    setup = experiment.setup(arm)
    assert rung(of_run(setup, spent, records=3, test_records=1)["ladder"], "shuffled")["crowd"] == 234
    alone = replace(spent, train=(9000,), classes=(1,))
    assert rung(of_run(setup, alone, records=1, test_records=1)["ladder"], "shuffled")["epsilon"] is None
    vectors = np.random.default_rng(3).normal(size=(8, 3)).astype(np.float32)
    words = Vocabulary(tuple(f"w{i}" for i in range(8)), vectors)
    kept = text_mechanism({"mechanism": "custext", "epsilon": 1.0, "k": 4, "tokens": 2, "length": "kept"}, words)
    texts = replace(spent, text=kept)
    assert texts.crowd(stated=None, records=1) is None  # labels are counted, groups are not
    assert texts.crowd(stated=5000, records=1) == 700 and texts.crowd(stated=60, records=1) == 60
    randomized = replace(texts, classes=None)
    assert randomized.crowd(stated=60, records=1) == 60 and randomized.crowd(stated=None, records=1) is None


def test_the_published_procedure_is_a_trusted_simulation() -> None:
    experiment = load("sst2-paper")
    arm = experiment.arms[1]
    spent = Spent(Purkayastha(16, 10.0), None, train=(8000,), test=None)
    run = of_run(experiment.setup(arm), spent, records=1, test_records=None)["ladder"]
    embedding = rung(run, "embedding")
    assert embedding["statement"] == "3 × (10·d_angular)"
    assert embedding["worst_case"] == pytest.approx(30 * math.pi, rel=1e-6)
    assert rung(run, "gradients")["epsilon"] == "inf" and PAPER in rung(run, "gradients")["assumption"]
    assert rung(run, "user")["unprotected"] == ["gradients"] and rung(run, "shuffled")["epsilon"] is None


def test_labels_in_clear_that_nobody_declared_public_are_unprotected() -> None:
    spec = {"mechanism": "purkayastha", "epsilon": 1.0, "dim": 4}
    (line,) = of_experiment(Experiment(name="x", arms=(Arm(name="r", reference=True, embedding=spec),)))
    assert rung(line["ladder"], "label")["epsilon"] == "inf" and rung(line["ladder"], "embedding")["epsilon"] < 4
    assert rung(line["ladder"], "shuffled")["unprotected"] == ["label"]


def test_results_and_cards_carry_the_ladder() -> None:
    results = demo()
    lines = of_experiment(load("labelled-demo"))
    for arm, line in zip(results["arms"], lines, strict=True):
        arm |= {k: line[k] for k in ("ladder", "test_ladder")}
    json.dumps(json_ready(results), allow_nan=False)
    card = model_card(results["arms"][4])
    assert "What it costs a training user" in card and "What it costs a user who asks" in card
    assert "any two records" in card
    assert "What it costs" not in model_card({"name": "x"})


# --- ledgers


def ledger(
    path: Path,
    *,
    users: tuple[int, ...],
    embedding: Any,
    label: Any,
    channel: str = "embedding",
    stage: str = "train",
) -> None:
    with Ledger(path, durable=False) as book, book.exclusive():
        n = len(users)
        records = np.array([users[:i].count(u) for i, u in enumerate(users)], np.int64)
        book.commit(
            [
                Charge(
                    stage,
                    name,
                    name,
                    m.guarantee,
                    m.guarantee.worst_case(),
                    0.0,
                    np.array(users, np.int64),
                    records,
                    np.zeros((n, 1), np.uint8),
                )
                for name, m in ((channel, embedding), ("label", label))
            ]
        )


def test_a_ledgers_ladder(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    ledger(place / "a.sqlite", users=(3, 5, 5), embedding=Purkayastha(16, 1.0), label=RandomizedResponse(1.0, 2))
    found = answer(capsys, "ladder", "--ledger", "a.sqlite")
    assert found["user"] == 5 and found["users"] == 2 and found["releases"] == 6
    one = math.pi + 1
    assert rung(found["ladder"], "record")["epsilon"] == pytest.approx(one, rel=1e-6)
    assert rung(found["ladder"], "user")["epsilon"] == pytest.approx(2 * one, rel=1e-6)
    other = answer(capsys, "ladder", "--ledger", "a.sqlite", "--user", "3")
    assert rung(other["ladder"], "user")["epsilon"] == pytest.approx(one, rel=1e-6)
    assert "costliest" in printed(capsys, "ladder", "--ledger", "a.sqlite")
    assert cli.main(["budget", "ladder", "--ledger", "a.sqlite", "--user", "4"]) == 2


def test_what_is_about_all_records_counts_in_every_rung(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    """A vector, the label of record 0, the embedding of record 1: each rung by hand, and the device's own statement."""
    made = (
        (VECTOR, PrivUnit(16, 2.0), 0),
        (LABEL, RandomizedResponse(1.0, 2), 0),
        (EMBEDDING, Purkayastha(16, 1.0), 1),
    )
    user, row = np.array([7]), np.zeros((1, 1), np.uint8)
    write_node(place / "me", policy=Policy(embedding=9.0, statistic=9.0, label=9.0, total=20.0))
    with Ledger(place / "me" / "ledger.sqlite") as book, book.exclusive():
        book.commit([Charge("a", c.name, c.name, m.guarantee, 0.0, 0.0, user, np.array([r]), row) for c, m, r in made])
    found = answer(capsys, "ladder", "--ledger", "me/ledger.sqlite")["ladder"]
    vector, label, embedding = 2.0, 1.0, math.pi
    by_hand = {
        "text": vector,
        "embedding": vector + embedding,
        "statistic": vector,
        "label": vector + label,
        "record": vector + max(label, embedding),
        "user": vector + label + embedding,
    }
    assert {r["rung"]: r["epsilon"] for r in found} == pytest.approx(by_hand, rel=1e-6)
    said = format_statement(read_statement(place / "me"))
    assert "the statistic of all records together" in said and "  all records together: statistic ε = 2" in said
    assert "  record 0: label ε = 1" in said and "  record 1: embedding ε = 3.142" in said


def test_a_text_and_its_embedding_both_tell_of_the_text(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    word = CusText(2.0, Vocabulary(tuple("abcd"), np.eye(4, dtype=np.float32)), k=4)
    whole, sphere = TextMechanism(word, tokens=2, length=1.0), Purkayastha(16, 1.0)
    ledger(place / "a.sqlite", users=(1,), embedding=whole, label=RandomizedResponse(1.0, 2), channel="text")
    one = rung(answer(capsys, "ladder", "--ledger", "a.sqlite")["ladder"], "text")["epsilon"]
    ledger(place / "a.sqlite", users=(1,), embedding=sphere, label=RandomizedResponse(1.0, 2), stage="b")
    found = answer(capsys, "ladder", "--ledger", "a.sqlite")["ladder"]
    both = pytest.approx(one + math.pi, rel=1e-6)
    assert rung(found, "text")["epsilon"] == rung(found, "embedding")["epsilon"] == both
    assert rung(found, "label")["epsilon"] == 2.0


def test_a_ledgers_answers(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    answered = RandomizedAnswer(5.0, 12)
    ledger(place / "a.sqlite", users=(1, 1), embedding=answered, label=RandomizedResponse(1.0, 2), channel="answer")
    found = answer(capsys, "ladder", "--ledger", "a.sqlite")["ladder"]
    assert rung(found, "answer")["epsilon"] == 5.0 and rung(found, "answer")["neighbours"] == "any two texts"
    assert rung(found, "record")["epsilon"] == 6.0 and rung(found, "user")["epsilon"] == 12.0


def test_a_ledgers_account_in_the_filter_of_its_policy(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    rr, sphere = RandomizedResponse(1.0, 2), Purkayastha(16, 1.0)
    ledger(place / "ledger.sqlite", users=(3, 5, 5), embedding=sphere, label=rr)
    alone = answer(capsys, "ladder", "--ledger", "ledger.sqlite")
    assert alone["account"] is None and "privacy filter" in alone["theorem"]
    write_node(place, policy=Policy(embedding=10.0, label=5.0, total=20.0, releases=50))
    account = answer(capsys, "ladder", "--ledger", "ledger.sqlite")["account"]
    costs = [Policy().cost(m.guarantee) for m in (rr, sphere)]
    assert account["releases"] == 4 and account["worst_case"] == pytest.approx(2 * (math.pi + 1), rel=1e-6)
    assert account["rho"] == pytest.approx(2 * sum(c.rho for c in costs))
    assert account["delta"] == pytest.approx(2 * sum(c.delta for c in costs)) and account["rho_limit"] > 0
    said = printed(capsys, "ladder", "--ledger", "ledger.sqlite")
    assert "in total: ε up to 20 at δ = 1e-05, and 50 releases" in said and "46 releases (one half" in said
    assert "Rogers, Roth, Ullman and Vadhan 2016" in said


def test_a_ledger_with_an_unprotected_channel(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    ledger(place / "a.sqlite", users=(1,), embedding=Purkayastha(16, 1.0), label=Identity("label", 2))
    found = answer(capsys, "ladder", "--ledger", "a.sqlite")
    assert rung(found["ladder"], "user")["epsilon"] == "inf"
    assert rung(found["ladder"], "user")["unprotected"] == ["label"]
    assert rung(found["ladder"], "embedding")["epsilon"] == pytest.approx(math.pi, rel=1e-6)


def test_a_ledgers_texts_expose_what_the_policy_declares(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    word = CusText(2.0, Vocabulary(tuple("abcd"), np.eye(4, dtype=np.float32)), k=2)
    whole, label = TextMechanism(word, tokens=8, length=0.0), RandomizedResponse(1.0, 2)
    assert whole.guarantee.exposes == ("length", "group")  # groups show where a text ends
    ledger(place / "ledger-x.sqlite", users=(1, 2, 2), embedding=whole, label=label, channel="text")
    alone = answer(capsys, "ladder", "--ledger", "ledger-x.sqlite")
    assert rung(alone["ladder"], "text")["epsilon"] == rung(alone["ladder"], "user")["epsilon"] == "inf"

    accepted = ("group: topics are no secret", "length: all are short", "label: a reason")
    policy = Policy(text=20.0, label=2.0, accept_unprotected=accepted)
    write_node(place, seed=1, arms={"x": policy, "y": Policy(text=20.0, accept_unprotected=accepted[:1])})
    found = answer(capsys, "ladder", "--ledger", "ledger-x.sqlite")["ladder"]
    for name, worst in (("text", 16), ("record", 17), ("user", 34)):
        r = rung(found, name)
        assert r["epsilon"] == r["worst_case"] == pytest.approx(worst, rel=1e-9) and r["unprotected"] == []
        agreed = "that agree in the number of tokens and which group of the mapping a word belongs to (declared public;"
        assert agreed in r["neighbours"]
        assert "with group declared public (topics are no secret)" in r["assumption"]
    assert rung(found, "label")["neighbours"] == "any two labels"
    assert "else ε = ∞" in printed(capsys, "ladder", "--ledger", "ledger-x.sqlite")

    # under the policy of another arm, of no arm, or of a node that cannot be read
    (place / "ledger-x.sqlite").rename(place / "ledger-y.sqlite")
    assert rung(answer(capsys, "ladder", "--ledger", "ledger-y.sqlite")["ladder"], "text")["epsilon"] == "inf"
    (place / "ledger-y.sqlite").rename(place / "copy.sqlite")
    assert rung(answer(capsys, "ladder", "--ledger", "copy.sqlite")["ladder"], "text")["epsilon"] == "inf"
    (place / "copy.sqlite").rename(place / "ledger-x.sqlite")
    (place / "node.json").write_text("{")
    assert cli.main(["budget", "ladder", "--ledger", "ledger-x.sqlite"]) == 2
    assert capsys.readouterr().err.count("\n") == 1

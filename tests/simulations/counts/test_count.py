"""A count takes the path of every release, holds the truth in its intervals, and refuses what cannot be accounted."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.node import load_node
from mechanisms.accounting.ladder import ladder
from mechanisms.catalogue import build
from mechanisms.messages.questions.question import ALL_RECORDS
from simulations.counts import count as room
from simulations.counts.count import count, count_several
from simulations.counts.result import CountResult, variation
from simulations.errors import UserError
from simulations.experiment import Experiment, slug
from simulations.run.prepare import Holders
from tests.support.studies import PRIOR, PURKAYASTHA, experiment, prepared

ARM = {"name": "users", "embedding": PURKAYASTHA, "label": {"mechanism": "randomized-response", "epsilon": 3.0}}
Counted = Callable[..., CountResult]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counted:
    """A count among made-up users whose classes the model finds without error."""

    def run(study: Experiment | None = None, *, names: bool = False, **asked: Any) -> CountResult:
        chosen = study or small()
        ready = prepared(chosen)
        if names:
            held, labels = np.asarray(ready.held.train_embeddings), ready.held.train.labels
            prototypes = np.stack([held[labels == k].mean(axis=0) for k in range(3)]).astype(np.float64)
            ready = ready._replace(public=replace(ready.public, names=prototypes))
        monkeypatch.setattr(room, "prepare", lambda experiment: ready)
        return count(chosen, tmp_path / "out", **({"epsilon": 2.0} | asked))

    return run


def small(*arms: dict[str, Any], **sections: dict[str, Any]) -> Experiment:
    policy = {"answer": 2.0} | sections.pop("policy", {})
    return experiment(*(arms or (ARM,)), policy=policy, **{"population": {"users": 600}, **sections})


def test_users_are_charged_once_and_counted(counted: Counted, tmp_path: Path) -> None:
    result = counted()
    assert result.users == result.charged == 600 and result.found and result.corrected
    for rows in (result.found, result.corrected):
        assert sum(row.share for row in rows) == pytest.approx(1.0)
        assert all(row.low <= row.true <= row.high and row.count == row.share * 600 for row in rows)  # type: ignore[operator]
    node = load_node(tmp_path / "out" / "nodes" / "0")
    with node.ledger(slug("users")) as ledger:
        charges = ledger.rows()
    assert len(charges) == 600 and {(c.channel, c.stage, c.epsilon) for c in charges} == {("answer", "count-1", 2.0)}
    assert (result.labelled, result.accuracy) == (45, 1.0)


def test_its_ladder_is_that_of_its_release_among_the_delivered(counted: Counted) -> None:
    result = counted(small(population={"users": 600, "dropout": 0.5, "late": 0.1}))
    assert 200 < result.users < 340 and result.dropped == {"late": result.charged - result.users}
    drawn = build(dict(result.mechanism), channel="answer", classes=3)
    assert result.ladder == [
        rung.to_dict() for rung in ladder(None, None, answer=drawn, users=result.users, delta=1e-6)
    ]


def test_a_central_budget_is_planned_within_the_policys_limit(counted: Counted) -> None:
    result = counted(small(policy={"answer": 8.0}), epsilon=None, central=1.0)
    assert 0.9 < result.rung("shuffled")["epsilon"] <= 1.0 and result.chosen and result.mechanism["epsilon"] > 1.5


def test_a_planned_epsilon_above_the_limit_is_lowered(counted: Counted) -> None:
    result = counted(small(policy={"answer": 1.25}), epsilon=None, central=1.0)
    assert result.mechanism["epsilon"] == 1.25 and 1.2 < result.rung("answer")["epsilon"] <= 1.25


def test_the_files_hold_what_is_returned(counted: Counted, tmp_path: Path) -> None:
    result = counted()
    written = json.loads((tmp_path / "out" / "count.json").read_text())
    assert written == json.loads(json.dumps(result.to_dict()))
    with open(tmp_path / "out" / "counts.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["of"] for line in lines] == ["found by devices"] * 3 + ["true classes"] * 3
    assert float(lines[0]["share"]) == pytest.approx(result.found[0].share, rel=1e-5)
    assert (tmp_path / "out" / "counts.png").stat().st_size > 1000
    said = result.text()
    assert "600 users" in said and "true classes" in said and "95% interval" in said
    assert written["total_variation"] == variation(result.found)


def test_without_public_labels_the_nearest_class_name_is_counted_and_nothing_corrected(counted: Counted) -> None:
    result = counted(small(data={"public": {"labels": False}}), names=True)
    assert result.model == "the nearest class name" and not result.corrected and result.labelled == 0
    assert all(row.low <= row.true <= row.high for row in result.found)  # type: ignore[operator]


def test_topics_are_the_classes(counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = tmp_path / "topics.txt"
    topics.write_text("one\ntwo.\n\nthree\nfour\n")
    rng = np.random.default_rng(0)
    monkeypatch.setattr(
        "tests.support.studies.KnownEncoder.embed", lambda self, texts: rng.normal(size=(len(texts), 8))
    )
    result = counted(topics=topics)
    assert [row.name for row in result.found] == ["one", "two.", "three", "four"] and not result.corrected


@pytest.mark.parametrize(("epsilon", "together"), [(1.0, False), (8.0, True)])
def test_several_questions_are_asked_the_better_way_and_each_user_pays_once(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epsilon: float, together: bool
) -> None:
    """600 users, questions of two and three topics."""
    rng = np.random.default_rng(1)
    monkeypatch.setattr(
        "tests.support.studies.KnownEncoder.embed", lambda self, texts: rng.normal(size=(len(texts), 8))
    )
    study = small(policy={"answer": 8.0})
    monkeypatch.setattr(room, "prepare", lambda experiment: prepared(study))
    for name, topics in (("a", "one\ntwo\n"), ("b", "three\nfour\nfive\n")):
        (tmp_path / name).write_text(topics)
    out = tmp_path / "out"
    results = count_several(study, out, topics=[tmp_path / "a", tmp_path / "b"], epsilon=epsilon)
    assert [[row.name for row in result.found] for result in results] == [["one", "two"], ["three", "four", "five"]]
    assert [result.users for result in results] == ([600, 600] if together else [300, 300])
    for result in results:
        assert result.rung("user")["epsilon"] == pytest.approx(epsilon, rel=1e-4) and result.confidence == 0.975
        assert sum(row.share for row in result.found) == pytest.approx(1.0)
        assert all(row.low <= row.true <= row.high for row in result.found)  # type: ignore[operator]
    with load_node(out / "nodes" / "0").ledger("users") as ledger:
        charges = ledger.rows()
    assert len(charges) == 600 and {charge.epsilon for charge in charges} == {epsilon}
    assert json.loads((out / "2" / "count.json").read_text()) == json.loads(json.dumps(results[1].to_dict()))


def test_users_of_many_texts_release_the_class_of_one_and_pay_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """200 users of three texts each, of one, two or three classes: shares are means of users' own."""
    study = small(population={"users": 200, "assignment": "dirichlet", "alpha": 1.0}, policy={"answer": 6.0})
    ready = prepared(small())
    users, records = np.repeat(np.arange(200), 3), np.tile(np.arange(3), 200)
    labels = np.where(users < 100, 0, records)
    rows = (3 * np.arange(600) + labels) % 600  # a text of each label
    held = replace(
        ready.held,
        train=replace(ready.held.train, texts=[ready.held.train.texts[i] for i in rows], labels=labels),
        holders=Holders(users, records),
        train_embeddings=np.asarray(ready.held.train_embeddings)[rows],
    )
    monkeypatch.setattr(room, "prepare", lambda experiment: ready._replace(held=held))
    result = count(study, tmp_path / "out", epsilon=6.0)
    assert (result.users, result.charged, result.many) == (200, 200, True)
    assert [row.true for row in result.found] == pytest.approx([2 / 3, 1 / 6, 1 / 6])
    assert all(row.low <= row.true <= row.high for row in result.found)  # type: ignore[operator]
    assert result.rung("user")["epsilon"] == pytest.approx(6.0, rel=1e-4)
    with load_node(tmp_path / "out" / "nodes" / "0").ledger("users") as ledger:
        charges = ledger.rows()
    assert len(charges) == 200 and {(charge.record, charge.epsilon) for charge in charges} == {(ALL_RECORDS, 6.0)}


def test_a_saved_model_is_counted_with_its_own_classes(counted: Counted, tmp_path: Path) -> None:
    from tests.support.studies import ENCODER

    maps = prepared(small()).public.maps
    assert maps is not None
    (tmp_path / "model").mkdir()
    maps.of(build(PURKAYASTHA, channel="embedding", dim=4)).save(tmp_path / "model")
    about = {"classes": ["red", "green", "blue"], "encoder": ENCODER}
    (tmp_path / "model" / "model.json").write_text(json.dumps(about))
    result = counted(model=tmp_path / "model")
    assert result.model == "a trained model" and not result.corrected
    (tmp_path / "model" / "model.json").write_text(json.dumps(about | {"encoder": "0" * 64}))
    with pytest.raises(UserError, match="another encoder"):
        counted(model=tmp_path / "model")


def test_a_series_is_charged_week_by_week_and_shows_changes(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two weeks fit the policy, the third does not. Half of the users of one class have another text in the second."""
    study = small(policy={"answer": 4.0})
    first = counted(study)
    (tmp_path / "out").rename(tmp_path / "first")
    assert first.week == 1 and not first.moved
    ready = prepared(study)
    rows = np.asarray(ready.held.train_embeddings).copy()
    labels = ready.held.train.labels.copy()
    red = np.flatnonzero(labels == 0)[:100]
    rows[red], labels[red] = rows[np.flatnonzero(labels == 1)[:100]], 1
    train = replace(ready.held.train, labels=labels)
    later = ready._replace(held=replace(ready.held, train=train, train_embeddings=rows))
    monkeypatch.setattr(room, "prepare", lambda experiment: later)
    second = count(study, tmp_path / "second", epsilon=2.0, since=tmp_path / "first")
    assert second.week == 2 and [move.name for move in second.moved if move.found] == ["red", "green"]
    assert all(move.low <= true <= move.high for move, true in zip(second.moved, (-1 / 6, 1 / 6, 0), strict=True))
    with load_node(tmp_path / "second" / "nodes" / "0").ledger("users") as ledger:
        charges = ledger.rows()
    assert len(charges) == 1200 and {charge.stage for charge in charges} == {"count-1", "count-2"}
    drawn = build(dict(second.mechanism), channel="answer", classes=3)
    assert second.ladder == [
        rung.to_dict() for rung in ladder(None, None, answer=drawn, stages=2, users=600, delta=1e-6)
    ]
    assert "change since week 1" in second.text()
    with pytest.raises(UserError, match="policy: "):
        count(study, tmp_path / "third", epsilon=2.0, since=tmp_path / "second")
    with pytest.raises(UserError, match="--since: the last count drew by"):
        count(study, tmp_path / "third", epsilon=1.0, since=tmp_path / "second")
    with pytest.raises(UserError, match="is no count of this version"):
        count(study, tmp_path / "third", epsilon=2.0, since=tmp_path)


def test_what_cannot_be_counted_is_refused_in_one_line(counted: Counted, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("alone\n")
    for study, asked, said in (
        (None, {"epsilon": None}, "one of the two"),
        (None, {"central": 1.0}, "one of the two"),
        (None, {"epsilon": 0.0}, "--epsilon 0"),
        (None, {"epsilon": 3.0}, "policy.answer: 2 is below"),
        (small(policy={"answer": 0.0}), {"epsilon": None, "central": 1.0}, "policy.answer: is 0"),
        (small(policy={"answer": 50.0, "total": 40.0}), {"epsilon": 45.0}, "policy: .*total"),
        (None, {"epsilon": None, "central": 1.0, "mechanism": "randomized-response"}, "--mechanism"),
        (None, {"mechanism": "piecewise"}, "sanitizes the label"),
        (None, {"confidence": 1.0}, "--confidence 1"),
        (None, {"topics": "a", "model": "b"}, "--topics, --model"),
        (None, {"topics": tmp_path / "one.txt"}, "two or more topics"),
        (None, {"topics": tmp_path / "none.txt"}, "none.txt"),
        (small({"name": "a", "embedding": {"mechanism": "identity", "dim": 4}, "reference": True}), {}, "references"),
        (small(data={"public": {"labels": False}}), {}, "data.public.labels"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            counted(study, **asked)
        assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_a_batch_below_the_minimum_is_discarded(counted: Counted) -> None:
    with pytest.raises(UserError, match="discarded"):
        counted(small(population={"users": 600, "late": 0.95}, shuffle={"minimum-users": 100}))


def test_sets_of_classes_score_no_predictions() -> None:
    from simulations.experiment.arm import Arm, answer_of

    arm = Arm("a", embedding=PURKAYASTHA, label=PRIOR, answer={"mechanism": "subset-selection", "epsilon": 1.0})
    with pytest.raises(UserError, match="for sottovoce count alone"):
        answer_of(arm, 12)

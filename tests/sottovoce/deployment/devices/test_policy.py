"""A device made for an arm gives what the arm asks for, as often as it asks, and nothing dearer."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.node import load_node, write_node
from client.policy import Policy, Refused
from client.sanitizer import Sanitizer
from client.shard import write_shard
from mechanisms.messages.request import Request
from simulations.experiment import Experiment
from simulations.run.prepare import prepare
from sottovoce.deployment.devices import bundle as device
from tests.sottovoce.deployment.devices.test_bundle import study
from tests.support.devices import SENTENCES
from tests.support.requests import changed

#: A study that compares: its users' policy lets labels go in clear, and no total is set.
COMPARING: dict[str, Any] = {
    "policy": {"embedding": 32.0, "accept-unprotected": ["label: one arm shows them", "length: no arm of this study"]},
    "arm": [
        {
            "name": "noisy label",
            "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 4},
            "label": {"mechanism": "randomized-response", "epsilon": 2.0},
        },
        {"name": "small", "embedding": {"mechanism": "purkayastha", "epsilon": 0.5, "dim": 4}},
    ],
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arms")


@pytest.fixture(autouse=True)
def cache(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "cache"))


def made(shared: Path, out: Path, called: str, **changes: object) -> tuple[Request, Policy]:
    bundle = device.bundle_of_experiment(study(shared, **COMPARING | changes), called, out)
    return bundle.request, bundle.policy


def refusal(policy: Policy, request: Request) -> str | None:
    try:
        policy.check(request)
    except Refused as error:
        return error.reason
    return None


def test_a_device_of_an_arm_is_held_to_it(shared: Path, tmp_path: Path) -> None:
    """What the study shows in another arm, at no charge, and what it spends there, are not this arm's."""
    request, policy = made(shared, tmp_path / "a", "noisy label")
    assert refusal(policy, request) is None and not policy.accept_unprotected
    for epsilon, said in ((2.0, None), (2.1, "channel"), (1000.0, "channel")):
        label = {"mechanism": "randomized-response", "epsilon": epsilon}
        assert refusal(policy, changed(request, label=label)) == said
    request, policy = made(shared, tmp_path / "b", "small")
    assert policy.accept_unprotected == ("label: one arm shows them",)
    for epsilon, said in ((0.5, None), (0.51, "channel"), (10.18, "channel")):
        embedding = {"mechanism": "purkayastha", "epsilon": epsilon}
        assert refusal(policy, changed(request, embedding=embedding)) == said


def test_the_total_is_of_what_the_arm_asks_and_of_nothing_more(shared: Path, tmp_path: Path) -> None:
    """A user's record and one question, each once: whatever is asked beside it, or again under another name, finds
    nothing left."""
    request, policy = made(shared, tmp_path / "a", "noisy label")
    worst = policy.cost(request.named("embedding").mechanism.guarantee).epsilon
    assert policy.total == pytest.approx(2 * worst + 2.0) and math.isfinite(policy.total) and policy.releases == 3
    node = tmp_path / "node"
    write_node(node, encoder=tmp_path / "a" / "encoder", policy=replace(policy, minimum_users=0, questions=None))
    one, none = np.array([1]), np.array([0])
    write_shard(node, "train", one, none, SENTENCES[:1], none)
    write_shard(node, "test", one, one, SENTENCES[1:2], None)
    device_ = load_node(node)
    question = changed(request, split="test", stage="test", label=None)
    with device_.ledger("") as ledger:
        client = Sanitizer(device_.policy(""), ledger, device_.streams)
        assert len(client.answer(request, device_.shard("train"))) == 1
        with pytest.raises(Refused, match="what is left of the policy"):
            client.answer(replace(request, stage="again"), device_.shard("train"))
        assert len(client.answer(question, device_.shard("test"))) == 1
        assert len(client.answer(question, device_.shard("test"))) == 1  # the same again, at no cost
        with pytest.raises(Refused):
            client.answer(replace(question, stage="again"), device_.shard("test"))


def test_what_is_known_when_a_bundle_is_made_is_listed_and_nothing_else(shared: Path, tmp_path: Path) -> None:
    """Before training: what training users are asked, under maps of public data. The model's question is listed where
    nobody is asked before it, where it is a text, and in a bundle of the trained model."""
    request, policy = made(shared, tmp_path / "a", "noisy label")
    assert set(policy.questions or ()) == {request.digest("embedding"), request.digest("label")}
    policy.check(replace(request, stage="any"))
    for other in (changed(request, split="test", label=None), changed(request, m1=-request.projection.m1)):
        assert refusal(policy, other) == "question"
    embedding = {"mechanism": "purkayastha", "epsilon": 1.0, "dim": 4}
    alone = {"name": "alone", "protocol": "public-only", "embedding": embedding}
    request, policy = made(shared, tmp_path / "b", "alone", arm=[alone])
    policy.check(replace(request, split="test", stage="test", minimum_users=10))
    assert refusal(policy, replace(request, split="train")) == "question"


def test_the_total_pays_for_the_most_records_of_a_user_of_the_study(shared: Path, tmp_path: Path) -> None:
    """Or for as many as somebody says."""
    dealt = {"population": {"users": 20, "assignment": "dirichlet", "alpha": 1.0}}
    experiment: Experiment = study(shared, **COMPARING | dealt)
    few = device.bundle_of_experiment(experiment, "noisy label", tmp_path / "b", records=3).policy
    one = made(shared, tmp_path / "c", "noisy label")[1]
    assert few.total == pytest.approx(3 * one.total) and few.releases == 3 * one.releases
    held = prepare(experiment).held
    most = max(held.holders.most, held.test_holders.most)
    assert most > 3 and made(shared, tmp_path / "a", "noisy label", **dealt)[1].releases == most * one.releases
    limited = COMPARING["policy"] | {"total": 70.0}
    assert made(shared, tmp_path / "d", "noisy label", **dealt, policy=limited)[1].total == 70.0


def test_a_vector_is_of_a_user_however_many_records_they_have(shared: Path, tmp_path: Path) -> None:
    arm = {"name": "vector", "vector": {"mechanism": "privunit", "epsilon": 6.0, "dim": 4}}
    taught = {"training": {"protocol": "statistics"}, "arm": [arm], "policy": {"vector": 9.0}}
    experiment = study(shared, **taught)
    policy = device.bundle_of_experiment(experiment, None, tmp_path / "a", records=5).policy
    assert policy.statistic == policy.total == pytest.approx(6.0) and policy.releases == 1
    assert (policy.embedding, policy.label, policy.text, policy.answer) == (0.0, 0.0, 0.0, 0.0)


def test_what_texts_show_is_exempted_where_the_arm_shows_it(shared: Path, tmp_path: Path) -> None:
    """Of two exemptions the text needs one, and the label, which is sent in clear, the other."""
    names = ["length: they are short", "label: shown", "tag: not by this mechanism"]
    arm = {"name": "words", "text": {"mechanism": "santext", "epsilon": 1.0, "tokens": 8, "length": "kept"}}
    texts = study(
        shared, training={"protocol": "sanitized-text"}, arm=[arm], policy={"text": 1000.0, "accept-unprotected": names}
    )
    bundle = device.bundle_of_experiment(texts, None, tmp_path / "a")
    assert bundle.policy.accept_unprotected == tuple(names[:2])
    bundle.policy.check(bundle.request)
    bundle.policy.check(changed(bundle.request, split="test", label=None))
    worst = bundle.policy.cost(bundle.request.named("text").mechanism.guarantee).epsilon
    assert 0 < bundle.policy.text == worst < 1000.0 and bundle.policy.total == 2 * worst

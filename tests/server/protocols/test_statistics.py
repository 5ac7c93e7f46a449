"""The protocol `statistics`, and arms whose users ask by the class that their own device finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax

from mechanisms.identity import Identity
from mechanisms.mechanism import Mechanism
from mechanisms.messages.release import Release
from mechanisms.messages.request import Request
from mechanisms.privunit import MAX_DIM, PrivUnit
from mechanisms.projection import statistic_vectors
from mechanisms.streams import SimulationStreams
from server.checkpoint_files import read_layout
from server.export import export_encoder
from server.maps import pca_maps
from server.protocols import statistics as way
from server.protocols.protocol import Channels
from server.training.statistic_head import (
    head_with_names,
    linear_head,
    of_users,
    simplex_codes,
    swapped_names,
    wide_features,
)
from simulations.artifacts.model_folder import classify, read_about
from simulations.artifacts.public import CachedEncoder
from simulations.artifacts.ways import channels_of, protocol_of
from simulations.errors import UserError
from simulations.experiment.ladder import of_experiment
from simulations.run.prepare import Prepared
from simulations.run.remarks import remarks
from tests.support.studies import (
    CLASSES,
    PUBLIC,
    PURKAYASTHA,
    RANDOMIZED,
    TEST,
    USERS,
    FlowerUsers,
    LocalGrid,
    experiment,
    folder,
    ledger_rows,
    make_nodes,
    prepared,
    run_arms,
    trained,
)
from tests.support.tiny_checkpoints import as_sentence_encoder
from tests.support.tiny_models import tiny_bert

__all__ = ["folder"]  # a fixture

CODES = simplex_codes(CLASSES)
PRIVUNIT = {"mechanism": "privunit", "epsilon": 6.0, "dim": 3}
CLEAR = {"mechanism": "identity", "dim": 3}
WAY = {"protocol": "statistics"}
UNLABELLED = {"public": {"labels": False}}
POLICY = {"vector": 6.0, "embedding": 32.0, "accept-unprotected": []}


def study(*arms: dict[str, Any], **sections: dict[str, Any]) -> Any:
    return experiment(*arms, **{"training": WAY, "data": UNLABELLED, "policy": POLICY} | sections)


def channels(classes: int, mechanism: Callable[[int], Mechanism], **more: Any) -> Channels:
    label = Identity("label", classes)
    return Channels(arm="a", classes=classes, label=label, statistic=mechanism, asking=False, **more)


def named(ready: Prepared, order: Sequence[int] = range(CLASSES)) -> Prepared:
    """With class names that lie at the means of users' texts, in another order where they are wrong."""
    train = ready.held.train
    means = [ready.held.train_embeddings[train.labels == k].mean(axis=0) for k in order]
    return ready._replace(public=replace(ready.public, names=np.stack(means)))


def ran(made: Any, folder: Path, ready: Prepared | None = None) -> dict[str, Any]:
    return run_arms(made, LocalGrid(make_nodes(made, folder)), ready=ready, nodes=folder)


def test_without_noise_the_head_is_that_of_all_users_records(folder: Path) -> None:
    """From the raw embeddings and labels, by hand; what is lost on the way is the rounding to the grid.

    The first head's classes of public text tell the features that vectors of three features do not.
    """
    made = study({"name": "a", "vector": CLEAR, "reference": True})
    model = ran(made, folder)["a"].model
    ready = prepared(made)
    frame = pca_maps(ready.public.embeddings, dim=3, classes=CLASSES)
    vectors = statistic_vectors(frame.project(ready.held.train_embeddings), ready.held.train.labels, CODES)
    seen = of_users(vectors.mean(axis=0), 0.0, users=USERS, codes=CODES)
    few = frame.project(ready.public.embeddings)
    weight, bias = linear_head(few, CODES, users=seen)
    likely = softmax(2 * (few @ weight + bias), axis=1)
    wide = pca_maps(ready.public.embeddings, dim=wide_features(ready.public.embeddings), classes=CLASSES)
    weight, bias = head_with_names(wide.project(ready.public.embeddings), likely, CODES, seen)
    np.testing.assert_array_equal(model.asked.m1, frame.m1)
    x = ready.held.test_embeddings
    ours, theirs = model.maps.logits(model.maps.project(x)), wide.project(x) @ weight + bias
    np.testing.assert_allclose(
        ours - ours.mean(axis=1, keepdims=True), theirs - theirs.mean(axis=1, keepdims=True), atol=5e-3
    )
    assert np.mean(model.classify(ready.held.test.texts) == ready.held.test.labels) > 0.9  # chance is 1/3


def test_users_of_another_domain_say_where_their_text_is(folder: Path) -> None:
    """By a coordinate of their codes that classes share, unless the head is to label public text; and what they say
    makes a model."""
    made = study({"name": "a", "vector": PRIVUNIT})
    ready = prepared(made)
    ready = ready._replace(public=replace(ready.public, elsewhere=True))
    assert way.codes_asked(ready.public, self_training=False).shape == (CLASSES, CLASSES)
    assert way.codes_asked(ready.public, self_training=True).shape == (CLASSES, CLASSES - 1)
    line = ran(made, folder, ready)["a"].line
    assert (line["delivered"], line["errors"]) == (USERS, {}) and line["accuracy_clean_test"] > 0.5  # chance is 1/3


def test_a_user_releases_one_vector_and_pays_what_was_expected(folder: Path) -> None:
    made = study({"name": "a", "vector": PRIVUNIT})
    (before,) = of_experiment(made, classes=CLASSES)
    line = ran(made, folder)["a"].line
    assert (line["users"], line["delivered"], line["dropped"], line["errors"]) == (USERS, USERS, {}, {})
    rows = ledger_rows(folder, "a")
    assert len(rows) == USERS and {(row.channel, row.record, row.stage) for row in rows} == {("statistic", 0, "train")}
    for of in (before, line):
        assert {rung["rung"]: rung["epsilon"] for rung in of["ladder"]} == pytest.approx(
            {"statistic": 6.0, "record": 6.0, "user": 6.0, "shuffled": None}, abs=1e-6
        )
    assert line["test_ladder"] is None and line["accuracy"] is None and line["accuracy_clean_test"] > 0.5
    assert line["budget"]["worst_case_epsilon"] == pytest.approx(6.0) and line["dim"] == 3
    assert line["budget"]["statement"] == "6, any two users' data"
    assert line["mechanism"] == "privunit" and line["epsilon"] == 6.0
    # dishonest users: before a run, after it, and in its warnings if a batch is not of honest users
    assert before["liars"] == line["liars"] and line["liars"].startswith("liars: one adds up to")
    (test,) = line["batch_tests"]
    assert (test["stage"], test["users"], test["dropped"]) == ("train", USERS, 0.0) and test["excess"] < 1
    older = {"withstands": [0.1, 0.2]}  # a key that results of version 0.5 have
    warned = line | {"batch_tests": [test | older | {"excess": 2.0, "dropped": 0.03}]}
    for of, alarm in ((line, False), (warned, True)):
        warnings = [warning for warning in remarks([{"arms": [of]}]) if "not of honest users" in warning]
        assert len(warnings) == alarm and all("3.0%" in warning for warning in warnings)


@pytest.mark.parametrize("robust", [True, False])
def test_liars_among_the_users_are_left_out_unless_the_key_says_no(
    robust: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of 300 users sends one point: the robust mean is near the honest one, the plain one is far away."""
    mechanism, rng = PrivUnit(9, 4.0), np.random.default_rng(1)
    x, features = _units(rng.normal(size=(300, 9)) + np.eye(9)[0]), _units(rng.normal(size=(400, 8)))
    users = np.arange(300)
    streams = SimulationStreams(1).rows(users, 0 * users, stage="train", channel="statistic")
    honest = mechanism.grid.encode(mechanism.sample(x, rng=streams))
    batch = np.concatenate([honest[:270], mechanism.grid.encode(-np.eye(9)[:1].repeat(30, axis=0))])
    release = Release({"s": batch}, "statistic", "train", mechanism.guarantee, "0" * 64)
    batches = way.Batches(robust, like_public=True)
    mean, noise = batches.mean(mechanism, release, features, simplex_codes(2))
    (test,) = batches.tests
    assert test.alarm and (test.dropped > 0.05) == robust
    assert (np.linalg.norm(mean - mechanism.decoded_mean(honest)) < 0.2) == robust
    assert noise >= (1 / mechanism.scale**2 - 1) / 300 / 9
    monkeypatch.setattr(way, "MAX_TESTED", 8)
    plain, _ = batches.mean(mechanism, release, features, simplex_codes(2))
    np.testing.assert_array_equal(plain, mechanism.decoded_mean(batch))
    assert len(batches.tests) == 1


def _units(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_the_number_of_features_is_chosen_before_anyone_is_asked(folder: Path) -> None:
    made = study({"name": "a", "vector": {"mechanism": "privunit", "epsilon": 6.0}})
    public = prepared(made).public
    protocol = protocol_of(made.setups[0], trained(made), public, folder=folder)
    request = next(protocol)
    assert isinstance(request, Request) and request.channels == ("statistic",)
    assert request.projection.m1.shape == (public.embeddings.shape[1], 8)
    assert request.named("statistic").mechanism == PrivUnit((CLASSES - 1) * 9, 6.0)


def test_public_labels_are_a_prior_and_some_of_them_do(folder: Path) -> None:
    """Where labels of the same kind are public, a few users under a small ε take nothing away from them."""
    own = {"name": "alone", "protocol": "public-only"}
    made = study({"name": "users", "vector": PRIVUNIT | {"epsilon": 0.1}}, own, data={"public": {"labels": True}})
    ready = prepared(made)
    lines = ran(made, folder, ready)
    alone = lines["alone"].line
    assert alone["delivered"] == 0 and alone["ladder"] is None and alone["accuracy_clean_test"] > 0.9
    assert lines["users"].line["accuracy_clean_test"] >= alone["accuracy_clean_test"] - 0.05
    made, some = (
        study(own, data={"public": {"labels": True}}),
        np.where(np.arange(PUBLIC) < 30, ready.public.labels, -1),
    )
    for labels, right in ((some, True), (np.minimum(some, 0), False)):  # what is not known is not used
        part = ready._replace(public=replace(ready.public, labels=labels))
        line = run_arms(made, LocalGrid(0), ready=part)["alone"].line
        assert (line["accuracy_clean_test"] > 0.9) == right


def test_users_who_would_add_next_to_nothing_are_not_queried(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No request is sent and nothing is charged: the model is that of class names alone. If queried they take nothing
    away."""
    noisy = {"name": "a", "vector": {"mechanism": "privunit", "epsilon": 0.1}}
    made = study({"name": "alone", "protocol": "public-only"}, noisy)
    ready = prepared(made)
    with caplog.at_level("INFO"):
        arms = run_arms(made, LocalGrid(0), ready=named(ready))
    line = arms["a"].line
    assert not line["queried"] and line["delivered"] == 0 and line["ladder"] is None and arms["alone"].line["queried"]
    assert "a: no user is queried: if the class names are right" in caplog.text
    np.testing.assert_array_equal(arms["a"].model.maps.head_w, arms["alone"].model.maps.head_w)
    assert arms["alone"].line["accuracy_clean_test"] > 0.9
    asked = ran(study(noisy, training=WAY | {"least-gain": 0.0}), folder, named(ready))["a"]
    assert asked.line["queried"] and asked.model.maps.dim >= asked.model.asked.dim
    assert asked.line["accuracy_clean_test"] >= line["accuracy_clean_test"] - 0.05
    # the gate cannot see that names are swapped, but a simulation has test labels
    swapped = run_arms(made, LocalGrid(0), ready=named(ready, [1, 2, 0]))
    assert not swapped["a"].line["queried"]
    run = {"arms": [swapped["a"].line], "chance": 14 / TEST, "classes": ready.public.classes}
    assert ["; if it learned from class names, these may be swapped" in said for said in remarks([run])] == [True]


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2]])
def test_users_correct_wrong_names_and_name_them(order: list[int], folder: Path) -> None:
    made = study({"name": "a", "vector": CLEAR, "reference": True}, {"name": "alone", "protocol": "public-only"})
    lines = ran(made, folder, named(prepared(made), order))
    assert (lines["alone"].line["accuracy_clean_test"] < 0.5) == (order != [0, 1, 2])
    assert lines["a"].line["accuracy_clean_test"] > 0.8
    doubts = lines["a"].line["doubts"]
    assert ["names may be swapped" in doubt for doubt in doubts] == [True] * (order != [0, 1, 2])
    assert not doubts or '"red" and "green"' in doubts[0]
    warnings = [warning for warning in remarks([{"arms": [lines["a"].line]}]) if "swapped" in warning]
    assert warnings == [f"a: {doubt}." for doubt in doubts]


def test_noise_alone_contradicts_no_names() -> None:
    """Of 1,000 means that say nothing, one is reported on average: 7 or more have a chance of 8e-5."""
    reported = 0
    for seed in range(5):
        rng = np.random.default_rng(seed)
        features, codes = rng.normal(size=(500, 4)) @ np.diag([1.0, 0.7, 0.5, 0.3]) / 3, simplex_codes(5)
        likely = np.eye(5)[np.argmax(features @ rng.normal(size=(4, 5)), axis=1)]
        for row in rng.normal(scale=0.05, size=(200, codes.shape[1] * 5)):
            users = of_users(row, 0.05**2, users=10**6, codes=codes)
            reported += swapped_names(features, likely, codes, users) is not None
    assert reported < 7


def test_labels_decide_whether_names_are_believed() -> None:
    ready = prepared(study({"name": "alone", "protocol": "public-only"}, data={"public": {"labels": True}}))
    h, labels = ready.public.embeddings, ready.public.labels
    names = np.stack([h[labels == k].mean(axis=0) for k in range(CLASSES)])
    believed = way.first_belief(replace(ready.public, names=names), h)
    assert believed is not None and not believed.by_names, "all labels are public"
    some = np.where(np.arange(PUBLIC) < 45, labels, -1)
    good = way.first_belief(replace(ready.public, labels=some, names=names), h)
    assert good is not None and good.by_names and (good.values[:45].argmax(axis=1) == labels[:45]).all()
    bad = way.first_belief(replace(ready.public, labels=some, names=names[[1, 2, 0]]), h)
    assert bad is not None and not bad.by_names and np.array_equal(bad.values, some)
    assert not good.doubt and bad.doubt.startswith("class names are right about 0 of 45 public labels")
    none = way.first_belief(replace(ready.public, labels=None), h)
    assert none is None


def test_whoever_asks_releases_an_embedding_under_maps_of_its_size(folder: Path) -> None:
    made = study({"name": "a", "vector": PRIVUNIT, "embedding": PURKAYASTHA | {"dim": 2}})
    done = ran(made, folder)["a"]
    assert done.model.maps.dim == 2 and done.model.asked.dim == 3
    assert done.line["accuracy"] > 0.6 and {r["rung"] for r in done.line["test_ladder"]} >= {"embedding", "user"}
    assert done.line["budget"]["worst_case_epsilon"] == pytest.approx(6.0)
    assert done.line["budget"]["asking_epsilon"] == pytest.approx(10 * np.pi)


@pytest.mark.parametrize("names", [False, True])
def test_the_clip_is_the_length_of_a_mean_of_public_texts(names: bool) -> None:
    """Against 4,000 means of 8 public texts, whose labels are drawn from the names, or are all equally likely."""
    made = study({"name": "a", "vector": PRIVUNIT | {"dim": 6}})
    public, rng = prepared(made).public, np.random.default_rng(3)
    likely = rng.dirichlet([0.3, 0.5, 1.0], size=PUBLIC) if names else np.full((PUBLIC, CLASSES), 1 / CLASSES)
    believed = way.Belief(likely, by_names=True) if names else None
    group = way.Group(public.embeddings, believed, channels_of(made.setups[0], public), CODES, 8)
    frame, clip = group.frame, group.clip
    picked = rng.integers(PUBLIC, size=32_000)
    labels = (rng.random((32_000, 1)) > likely[picked].cumsum(axis=1)).sum(axis=1)
    vectors = statistic_vectors(frame.project(public.embeddings)[picked], labels, CODES)
    squares = (vectors.reshape(4_000, 8, -1).mean(axis=1) ** 2).sum(axis=1)
    far = 5 * squares.std() / 4_000**0.5  # false alarms: 6e-7
    assert (squares.mean() - far) ** 0.5 < clip < (squares.mean() + far) ** 0.5 + 1 / 256
    assert frame.dim == 6 and clip * 256 == int(clip * 256) and replace(group, records=1).clip == 1.0
    trusted = replace(group.channels, statistic=lambda size: Identity("statistic", size))
    for other in (trusted, replace(group.channels, teaching=False)):  # without noise, and without users
        assert replace(group, channels=other).clip == 1.0


def test_users_of_many_records_and_classes_have_a_clip() -> None:
    """All the features that public text supports would make a vector that is too large for PrivUnit."""
    many = 77
    arm = channels(many, lambda size: PrivUnit(size, 6.0), users=100)
    embeddings = np.random.default_rng(5).normal(size=(1_600, 200)).astype(np.float32)
    group = way.Group(embeddings, None, arm, simplex_codes(many), 5)
    assert (many - 1) * (wide_features(embeddings) + 1) > MAX_DIM >= (many - 1) * (group.frame.dim + 1)
    assert group.clip < 1


@pytest.mark.parametrize(("features", "heads"), [(4, 1), (5, 2)])
def test_a_second_head_needs_features_that_hold_the_classes_apart(
    features: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six classes fewer than five features do not. The first head is that of the class names."""
    rng, classes, made = np.random.default_rng(6), 6, []
    arm = channels(classes, lambda size: Identity("statistic", size), users=50, features=features, one_record=True)
    believed = way.Belief(rng.dirichlet(np.ones(classes), size=400), by_names=True)
    group = way.Group(rng.normal(size=(400, 32)).astype(np.float32), believed, arm, simplex_codes(classes), 1)
    vectors = rng.normal(size=(50, (classes - 1) * (features + 1)))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    mechanism = Identity("statistic", vectors.shape[1])
    release = Release({"s": mechanism.grid.encode(vectors)}, "statistic", "train", mechanism.guarantee, "0" * 64)
    head = way.head_with_names
    monkeypatch.setattr(way, "head_with_names", lambda *args: made.append(args) or head(*args))
    assert group.maps(release, way.Batches(False, False, tuple("abcdef")), seed=[1]) is not None
    assert len(made) == heads


def test_a_forecast_is_of_the_number_of_features_that_the_arm_states() -> None:
    """Against the share of the best number: two features cannot teach half, however many users there are."""
    arm = channels(4, lambda size: PrivUnit(size, 4.0), users=2_000)
    embeddings = np.random.default_rng(5).normal(size=(1_600, 64)).astype(np.float32)
    group = way.Group(embeddings, None, arm, simplex_codes(4), 1)
    share, half = group.expected()
    few, never = replace(group, channels=replace(arm, features=2)).expected()
    assert few < share and half is not None and never is None


@pytest.mark.parametrize("curator", [False, True])
def test_a_mean_of_many_records_is_clipped_and_scaled_back(
    curator: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """15 users of 4 records: from the releases in their ledgers, by hand. The noise is smaller by C²."""
    trusted = {"name": "a", "curator": GAUSSIAN} | TRUSTED
    people = {"users": 15, "assignment": "dirichlet", "alpha": 100.0}
    made = study(
        trusted if curator else {"name": "a", "vector": PRIVUNIT}, training=WAY | {"records": 4}, population=people
    )
    seen: list[tuple[np.ndarray, float]] = []
    original = way.of_users
    monkeypatch.setattr(
        way, "of_users", lambda mean, noise, **given: seen.append((mean, noise)) or original(mean, noise, **given)
    )
    assert ran(made, folder)["a"].line["delivered"] == 15
    ((mean, noise),) = seen
    ready = prepared(made)
    arm = channels_of(made.setups[0], ready.public)
    clip = way.Group(ready.public.embeddings, None, arm, CODES, 4).clip
    mechanism = arm.statistic(len(mean))
    payloads = [np.frombuffer(row.payload, np.int16) for row in ledger_rows(folder, "a")]
    vectors = mechanism.grid.decode(np.stack(payloads))
    assert 0.5 <= clip < 0.8
    if curator:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        assert (lengths > clip).any() and noise == pytest.approx((clip * arm.curator.sigma / 15) ** 2)
        kept = (vectors * np.minimum(1, clip / lengths)).mean(axis=0)
        np.testing.assert_allclose(mean, kept, atol=6 * noise**0.5)
        assert np.abs(mean - kept).max() > 0.5 * noise**0.5  # noise is added, and not only stated
    else:
        assert noise == pytest.approx(clip**2 * (1 / mechanism.scale**2 - 1) / (15 * len(mean)))
        np.testing.assert_allclose(mean, clip * vectors.mean(axis=0) / mechanism.scale, atol=1e-6)


def test_nothing_that_came_is_no_model(folder: Path) -> None:
    made = study({"name": "a", "vector": PRIVUNIT}, shuffle={"minimum-users": 40}, population={"users-per-node": 30})
    nodes = make_nodes(made, folder)
    done = run_arms(made, LocalGrid(nodes, lost=[1]), nodes=folder)["a"]
    assert done.model is None and done.line["delivered"] == 0
    assert done.line["ladder"][-1]["assumption"].startswith("no batch was delivered")


ARM = {"name": "a", "vector": PRIVUNIT}
EPSILON = 4.0
ANSWER = {"mechanism": "randomized-response", "epsilon": EPSILON}
ANSWER_POLICY = {"vector": 6.0, "embedding": 32.0, "answer": EPSILON, "label": 3.0, "accept-unprotected": []}
RELEASE_ONCE = {"training": {"protocol": "release-once"}}
GAUSSIAN = {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-6}
DPSGD = {"mechanism": "dp-sgd", "epsilon": 1.0, "delta": 1e-6}
TRUSTED = {"vector": CLEAR, "reference": True}
CENTRAL = {"mechanism": "privunit", "central_epsilon": 0.8}


def asking(**answer: Any) -> dict[str, Any]:
    return {"embedding": PURKAYASTHA, "label": RANDOMIZED, "answer": ANSWER | answer}


@pytest.mark.parametrize(
    ("arm", "sections", "words"),
    [
        ({"embedding": PURKAYASTHA}, {}, "vector"),
        (ARM | {"label": {"mechanism": "randomized-response", "epsilon": 1.0}}, {}, "label"),
        (ARM | {"vector": PRIVUNIT | {"epsilon": 7.0}}, {}, "vector"),
        (ARM | {"vector": PRIVUNIT | {"dim": [3, 4]}}, {}, "vector.dim"),
        (ARM | {"vector": {"mechanism": "purkayastha", "epsilon": 1.0}}, {}, "vector"),
        (ARM | {"vector": {"mechanism": "privunit"}}, {}, "vector"),
        (ARM | {"vector": CLEAR}, {}, "its vectors are sent unprotected"),
        (ARM | {"text": {"mechanism": "santext", "epsilon": 1.0}}, {}, "text"),
        (ARM, RELEASE_ONCE, "vector"),
        (ARM, {"training": {"protocol": "release-once", "self-training": True}}, "training.self-training"),
        ({"protocol": "public-only"}, {"data": UNLABELLED | {"class-descriptions": "none"}}, "protocol"),
        (ARM, {"data": {"public": {"labels": False, "labelled": 5}}}, "data.public.labelled"),
        (ARM, {"training": WAY | {"rounds": 2}}, "training.rounds"),
        (ARM, {"training": WAY | {"rounds": 7, "self-training": True}}, "shuffle.minimum-users"),
        (ARM, {"training": WAY | {"student": "mpnet"}}, "training.student"),
        (ARM, {"training": WAY | {"student-epochs": 5}}, "training.student-epochs"),
        (
            ARM,
            {"training": WAY | {"self-training": True, "student": "mpnet"}, "encoder": {"layers": [4, 6]}},
            "encoder.layers",
        ),
        ({"vector": {"mechanism": "identity", "central_epsilon": 0.8}}, {}, "privunit"),
        ({"vector": CENTRAL | {"epsilon": 6.0}}, {}, "stands in place of epsilon"),
        ({"vector": CENTRAL}, {"shuffle": {"enabled": False}}, "needs the shuffler"),
        (ARM | {"curator": GAUSSIAN}, {}, "reference = true"),
        (TRUSTED | {"curator": {"mechanism": "identity"}}, {}, "must be one of"),
        (TRUSTED | {"curator": {"mechanism": "dp-sgd", "epsilon": 1.0}}, {}, "with epsilon and delta"),
        (TRUSTED | {"curator": DPSGD | {"stepps": 3}}, {}, "known are epsilon"),
        (TRUSTED | {"curator": DPSGD | {"steps": 0}}, {}, "steps must be"),
        (TRUSTED | {"curator": DPSGD}, {"population": {"assignment": "dirichlet", "alpha": 9.0}}, "one record each"),
        (asking(epsilon=4.1), RELEASE_ONCE, "answer: worst-case ε 4.1 is above policy.answer = 4"),
        (asking(), RELEASE_ONCE | {"policy": ANSWER_POLICY | {"answer": 0.0}}, "above policy.answer = 0"),
        (asking() | {"answer": {"mechanism": "identity"}}, RELEASE_ONCE, "its answers are sent unprotected"),
        (asking(mechanism="purkayastha"), RELEASE_ONCE, "answer: purkayastha"),
        (asking(mechanism="randomized-response-prior"), RELEASE_ONCE, "sanitizes the label, not the"),
        (asking(dim=3), RELEASE_ONCE, "answer.dim: applies to embeddings only"),
        (asking(), RELEASE_ONCE | {"policy": ANSWER_POLICY | {"total": 3.0}}, "4, is above policy.total = 3"),
        (ARM | {"answer": ANSWER, "embedding": PURKAYASTHA}, {}, "an answer or an embedding; remove one of the two"),
        (
            {"answer": ANSWER, "label": RANDOMIZED, "text": {"mechanism": "santext", "epsilon": 1.0}},
            {"training": {"protocol": "sanitized-text"}},
            'answer: does not go with training.protocol = "sanitized-text"',
        ),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_line(
    arm: dict[str, Any], sections: dict[str, Any], words: str
) -> None:
    policy = {"policy": ANSWER_POLICY} if "answer" in arm else {}
    with pytest.raises(UserError) as refusal:
        study({"name": "a"} | arm, **policy | sections)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.slow
def test_groups_answer_under_encoders_that_earlier_groups_trained(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two rounds: users disjoint, each charged once. The student, half as wide as the first encoder, is published to
    the second group and to users who ask, named, saved and run."""
    teacher = tiny_bert(tmp_path_factory.mktemp("teacher"))
    student = as_sentence_encoder(tiny_bert(tmp_path_factory.mktemp("student"), width=16), "cls", normalize=True)
    made = study(
        {"name": "a", "vector": PRIVUNIT, "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 2}},
        training=WAY | {"rounds": 2, "self-training": True, "student": str(student), "student-epochs": 1},
        encoder={"model": str(teacher), "max-length": 16},
    )
    training = trained(made)
    assert training.student == str(student) and training.pooling == read_layout(student).pooling == "cls-normalized"
    ready = prepared(made)
    first = tmp_path_factory.mktemp("first")
    export_encoder(teacher, first, pooling="mean", max_length=16)
    encoder = CachedEncoder(first)
    public = replace(ready.public, encoder=encoder, embeddings=encoder.embed(ready.public.texts), checkpoint=teacher)
    ready, grid, models = ready._replace(public=public), LocalGrid(make_nodes(made, folder)), folder.parent / "models"
    FlowerUsers(grid, made.population, ready.held, seed=made.seed, nodes=folder).publish(first, ("train",))
    done = run_arms(made, grid, ready=ready, models=models, nodes=folder)["a"]
    assert (done.line["delivered"], done.line["errors"]) == (USERS, {}) and done.line["accuracy"] is not None
    users = {stage: {row.user for row in ledger_rows(folder, "a") if row.stage == stage} for stage in TWO_STAGES}
    assert [len(group) for group in users.values()] == [USERS // 2] * 2 and len(set().union(*users.values())) == USERS
    model = done.model
    assert model.maps.m1.shape[0] == 16
    assert model.encoder.folder == models / "a" / "client" and model.encoder.identity != encoder.identity
    assert model.question().projection.encoder == model.encoder.identity == read_about(models / "a")[1]
    texts = ready.held.test.texts
    np.testing.assert_array_equal(classify(models / "a", ready.public, texts), model.classify(texts))


def test_a_mechanism_is_planned_for_a_central_epsilon(folder: Path) -> None:
    """The ladder of the run says that the shuffled ε is what the arm asked for, and not much less."""
    made = study(
        {"name": "a", "vector": {"mechanism": "privunit", "central_epsilon": 0.8, "dim": 3}},
        population={"users": 300, "users-per-node": 300},
    )
    line = ran(made, folder)["a"].line
    (shuffled,) = (rung for rung in line["ladder"] if rung["rung"] == "shuffled")
    assert 0.7 < shuffled["epsilon"] <= 0.8 and line["budget"]["worst_case_epsilon"] > 0.8


def test_a_trusted_server_trains_on_records_in_clear_or_adds_noise_to_their_sum(folder: Path) -> None:
    """At an ε at which noise is nothing DP-SGD tells the classes apart, at a tiny one it does not."""
    spec = DPSGD | {"rate": 1.0, "steps": 5}
    curators = {"much": spec | {"epsilon": 900.0}, "none": spec | {"epsilon": 1e-4}, "sum": GAUSSIAN}
    made = study(*(TRUSTED | {"name": name, "curator": curator} for name, curator in curators.items()))
    much, none, noisy = (done.line for done in ran(made, folder).values())
    assert much["accuracy_clean_test"] > 0.8 > none["accuracy_clean_test"]
    assert (much["budget"]["central_epsilon"], much["budget"]["central_delta"]) == (900.0, 1e-6)
    assert "adds noise to the sum of each step (dp-sgd, " in much["budget"]["statement"]
    assert noisy["ladder"][0]["epsilon"] == "inf" and noisy["reference"]
    assert "adds noise to the sum (mechanism gaussian, epsilon 1.0" in noisy["budget"]["statement"]
    assert noisy["budget"]["central_epsilon"] == 1.0


TWO_STAGES = ("train-1", "train-2")


def test_users_are_taught_by_statistics_and_ask_by_answers(folder: Path) -> None:
    """Sanitized accuracy is that of the released classes: the device's, but for the truths and errors that a draw
    makes of each other."""
    repeats = 20
    data = UNLABELLED | {"test-repeats": repeats}
    made = study({"name": "a", "vector": PRIVUNIT, "answer": ANSWER}, data=data, policy=ANSWER_POLICY)
    (before,) = of_experiment(made, classes=CLASSES)
    done = ran(made, folder)["a"]
    line, kept = done.line, 1 / (1 + (CLASSES - 1) * math.exp(-EPSILON))
    right = line["accuracy_clean_test"]
    expected = right * kept + (1 - right) * (1 - kept) / (CLASSES - 1)
    n = TEST * repeats
    assert 1e-6 < stats.binom(n, expected).cdf(round(line["accuracy"] * n)) < 1 - 1e-6
    assert line["accuracy"] < right
    rows = [row for row in ledger_rows(folder, "a") if row.channel == "answer"]
    assert len(rows) == n and all(row.epsilon == pytest.approx(EPSILON) and row.stage == "test" for row in rows)
    assert done.model.embedding is None and done.model.asked.dim == 3
    rungs = {r["rung"]: r["epsilon"] for r in line["test_ladder"]}
    assert list(rungs) == ["answer", "record", "user", "shuffled"]
    assert rungs["answer"] == rungs["user"] == pytest.approx(EPSILON) and 0 < rungs["shuffled"] < EPSILON
    assert rungs == {r["rung"]: r["epsilon"] for r in before["test_ladder"]}
    budget = line["budget"]
    assert budget["worst_case_epsilon"] == pytest.approx(6.0) and budget["asking_epsilon"] == pytest.approx(EPSILON)
    assert budget["statement"] == "6, any two users' data; whoever asks: 4, any two texts"
    assert line["mechanism"] == "privunit, then randomized-response"


def test_release_once_teaches_by_embeddings_and_asks_by_answers(folder: Path) -> None:
    """The training users' price is still that of embedding and label, and the test users' that of the answer alone."""
    arm = {"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}
    made = experiment(arm | {"answer": ANSWER}, arm | {"name": "b"}, policy=ANSWER_POLICY)
    lines = {name: done.line for name, done in ran(made, folder).items()}
    one, other = lines["a"], lines["b"]
    assert one["ladder"] == other["ladder"]
    assert one["test_ladder"][0]["rung"] == "answer" and one["test_ladder"][2]["epsilon"] == EPSILON
    assert other["test_ladder"][2]["epsilon"] == pytest.approx(10 * np.pi, rel=0.01)
    for name in ("worst_case_epsilon", "metric_epsilon", "label_epsilon"):
        assert one["budget"][name] == other["budget"][name]
    assert (one["budget"]["asking_epsilon"], other["budget"]["asking_epsilon"]) == (EPSILON, None)
    assert one["accuracy_clean_test"] == other["accuracy_clean_test"] and one["accuracy"] > 0.7
    assert {r.channel for r in ledger_rows(folder, "a")} == {"embedding", "label", "answer"}


def test_without_noise_it_is_the_device_and_public_models_are_asked_so_too(folder: Path) -> None:
    clear = {"name": "clear", "protocol": "public-only", "answer": {"mechanism": "identity"}, "reference": True}
    made = experiment(clear, {"name": "public", "protocol": "public-only", "answer": ANSWER}, policy=ANSWER_POLICY)
    done = ran(made, folder)
    line = done["clear"].line
    assert line["accuracy"] == line["accuracy_clean_test"] > 0.9
    assert line["test_ladder"][2]["epsilon"] == "inf" and line["budget"]["asking_epsilon"] == math.inf
    public = done["public"].line
    assert public["ladder"] is None and public["budget"]["statement"].startswith("nothing leaves; whoever asks: 4")
    assert (public["budget"]["worst_case_epsilon"], public["budget"]["asking_epsilon"]) == (None, EPSILON)
    assert public["accuracy"] < public["accuracy_clean_test"] == line["accuracy"]

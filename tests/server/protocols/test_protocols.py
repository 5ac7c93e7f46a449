"""Protocols are conversations: the same answers give the same requests and model; refusals before any request."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mechanisms.messages.batch import Batch
from mechanisms.messages.release import Release
from mechanisms.messages.request import Request
from mechanisms.randomized_response import RandomizedResponse
from server.protocols import PROTOCOLS, releases
from server.protocols.drive import Collected, Driver
from server.protocols.protocol import Conversation, Public, Publish
from simulations.artifacts.encoder import check_trained
from simulations.artifacts.ways import channels_of, protocol_of
from simulations.errors import UserError
from simulations.experiment import Experiment, sections
from simulations.run.collect import FlowerUsers
from sottovoce.deployment.devices.bundle import _first_request
from tests.support.studies import (
    CLASSES,
    PRIOR,
    PURKAYASTHA,
    RANDOMIZED,
    LocalGrid,
    experiment,
    folder,
    make_nodes,
    prepared,
    trained,
)
from tests.support.texts import SANTEXT, text_prepared, text_study

__all__ = ["folder"]  # a fixture

ARM = {"name": "a", "embedding": PURKAYASTHA, "label": RANDOMIZED}


class Answered:
    """Users who have answered before: their batches are in a list, and there is nobody else to ask."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = list(batches)
        self.requests: list[Request] = []

    def collect(self, request: Request) -> Collected:
        self.requests.append(request)
        return Collected(self.batches.pop(0))

    def publish(self, encoder: Path, splits) -> SimpleNamespace:
        assert splits == ("train", "test")
        return SimpleNamespace(folder=encoder)


class Listening(Answered):
    """Users of a simulation, and every batch that they gave."""

    def __init__(self, users: FlowerUsers) -> None:
        super().__init__([])
        self.users = users

    def collect(self, request: Request) -> Collected:
        self.requests.append(request)
        collected = self.users.collect(request)
        self.batches.append(collected.batch)
        return collected


def steps_of(study: Experiment, public: Public) -> Conversation:
    return protocol_of(study.setups[0], trained(study), public, folder=Path("nowhere"))


@pytest.mark.parametrize("label_stages", [1, 2])
def test_a_protocol_is_replayed_from_what_it_was_sent(label_stages: int, folder: Path) -> None:
    """So it can be resumed, driven by a deployment, or by nobody at all: batches in a list are enough."""
    study = experiment(ARM | {"label": PRIOR}, training={"label-stages": label_stages})
    ready = prepared(study)
    grid = LocalGrid(make_nodes(study, folder))
    first = Listening(FlowerUsers(grid, study.population, ready.held, seed=study.seed, nodes=folder))
    model = Driver(first).train(steps_of(study, ready.public))
    again = Answered(first.batches)
    replayed = Driver(again).train(steps_of(study, ready.public))
    digests = [[[r.digest(channel) for channel in r.channels] for r in users.requests] for users in (first, again)]
    assert len(digests[0]) == label_stages and digests[0] == digests[1]
    for name in ("mean", "m1", "m2", "head_w", "head_b"):
        np.testing.assert_array_equal(getattr(model.maps, name), getattr(replayed.maps, name))
        np.testing.assert_array_equal(getattr(model.asked, name), getattr(replayed.asked, name))


def test_experiments_name_the_protocols_that_there_are() -> None:
    with_steps = {name: protocol.steps for name, protocol in PROTOCOLS.items() if protocol.steps is not None}
    assert (*with_steps, "paper") == sections.WAYS
    for steps in with_steps.values():
        assert list(inspect.signature(steps).parameters) == ["public", "channels", "training", "folder"]
        assert inspect.isgeneratorfunction(steps)
    keys = {field.name: field.default for field in fields(sections.TrainingConfig)}
    assert all(keys[option.name] == option.default for protocol in PROTOCOLS.values() for option in protocol.options)
    assert releases("sanitized-text", "text") and not releases("sanitized-text", "embedding")
    assert not releases("a protocol of another version", "text")


def test_nothing_happens_before_the_first_request_is_wanted(lines: list[str]) -> None:
    study = experiment(ARM)
    public = prepared(study).public
    protocol = steps_of(study, public)
    assert lines == []
    request = next(protocol)
    assert isinstance(request, Request) and lines == [f"a: learning maps on {90:,} public texts"]
    assert request.channels == ("embedding", "label") and request.classes == CLASSES

    def refuse(request: Request) -> None:  # a run that goes on: users have answered another request at this stage
        raise ValueError(request.stage)

    nobody = Answered([])
    with pytest.raises(ValueError, match=r"^train$"):
        Driver(nobody, before=refuse).train(steps_of(study, public))
    assert nobody.requests == []


def test_a_public_only_arm_asks_nobody() -> None:
    study = experiment({"name": "p", "protocol": "public-only", "embedding": PURKAYASTHA})
    nobody = Answered([])
    model = Driver(nobody).train(steps_of(study, prepared(study).public))
    assert nobody.requests == [] and model.asked is None and model.question().channels == ("embedding",)
    assert model.answer(Batch((), 0, 0, "no release arrived")) is None


def test_the_driver_counts_teaching_and_asking_apart(lines: list[str]) -> None:
    """And rows of the smallest class that anybody has."""
    labels = {"y": np.array([0, 2, 0, 2, 2], dtype=np.int16)}
    release = Release(labels, "label", "", RandomizedResponse(1.0, 3).guarantee, "")
    batches = [Batch((release,), 3, 2, None), Batch((), 0, 0, "too few"), Batch((), 5, 0)]
    answered = Answered(batches)
    driver = Driver(answered, name="arm", before=lambda request: lines.append(request.stage))

    def conversation() -> Iterator[Any]:
        assert (yield SimpleNamespace(stage="one")) is batches[0]
        assert (yield Publish(Path("trained"))).folder == Path("trained")
        assert (yield SimpleNamespace(stage="two")) is batches[1]
        return "model"

    assert driver.train(conversation()) == "model"
    assert driver.ask(SimpleNamespace(stage="test")) is batches[2]
    assert (driver.teaching.users, driver.teaching.stages) == (3, {"one": 3, "two": 0})
    assert driver.teaching.classes == {"one": 2}  # a class of which nobody came is nobody's
    assert (driver.teaching.rows, driver.teaching.bytes) == (5, 10)
    assert driver.teaching.dropped == {"duplicate": 2, "batch discarded: too few": 1}
    assert (driver.asking.users, driver.asking.stages, driver.asking.dropped) == (5, {"test": 5}, {})
    told = {"one": "3 users delivered", "two": "0 users delivered; too few", "test": "5 users delivered"}
    assert lines == [line for stage, text in told.items() for line in (stage, f"arm: stage {stage}: {text}")]


def test_what_an_arm_asks_follows_from_the_experiment() -> None:
    study = experiment(ARM, training={"label-stages": 3}, shuffle={"minimum-users": 20})
    channels = channels_of(study.setups[0], prepared(study).public)
    assert (channels.teaching, channels.asking, channels.minimum_users, channels.classes) == (True, True, 20, CLASSES)
    assert (channels.label.name, [m.name for m in channels.embedding]) == ("randomized-response", ["purkayastha"])
    assert (trained(study).seed, trained(study).options) == (study.seed, {"label_stages": 3})


TEXT = {"name": "a", "text": SANTEXT}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


@pytest.mark.parametrize(
    ("section", "key", "numbers"),
    [("training", "bottleneck", "width 32, got 33"), ("encoder", "max-length", "64 places, got 65")],
)
def test_no_user_is_asked_for_what_cannot_be_trained(section: str, key: str, numbers: str, shared: Path) -> None:
    study = text_study(shared, TEXT, **{section: {key: int(numbers[-2:])}})
    with pytest.raises(ValueError, match=rf"^{section}.{key}: must be from [^\n]* the encoder's [^\n]*{numbers}$"):
        next(steps_of(study, text_prepared(study, shared).public))
    with pytest.raises(UserError, match=f"{section}.{key}: [^\n]*{numbers[-2:]}"):
        check_trained(study.encoder, study.training, study.arms)


@pytest.mark.parametrize("bottleneck", [32, "none"])
def test_what_fits_is_asked_for(bottleneck: int | str, shared: Path) -> None:
    study = text_study(shared, TEXT, training={"bottleneck": bottleneck}, encoder={"max-length": 64})
    check_trained(study.encoder, study.training, study.arms)
    public = text_prepared(study, shared).public
    assert next(steps_of(study, public)).channels == ("text", "label")
    gone = replace(public, rewriter=replace(public.rewriter, model=str(shared / "nowhere")))
    with pytest.raises(ValueError, match="there is no folder"):
        next(steps_of(study, gone))


def test_a_bundle_does_not_wait_for_pretraining(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But a training server does, before it asks: pretraining may fail too."""
    study = text_study(shared, TEXT, text={"pretrain": True})
    public = text_prepared(study, shared).public
    public = replace(public, rewriter=replace(public.rewriter, pretrain=5))

    def refuse(*args: object, **given: object) -> Path:
        raise ValueError("pretraining: no")

    monkeypatch.setattr("simulations.artifacts.text_channel.masked_lm_folder", refuse)
    assert _first_request(study, study.arms[0], public).channels == ("text", "label")
    with pytest.raises(ValueError, match=r"^pretraining: no$"):
        next(steps_of(study, public))


def test_settings_that_contradict_a_training_on_texts_are_refused(shared: Path) -> None:
    with pytest.raises(UserError, match=r"^encoder.layers: does not go with training.protocol"):
        text_study(shared, TEXT, training={"protocol": "sanitized-text"}, encoder={"layers": [1, 2]})
    arm = {"name": "a", "text": {"mechanism": "dp-mlm", "epsilon": 5.0, "tokens": 8}}
    sections: dict[str, Any] = {"text": {"pretrain": True, "masked-lm": "bundled"}}
    with pytest.raises(UserError, match=r'^arm "a": text: dp-mlm reads a .*; remove text.pretrain$'):
        text_study(shared, arm, **sections)
    clear = text_study(shared, arm | {"perturb": "test", "reference": True}, **sections)
    assert isinstance(clear, Experiment)  # training users' texts are as they stand

"""What a training end to end cannot do is said before anybody is asked: what users release for it would be in vain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulations.artifacts.encoder import check_trained
from simulations.artifacts.text_channel import StudyRewriter
from simulations.artifacts.ways import protocol_of
from simulations.errors import UserError
from simulations.experiment import Experiment
from sottovoce.deployment.devices.bundle import _first_request
from tests.support.studies import trained
from tests.support.texts import SANTEXT, text_prepared, text_study

TEXT = {"name": "a", "text": SANTEXT}
CASES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (TEXT, {"training": {"bottleneck": 33}}, "training.bottleneck"),
    (TEXT, {"training": {"bottleneck": 100_000}}, "training.bottleneck"),
    (TEXT, {"encoder": {"max-length": 65}}, "encoder.max-length"),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


@pytest.mark.parametrize(("arm", "sections", "where"), CASES)
def test_no_user_is_asked_for_what_cannot_be_trained(
    arm: dict[str, Any], sections: dict[str, Any], where: str, shared: Path
) -> None:
    study = text_study(shared, arm, **sections)
    public = text_prepared(study, shared).public
    protocol = protocol_of(study.setups[0], trained(study), public, folder=Path("nowhere"))
    with pytest.raises(ValueError, match=f"^{where}: must be from .* the encoder's .*, got ") as error:
        next(protocol)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=f"{where}: ") as said:
        check_trained(study.encoder, study.training, study.arms)
    given = (study.training.bottleneck, study.encoder.max_length, *study.arms[0].dims)
    assert any(str(number) in str(said.value) for number in given)
    assert any(str(number) in str(said.value) for number in (32, 64))  # the width and the places of the tiny BERT


@pytest.mark.parametrize("bottleneck", [2, 32, "none"])
def test_what_fits_is_asked_for(bottleneck: int | str, shared: Path) -> None:
    study = text_study(shared, TEXT, training={"bottleneck": bottleneck}, encoder={"max-length": 64})
    check_trained(study.encoder, study.training, study.arms)
    public = text_prepared(study, shared).public
    protocol = protocol_of(study.setups[0], trained(study), public, folder=Path("nowhere"))
    assert next(protocol).channels == ("text", "label")


def test_an_encoder_that_is_not_there_is_missed_before_users_are_asked(shared: Path) -> None:
    study = text_study(shared, TEXT)
    public = text_prepared(study, shared).public
    assert isinstance(public.rewriter, StudyRewriter)
    gone = replace(public, rewriter=replace(public.rewriter, model=str(shared / "nowhere")))
    with pytest.raises(ValueError, match="there is no folder"):
        next(protocol_of(study.setups[0], trained(study), gone, folder=Path("nowhere")))


def test_a_bundle_does_not_wait_for_pretraining(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But a training server does, before it asks: pretraining may fail too."""
    study = text_study(shared, TEXT, text={"pretrain": True})
    public = text_prepared(study, shared).public
    assert isinstance(public.rewriter, StudyRewriter)
    public = replace(public, rewriter=replace(public.rewriter, pretrain=5))

    def refuse(*args: object, **given: object) -> Path:
        raise ValueError("pretraining: no")

    monkeypatch.setattr("simulations.artifacts.text_channel.masked_lm_folder", refuse)
    assert _first_request(study, study.arms[0], public).channels == ("text", "label")
    with pytest.raises(ValueError, match=r"^pretraining: no$"):
        next(protocol_of(study.setups[0], trained(study), public, folder=Path("nowhere")))


def test_settings_that_no_training_on_texts_reads_are_refused(shared: Path) -> None:
    with pytest.raises(UserError, match=r"^encoder.layers: does not go with training.protocol"):
        text_study(shared, TEXT, training={"protocol": "sanitized-text"}, encoder={"layers": [1, 2]})


def test_pretraining_by_what_reads_a_language_model_is_refused(shared: Path) -> None:
    arm = {"name": "a", "text": {"mechanism": "dp-mlm", "epsilon": 5.0, "tokens": 8}}
    sections: dict[str, Any] = {"text": {"pretrain": True, "masked-lm": "bundled"}}
    with pytest.raises(UserError, match=r'^arm "a": text: dp-mlm reads a .*; remove text.pretrain$'):
        text_study(shared, arm, **sections)
    asked = text_study(shared, arm | {"perturb": "test", "reference": True}, **sections)
    assert isinstance(asked, Experiment)  # training users' texts are as they stand

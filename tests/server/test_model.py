"""Checkpoints, their export, fine-tuning, the pipeline and the published procedure."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from client.models.encoder import Encoder
from mechanisms.spherical import Purkayastha
from server import checkpoint, checkpoint_files
from server.card import model_card
from server.export import export_encoder
from server.maps import Maps, pca_maps
from server.model import Pipeline
from server.training.end_to_end import NOT_PRIVATE, train_paper
from server.training.finetune import finetune
from server.training.noise import sanitize_public
from tests.support.results import user
from tests.support.tiny_models import bert, reviews

__all__ = ["bert"]  # a fixture

TEXTS = ["the film was good .", "bad", "a very very awful plot and not a fine book .", ("good film", "bad book .")]


def pipeline_of(bert: Path, **how) -> Pipeline:
    model, tokenizer = checkpoint.load(bert)
    maps = pca_maps(np.random.default_rng(0).standard_normal((80, 32)), dim=4, classes=3)
    return Pipeline(model, tokenizer, maps, **how).eval()


@pytest.fixture(autouse=True)
def _global_generator_untouched():
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_exported_encoder_is_the_checkpoint(bert, tmp_path) -> None:
    """Single texts and pairs of unlike lengths, by the client's code and by torch."""
    export_encoder(bert, tmp_path, pooling="cls", max_length=16)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["encoder.json", "model.onnx", "tokenizer.json"]
    about = {"dim": 32, "max_length": 16, "pooling": "cls", "precision": "fp32"}
    assert json.loads((tmp_path / "encoder.json").read_text()) == about
    encoder, pipeline = Encoder(tmp_path), pipeline_of(bert, pooling="cls", max_length=16)
    for texts in (TEXTS[:3], TEXTS[3:], ["good " * 40]):
        np.testing.assert_allclose(encoder.encode(texts), pipeline.embed(texts), atol=1e-5)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"pooling": "max"}, "pooling 'max' is not one of"),
        ({"precision": "int2"}, "precision 'int2' is not one of"),
        ({"precision": "int8"}, "int8 needs public texts"),
        ({"max_length": 65}, "max-length must be between 3 and 64"),
    ],
)
def test_an_export_that_cannot_be_is_one_line_and_leaves_nothing(bert, tmp_path, how, words) -> None:
    with pytest.raises(ValueError, match=f"^encoder: [^\n]*{words}[^\n]*$"):
        export_encoder(bert, tmp_path / "out", **how)
    assert not (tmp_path / "out").exists()


def test_a_saved_pipeline_comes_back_and_its_maps_need_no_bert(bert, tmp_path) -> None:
    pipeline = pipeline_of(bert, pooling="cls", max_length=20)
    pipeline.save_pretrained(tmp_path)
    again = Pipeline.from_pretrained(tmp_path)
    np.testing.assert_array_equal(again.embed(TEXTS[:3]), pipeline.embed(TEXTS[:3]))
    assert (again.pooling, again.max_length) == ("cls", 20)
    z = pipeline.maps().project(pipeline.embed(TEXTS[:3]))
    for kept in (again.maps(), Maps.load(tmp_path)):
        np.testing.assert_array_equal(kept.predict(z), pipeline.maps().predict(z))
    assert list(tmp_path.glob("*.safetensors")) and not list(tmp_path.glob("*.bin"))
    export_encoder(tmp_path, tmp_path / "exported", max_length=20)
    with pytest.raises(ValueError, match=r"^model: [^\n]*holds no saved pipeline"):
        Pipeline.from_pretrained(bert)


def test_the_pipeline_agrees_with_its_maps(bert) -> None:
    pipeline = pipeline_of(bert)
    inputs = dict(pipeline.tokenizer(TEXTS[:3], padding=True, return_tensors="pt"))
    with torch.no_grad():
        logits = pipeline(inputs).numpy()
    maps = pipeline.maps()
    np.testing.assert_allclose(logits, maps.logits(maps.project(pipeline.embed(TEXTS[:3]))), atol=1e-5)


@pytest.mark.parametrize(
    ("rungs", "price"),
    [
        (user(6.0), "ε = 6"),
        (user(3.0, worst_case="inf", delta=1e-5), "ε = 3 at δ = 1e-05"),
        (user(None, assumption="unknown how many; say it"), "unknown how many"),
        (user(math.inf), "none: something leaves without protection"),
        (user(6.0, public=["label"]), "ε = 6, between data that agree in label, declared public (else ε = ∞)"),
    ],
)
def test_a_card_says_what_users_pay_and_under_which_condition(rungs, price) -> None:
    row = f"| All that one user releases in {{}}, trusting nobody | {price} |"
    for key, part in (("ladder", "training"), ("test_ladder", "inference")):
        card = model_card({"name": "a", key: rungs})
        assert row.format(part) in card and card.count("All that one user") == 1
    assert "All that one user" not in model_card({"name": "a", "classes": None})


def test_fine_tuning_gives_a_better_checkpoint_that_exports(bert, tmp_path, lines) -> None:
    texts, labels = reviews(300, seed=1)
    arguments = {"classes": 2, "epochs": 8, "lr": 2e-3, "seed": 3}
    tuned = finetune(bert, texts, labels, tmp_path / "tuned", **arguments)
    first, *_, last = (float(line.split("loss ")[1].split(",")[0]) for line in lines)
    assert last < 0.5 * first
    export_encoder(tuned, tmp_path / "out", max_length=64)
    h = Encoder(tmp_path / "out").encode(texts)
    means = np.stack([h[labels == k].mean(axis=0) for k in (0, 1)])
    assert np.mean(((h[:, None] - means) ** 2).sum(axis=2).argmin(axis=1) == labels) > 0.95
    again = finetune(bert, texts, labels, tmp_path / "again", **arguments)
    assert checkpoint_files.fingerprint(again) == checkpoint_files.fingerprint(tuned)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"labels": [0]}, "as many labels"), ({"labels": [0, 2]}, "0 to 1"), ({"epochs": 0}, "at least 1")],
)
def test_fine_tuning_refuses_what_does_not_fit(bert, tmp_path, change, words) -> None:
    arguments = {"texts": ["good", "bad"], "labels": [0, 1], "classes": 2, "epochs": 1, "seed": 1} | change
    with pytest.raises(ValueError, match=f"^training: [^\n]*{words}"):
        finetune(bert, folder=tmp_path / "tuned", **arguments)
    assert not (tmp_path / "tuned").exists()


def test_the_published_procedure_runs_only_where_it_is_acknowledged(bert) -> None:
    arguments = {"mechanism": Purkayastha(4, 20.0), "dim": 4, "classes": 2, "seed": 1}
    with pytest.raises(ValueError, match=r"^training: [^\n]*acknowledged[^\n]*$") as refusal:
        train_paper(bert, ["good", "bad"], [1, 0], acknowledged=False, **arguments)
    assert NOT_PRIVATE in str(refusal.value) and "not private" in NOT_PRIVATE and "trusted simulation" in NOT_PRIVATE


def test_the_published_procedure_learns_through_the_noise(bert) -> None:
    test, truth = reviews(200, seed=2)
    mechanism, accuracies = Purkayastha(4, 20.0), []

    def measure(_done: int, pipeline: Pipeline) -> None:
        maps = pipeline.maps()
        noisy = sanitize_public(mechanism, maps.project(pipeline.embed(test)), seed=5, stage="test")
        accuracies.append(float(np.mean(maps.predict(noisy) == truth)))

    how = {"mechanism": mechanism, "dim": 4, "classes": 2, "epochs": 4, "encoder_lr": 2e-3, "maps_lr": 1e-2, "seed": 1}
    pipeline = train_paper(bert, *reviews(400, seed=1), acknowledged=True, after_epoch=measure, **how)
    assert not pipeline.training and len(accuracies) == 4
    assert accuracies[-1] > 0.9

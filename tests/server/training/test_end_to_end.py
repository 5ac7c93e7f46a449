"""Training end to end: learning rates over its steps, its bottleneck, and the keys that set them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mechanisms.identity import Identity
from server.checkpoint import load
from server.protocols.sanitized_text import BOTTLENECK
from server.text_batches import warmed
from server.training.end_to_end import head_on_text, initial, train_on_text, train_paper
from simulations.errors import UserError
from simulations.experiment import Experiment, from_table
from tests.support.studies import trained
from tests.support.tiny_models import bert, reviews

__all__ = ["bert"]  # a fixture


@pytest.mark.parametrize(
    ("how", "rates"),
    [
        ({}, [0.25, 0.5, 0.75, 1, *np.arange(36, 0, -1) / 36]),  # of 40: a tenth rises, and the rest falls
        ({"warm_up": 0.0}, [1, 0.75, 0.5, 0.25]),
        ({"warm_up": 0.5, "schedule": "constant"}, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ({"warm_up": 0.0, "schedule": "constant"}, [1] * 4),
        ({}, [1]),
        ({"schedule": "cosine"}, None),
        ({"warm_up": 1.0}, None),
    ],
)
def test_rates(how: dict, rates: list[float] | None) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    if rates is None:
        with pytest.raises(ValueError, match="training: no schedule"):
            warmed(optimizer, 4, **how)
        return
    schedule, seen = warmed(optimizer, len(rates), **how), []
    for _ in rates:
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert seen == pytest.approx(rates)


def study(**training: object) -> Experiment:
    label = {"mechanism": "randomized-response", "epsilon": 2.0}
    arm = {"name": "a", "text": {"mechanism": "santext", "epsilon": 2.0, "tokens": 6}, "label": label}
    training = {"protocol": "sanitized-text", "train-encoder": True} | training
    return from_table({"name": "x", "training": training, "policy": {"text": 1000.0, "label": 2.0}, "arm": [arm]})


def test_every_key_reaches_the_training(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an experiment says is what the optimizer and its schedule are made with."""
    keys = study(**{"lr": 1e-4, "schedule": "constant", "warm-up": 0.5, "weight-decay": 0.25}).training.descent
    assert keys == {"encoder_lr": 1e-4, "schedule": "constant", "warm_up": 0.5, "weight_decay": 0.25}
    seen = {}

    def noted(optimizer: torch.optim.Optimizer, steps: int, **how: object):
        encoder = optimizer.param_groups[1]
        seen.update(how, encoder_lr=encoder["lr"], weight_decay=encoder["weight_decay"])
        return warmed(optimizer, steps)

    monkeypatch.setattr("server.training.loop.warmed", noted)
    given = {"mechanism": Identity("embedding", 4), "acknowledged": True}
    train_paper(bert, *reviews(4, 0), classes=2, dim=4, epochs=1, seed=1, **given, **keys)
    assert seen == keys


def test_what_a_study_says_is_what_is_trained(bert: Path) -> None:
    for given, dim in (({}, 16), ({"bottleneck": 5}, 5), ({"bottleneck": "none"}, None)):
        assert BOTTLENECK.of(trained(study(**given)).options) == dim
    texts, labels = reviews(12, 0)
    for dim in (5, None):
        pipeline = train_on_text(bert, texts, labels, classes=2, dim=dim, epochs=1, seed=1, max_length=16)
        width = pipeline.encoder.config.hidden_size
        assert pipeline.maps().m1.shape == (width, dim or width)


def test_without_a_bottleneck_maps_change_nothing_at_first(bert: Path) -> None:
    texts, _ = reviews(12, 0)
    rng = np.random.default_rng(0)
    pipeline = initial(bert, texts, dim=None, classes=2, rng=rng, pooling="mean", max_length=16)
    maps, embedded = pipeline.maps(), pipeline.embed(texts)
    np.testing.assert_array_equal((embedded - maps.mean) @ maps.m1 @ maps.m2, embedded - maps.mean)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"bottleneck": 1}, 'training.bottleneck: must be "none" or a whole number of at least 2'),
        ({"bottleneck": True}, "must be .none."),
        ({"protocol": "statistics", "bottleneck": 8}, "goes with protocol = .sanitized-text."),
        ({"train-encoder": False, "bottleneck": 8}, "training.bottleneck: goes with train-encoder = true"),
    ],
)
def test_what_is_no_bottleneck(training: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        study(**training)


def test_a_head_on_the_frozen_encoder_learns_from_noisy_labels(bert: Path) -> None:
    """The encoder does not change; labels that randomized response turned around are corrected by their likelihood."""
    texts, labels = reviews(400, 3)
    rng = np.random.default_rng(4)
    released = np.where(rng.random(400) < 0.3, 1 - labels, labels)  # of accuracy .7
    likely = np.where(np.arange(2) == released[:, None], 0.7, 0.3)
    pipeline = head_on_text(bert, texts, released, classes=2, label_transition=likely, seed=1, max_length=16)
    before = load(bert)[0].state_dict()
    assert all(torch.equal(value, before[name]) for name, value in pipeline.encoder.state_dict().items())
    others, truth = reviews(400, 5)
    maps = pipeline.maps()
    assert (maps.predict(maps.project(pipeline.embed(others))) == truth).mean() > 0.9

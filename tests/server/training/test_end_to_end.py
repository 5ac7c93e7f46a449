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
from tests.support.tiny_models import bert, reviews, tiny_bert


def rates(steps: int, **how) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule, found = warmed(optimizer, steps, **how), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"] / 2)
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("steps", [1, 40])
def test_a_tenth_rises_and_the_rest_falls_where_nobody_says_otherwise(steps: int) -> None:
    rise = max(1, steps // 10)
    want = [(i + 1) / rise if i < rise else (steps - i) / (steps - rise) for i in range(steps)]
    assert rates(steps) == pytest.approx(want)


def test_shares_and_schedules() -> None:
    assert rates(8, warm_up=0.5, schedule="constant") == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1])
    assert rates(4, warm_up=0.0, schedule="constant") == [1.0] * 4
    assert rates(4, warm_up=0.0) == pytest.approx([1, 0.75, 0.5, 0.25])
    for how in ({"schedule": "cosine"}, {"warm_up": 1.0}):
        with pytest.raises(ValueError, match="training: no schedule"):
            rates(4, **how)


@pytest.mark.parametrize("train", [train_on_text, train_paper])
def test_every_key_reaches_the_training(train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an experiment says is what the optimizer and its schedule are made with."""
    keys = from_table(
        {
            "name": "x",
            "training": {"lr": 1e-4, "schedule": "constant", "warm-up": 0.5, "weight-decay": 0.25},
            "arm": [
                {"name": "a", "protocol": "public-only", "embedding": {"mechanism": "identity"}, "reference": True}
            ],
        }
    ).training.descent
    assert keys == {"encoder_lr": 1e-4, "schedule": "constant", "warm_up": 0.5, "weight_decay": 0.25}
    seen = {}

    def warmed(optimizer, steps, **how):
        seen.update(how)
        return Still(optimizer, seen)

    monkeypatch.setattr("server.training.loop.warmed", warmed)
    texts, labels = reviews(4, 0)
    given = {"mechanism": Identity("embedding", 4), "acknowledged": True} if train is train_paper else {}
    train(tiny_bert(tmp_path / "bert"), texts, labels, classes=2, dim=4, epochs=1, seed=1, **given, **keys)
    assert seen == keys


class Still:
    """A schedule that changes nothing, and notes what the optimizer of the encoder has."""

    def __init__(self, optimizer: torch.optim.Optimizer, seen: dict) -> None:
        encoder = optimizer.param_groups[1]
        seen |= {"encoder_lr": encoder["lr"], "weight_decay": encoder["weight_decay"]}

    def step(self) -> None:
        pass


__all__ = ["bert"]  # a fixture


def study(**training: object) -> Experiment:
    return from_table(
        {
            "name": "x",
            "training": {"protocol": "sanitized-text", "train-encoder": True} | training,
            "policy": {"text": 1000.0, "label": 2.0},
            "arm": [
                {
                    "name": "a",
                    "text": {"mechanism": "santext", "epsilon": 2.0, "tokens": 6},
                    "label": {"mechanism": "randomized-response", "epsilon": 2.0},
                }
            ],
        }
    )


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
        ({"bottleneck": 1}, 'training.bottleneck: must be "none" or a whole number of at least 2, got 1'),
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

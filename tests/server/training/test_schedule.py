"""Learning rates over the steps of a training, and the keys of an experiment that set them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mechanisms.identity import Identity
from server.text_batches import warmed
from server.training import end_to_end, on_text, paper
from simulations.experiment import from_table
from tests.support.tiny_models import reviews, tiny_bert


def rates(steps: int, **how) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule, found = warmed(optimizer, steps, **how), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"] / 2)
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("steps", [1, 7, 40])
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


@pytest.mark.parametrize("module", [on_text, paper])
def test_every_key_reaches_the_training(module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(end_to_end, "warmed", warmed)
    texts, labels = reviews(4, 0)
    given = {"mechanism": Identity("embedding", 4), "acknowledged": True} if module is paper else {}
    train = module.train_paper if module is paper else module.train_on_text
    train(tiny_bert(tmp_path / "bert"), texts, labels, classes=2, dim=4, epochs=1, seed=1, **given, **keys)
    assert seen == keys


class Still:
    """A schedule that changes nothing, and notes what the optimizer of the encoder has."""

    def __init__(self, optimizer: torch.optim.Optimizer, seen: dict) -> None:
        encoder = optimizer.param_groups[0]
        seen |= {"encoder_lr": encoder["lr"], "weight_decay": encoder["weight_decay"]}

    def step(self) -> None:
        pass

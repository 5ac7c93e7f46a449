"""Learning rates over the steps of a training, and the keys of an experiment that set them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from server.text_batches import warmed
from server.training.on_text import train_on_text
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


def test_every_key_reaches_the_training(tmp_path: Path) -> None:
    """Each changes the weights that come out, and none is left out of what a study passes on."""
    texts, labels = reviews(16, 0)
    checkpoint = tiny_bert(tmp_path / "bert")
    keys = from_table({
        "name": "x", "training": {"lr": 1e-4, "schedule": "constant", "warm-up": 0.5, "weight-decay": 0.5},
        "arm": [{"name": "a", "way": "public-only", "embedding": {"mechanism": "identity"}, "reference": True}],
    }).training.descent  # fmt: skip
    assert keys == {"encoder_lr": 1e-4, "schedule": "constant", "warm_up": 0.5, "weight_decay": 0.5}

    def trained(**descent) -> np.ndarray:
        pipeline = train_on_text(
            checkpoint, texts, labels, classes=2, dim=4, epochs=1, batch_size=4, seed=1, max_length=16, **descent
        )
        return torch.cat([p.detach().ravel() for p in pipeline.encoder.parameters()]).numpy()

    whole = trained(**keys)
    for name in keys:
        assert not np.array_equal(whole, trained(**{k: v for k, v in keys.items() if k != name})), name

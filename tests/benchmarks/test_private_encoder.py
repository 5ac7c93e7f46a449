"""The encoder's private steps: what they add up is what a record's own gradient says, clipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.private_encoder import STEPS, Headed, noisy_steps, rows_of
from server.text_batches import collate
from server.training.rescale import factored
from tests.support.tiny_checkpoints import deberta_v3, gte, modernbert, mpnet, nomic
from tests.support.tiny_models import reviews, tiny_bert

_RNG = np.random.default_rng(0)
MAPS = factored(np.zeros(32), np.linalg.qr(_RNG.normal(size=(32, 8)))[0], _RNG.normal(size=(8, 2)), np.zeros(2))


def headed(folder: Path) -> Headed:
    torch.manual_seed(0)
    return Headed(str(folder), MAPS, rank=2)


def trained(model: Headed) -> list[torch.nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize("make", [tiny_bert, mpnet, deberta_v3, modernbert, nomic, gte])
def test_one_step_adds_up_each_records_clipped_gradient(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """Of more rows than one pass through the model takes; beside it plain autograd, a record at a time."""
    texts, labels = reviews(80, seed=0)
    model, labels = headed(make(tmp_path / "encoder")), np.asarray(labels)
    rows = rows_of(model, texts)
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    total = [torch.zeros_like(p) for p in trained(model)]
    clipped = 0
    for row, label in zip(rows, labels, strict=True):
        loss = torch.nn.functional.cross_entropy(model(collate(model.tokenizer, [row])), torch.tensor([label]))
        own = torch.autograd.grad(loss, trained(model))
        scale = min(1.0, STEPS.clip / float(torch.sqrt(sum((g**2).sum() for g in own))))
        clipped += scale < 1
        total = [t + scale * g for t, g in zip(total, own, strict=True)]
    assert clipped > 0
    assert list(noisy_steps(replace(STEPS, rate=1.0, steps=1), model, rows, labels, noise=0.0, seed=1)) == [1]
    for summed, p in zip(total, trained(model), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad * len(rows), summed, rtol=1e-3, atol=1e-5)
    for name, p in model.named_parameters():
        assert name not in frozen or torch.equal(p, frozen[name])


def test_noise_is_in_units_of_the_clip(tmp_path: Path) -> None:
    """Where it drowns the gradients; its sum of squares is at 5 of its standard deviations with a chance of 10^-6."""
    texts, labels = reviews(8, seed=0)
    model = headed(tiny_bert(tmp_path / "bert"))
    rows, steps = rows_of(model, texts), replace(STEPS, rate=1.0, steps=1)
    for _ in noisy_steps(steps, model, rows, np.asarray(labels), noise=1e4, seed=2):
        pass
    drawn = torch.cat([p.grad.flatten() for p in trained(model) if p.grad is not None]) * len(rows)
    measured, allowed = float(drawn.square().mean()) / (1e4 * STEPS.clip) ** 2, 5 * (2 / len(drawn)) ** 0.5
    assert abs(measured - 1) < allowed < 1 / 3  # 2/3 and 3/2 of the noise are 4/9 and 9/4 of its square


def test_steps_without_noise_learn(tmp_path: Path) -> None:
    texts, labels = reviews(40, seed=0)
    model, labels = headed(tiny_bert(tmp_path / "bert")), np.asarray(labels)
    rows = rows_of(model, texts)

    def loss() -> float:
        with torch.no_grad():
            logits = model(collate(model.tokenizer, rows))
        return float(torch.nn.functional.cross_entropy(logits, torch.tensor(labels)))

    before = loss()
    steps = replace(STEPS, rate=0.5, steps=20, learning_rate=0.02)
    for _ in noisy_steps(steps, model, rows, labels, noise=0.0, seed=1):
        pass
    assert loss() < before - 0.05

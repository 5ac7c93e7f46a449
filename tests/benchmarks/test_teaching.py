"""The gradients that were tried beside one vector are those of the score, and their noise is PrivUnit's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.teaching import Tangent, private_gradient
from mechanisms.privunit import PrivUnit
from server.maps import Maps
from server.training.rescale import factored
from server.training.statistic_head import mean_noise
from tests.support.tiny_models import reviews, tiny_bert


def test_a_step_moves_the_score_as_its_gradient_says(tmp_path: Path) -> None:
    texts, _ = reviews(24, seed=0)
    folder = tiny_bert(tmp_path / "bert")
    tangent = Tangent(str(folder), _maps(32), layers=(0,))
    basis = tangent.subspace(texts[:12], 4)
    assert torch.allclose(basis @ basis.T, torch.eye(4), atol=1e-3)
    found, before = tangent.features(texts, basis)
    step = np.array([0.5, -0.2, 0.3, 0.1]) * 1e-2
    tangent.move(torch.tensor(step, dtype=torch.float32) @ basis)
    _, after = tangent.features(texts, basis)
    assert np.abs(found).max() > 1e-2
    np.testing.assert_allclose(after - before, found @ step, atol=0.05 * np.abs(found @ step).max())


def _maps(width: int) -> Maps:
    rng = np.random.default_rng(0)
    return factored(np.zeros(width), np.linalg.qr(rng.normal(size=(width, 4)))[0], rng.normal(size=(4, 2)), np.zeros(2))


def test_a_private_gradient_has_the_noise_of_all_its_users() -> None:
    """Fails by chance less than once in 10^6: a sum of 32,000 squares of normals, at 7 of its standard deviations."""
    rng = np.random.default_rng(1)
    found = rng.normal(size=(500, 16))
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    scores, labels = rng.normal(size=500), rng.integers(0, 2, 500)
    given = {"users": 500, "epsilon": 4.0}
    apart = [np.subtract(*private_gradient(found, scores, labels, **given, seed=[seed])) for seed in range(2000)]
    expected = mean_noise(PrivUnit(16, 4.0), users=500)
    assert abs(np.var(apart) / expected - 1) < 7 * (2 / 32_000) ** 0.5

"""Tables of layers and numbers of features, on made-up embeddings whose first layer alone knows the label."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.features import Sample, dims, layers

INF = float("inf")


@pytest.fixture(scope="module")
def sample() -> Sample:
    rng = np.random.default_rng(1)

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 2, n)
        first = rng.normal(size=(n, 12)) + np.outer(2 * labels - 1, np.eye(12)[0] * 2)
        return np.hstack([first, 9 * rng.normal(size=(n, 12))]).astype(np.float32), labels

    (public, _), (users, labels), (test, truth) = part(400), part(3000), part(500)
    return Sample(public, users, labels, test, truth, 2)


def test_features_beside_plain_ridge(sample: Sample) -> None:
    """No noise: both heads find the label in the first layer. At ε = .1 more features cost the plain ridge more."""
    alone = sample.of_layers((3, 4), (3,), scaled=False)
    head, *rows = dims(alone, [0.1, INF], most=12, draws=20)
    assert head == ["features", "shrunk, ε = 0.1", "shrunk, no noise", "ridge, ε = 0.1", "ridge, no noise"]
    assert [row[0] for row in rows] == ["8", "12"]
    found = np.array([[float(cell) for cell in row[1:]] for row in rows])
    assert (found[:, [1, 3]] > 0.9).all() and (found[:, [0, 2]] < found[:, [1, 3]]).all()


def test_layers_as_they_are_and_scaled(sample: Sample) -> None:
    both = sample.of_layers((3, 4), (3, 4), scaled=True)
    np.testing.assert_allclose([part.var(axis=0).mean() for part in np.hsplit(both.public, 2)], 1, rtol=1e-4)
    np.testing.assert_array_equal(sample.of_layers((3, 4), (4,), scaled=False).test, sample.test[:, 12:])
    head, *rows = layers(sample, [3.0, INF], known=(3, 4), sets=[(3,), (4,), (3, 4)], draws=5)
    assert head == ["layers", "scaled", "ε = 3", "no noise"]
    assert [row[:2] for row in rows] == [["3", "no"], ["4", "no"], ["3, 4", "no"], ["3, 4", "yes"]]
    accuracy = {tuple(row[:2]): float(row[-1].split()[0]) for row in rows}
    assert accuracy["3", "no"] > 0.9 and abs(accuracy["4", "no"] - 0.5) < 0.15  # 4.5 standard errors of 500 by chance

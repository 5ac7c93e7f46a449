"""Client and server map alike, to the last bit, whatever the size of the batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from client.node import load_node
from client.sanitizer import Sanitizer
from client.shard import Shard
from mechanisms.projection import project, softmax
from mechanisms.spherical import Purkayastha
from server.maps import Maps
from tests.support.clients import CLASSES, DIM, ENCODER, M, make_node, request


def test_what_a_client_samples_around_is_what_the_server_trains_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(label=None)
    h = np.random.default_rng(4).normal(size=(40, M)).astype(np.float32)
    h[0], h[1], h[2, 3], h[3] = asked.projection.mean, 0, np.nan, 1e30  # h[0] is centred to the zero vector
    make_node(tmp_path, range(40))
    cached = SimpleNamespace(width=M, take=lambda rows: h[rows])
    monkeypatch.setattr(Shard, "embeddings", lambda self, identity: cached)
    seen = []
    draw = Purkayastha.sample

    def sample(self: Purkayastha, x: np.ndarray, **streams: object) -> np.ndarray:
        seen.append(x)
        return draw(self, x, **streams)

    monkeypatch.setattr(Purkayastha, "sample", sample)
    node = load_node(tmp_path)
    with node.ledger("a") as ledger:
        Sanitizer(node.policy("a"), ledger, node.streams).answer(asked, node.shard("train"))
    rest = (np.ones((DIM, M)), np.ones((M, CLASSES)), np.ones(CLASSES))
    served = Maps(asked.projection.mean, asked.projection.m1, *rest).project(h)
    (x,) = seen
    assert x.dtype == served.dtype == np.float64 and x.tobytes() == served.tobytes()
    assert served[0].tolist() == served[2].tolist() == [1, 0, 0, 0]
    assert load_node(tmp_path).shard("train").embeddings(ENCODER) is cached


def test_the_map_does_not_see_the_size_of_its_batch():
    rng = np.random.default_rng(5)
    h = rng.normal(size=(1000, 384)).astype(np.float32)
    mean, m1 = h[0], rng.normal(size=(384, 16)).astype(np.float32)
    whole = project(h, mean, m1)
    z = (h[1:] - mean).astype(np.float64) @ m1
    np.testing.assert_allclose(whole[1:], z / np.linalg.norm(z, axis=1, keepdims=True), atol=1e-6)
    w, b = rng.normal(size=(16, 12)).astype(np.float32), rng.normal(size=12).astype(np.float32)
    priors = softmax(whole, w, b)
    np.testing.assert_allclose(priors.sum(axis=1), 1, rtol=1e-12)
    for i in range(0, 1000, 97):
        assert project(h[i : i + 1], mean, m1).tobytes() == whole[i].tobytes()
        assert softmax(whole[i : i + 1], w, b).tobytes() == priors[i].tobytes()


@pytest.mark.parametrize("row", [np.zeros(M), np.full(M, np.nan), np.where(np.arange(M) == 3, np.inf, 0)])
def test_an_embedding_without_direction_is_the_first_basis_vector(row):
    batch = np.stack([row, np.ones(M)]).astype(np.float32)
    unit = project(batch, np.zeros(M, np.float32), np.eye(M, DIM, dtype=np.float32))
    np.testing.assert_array_equal(unit, [[1, 0, 0, 0], [0.5] * 4])


def test_extreme_maps_still_give_unit_rows():
    h = np.random.default_rng(6).normal(size=(50, M)).astype(np.float32)
    for scale in (1e-45, 1e-30, 1e30, 3e38):
        unit = project(h, np.zeros(M, np.float32), np.full((M, DIM), scale, np.float32))
        np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-12)

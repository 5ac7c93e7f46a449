"""A sanitized encoder draws what a device would release of the same text, by the same maps, grid and mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.draw import draw
from client.embed import SanitizedEncoder
from client.models.encoder import Encoder
from mechanisms import Gaussian, Identity, Purkayastha, RandomizedResponse
from mechanisms.streams import SecureStreams, SeededUniforms, SimulationStreams
from tests.support.devices import SENTENCES, make_bundle

ROWS = np.arange(len(SENTENCES))


class Table:
    """Embeddings of its own making: of the width that it is given."""

    def __init__(self, width: int, fill: float = 1.0) -> None:
        self.width, self.fill = width, fill

    def encode(self, texts: Sequence[str]) -> list[list[float]]:
        return [[self.fill * (1 + i + len(text)) for i in range(self.width)] for text in texts]


def test_of_a_bundle_it_gives_what_the_device_would_release(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    request, streams = bundle.request, SimulationStreams(3)
    embeddings = Encoder(bundle.encoder or "").encode(SENTENCES)
    codes = draw(request.named("embedding"), embeddings, ROWS, 0 * ROWS, stage=request.stage, streams=streams)
    grid: Any = request.named("embedding").mechanism.grid
    rng = streams.rows(ROWS, 0 * ROWS, stage=request.stage, channel="embedding")
    encoder = SanitizedEncoder(
        Encoder(bundle.encoder or ""),
        request.named("embedding").mechanism,
        mean=request.projection.mean,
        m1=request.projection.m1,
    )
    np.testing.assert_array_equal(encoder.encode(SENTENCES, rng=rng), grid.decode(codes))
    assert encoder.guarantee == request.named("embedding").mechanism.guarantee and encoder.dim == codes.shape[1]


def test_without_maps_the_whole_embedding_is_drawn_from() -> None:
    plain = SanitizedEncoder(Table(5), Identity("embedding", 5)).encode(SENTENCES)
    expected = np.array(Table(5).encode(SENTENCES))
    np.testing.assert_allclose(plain, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1 / 32767)


def test_draws_are_fresh_unless_they_are_asked_to_repeat() -> None:
    encoder = SanitizedEncoder(Table(3), Purkayastha(3, 1.0))
    assert not np.array_equal(encoder.encode(["a", "a"]), encoder.encode(["a", "a"]))
    first = encoder.encode(["a", "a"], rng=SecureStreams())
    assert not np.array_equal(first[0], first[1])
    again = [encoder.encode(["a", "a"], rng=SeededUniforms(7)) for _ in range(2)]
    np.testing.assert_array_equal(*again)


def test_no_text_and_an_embedding_that_is_no_direction() -> None:
    encoder = SanitizedEncoder(Table(3, fill=float("nan")), Gaussian(3, 1.0))
    assert encoder.encode([]).shape == (0, 3)
    assert np.isfinite(encoder.encode(["a"])).all()  # as on a device: nothing of it shows in an error


def test_what_does_not_fit_is_one_line() -> None:
    with pytest.raises(ValueError, match="randomized-response is a mechanism of labels"):
        SanitizedEncoder(Table(3), RandomizedResponse(1.0, 2))
    with pytest.raises(ValueError, match="m1 gives 4 dimensions, the mechanism takes 3"):
        SanitizedEncoder(Table(3), Purkayastha(3, 1.0), m1=np.ones((5, 4), np.float32))
    with pytest.raises(ValueError, match="of embeddings of different widths"):
        SanitizedEncoder(Table(3), Purkayastha(3, 1.0), mean=np.zeros(4), m1=np.ones((5, 3), np.float32))
    with pytest.raises(ValueError, match="embeddings of 4 dimensions, 3 expected"):
        SanitizedEncoder(Table(4), Purkayastha(3, 1.0)).encode(["a"])

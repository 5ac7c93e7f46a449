"""The coordinates between encoder and head where users release texts: as many as the study says, or no bottleneck."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from server.protocols.sanitized_text import BOTTLENECK
from server.training.end_to_end import started
from server.training.on_text import train_on_text
from simulations.errors import UserError
from simulations.experiment import Experiment, from_table
from tests.support.studies import trained
from tests.support.tiny_models import bert, reviews

__all__ = ["bert"]  # a fixture


def study(**training: object) -> Experiment:
    return from_table(
        {
            "name": "x",
            "training": {"protocol": "sanitized-text"} | training,
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
    pipeline = started(bert, texts, dim=None, classes=2, rng=rng, pooling="mean", max_length=16)
    maps, embedded = pipeline.maps(), pipeline.embed(texts)
    np.testing.assert_array_equal((embedded - maps.mean) @ maps.m1 @ maps.m2, embedded - maps.mean)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"bottleneck": 1}, 'training.bottleneck: must be "none" or a whole number of at least 2, got 1'),
        ({"bottleneck": "wide"}, "must be .none. or a whole number"),
        ({"bottleneck": True}, "must be .none."),
        (
            {"protocol": "statistics", "bottleneck": 8},
            "training.bottleneck: goes with protocol = .sanitized-text.",
        ),
    ],
)
def test_what_is_no_bottleneck(training: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        study(**training)


def test_more_than_the_encoder_has_is_refused_in_one_line(bert: Path) -> None:
    texts, labels = reviews(12, 0)
    with pytest.raises(ValueError, match=r"dim must be between 2 and the encoder's width \d+, got 9999"):
        train_on_text(bert, texts, labels, classes=2, dim=9999, epochs=1, seed=1)

"""Users in one process: the encoder is the exported one, and a model learns from their vectors and trains a student."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.in_process import TorchEncoder, measured
from client.models.encoder import Encoder
from server.export import export_encoder
from simulations.artifacts.encoder import export_settings
from simulations.experiment import Encoder as EncoderSettings
from simulations.progress import progress_lines
from tests.support.tiny_checkpoints import mpnet
from tests.support.tiny_models import reviews, tiny_bert


@pytest.mark.parametrize("layers", [(), (1, 2)])
def test_embeddings_are_those_of_devices(layers: tuple[int, ...], tmp_path: Path) -> None:
    settings = EncoderSettings(model=str(mpnet(tmp_path / "encoder")), layers=layers, max_length=32)
    export_encoder(settings.model, tmp_path / "exported", **export_settings(settings))
    texts, _ = reviews(20, seed=0)
    ours, theirs = TorchEncoder(settings.model, settings).embed(texts), Encoder(tmp_path / "exported").encode(texts)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


EXPERIMENT = """
name = "small"
seed = 1
data = {{ source = "built-in", public-size = 64, test-size = 100, public = {{ labels = false }} }}
population = {{ users = 300 }}
encoder = {{ model = "{model}", max-length = 32 }}
training = {{ protocol = "statistics", self-training = true, rounds = {rounds}, student-epochs = 1 }}
shuffle = {{ minimum-users = 100 }}
policy = {{ vector = 8.0, embedding = 32.0 }}

[[arm]]
name = "vector"
vector = {{ mechanism = "privunit", epsilon = 6.0 }}
embedding = {{ mechanism = "purkayastha", epsilon = 4.0, dim = 2 }}
"""


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2])
def test_users_train_a_head_and_a_student(rounds: int, tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    model = tiny_bert(tmp_path / "bert")
    file.write_text(EXPERIMENT.format(model=model, rounds=rounds))
    with progress_lines(clock=False):
        (line,) = measured(str(file), 1, [])
    assert (line["users"], line["public"], line["tests"]) == (300, 64, 100)
    assert 0.4 < line["accuracy"] <= 1

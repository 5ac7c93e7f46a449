"""The product's figures are those of docs/algorithm.py, which writes the algorithm out."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from mechanisms.identity import Identity
from mechanisms.messages.batch import Batch
from mechanisms.messages.questions import Lent, VectorQuestion
from mechanisms.messages.release import Release
from mechanisms.messages.request import Request
from mechanisms.privunit import PrivUnit
from mechanisms.streams import SimulationStreams
from server.protocols.drive import Collected, Driver
from server.protocols.protocol import Channels, Public, Training
from server.protocols.statistics import statistics
from tests.support.paths import program


@pytest.fixture(scope="module")
def algorithm() -> ModuleType:
    return program("algorithm")


class Users:
    """Users with a record each, who draw as simulated users do."""

    def __init__(self, embeddings: np.ndarray, labels: np.ndarray, seed: int) -> None:
        self.embeddings, self.labels, self.seed = embeddings, labels, seed

    def collect(self, request: Request) -> Collected:
        question, users = request.question(VectorQuestion), np.arange(len(self.labels))
        streams = SimulationStreams(self.seed).rows(
            users, np.zeros_like(users), stage=request.stage, channel=question.channel
        )
        means = question.means(self.embeddings, self.labels, np.arange(len(users) + 1))
        self.values = question.draw(means, Lent(lambda: streams, lambda *_: None))
        release = Release(
            {question.array: self.values},
            question.channel,
            request.stage,
            question.mechanism.guarantee,
            request.digest(question.channel),
        )
        return Collected(Batch((release,), users=len(users), duplicates=0))

    def publish(self, *_: Any) -> Any:
        raise AssertionError("no encoder is trained")


def test_the_product_releases_and_learns_as_the_algorithm_does(algorithm: ModuleType, tmp_path: Path) -> None:
    """Releases are equal up to a step of their grid, logits up to the order of sums."""
    rng = np.random.default_rng(5)
    labels = rng.choice(2, size=3_000, p=[0.35, 0.65])
    embeddings = rng.normal(size=(3_000, 48)) * np.linspace(3, 0.5, 48)
    embeddings[:, :4] += (2 * labels - 1)[:, None]
    private, embedded = slice(1_000, None), embeddings.astype(np.float32)
    encoder: Any = SimpleNamespace(identity="0" * 64, precision="fp32", folder=tmp_path, embed=lambda texts: embedded)
    users = Users(embedded[private], labels[private], algorithm.SEED)
    channels = Channels(
        arm="test",
        classes=2,
        label=Identity("label", 2),
        statistic=lambda dim: PrivUnit(dim, algorithm.EPSILON),
        users=2_000,
        features=algorithm.FEATURES,
        asking=False,
        one_record=True,
    )
    model = Driver(users).train(
        statistics(
            Public([""] * 1_000, None, ("0", "1"), encoder, embedded[:1_000]),
            channels,
            Training(seed=1, options={}),
            folder=tmp_path,
        )
    )

    with threadpool_limits(1):  # as the product does: more threads may turn a component around
        frame = algorithm.Frame.of(embedded[:1_000].astype(np.float64))
    mechanism, ledger = PrivUnit(algorithm.FEATURES + 1, algorithm.EPSILON), algorithm.Ledger(algorithm.TOTAL)
    vectors = algorithm.user_vectors(frame.features(embedded[private]), labels[private])
    releases = algorithm.release(vectors, mechanism, ledger)
    weight, bias = algorithm.head(algorithm.shuffled(releases, rng), mechanism, frame.features(embedded[:1_000]))
    logits = frame.features(embedded) @ weight + bias

    assert model is not None
    assert np.abs(releases.astype(int) - users.values.astype(int)).max() <= 1
    np.testing.assert_allclose(logits, model.maps.logits(model.maps.project(embedded)), atol=1e-5)
    assert (logits.argmax(axis=1) == labels).mean() > 0.7
    assert ledger.spent == dict.fromkeys(range(2_000), algorithm.EPSILON)


def test_it_runs(algorithm: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, size in {"PUBLIC": 100, "USERS": 60, "TESTS": 40}.items():
        monkeypatch.setattr(algorithm, name, size)
    algorithm.main()
    assert "ε of each user, who trusts nobody: 4 of 8 allowed" in capsys.readouterr().out

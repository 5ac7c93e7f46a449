"""Where models compute: a GPU, where there is one, gives what the CPU gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mechanisms.spherical import Purkayastha
from mechanisms.vocabulary import Vocabulary
from server import generation, masked_lm
from server.accelerator import VARIABLE, device, lent
from server.model import Pipeline
from server.training.end_to_end import initial, train_on_text, train_paper
from server.training.finetune import finetune
from server.training.pretrain import pretrain
from sottovoce.adversary.estimators.masked_tokens import MaskAttack
from sottovoce.cli import main as cli
from tests.support.tiny_generators import tiny_generator
from tests.support.tiny_models import WORDS, reviews, tiny_bert, tiny_masked_lm

TEXTS, LABELS = reviews(12, 1)
LIKELY = np.where(np.arange(2) == LABELS[:, None], 0.8, 0.2)
VOCABULARY = Vocabulary(tuple(WORDS[:9]), np.eye(9, dtype=np.float32))
SENT = np.random.default_rng(0).integers(9, size=(8, 5))
#: Tolerance between GPU and CPU, absolute and relative. Errors of 1e-6 in each product came to at most 5e-6. Outputs
#: are compared, not weights: AdamW moves a weight whose gradient is rounding alone by its rate.
TOLERANCE = 1e-4

Array = NDArray[Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints: an encoder, a masked language model and a generating one, none with dropout."""
    folder = tmp_path_factory.mktemp("made")
    for path in (
        tiny_bert(folder / "bert"),
        tiny_masked_lm(folder / "masked"),
        tiny_generator(folder / "causal", "causal"),
    ):
        about = json.loads((path / "config.json").read_text())
        none = {name: 0.0 for name in about if name.endswith("_pdrop") or name.endswith("dropout_prob")}
        assert none
        (path / "config.json").write_text(json.dumps(about | none))
    return folder


@pytest.fixture(autouse=True)
def _as_anywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())


def outputs(pipeline: Pipeline) -> Array:
    """Embeddings and logits of texts."""
    assert not any(tensor.is_cuda for tensor in (*pipeline.parameters(), *pipeline.buffers()))
    embeddings, maps = pipeline.embed(TEXTS, batch_size=6), pipeline.maps()
    return np.hstack([embeddings, maps.logits(maps.project(embeddings))])


def everything(made: Path, out: Path) -> Iterator[Array]:
    """What each training and each reading of a model gives."""
    how: dict[str, Any] = {"classes": 2, "epochs": 1, "batch_size": 6, "seed": 1}
    yield outputs(train_on_text(made / "bert", TEXTS, LABELS, dim=None, **how))
    away: list[Array] = []
    noisy = train_paper(
        made / "bert",
        TEXTS,
        LABELS,
        mechanism=Purkayastha(epsilon=4.0, dim=4),
        label_transition=LIKELY,
        dim=4,
        acknowledged=True,
        after_epoch=lambda _, pipeline: away.append(pipeline.embed(TEXTS)),
        **how,
    )
    yield from [outputs(noisy), *away]
    tuned = finetune(made / "bert", TEXTS, LABELS, out / "tuned", **how)
    yield outputs(initial(tuned, TEXTS, dim=4, classes=2, rng=np.random.default_rng(0), pooling="mean", max_length=40))
    masked = pretrain(made / "masked", TEXTS, out / "masked", steps=3, batch_size=6, seed=1, max_length=40)
    yield MaskAttack(masked, VOCABULARY).guesses(SENT)
    model, tokenizer = masked_lm.load(made / "masked")
    yield np.array(masked_lm.bounds_of(model, tokenizer, TEXTS, seed=1, max_length=40))
    writer, tokenizer = generation.read_generator(made / "causal")
    about = generation._layout(writer, tokenizer, generation.PARAPHRASE)
    yield torch.cat(list(generation._logits(writer, tokenizer, about, TEXTS, 1))).cpu().numpy()
    assert not any(weights.is_cuda for network in (model, writer) for weights in network.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
def test_a_gpu_gives_what_the_cpu_gives(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for kind in ("cpu", "cuda"):
        monkeypatch.setenv(VARIABLE, kind)
        results.append(list(everything(made, tmp_path / kind)))
    for cpu, gpu in zip(*results, strict=True):
        np.testing.assert_allclose(gpu, cpu, atol=TOLERANCE, rtol=TOLERANCE)


class Moved:
    """A module that is said to lie somewhere, and has no room where it is told so."""

    def __init__(self, device: str, room: bool = True) -> None:
        self.device, self.room = torch.device(device), room

    def parameters(self) -> Iterator[Moved]:
        yield self

    def to(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda" and not self.room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_what_is_lent_comes_back_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.accelerator.device", lambda: torch.device("cuda", 0))
    one, other, large = Moved("cpu"), Moved("cpu"), Moved("cpu", room=False)
    with pytest.raises(KeyError), lent(one, other):
        with lent(one):
            pass
        assert one.device.type == other.device.type == "cuda"  # who lent it first has it back
        raise KeyError
    assert one.device.type == other.device.type == "cpu"
    with pytest.raises(ValueError, match=rf"^{VARIABLE}: the GPU's memory does not do; [^\n]*$"), lent(one, large):
        pytest.fail("there is no room")
    assert one.device.type == large.device.type == "cpu"


def test_the_environment_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for value, expected in (("", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")):
        monkeypatch.setenv(VARIABLE, value)
        assert device().type == expected
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for value in ("", "cpu"):
        monkeypatch.setenv(VARIABLE, value)
        assert device() == torch.device("cpu")
    monkeypatch.setenv(VARIABLE, "cuda:1")
    with pytest.raises(ValueError, match=f"^{VARIABLE}: 'cuda:1' is not one of"):
        device()


def test_a_gpu_that_is_missing_is_refused_before_a_run_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv(VARIABLE, "cuda")
    assert cli.main(["demo", "--out", "out"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"sottovoce: {VARIABLE}: ")
    assert not list(tmp_path.iterdir())

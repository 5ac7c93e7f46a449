"""Where models compute: each piece that goes to a GPU, on a stand-in of one, and on a real one where there is one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from mechanisms.spherical import Purkayastha
from mechanisms.vocabulary import Vocabulary
from server import generation, masked_lm
from server.accelerator import VARIABLE, device, lent
from server.model import Pipeline
from server.training.end_to_end import initial, train_on_text, train_paper
from server.training.finetune import finetune
from server.training.paraphrase import finetune_paraphraser
from server.training.pretrain import masked_accuracy, pretrain
from sottovoce.adversary.estimators.masked_tokens import MaskAttack
from sottovoce.cli import main as cli
from tests.server.test_masked_lm import tiny_masked_lm
from tests.support.stand_in_gpu import StandIn, on_gpu, stand_in_gpu
from tests.support.tiny_generators import tiny_generator
from tests.support.tiny_models import WORDS, reviews, tiny_bert

TEXTS, LABELS = reviews(12, 1)
LIKELY = np.where(np.arange(2) == LABELS[:, None], 0.8, 0.2)
PAIRS = [("the film was good", "a book"), ("the book was bad", "a film")] * 4
VOCABULARY = Vocabulary(tuple(WORDS[:9]), np.eye(9, dtype=np.float32))
SENT = np.random.default_rng(0).integers(9, size=(8, 5))
#: What a piece on a real GPU may differ by from the same on the CPU, absolute and relative: errors of 1e-6 in each
#: product of matrices, made on a CPU, came to at most 5e-6. Outputs are compared, not weights: where a gradient is
#: nothing but rounding, AdamW moves a weight by its rate this way or that, and no output shows it.
TOLERANCE = 1e-4

Array = NDArray[Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints: an encoder, a masked language model and a generating one, none with dropout, and one with."""
    folder = tmp_path_factory.mktemp("made")
    tiny_bert(folder / "dropout")
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


def said(pipeline: Pipeline) -> Array:
    """What a pipeline makes of texts: embeddings and logits."""
    assert not any(map(on_gpu, [*pipeline.parameters(), *pipeline.buffers()]))
    embeddings, maps = pipeline.embed(TEXTS, batch_size=6), pipeline.maps()
    return np.hstack([embeddings, maps.logits(maps.project(embeddings))])


def on_text(made: Path, out: Path) -> Array:
    likely = {"label_transition": LIKELY, "epochs": 1, "batch_size": 6}
    return said(train_on_text(made / "bert", TEXTS, LABELS, classes=2, dim=4, **likely, seed=1))


def in_clear(made: Path, out: Path) -> Array:
    return said(train_on_text(made / "bert", TEXTS, LABELS, classes=2, dim=None, epochs=1, batch_size=6, seed=1))


def paper(made: Path, out: Path) -> Array:
    seen: list[Array] = []

    def look(epoch: int, pipeline: Pipeline) -> None:  # while it is away
        seen.append(np.hstack([pipeline.embed(TEXTS), pipeline.maps().m1[: len(TEXTS)]]))

    pipeline = train_paper(
        made / "bert",
        TEXTS,
        LABELS,
        mechanism=Purkayastha(epsilon=4.0, dim=4),
        dim=4,
        classes=2,
        epochs=1,
        batch_size=6,
        seed=1,
        acknowledged=True,
        after_epoch=look,
    )
    return np.hstack([said(pipeline), *seen])


def fine_tuned(made: Path, out: Path) -> Array:
    tuned = finetune(made / "bert", TEXTS, LABELS, out, classes=2, epochs=1, batch_size=6, seed=1)
    rng = np.random.default_rng(0)
    return said(initial(tuned, TEXTS, dim=4, classes=2, rng=rng, pooling="mean", max_length=40))


def pretrained(made: Path, out: Path) -> Array:
    folder = pretrain(made / "masked", TEXTS, out, steps=3, batch_size=6, seed=1, max_length=40)
    return MaskAttack(folder, VOCABULARY).guesses(SENT).astype(np.float64)


def clipped(made: Path, out: Path) -> Array:
    model, tokenizer = masked_lm.load(made / "masked")
    bounds = masked_lm.bounds_of(model, tokenizer, TEXTS, seed=1, max_length=40)
    assert not any(map(on_gpu, model.parameters()))
    return np.array([*bounds, *masked_accuracy(made / "masked", TEXTS, paired=True, seed=1, max_length=40)])


def masked_words(made: Path, out: Path) -> Array:
    return MaskAttack(made / "masked", VOCABULARY).guesses(SENT).astype(np.float64)


def paraphrased(made: Path, out: Path) -> Array:
    folder = finetune_paraphraser(made / "causal", PAIRS, out, epochs=1, batch_size=4, seed=1)
    model, tokenizer = generation.read_generator(folder)
    about = generation.layout(model, tokenizer, generation.PARAPHRASE, None)
    found = np.array(list(generation._moments(model, tokenizer, about, TEXTS, 1)))
    assert not any(map(on_gpu, model.parameters()))
    return found / found[:, :1]


PIECES = (on_text, in_clear, paper, fine_tuned, pretrained, clipped, masked_words, paraphrased)
Piece = Callable[[Path, Path], Array]
every_piece = pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.__name__)


@every_piece
def test_on_a_stand_in_each_piece_gives_what_the_cpu_gives(piece: Piece, made: Path, tmp_path: Path) -> None:
    """It computes there, and the same: only AdamW's own ways differ. A move that is missed is refused, as by a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "cpu")
        expected = piece(made, tmp_path / "cpu")
    with stand_in_gpu() as gpu:
        found = piece(made, tmp_path / "gpu")
    assert gpu.products > 10
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
@every_piece
def test_a_gpu_gives_what_the_cpu_gives(
    piece: Piece, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for kind in ("cpu", "cuda"):
        monkeypatch.setenv(VARIABLE, kind)
        found[kind] = piece(made, tmp_path / kind)
    np.testing.assert_allclose(found["cuda"], found["cpu"], atol=TOLERANCE, rtol=TOLERANCE)


# --- dropout


def tuned_twice(made: Path, out: Path, gpu: StandIn) -> list[dict[str, Array]]:
    """The weights of two fine-tunings with dropout, between which somebody uses the GPU's generator."""
    found = []
    for name, other in (("first", 98), ("second", 99)):
        torch.cuda.manual_seed(other)
        before = gpu.chance.clone()
        finetune(made / "dropout", TEXTS, LABELS, out / name, classes=2, epochs=1, batch_size=6, seed=1)
        assert torch.equal(gpu.chance, before), "the generator is not as it was"
        found.append(load_file(out / name / "model.safetensors"))
    return found


def test_dropout_there_follows_the_seed_and_no_generator_is_touched(made: Path, tmp_path: Path) -> None:
    with stand_in_gpu() as gpu:
        first, second = tuned_twice(made, tmp_path, gpu)
        assert all((first[name] == second[name]).all() for name in first)


# --- what is lent


class Large(torch.nn.Linear):
    """There is no room for it, and it is noticed when it is there."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        found = super()._apply(fn, recurse)
        if on_gpu(self.weight):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return found


class Around(torch.nn.Module):
    """Its own weights are moved last, and named first."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.nn.Parameter(torch.ones(2))
        self.inner = Large(2, 2)


def away(*modules: torch.nn.Module) -> list[bool]:
    return [on_gpu(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers())]


def test_what_is_lent_comes_back_whatever_happens() -> None:
    with torch.random.fork_rng(devices=[]):
        one, other, tight = torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2), (Large(2, 2), Around())
    with stand_in_gpu():
        with pytest.raises(KeyError), lent(one, other):
            assert all(away(one, other))
            with lent(one):
                pass
            assert all(away(one, other))  # who lent it first has it back
            raise KeyError
        assert not any(away(one, other))
        for large in tight:
            with pytest.raises(ValueError, match=rf"^{VARIABLE}: the GPU's memory does not do; [^\n]*$"):  # noqa: SIM117
                with lent(one, large):
                    pytest.fail("there is no room")
            assert not any(away(one, large))


def test_a_training_that_fails_leaves_its_model_on_the_cpu(made: Path) -> None:
    kept = []

    def fail(epoch: int, pipeline: Pipeline) -> None:
        assert all(away(pipeline))
        kept.append(pipeline)
        raise KeyError

    with stand_in_gpu() as gpu:
        before = gpu.chance.clone()
        with pytest.raises(KeyError):
            train_paper(
                made / "dropout",
                TEXTS,
                LABELS,
                mechanism=Purkayastha(epsilon=4.0, dim=4),
                dim=4,
                classes=2,
                seed=1,
                acknowledged=True,
                after_epoch=fail,
            )
        assert torch.equal(gpu.chance, before)
    assert kept and not any(away(*kept))


# --- who says where


def test_the_environment_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    with stand_in_gpu():
        assert device() == torch.device("cuda", 0)
        for value, expected in (("", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")):
            monkeypatch.setenv(VARIABLE, value)
            assert device().type == expected
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for value in ("", "cpu"):
        monkeypatch.setenv(VARIABLE, value)
        assert device() == torch.device("cpu")


@pytest.mark.parametrize("value", ["gpu", "cuda:1", "cuda"])
def test_what_cannot_be_had_is_refused_before_a_run_has_begun(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv(VARIABLE, value)
    assert cli.main(["demo", "--out", "out"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"sottovoce: {VARIABLE}: ")
    assert not list(tmp_path.iterdir())

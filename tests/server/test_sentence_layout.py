"""Sentence encoders in the layouts of others give the embeddings that sentence-transformers gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.models.encoder import PRECISIONS, Encoder
from server.checkpoint import load
from server.export import export_encoder
from server.model import Pipeline
from server.sentence_layout import SentenceLayout, read
from server.training.end_to_end import initial
from server.training.finetune import finetune
from tests.support.tiny_checkpoints import (
    POSITIONS,
    as_sentence_encoder,
    deberta_v3,
    e5_small,
    gte,
    modernbert,
    mpnet,
    nomic,
    roberta,
    xlm_roberta,
)
from tests.support.tiny_models import reviews, tiny_bert

sentence_transformers = pytest.importorskip("sentence_transformers")

TEXTS = ["good film.", "the plot was awful and the book was bad", "a", "very good " * 60]


@dataclass(frozen=True)
class Layout:
    """A published layout: its weights, and what its sentence-transformers files say."""

    make: Callable[[Path], Path]
    mode: str = "mean"
    normalize: bool = False
    prefix: str = ""
    old: bool = True

    @property
    def pooling(self) -> str:
        return self.mode.removesuffix("token") + ("-normalized" if self.normalize else "")


LAYOUTS = {
    "bert": Layout(tiny_bert),
    "mpnet": Layout(mpnet, normalize=True),
    "xlm-roberta": Layout(xlm_roberta),
    "roberta": Layout(roberta, normalize=True),
    "deberta-v3": Layout(deberta_v3),
    "modernbert": Layout(modernbert, "cls", prefix="search query: "),
    "nomic": Layout(nomic, prefix="the good: ", normalize=True),
    "gte": Layout(gte, "cls", normalize=True),
    "bge": Layout(tiny_bert, "cls", normalize=True),
    "e5": Layout(e5_small, normalize=True, prefix="query: "),
    "arctic": Layout(xlm_roberta, "cls", normalize=True, prefix="query: ", old=False),
    "last": Layout(roberta, "lasttoken", normalize=True, old=False),
}


@pytest.fixture(scope="module", params=list(LAYOUTS))
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Layout]:
    layout = LAYOUTS[request.param]
    folder = layout.make(tmp_path_factory.mktemp("layouts") / request.param)
    as_sentence_encoder(folder, layout.mode, normalize=layout.normalize, prefix=layout.prefix, old=layout.old)
    return folder, layout


def expected(folder: Path) -> np.ndarray:
    encoder = sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return np.asarray(encoder.encode(TEXTS, batch_size=3))


def test_the_files_of_a_layout_are_read(published: tuple[Path, Layout]) -> None:
    folder, layout = published
    assert read(folder) == SentenceLayout(layout.pooling, POSITIONS, layout.prefix)


def test_a_device_and_the_server_embed_as_sentence_transformers(published: tuple[Path, Layout], tmp_path: Path) -> None:
    folder, layout = published
    truth = expected(folder)
    export_encoder(folder, tmp_path, pooling=read(folder).pooling, max_length=POSITIONS)
    np.testing.assert_allclose(Encoder(tmp_path).encode(TEXTS), truth, atol=1e-5)
    pipeline = initial(
        folder, TEXTS, dim=4, classes=2, rng=np.random.default_rng(0), pooling=layout.pooling, max_length=POSITIONS
    )
    np.testing.assert_allclose(pipeline.embed(TEXTS), truth, atol=1e-5)
    assert np.abs(truth[0] - truth[1]).max() > 1e-3


@pytest.mark.parametrize("published", ["bert", "deberta-v3", "modernbert", "nomic"], indirect=True)
def test_each_is_exported_in_few_bits_and_from_layers(published: tuple[Path, Layout], tmp_path: Path) -> None:
    folder, layout = published
    texts = reviews(64, 0)[0]
    found = {}
    for name in PRECISIONS:
        how: dict[str, Any] = {"pooling": layout.pooling, "max_length": POSITIONS, "calibration": texts}
        export_encoder(folder, tmp_path / name, precision=name, **how)
        found[name] = Encoder(tmp_path / name).encode(texts)
    a = found["fp32"]
    for name, least in (("int8", 0.97), ("int4", 0.9)):
        b = found[name]
        cosine = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        assert cosine.mean() > least and not np.array_equal(a, b)
    export_encoder(folder, tmp_path / "layers", max_length=POSITIONS, layers=(1, 2))
    assert Encoder(tmp_path / "layers").encode(TEXTS).shape == (len(TEXTS), 64)


@pytest.mark.parametrize("published", ["mpnet", "nomic", "gte", "last"], indirect=True)
def test_each_is_fine_tuned_and_keeps_its_prefix(published: tuple[Path, Layout], tmp_path: Path) -> None:
    folder, layout = published
    texts, labels = reviews(24, seed=1)
    how: dict[str, Any] = {"pooling": layout.pooling, "max_length": POSITIONS}
    tuned = finetune(
        folder, texts, labels, tmp_path / "tuned", classes=2, epochs=1, batch_size=8, lr=1e-3, seed=0, **how
    )
    before, after = load(folder)[1], load(tuned)[1]
    assert before("good film")["input_ids"] == after("good film")["input_ids"]
    pipeline = initial(tuned, texts, dim=4, classes=2, rng=np.random.default_rng(0), **how)
    pipeline.save_pretrained(tmp_path / "pipeline", about={})
    again = Pipeline.from_pretrained(tmp_path / "pipeline")
    assert np.array_equal(again.embed(TEXTS), pipeline.embed(TEXTS))
    export_encoder(tuned, tmp_path / "student", **how)
    np.testing.assert_allclose(Encoder(tmp_path / "student").encode(TEXTS), pipeline.embed(TEXTS), atol=1e-5)


def test_minilm_is_pooled_as_requests_name_it() -> None:
    """Its own files normalize, and its identity is that of the mean."""
    assert read("minilm") == SentenceLayout()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "max"}, "it pools by max; one of mean, cls and lasttoken can be read"),
        ({"module": "sentence_transformers.models.Dense"}, r"names sentence_transformers\.models\.Dense; Transformer"),
        ({"module": "custom.Normalize"}, r"names custom\.Normalize; Transformer"),
        ({"length": 2}, "says max_seq_length = 2"),
        ({"prompts": {"default_prompt_name": "missing"}}, "its sentence-transformers files cannot be read"),
        ({"prompts": []}, r"its config_sentence_transformers\.json cannot be read"),
    ],
)
def test_a_layout_that_cannot_be_followed_is_one_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    folder = as_sentence_encoder(
        tiny_bert(tmp_path), change.get("mode", "mean"), normalize=True, length=change.get("length", POSITIONS)
    )
    if "module" in change:
        modules = json.loads((folder / "modules.json").read_text())
        modules[2]["type"] = change["module"]
        (folder / "modules.json").write_text(json.dumps(modules))
    if "prompts" in change:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(change["prompts"]))
    with pytest.raises(ValueError, match=rf"^encoder: [^\n]*{words}[^\n]*$"):
        load(folder)

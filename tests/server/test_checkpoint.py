"""Checkpoints in others' layouts give the embeddings of sentence-transformers; what is not whole is refused."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from huggingface_hub import constants
from transformers import RobertaConfig, RobertaForMaskedLM

from client.models.encoder import PRECISIONS, Encoder
from server import checkpoint, checkpoint_files, generation, hub, masked_lm
from server.checkpoint import load, positions
from server.checkpoint_files import SentenceLayout, read_layout
from server.export import export_encoder
from server.model import Pipeline
from server.training.end_to_end import initial
from server.training.finetune import finetune
from tests.support.tiny_checkpoints import (
    POSITIONS,
    as_sentence_encoder,
    bert_pickled,
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
    "bert-pickled": Layout(bert_pickled),
    "mpnet": Layout(mpnet, normalize=True),
    "deberta-v3": Layout(deberta_v3),
    "modernbert": Layout(modernbert, "cls", prefix="search query: "),
    "nomic": Layout(nomic, prefix="the good: ", normalize=True),
    "gte": Layout(gte, "cls", normalize=True),
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


def test_a_device_and_the_server_embed_as_sentence_transformers(published: tuple[Path, Layout], tmp_path: Path) -> None:
    """Up to its last position, too."""
    folder, layout = published
    assert read_layout(folder) == SentenceLayout(layout.pooling, POSITIONS, layout.prefix)
    assert positions(load(folder)[0]) == POSITIONS
    reference = sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    truth = np.asarray(reference.encode(TEXTS, batch_size=3))
    export_encoder(folder, tmp_path, pooling=layout.pooling, max_length=POSITIONS)
    np.testing.assert_allclose(Encoder(tmp_path).encode(TEXTS), truth, atol=1e-5)
    rng = np.random.default_rng(0)
    pipeline = initial(folder, TEXTS, dim=4, classes=2, rng=rng, pooling=layout.pooling, max_length=POSITIONS)
    np.testing.assert_allclose(pipeline.embed(TEXTS), truth, atol=1e-5)
    assert np.abs(truth[0] - truth[1]).max() > 1e-3


@pytest.mark.parametrize("published", ["bert-pickled", "modernbert", "nomic"], indirect=True)
def test_it_is_exported_in_few_bits_and_from_layers(published: tuple[Path, Layout], tmp_path: Path) -> None:
    folder, layout = published
    texts = reviews(64, 0)[0]
    vectors = {}
    for name in PRECISIONS:
        how: dict[str, Any] = {"pooling": layout.pooling, "max_length": POSITIONS, "calibration": texts}
        export_encoder(folder, tmp_path / name, precision=name, **how)
        vectors[name] = Encoder(tmp_path / name).encode(texts)
    a = vectors["fp32"]
    for name, least in (("int8", 0.97), ("int4", 0.9)):
        b = vectors[name]
        cosine = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        assert cosine.mean() > least and not np.array_equal(a, b)
    export_encoder(folder, tmp_path / "layers", max_length=POSITIONS, layers=(1, 2))
    assert Encoder(tmp_path / "layers").encode(TEXTS).shape == (len(TEXTS), 64)


@pytest.mark.parametrize("published", ["bert-pickled", "nomic", "last"], indirect=True)
def test_it_is_fine_tuned_saved_and_read_again(published: tuple[Path, Layout], tmp_path: Path) -> None:
    folder, layout = published
    texts, labels = reviews(24, seed=1)
    how: dict[str, Any] = {"pooling": layout.pooling, "max_length": POSITIONS}
    tuned = finetune(
        folder, texts, labels, tmp_path / "tuned", classes=2, epochs=1, batch_size=8, lr=1e-3, seed=0, **how
    )
    before, after = load(folder)[1], load(tuned)[1]
    assert before("good film")["input_ids"] == after("good film")["input_ids"]  # with the prefix
    pipeline = initial(tuned, texts, dim=4, classes=2, rng=np.random.default_rng(0), **how)
    pipeline.save_pretrained(tmp_path / "pipeline")
    again = Pipeline.from_pretrained(tmp_path / "pipeline")
    assert np.array_equal(again.embed(TEXTS), pipeline.embed(TEXTS))
    export_encoder(tuned, tmp_path / "student", **how)
    np.testing.assert_allclose(Encoder(tmp_path / "student").encode(TEXTS), pipeline.embed(TEXTS), atol=1e-5)


def test_a_layout_in_lower_case_reads_capitals_so(tmp_path: Path) -> None:
    folder = as_sentence_encoder(xlm_roberta(tmp_path), prefix="query: ")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    tokenizer = load(folder)[1]
    assert tokenizer("GOOD film")["input_ids"] == tokenizer("good film")["input_ids"]


def test_minilm_is_pooled_as_requests_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own files normalize, and its identity is that of the mean. Other weights under its name are refused."""
    assert read_layout("minilm") == SentenceLayout()
    monkeypatch.setattr(checkpoint_files, "MINILM_SHA256", "0" * 64)
    with pytest.raises(ValueError, match="is not the published model"):
        load("minilm")


def test_a_fingerprint_follows_the_content(tmp_path: Path) -> None:
    one, other = tiny_bert(tmp_path / "one"), tiny_bert(tmp_path / "other")
    assert checkpoint_files.fingerprint(one) == checkpoint_files.fingerprint(other)
    (other / "config.json").write_text((other / "config.json").read_text() + " ")
    assert checkpoint_files.fingerprint(one) != checkpoint_files.fingerprint(other)


def test_a_pickled_language_model_has_its_head(tmp_path: Path) -> None:
    folder = roberta(tmp_path / "roberta")
    model = RobertaForMaskedLM(RobertaConfig.from_pretrained(folder))
    assert not masked_lm.read(folder)[2]
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    read, tokenizer, complete = masked_lm.read(folder)
    assert complete and positions(read) == POSITIONS and tokenizer.mask_token == "<mask>"
    assert torch.equal(read.lm_head.dense.weight, model.lm_head.dense.weight)


# --- refusals: one line each


def config(folder: Path, **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | changes))


def weights(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    kept = torch.load(folder / "pytorch_model.bin", weights_only=True)
    torch.save(change(kept), folder / "pytorch_model.bin")


def layout(folder: Path, file: str = "", change: Callable[[Any], object] = dict, **how: Any) -> None:
    """Write a sentence layout, and change what one of its files says."""
    as_sentence_encoder(folder, **{"normalize": True} | how)
    if file:
        (folder / file).write_text(json.dumps(change(json.loads((folder / file).read_text()))))


LAST = "bert.encoder.layer.1.output.dense.weight"
MODULES, PROMPTS, POOL = "modules.json", "config_sentence_transformers.json", "1_Pooling/config.json"
DENSE = "sentence_transformers.models.Dense"
MISTAKES: list[tuple[Callable[[Path], object], str]] = [
    (lambda at: (at / "config.json").unlink(), r"has no config\.json"),
    (lambda at: (at / "config.json").write_text("{"), "cannot be read"),
    (lambda at: config(at, num_hidden_layers=1), r"fewer layers than its weights: .*encoder\.layer\.1\."),
    (lambda at: config(at, num_hidden_layers=10**9), "num_hidden_layers = 1000000000; 1 to 512 can be built"),
    (lambda at: (at / "adapter_config.json").write_text("{}"), "holds an adapter"),
    (lambda at: config(at, num_hidden_layers=3), r"encoder\.layer\.2\..* is not among its weights"),
    (lambda at: config(at, intermediate_size=48), "of other sizes than its config"),
    (lambda at: (at / "vocab.txt").unlink(), "knows no word|cannot be read"),
    (lambda at: (at / "vocab.txt").write_text(""), "knows no word"),
    (lambda at: (at / "pytorch_model.bin").unlink(), "cannot be read: .*pytorch_model"),
    (lambda at: weights(at, lambda kept: {k: v for k, v in kept.items() if k != LAST}), "layer.1.* is not among"),
    (lambda at: weights(at, lambda kept: kept | {LAST: kept[LAST] * np.nan}), "layer.1.* are not finite"),
    (lambda at: layout(at, mode="max"), "it pools by max"),
    (lambda at: layout(at, length=2), "says max_seq_length = 2"),
    (lambda at: layout(at, MODULES, lambda kept: [*kept[:2], kept[2] | {"type": DENSE}]), rf"names .*{DENSE}"),
    (lambda at: layout(at, MODULES, lambda kept: [*kept[:2], kept[2] | {"type": "own.Normalize"}]), "names .*own.Norm"),
    (
        lambda at: layout(at, PROMPTS, lambda _: {"default_prompt_name": "x"}),
        "transformers files cannot be read",
    ),
    (lambda at: layout(at, PROMPTS, lambda _: [1]), "transformers files cannot be read"),
    (lambda at: layout(at, POOL, lambda kept: kept | {"include_prompt": False}, prefix="q: "), "leaves the prefix out"),
]


@pytest.mark.parametrize(("spoil", "words"), MISTAKES)
def test_a_checkpoint_that_is_not_whole_is_refused(spoil: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    folder = bert_pickled(tmp_path / "bert")
    weights(folder, lambda kept: {k: v for k, v in kept.items() if "pooler" not in k})
    load(folder)  # nobody reads the pooler
    spoil(folder)
    with pytest.raises(ValueError, match=rf"^encoder: [^\n]*({words})[^\n]*$"):
        load(folder)


@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
@pytest.mark.parametrize("part", ["../elsewhere/part", "/elsewhere/part", "within/part", 7])
def test_a_part_that_lies_elsewhere_is_refused(index: str, part: object, tmp_path: Path) -> None:
    """It is neither read nor, in a folder within, left out of what the checkpoint is known by."""
    folder = tiny_bert(tmp_path / "bert")
    (folder / "model.safetensors").unlink()
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": {"embeddings.LayerNorm.bias": part}}))
    with pytest.raises(ValueError, match=r"names a part that is no file of this folder: "):
        load(folder)
    (folder / index).write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"names no parts of its weights$"):
        load(folder)


def test_a_token_without_an_embedding_is_refused(tmp_path: Path) -> None:
    """A text that has it could not be encoded, and whether a device fails would tell that it does."""
    folder = tiny_bert(tmp_path / "bert")
    tokenizer = load(folder)[1]
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(folder)
    for read in (load, masked_lm.read):
        with pytest.raises(ValueError, match="a token that its model does not know: 'zebra'"):
            read(folder)


class _Runs:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_pickle_that_runs_something_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    folder = bert_pickled(tmp_path / "bert")
    file, mark = folder / "pytorch_model.bin", tmp_path / "ran"
    hostile = _Runs(f"touch '{mark}'")
    pickled = torch.load(file, weights_only=True) | {"bert.more": hostile}
    for write in (
        lambda: torch.save(pickled, file),
        lambda: torch.save(pickled, file, _use_new_zipfile_serialization=False),
        lambda: file.write_bytes(pickle.dumps(hostile)),
    ):
        write()
        with pytest.raises(ValueError, match="cannot be read"):
            load(folder)
    assert not mark.exists()


def test_code_that_a_checkpoint_brings_is_never_run_nor_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`transformers` would ask whether to run it, on standard input, which is where private texts come from."""
    folder, mark = tiny_bert(tmp_path / "bert"), tmp_path / "ran"
    (folder / "own.py").write_text(
        "from pathlib import Path\nfrom transformers import BertConfig, BertModel\n"
        f"Path({str(mark)!r}).touch()\n"
        "class Own(BertConfig):\n    model_type = 'own'\nclass Net(BertModel):\n    pass\n"
    )
    models = dict.fromkeys(("AutoModel", "AutoModelForMaskedLM", "AutoModelForCausalLM"), "own.Net")
    config(folder, model_type="own", auto_map=models | {"AutoConfig": "own.Own"})
    monkeypatch.setattr("builtins.input", lambda *_: mark.touch() or "y")
    for read in (load, masked_lm.read, generation.read_generator):
        with pytest.raises(ValueError, match=r"^[^\n]*cannot be read[^\n]*$"):
            read(folder)
    assert not mark.exists()


# --- the hub


def test_no_answer_is_no_hub_and_any_answer_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(url: str, *, timeout: float) -> httpx.Response:
        assert url == constants.ENDPOINT and timeout <= 5
        raise httpx.ReadTimeout("x")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(httpx, "head", silent)
    assert not hub.reachable()
    monkeypatch.setattr(httpx, "head", lambda *_, **__: httpx.Response(503))
    assert hub.reachable()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not hub.reachable()


def test_a_model_that_no_hub_gives_is_one_line_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "reachable", lambda: False)
    monkeypatch.setattr(httpx.Client, "send", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(ValueError, match=r"^[^\n]*'nobody/no-such-model' is no folder here, and no model hub[^\n]*$"):
        load("nobody/no-such-model")

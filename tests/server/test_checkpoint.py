"""Checkpoints in the layouts of others are read, exported and trained, and a file that is not whole is refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import RobertaConfig, RobertaForMaskedLM

from client.models.encoder import Encoder
from server import masked_lm
from server.checkpoint import load, positions
from server.export import export_encoder
from server.model import Pipeline
from server.training.end_to_end import started
from server.training.finetune import finetune
from tests.support.tiny_checkpoints import POSITIONS, bert_pickled, deberta_v3, roberta
from tests.support.tiny_models import reviews, tiny_bert

LAYOUTS = {"bert": tiny_bert, "bert-pickled": bert_pickled, "roberta": roberta, "deberta-v3": deberta_v3}
TEXTS = ["good film.", "the plot was awful and the book was bad", "a", "very good " * 60]


@pytest.fixture(scope="module", params=list(LAYOUTS))
def checkpoint(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("layouts") / request.param
    return LAYOUTS[request.param](folder)


def pooled(folder: Path, text: str, length: int) -> np.ndarray:
    """The mean of the last layer over a text's tokens, one text at a time."""
    model, tokenizer = load(folder)
    inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=length)
    with torch.no_grad():
        states = model(**inputs).last_hidden_state[0]
    return np.asarray(states.mean(dim=0))


def test_a_device_embeds_by_it_up_to_its_last_position(checkpoint: Path, tmp_path: Path) -> None:
    assert positions(load(checkpoint)[0]) == POSITIONS
    export_encoder(checkpoint, tmp_path / "encoder", max_length=POSITIONS)
    found = Encoder(tmp_path / "encoder").encode(TEXTS)
    for text, embedding in zip(TEXTS, found, strict=True):
        np.testing.assert_allclose(embedding, pooled(checkpoint, text, POSITIONS), atol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 1e-3
    with pytest.raises(ValueError, match=f"max-length must be between 3 and {POSITIONS}, got {POSITIONS + 1}"):
        export_encoder(checkpoint, tmp_path / "too-long", max_length=POSITIONS + 1)


def test_it_is_trained_saved_and_read_again(checkpoint: Path, tmp_path: Path) -> None:
    texts, labels = reviews(24, seed=1)
    finetune(checkpoint, texts, labels, tmp_path / "tuned", classes=2, epochs=1, batch_size=8, lr=1e-3, seed=0)
    assert np.abs(pooled(tmp_path / "tuned", TEXTS[0], 16) - pooled(checkpoint, TEXTS[0], 16)).max() > 1e-3
    rng = np.random.default_rng(0)
    pipeline = started(tmp_path / "tuned", texts, dim=4, classes=2, rng=rng, pooling="mean", max_length=POSITIONS)
    pipeline.save_pretrained(tmp_path / "pipeline", about={})
    again = Pipeline.from_pretrained(tmp_path / "pipeline")
    assert np.array_equal(again.embed(TEXTS), pipeline.embed(TEXTS))


def test_a_pickled_language_model_has_its_head(tmp_path: Path) -> None:
    folder = roberta(tmp_path / "roberta")
    model = RobertaForMaskedLM(RobertaConfig.from_pretrained(folder))
    assert not masked_lm.read(folder)[2]
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    found, tokenizer, whole = masked_lm.read(folder)
    assert whole and positions(found) == POSITIONS and tokenizer.mask_token == "<mask>"
    assert torch.equal(found.lm_head.dense.weight, model.lm_head.dense.weight)


def test_a_file_without_the_encoders_weights_is_refused(tmp_path: Path) -> None:
    folder = bert_pickled(tmp_path / "bert")
    kept = torch.load(folder / "pytorch_model.bin", weights_only=True)
    name = "bert.encoder.layer.1.output.dense.weight"
    torch.save({key: value for key, value in kept.items() if key != name}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"no whole encoder: encoder\.layer\.1\.output\.dense\.weight is not among"):
        load(folder)
    torch.save({k: v for k, v in kept.items() if "pooler" not in k}, folder / "pytorch_model.bin")
    load(folder)  # nobody reads the pooler
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ValueError, match=r"no weights; it needs a model\.safetensors or a pytorch_model\.bin"):
        load(folder)


def test_a_token_without_an_embedding_is_refused(tmp_path: Path) -> None:
    """A text that has it could not be encoded, and whether a device fails would tell that it does."""
    folder = tiny_bert(tmp_path / "bert")
    tokenizer = load(folder)[1]
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(folder)
    for read, kind in ((load, "encoder"), (masked_lm.read, "masked-lm")):
        with pytest.raises(ValueError, match=rf"^{kind}: .* has a token that its model does not know: 'zebra'$"):
            read(folder)


class _Runs:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("old", [False, True])
def test_a_pickle_that_runs_something_is_refused_and_runs_nothing(old: bool, tmp_path: Path) -> None:
    folder = bert_pickled(tmp_path / "bert")
    file, mark = folder / "pytorch_model.bin", tmp_path / "ran"
    weights = torch.load(file, weights_only=True) | {"bert.more": _Runs(f"touch '{mark}'")}
    if old:
        torch.save(weights, file, _use_new_zipfile_serialization=False)
    else:
        torch.save(weights, file)
    with pytest.raises(ValueError, match="cannot be read"):
        load(folder)
    file.write_bytes(pickle.dumps(weights["bert.more"]))
    with pytest.raises(ValueError, match="cannot be read"):
        load(folder)
    assert not mark.exists()

"""Checkpoints in the layouts of others are read, exported and trained; what is not whole or not there is refused."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from huggingface_hub import constants
from transformers import RobertaConfig, RobertaForMaskedLM

from client.models.encoder import Encoder
from server import hub, masked_lm
from server.checkpoint import load, positions
from server.export import export_encoder
from server.model import Pipeline
from server.training.end_to_end import initial
from server.training.finetune import finetune
from tests.support.paths import ROOT
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
    pipeline = initial(tmp_path / "tuned", texts, dim=4, classes=2, rng=rng, pooling="mean", max_length=POSITIONS)
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


def test_code_that_a_checkpoint_brings_is_never_run_nor_asked_about(tmp_path: Path) -> None:
    """`transformers` would ask whether to run it, on standard input, which is where private texts come from."""
    folder, mark = tiny_bert(tmp_path / "bert"), tmp_path / "ran"
    (folder / "own.py").write_text(
        "from pathlib import Path\nfrom transformers import BertConfig, BertModel\n"
        f"Path({str(mark)!r}).touch()\n"
        "class Own(BertConfig):\n    model_type = 'own'\nclass Net(BertModel):\n    pass\n"
    )
    config = json.loads((folder / "config.json").read_text())
    own = {
        "AutoConfig": "own.Own",
        "AutoModel": "own.Net",
        "AutoModelForMaskedLM": "own.Net",
        "AutoModelForCausalLM": "own.Net",
    }
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": own}))
    asked = (
        "from server import checkpoint, generation, masked_lm\n"
        "for read in (checkpoint.load, masked_lm.read, generation.read_generator):\n"
        f"    try:\n        read({str(folder)!r})\n        print('read')\n    except ValueError as error:\n"
        "        print('refused', str(error).count('\\n'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked],
        input="y\ny\ny\na private text\n",
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout == "refused 0\n" * 3
    assert not mark.exists()


@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
@pytest.mark.parametrize("part", ["../elsewhere/part", "/elsewhere/part", "within/part", 7])
def test_a_part_that_lies_elsewhere_is_refused(index: str, part: object, tmp_path: Path) -> None:
    """Neither read nor, in a folder within, left out of what the checkpoint is known by."""
    folder = tiny_bert(tmp_path / "bert")
    (folder / "model.safetensors").unlink()
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": {"embeddings.LayerNorm.bias": part}}))
    with pytest.raises(ValueError, match=r"names a part that is no file of this folder: "):
        load(folder)
    (folder / index).write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"names no parts of its weights$"):
        load(folder)


def test_a_tokenizer_without_its_vocabulary_is_refused(tmp_path: Path) -> None:
    """`transformers` makes one that knows special tokens alone: every text would be the same."""
    for make, file in ((bert_pickled, "vocab.txt"), (roberta, "vocab.json"), (deberta_v3, "spm.model")):
        folder = make(tmp_path / make.__name__)
        (folder / file).unlink()
        with pytest.raises(ValueError, match=r"^encoder: .*(knows no word|cannot be read)"):
            load(folder)
    (tmp_path / "bert_pickled" / "vocab.txt").write_text("")
    with pytest.raises(ValueError, match=r"knows no word; the file with its vocabulary is missing, or empty$"):
        load(tmp_path / "bert_pickled")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": -1}, r"says num_hidden_layers = -1; 1 to 512 can be built"),
        ({"num_hidden_layers": 10**9}, r"says num_hidden_layers = 1000000000; 1 to 512 can be built"),
        ({"num_hidden_layers": 1}, r"fewer layers than its weights: .*encoder\.layer\.1\."),
        ({"num_hidden_layers": 3}, r"encoder\.layer\.2\..* is not among its weights"),
        ({"intermediate_size": 48}, r"its weights are of other sizes than its config\.json says$"),
    ],
)
def test_a_size_that_is_not_that_of_the_weights_is_refused(changes: dict, said: str, tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=said):
        load(folder)


def test_weights_that_are_not_finite_and_an_adapter_are_refused(tmp_path: Path) -> None:
    folder = bert_pickled(tmp_path / "bert")
    kept = torch.load(folder / "pytorch_model.bin", weights_only=True)
    kept["bert.encoder.layer.1.output.dense.weight"][0, 0] = float("nan")
    torch.save(kept, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"weights encoder\.layer\.1\.output\.dense\.weight are not finite"):
        load(folder)
    folder = tiny_bert(tmp_path / "base")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds an adapter"):
        load(folder)


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("Name or service not known"), httpx.ReadTimeout("x"), httpx.InvalidURL("x")]
)
def test_no_answer_is_no_hub(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def head(url: str, *, timeout: float) -> httpx.Response:
        assert url == constants.ENDPOINT and timeout <= 5
        raise error

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(httpx, "head", head)
    assert not hub.reachable()


def test_any_answer_is_a_hub_unless_it_must_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpx, "head", lambda *_, **__: httpx.Response(503))
    for offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        assert hub.reachable() is not offline


def test_a_model_that_no_hub_gives_is_one_line_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.checkpoint.reachable", lambda: False)
    monkeypatch.setattr(httpx.Client, "send", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(ValueError, match="no model hub or cache gives it now; name a folder or minilm") as caught:
        load("nobody/no-such-model")
    assert "'nobody/no-such-model' is no folder here" in str(caught.value) and "\n" not in str(caught.value)

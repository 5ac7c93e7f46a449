"""Models that somebody else made: what their folders say is checked, and what they do tried, before a text is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic
from tokenizers import Tokenizer

from client.models.encoder import Encoder
from client.models.language_models import Generator, MaskedLM
from mechanisms.vocabulary import Vocabulary
from server.export import export_encoder
from server.generation import export_generator
from server.masked_lm import export_masked_lm
from tests.support.tiny_generators import tiny_generator
from tests.support.tiny_models import reviews, tiny_bert, tiny_masked_lm

TEXTS = ["the film was good", "a bad book", "the book was a film and the film was bad"]
#: What reads a folder, and the file that says what is in it.
READS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "encoder": (Encoder, "encoder.json"),
    "masked-lm": (MaskedLM, "masked_lm.json"),
    "causal": (Generator, "generator.json"),
    "t5": (Generator, "generator.json"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    export_encoder(tiny_bert(folder / "bert"), folder / "encoder", max_length=40)
    export_masked_lm(
        tiny_masked_lm(folder / "lm"), folder / "masked-lm", public_texts=reviews(60, seed=1)[0], seed=1, max_length=40
    )
    for kind in ("causal", "t5"):
        tiny_generator(folder / kind / "model", kind)
        export_generator(folder / kind / "model", folder / f"{kind}-made", public_texts=TEXTS, seed=0)
        shutil.rmtree(folder / kind)
        (folder / f"{kind}-made").rename(folder / kind)
    return {name: folder / name for name in READS}


@pytest.mark.parametrize("name", READS)
def test_one_whose_scale_is_that_of_the_batch_is_refused(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    """Dynamic quantization: what one user wrote would show in another's release, uncharged."""
    read, _ = READS[name]
    read(made[name])
    folder = tmp_path / "dynamic"
    shutil.copytree(made[name], folder)
    quantize_dynamic(made[name] / "model.onnx", folder / "model.onnx", per_channel=True, weight_type=QuantType.QInt8)
    with pytest.raises(ValueError, match=r"^[^\n]*one user's text would show in another's release$"):
        read(folder)


HOSTILE: dict[str, list[Any]] = {
    "max_length": [-5, 0, 1, "abc", 64.5, None, True, 10**9, 10**30, 4096],
    "history": [0, -3, "x", None, 10**9, 4096],
    "padding": [500, -1, None, "x"],
    "before": [[10**6], [-99], "abc", [[1]]],
    "start": [10**5, "x", 1.5],
    "end": ["x", -1, [1]],
    "special": [[[1]], 3, ["x"]],
    "pieces": [0, -1, "x", 3, 10**6],
    "low": ["x", None, 1e400, -(10**400)],
    "high": [10**400, float("nan"), -1e9],
    "dim": [0, -1, 31, "x", 10**30, None],
    "mask": [-1, "x", 10**6],
    "unknown": [-1, "x"],
    "spelling": [3],
    "pooling": [["mean"], 3, "max"],
    "precision": [["fp32"], "int2", None],
    "segments": ["x", 2],
}


@pytest.mark.parametrize("name", READS)
def test_what_a_folder_says_and_is_not_so_is_refused_in_one_line(
    name: str, made: dict[str, Path], tmp_path: Path
) -> None:
    """Left to the first text that finds it out, whether a device answers would tell something of that text."""
    read, file = READS[name]
    folder = tmp_path / "hostile"
    shutil.copytree(made[name], folder)
    about = json.loads((folder / file).read_text())
    for key in about.keys() & HOSTILE.keys():
        for value in HOSTILE[key]:
            if name == "t5" and value == 4096:  # its positions are relative, and have no end
                continue
            (folder / file).write_text(json.dumps(about | {key: value}))
            with pytest.raises(ValueError, match=r"^(encoder|masked-lm|generator): [^\n]+$"):
                read(folder)
    for text in ("[" * 100_000, "[]", "{}", "null", ""):
        (folder / file).write_text(text)
        with pytest.raises(ValueError, match=r"^(encoder|masked-lm|generator): [^\n]+ lacks one of [^\n]+$"):
            read(folder)


@pytest.mark.parametrize("name", READS)
def test_weights_in_another_file_are_refused(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    """The model's name is the hash of the files that are known: one with others could change under its name."""
    read, _ = READS[name]
    folder = tmp_path / "parted"
    shutil.copytree(made[name], folder)
    graph = onnx.load(folder / "model.onnx")
    onnx.save(graph, folder / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=16)
    assert (folder / "w.bin").is_file()
    with pytest.raises(ValueError, match=r"^[^\n]* holds a model or tokenizer that cannot be loaded$"):
        read(folder)


@pytest.mark.parametrize("name", ["causal", "t5"])
def test_a_first_part_and_a_token_to_start_with_go_together(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    """The first part is in the model's name: a file that is not read would be in it too."""
    folder = shutil.copytree(made[name], tmp_path / "parts")
    if name == "t5":
        (folder / "encoder.onnx").unlink()
    else:
        shutil.copy(made["t5"] / "encoder.onnx", folder)
    with pytest.raises(ValueError, match=r"^generator: [^\n]* has encoder\.onnx, or a token [^\n]* and not both$"):
        Generator(folder)


@pytest.mark.parametrize("name", ["encoder", "masked-lm"])
def test_a_tokenizer_that_knows_more_than_its_model_is_refused(
    name: str, made: dict[str, Path], tmp_path: Path
) -> None:
    """Or the one text that has the word would be the one that nobody answers about."""
    read, _ = READS[name]
    folder = tmp_path / "wide"
    shutil.copytree(made[name], folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert "film" in tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"]["film"] = 5000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match=rf"^{name}: [^\n]*: its tokenizer's token 5000 does not run$"):
        read(folder)


def test_a_word_of_tokens_that_the_model_lacks_is_an_unknown_one(made: dict[str, Path], tmp_path: Path) -> None:
    """A generator's tokenizer may know more than its model, as T5's does; a word of several tokens, once it was drawn,
    would else stand before the next one as tokens that there are none of."""
    folder = tmp_path / "wide"
    shutil.copytree(made["causal"], folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["zz", "yy"])
    tokenizer.save(str(folder / "tokenizer.json"))
    words, model = Vocabulary(("film", "zzyy", "zz"), np.zeros((3, 1), np.float32)), Generator(folder)
    pieces = model._pieces(words)
    assert pieces.ids[1:] == [pieces.ids[-1]] * 3 != [pieces.ids[0]] * 3
    assert pieces.single[0] >= 0 and pieces.single[1:].tolist() == [-1, -1]
    ask = model.scores(["a film"], words)
    positions, there, rows = np.array([1]), np.array([[1, 3, 3]]), np.array([0])
    assert np.isfinite(ask(positions, there, rows)[0, 0])


def test_a_graph_that_names_a_place_by_chance_is_read(made: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "named"
    shutil.copytree(made["encoder"], folder)
    graph = onnx.load(folder / "model.onnx")
    graph.doc_string = "of this location"
    onnx.save(graph, folder / "model.onnx")
    assert np.array_equal(Encoder(folder).encode(TEXTS), Encoder(made["encoder"]).encode(TEXTS))

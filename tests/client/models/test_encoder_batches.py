"""An embedding's bits depend on the text alone: not on the texts beside it, their number, or the threads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from client.models import encoder as encoders
from client.models.encoder import Encoder
from client.models.onnx import session
from server.export import export_encoder
from server.quantize import quantize, quantize_blocks
from tests.support.tiny_models import reviews, tiny_bert

PRECISIONS = encoders.PRECISIONS
SENTENCE = "the film was a quiet small wonder that nobody had asked for and everyone will remember"


def export(model: str | Path, folder: Path, precision: str, **how: object) -> Path:
    export_encoder(model, folder, precision=precision, calibration=reviews(64, 0)[0], **how)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    bert = tiny_bert(tmp_path_factory.mktemp("bert"))
    return {p: export(bert, tmp_path_factory.mktemp(p), p, max_length=16) for p in PRECISIONS}


def same_bits(folder: Path, texts: list, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Encoder(folder, threads=1), Encoder(folder, threads=2)
    whole = one.encode(texts)
    for text, row in list(zip(texts, whole, strict=True))[:: max(1, len(texts) // 40)]:
        assert one.encode([text])[0].tobytes() == row.tobytes()
    assert two.encode(texts[::-1])[::-1].tobytes() == whole.tobytes()
    for size in (2, 7, 32):  # texts beside one another
        parts = [one.encode(texts[i : i + size]) for i in range(0, len(texts), size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
    for tokens in (1, 16, 300):  # of a batch
        monkeypatch.setattr(encoders, "_TOKENS", tokens)
        assert two.encode(texts).tobytes() == whole.tobytes()
    monkeypatch.setattr(encoders, "_CHUNK", 9)
    assert one.encode(texts).tobytes() == two.encode(texts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_tiny_encoder_is_a_function_of_one_text(
    tiny: dict[str, Path], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*reviews(120, 0)[0], "", "good " * 40, ("good film", "bad book ."), "bad"]
    same_bits(tiny[precision], texts, monkeypatch)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_texts_of_one_token_are_read_alone(
    tiny: dict[str, Path], precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a tokenizer puts nothing around a text: a product with one row may have a kernel of its own."""
    folder = shutil.copytree(tiny[precision], tmp_path / precision)
    about = json.loads((folder / "tokenizer.json").read_text()) | {"post_processor": None}
    (folder / "tokenizer.json").write_text(json.dumps(about))
    same_bits(folder, ["good", "bad", "film", "good", "the film", "book", "a book", "plot", "very"], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_bundled_encoder_is_a_function_of_one_text(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths from two tokens to the longest, each in several batches."""
    words = SENTENCE.split()
    texts = [" ".join(words[i % 5 : i % 5 + n] * 9)[: 5 * n] for i in range(12) for n in (1, 2, 4, 7, 12)]
    texts += ["", "a", " ".join(words * 12), " ".join(words * 13), ("one", "and two")]
    same_bits(export("minilm", tmp_path, precision), texts, monkeypatch)


def test_int8_is_another_function_that_is_near(tiny: dict[str, Path]) -> None:
    fp32, int8 = (Encoder(tiny[p]) for p in PRECISIONS[:2])
    assert fp32.identity != int8.identity and (fp32.precision, int8.precision) == PRECISIONS[:2]
    texts = [*reviews(200, 0)[0], ("good film", "bad book .")]
    a, b = (e.encode(texts) for e in (fp32, int8))
    cosine = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert cosine.mean() > 0.98 and not np.array_equal(a, b)
    assert (tiny["int8"] / "model.onnx").stat().st_size < (tiny["fp32"] / "model.onnx").stat().st_size
    assert (tiny["int8"] / "tokenizer.json").read_bytes() == (tiny["fp32"] / "tokenizer.json").read_bytes()


def test_int4_rounds_in_blocks_and_rounds_no_more(tiny: dict[str, Path], tmp_path: Path) -> None:
    """Weights (q - 8)·scale of a block of 32, q in 0..15; those of an int4 graph come back as they are."""
    words = 5000
    table = np.random.default_rng(0).normal(size=(words, 64)).astype(np.float32)
    matrix = np.random.default_rng(1).normal(size=(64, 8)).astype(np.float32)

    def made(name: str, **values: np.ndarray) -> Path:
        make = onnx.helper
        nodes = [make.make_node("Gather", ["table", "ids"], ["rows"]), make.make_node("MatMul", ["rows", "w"], ["out"])]
        inputs = [make.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n"])]
        outputs = [make.make_tensor_value_info(o, onnx.TensorProto.FLOAT, None) for o in ("rows", "out")]
        constants = [onnx.numpy_helper.from_array(value, key) for key, value in values.items()]
        graph = make.make_graph(nodes, "g", inputs, outputs, constants)
        onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), tmp_path / name)
        return tmp_path / name

    def run(file: Path, ids: np.ndarray) -> list[np.ndarray]:
        return list(session(file, 1).run(None, {"ids": ids}))

    quantize_blocks(made("fp32.onnx", table=table, w=matrix), tmp_path / "int4.onnx")
    rows, out = run(tmp_path / "int4.onnx", np.arange(words))
    step = np.abs(table.reshape(words, 2, 32)).max(axis=2).repeat(32, axis=1) / 8
    assert (np.abs(rows - table) <= step * 1.0001).all() and np.abs(rows - table).max() > 0.01
    assert (tmp_path / "int4.onnx").stat().st_size < (tmp_path / "fp32.onnx").stat().st_size / 6
    quantize_blocks(made("again.onnx", table=rows, w=matrix), tmp_path / "int4-again.onnx")
    same = run(tmp_path / "int4-again.onnx", np.arange(words))
    np.testing.assert_array_equal(same[0], rows)
    np.testing.assert_array_equal(same[1], out)
    with pytest.raises(ValueError, match="no product by a constant matrix"):
        quantize_blocks(made("odd.onnx", table=table[:, :40], w=matrix[:40]), tmp_path / "none.onnx")


def test_int8_follows_from_the_model_and_the_public_texts(tiny: dict[str, Path], tmp_path: Path) -> None:
    ids = np.arange(6).reshape(1, 6)
    feeds = [{"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}] * 2
    for folder in "ab":
        (tmp_path / folder).mkdir()
        quantize(tiny["fp32"] / "model.onnx", tmp_path / folder / "model.onnx", feeds)
    assert (tmp_path / "a/model.onnx").read_bytes() == (tmp_path / "b/model.onnx").read_bytes()
    with pytest.raises(ValueError, match="needs public texts"):
        quantize(tiny["fp32"] / "model.onnx", tmp_path / "none.onnx", [])
    with pytest.raises(ValueError, match="no product by a constant matrix"):
        quantize(tmp_path / "a/model.onnx", tmp_path / "none.onnx", feeds)
    assert not (tmp_path / "none.onnx").exists()


def test_an_encoder_whose_scale_is_that_of_the_batch_is_refused(tiny: dict[str, Path], tmp_path: Path) -> None:
    """Dynamic quantization: what one user wrote would show in another's embedding."""
    folder = tmp_path / "dynamic"
    shutil.copytree(tiny["fp32"], folder)
    quantize_dynamic(tiny["fp32"] / "model.onnx", folder / "model.onnx", per_channel=True, weight_type=QuantType.QInt8)
    with pytest.raises(ValueError, match="one user's text would show in another's") as caught:
        Encoder(folder)
    assert "\n" not in str(caught.value)


def test_an_encoder_of_another_width_or_precision_is_refused(tiny: dict[str, Path], tmp_path: Path) -> None:
    for about, said in (
        ('"dim": 31', "no float32 states of width 31"),
        ('"precision": "int2"', "'int2' is not one of"),
    ):
        key = about.partition(":")[0]
        folder = tmp_path / key.strip('"')
        shutil.copytree(tiny["fp32"], folder)
        written = (folder / "encoder.json").read_text()
        start = written.index(key)
        end = min(i for i in (written.find(",", start), written.find("}", start)) if i > 0)
        (folder / "encoder.json").write_text(written[:start] + about + written[end:])
        with pytest.raises(ValueError, match=said):
            Encoder(folder)

"""The client's encoder: pooling, its bits in any batch and at any precision, and texts that are hard to read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from client.models import encoder as encoders
from client.models.clean_text import LONGEST, clean_text
from client.models.embeddings import read_embeddings, write_embeddings
from client.models.encoder import Encoder, identity
from client.models.onnx import session
from client.models.tokens import padded_word_ids
from mechanisms.catalogue import build
from server.export import export_encoder
from server.quantize import quantize, quantize_blocks
from tests.support.devices import SENTENCES, encoder_folder, words
from tests.support.tiny_models import reviews, tiny_bert

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"]
M = 6
TABLE = np.random.default_rng(1).normal(size=(len(WORDS), M)).astype(np.float32)


AROUND = ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")


def make_encoder(folder, pooling="mean", max_length=5, around=AROUND):
    """around: what the tokenizer puts around a text and a pair, or None. A text of more than max_length tokens does not
    run."""
    folder.mkdir(parents=True, exist_ok=True)
    make = onnx.helper
    value = make.make_tensor_value_info
    graph = make.make_graph(
        [
            make.make_node("Shape", ["input_ids"], ["length"], start=1, end=2),
            make.make_node("Squeeze", ["length"], ["many"]),
            make.make_node("Range", ["zero", "many", "one"], ["places"]),
            make.make_node("Gather", ["at", "places"], ["positions"]),
            make.make_node("Gather", ["table", "input_ids"], ["words"]),
            make.make_node("Add", ["words", "positions"], ["last_hidden_state"]),
        ],
        "tiny",
        [value("input_ids", onnx.TensorProto.INT64, ["batch", "length"])],
        [value("last_hidden_state", onnx.TensorProto.FLOAT, ["batch", "length", M])],
        [
            onnx.numpy_helper.from_array(np.asarray(each), name)
            for name, each in {
                "table": TABLE,
                "at": np.zeros((max_length, M), np.float32),
                "zero": np.int64(0),
                "one": np.int64(1),
            }.items()
        ],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "model.onnx"))
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if around is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=around[0], pair=around[1], special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"pooling": pooling, "max_length": max_length, "dim": M}
    (folder / "encoder.json").write_text(json.dumps(about))
    return folder


def mean(*words):
    return TABLE[[WORDS.index(w) for w in words]].mean(axis=0)


def test_mean_pooling_ignores_padding_and_keeps_the_order(tmp_path):
    texts = ["a b c", "", "d", ("a", "b"), "a b c d d d", "unknown"]
    expected = [
        mean("[CLS]", "a", "b", "c", "[SEP]"),
        mean("[CLS]", "[SEP]"),
        mean("[CLS]", "d", "[SEP]"),
        mean("[CLS]", "a", "[SEP]", "b", "[SEP]"),
        mean("[CLS]", "a", "b", "c", "[SEP]"),  # cut to five tokens
        mean("[CLS]", "[UNK]", "[SEP]"),
    ]
    got = Encoder(make_encoder(tmp_path)).encode(texts * 20)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected * 20, rtol=1e-5, atol=1e-6)


def test_cls_pooling_and_no_texts(tmp_path):
    encoder = Encoder(make_encoder(tmp_path, pooling="cls"), threads=1)
    np.testing.assert_array_equal(encoder.encode(["a", "b c"]), np.stack([TABLE[2], TABLE[2]]))
    assert encoder.encode([]).shape == (0, M)


def test_no_text_decides_whether_it_can_be_encoded(tmp_path):
    """Whether a device answers would tell of it: one without a token, and long ones under more tokens around a text
    than there is room for, of which the tokenizer then cuts nothing."""
    bare, none = Encoder(make_encoder(tmp_path / "bare", around=None), threads=1), np.zeros(M)
    np.testing.assert_array_equal(bare.encode(["", "a", "  ", ("", "")]), [none, mean("a"), none, none])
    long = "a b c d " * 40
    prompt = ("[CLS] [CLS] [CLS] [SEP] [SEP] [SEP] $A", "[CLS] [CLS] [SEP] [SEP] $A [SEP] [SEP] $B")
    asked = Encoder(make_encoder(tmp_path / "prompt", max_length=4, around=prompt), threads=1)
    for texts in (["a", long, ""], [("a", "b"), (long, long)]):
        made = asked.encode(texts)
        np.testing.assert_array_equal(made, np.broadcast_to(made[0], made.shape))
    pairs = Encoder(make_encoder(tmp_path / "pairs", max_length=2), threads=1).encode([("a", "b"), (long, long)])
    assert np.isfinite(pairs).all()


def test_identity_is_the_content(tmp_path):
    first = make_encoder(tmp_path / "1")
    assert identity(first) == identity(make_encoder(tmp_path / "2")) == Encoder(first).identity
    others = [make_encoder(tmp_path / "3", pooling="cls"), make_encoder(tmp_path / "4")]
    (others[1] / "tokenizer.json").write_text((first / "tokenizer.json").read_text() + " ")
    assert len({identity(first), *map(identity, others)}) == 3


@pytest.mark.parametrize("name", encoders.FILES)
@pytest.mark.parametrize("content", [None, b"{}"])
def test_a_folder_that_is_no_encoder_is_one_line(tmp_path, name, content):
    path = make_encoder(tmp_path) / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="encoder: ") as caught:
        Encoder(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_names_of_special_tokens_in_a_text_are_text(tmp_path):
    """ "[SEP]" in a text is three words; what an encoder makes of other texts does not change by it."""
    encoder = Encoder(make_encoder(tmp_path / "e"))
    said = encoder.encode(["a [SEP]", "a [ SEP ]", "a b", ("a", "[CLS]"), ("a", "[ CLS ]")])
    assert (said[0] == said[1]).all() and (said[3] == said[4]).all()
    assert (said[2] == encoder.encode(["a b"])[0]).all() and not (said[0] == said[2]).all()


def test_embeddings_of_texts_that_were_read_otherwise_are_not_used(tmp_path):
    """What a node kept under the name without the way of reading: special tokens in a text were tokens then."""
    encoder = Encoder(make_encoder(tmp_path / "e"))
    values = np.ones((1, M), np.float32)
    np.save(tmp_path / f"train-{encoder.identity}.npy", values)
    assert read_embeddings(tmp_path, "train", encoder.identity, 1) is None
    write_embeddings(tmp_path, "train", encoder.identity, values)
    assert (read_embeddings(tmp_path, "train", encoder.identity, 1).take(np.array([0])) == values).all()


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
    for size in (2, 7):  # texts beside one another
        parts = [one.encode(texts[i : i + size]) for i in range(0, len(texts), size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
    for tokens in (1, 300):  # of a batch
        monkeypatch.setattr(encoders, "_TOKENS", tokens)
        assert two.encode(texts).tobytes() == whole.tobytes()
    monkeypatch.setattr(encoders, "_CHUNK", 9)
    assert one.encode(texts).tobytes() == two.encode(texts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("around", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_tiny_encoder_is_a_function_of_one_text(
    tiny: dict[str, Path], precision: str, around: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a tokenizer puts nothing around a text, one token is alone: a product with one row may have its kernel."""
    folder, texts = tiny[precision], [*reviews(120, 0)[0], "", "good " * 40, ("good film", "bad book ."), "bad"]
    if not around:
        folder = shutil.copytree(folder, tmp_path / precision)
        about = json.loads((folder / "tokenizer.json").read_text()) | {"post_processor": None}
        (folder / "tokenizer.json").write_text(json.dumps(about))
        texts = ["good", "bad", "film", "good", "the film", "book", "a book", "plot", "very"]
    same_bits(folder, texts, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_bundled_encoder_is_a_function_of_one_text(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths from two tokens to the longest, each in several batches."""
    words = SENTENCE.split()
    texts = [" ".join(words[i % 5 : i % 5 + n] * 9)[: 5 * n] for i in range(4) for n in (1, 2, 4, 7, 12)]
    texts += ["", "a", " ".join(words * 12), " ".join(words * 13), ("one", "and two")]
    same_bits(export("minilm", tmp_path, precision), texts, monkeypatch)


def test_int8_is_another_function_that_is_near(tiny: dict[str, Path]) -> None:
    fp32, int8 = (Encoder(tiny[p]) for p in PRECISIONS[:2])
    assert fp32.identity != int8.identity and (fp32.precision, int8.precision) == PRECISIONS[:2]
    texts = [*reviews(200, 0)[0], ("good film", "bad book .")]
    a, b = (e.encode(texts) for e in (fp32, int8))
    cosine = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert cosine.mean() > 0.98 and not np.array_equal(a, b)


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


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return Encoder(encoder_folder(tmp_path_factory.mktemp("legible")), threads=1)


def test_one_text_with_half_a_character_does_not_make_all_fail(encoder: Encoder) -> None:
    """JSON may hold one; the tokenizer's library refuses it, and with it every text of its batch."""
    assert clean_text("a \ud83d 漢字 😀") == "a \ufffd 漢字 😀" and clean_text(("\ud83d", "b")) == ("\ufffd", "b")
    found = encoder.encode([SENTENCES[0], "the \ud83d film", ("a", "\udfff")])
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[:1], encoder.encode(SENTENCES[:1]))


def test_what_stands_behind_the_longest_text_is_not_read(encoder: Encoder) -> None:
    for text in ("film " * 400_000, "x" * 2_000_000, " " * 2_000_000):
        assert len(clean_text(text)) == LONGEST
    assert len("".join(clean_text(("a" * 10**6, "b" * 10**6)))) == 2 * LONGEST
    short, long = encoder.encode(["good film " * 1000, "good film " * 200_000])
    np.testing.assert_array_equal(short, long)
    text = build({"mechanism": "santext", "epsilon": 2.0, "tokens": 6}, channel="text", vocabulary=words())
    ids = padded_word_ids(["good film " * 200_000, "good film " * 3, " " * LONGEST + "good"], text)
    np.testing.assert_array_equal(ids[0], ids[1])
    assert len(np.unique(ids[2])) == 1

"""The client's encoder on a tiny ONNX model: a hidden state is the row of a table that its token id names."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from client.models import encoder as encoders
from client.models.embeddings import read_embeddings, write_embeddings
from client.models.encoder import Encoder, identity
from client.node import load_node, write_node
from client.sanitizer import Sanitizer
from client.shard import write_shard
from tests.support.clients import OPEN, request

onnx = pytest.importorskip("onnx")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"]
M = 6
TABLE = np.random.default_rng(1).normal(size=(len(WORDS), M)).astype(np.float32)


AROUND = ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")


def make_encoder(folder, pooling="mean", max_length=5, around=AROUND, more=()):
    """around: what the tokenizer puts around a text and a pair, or None. more: further words of the tokenizer, of which
    the table lacks the last. A text of more than max_length tokens does not run."""
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
                "table": np.concatenate([TABLE, np.ones((len(more[1:]), M), np.float32)]),
                "at": np.zeros((max_length, M), np.float32),
                "zero": np.int64(0),
                "one": np.int64(1),
            }.items()
        ],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "model.onnx"))
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*WORDS, *more])}, unk_token="[UNK]"))
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


def test_a_tokenizer_that_knows_more_than_the_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^encoder: [^\n]*: its tokenizer's token 47 does not run$"):
        Encoder(make_encoder(tmp_path / "e", more=[f"w{i}" for i in range(40)]))


def test_the_same_list_gives_the_same_bits(tmp_path):
    encoder = Encoder(make_encoder(tmp_path))
    texts = ["a b", "c", "d a"] * 40
    assert encoder.encode(texts).tobytes() == encoder.encode(texts).tobytes()


def test_identity_is_the_content(tmp_path):
    first = make_encoder(tmp_path / "1")
    assert identity(first) == identity(make_encoder(tmp_path / "2")) == Encoder(first).identity
    others = [make_encoder(tmp_path / "3", pooling="cls"), make_encoder(tmp_path / "4")]
    (others[1] / "tokenizer.json").write_text((first / "tokenizer.json").read_text() + " ")
    assert len({identity(first), *map(identity, others)}) == 3


@pytest.mark.parametrize("name", encoders.FILES)
@pytest.mark.parametrize("content", [None, b"", b"{}", b"not a model"])
def test_a_folder_that_is_no_encoder_is_one_line(tmp_path, name, content):
    path = make_encoder(tmp_path) / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="encoder: ") as caught:
        Encoder(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_unknown_pooling_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="pooling"):
        Encoder(make_encoder(tmp_path, pooling="max"))


def test_one_session_a_process(tmp_path):
    make_encoder(tmp_path)
    assert encoders.load(tmp_path) is encoders.load(tmp_path)


def test_a_device_encodes_its_own_texts(tmp_path):
    folder = make_encoder(tmp_path / "encoder")
    node = tmp_path / "node"
    write_shard(node, "train", np.arange(3), np.zeros(3, np.int64), ["a", ("b", "c"), ""], np.arange(3))
    write_node(node, encoder=folder, policy=OPEN)
    rng = np.random.default_rng(2)
    asked = request(
        arm="", encoder=identity(folder), mean=np.zeros(M, np.float32), m1=rng.normal(size=(M, 2)).astype(np.float32)
    )
    device = load_node(node)
    with device.ledger("") as ledger:
        reply = Sanitizer(device.policy(""), ledger, device.streams).answer(asked, device.shard("train"))
    assert reply.users.tolist() == [0, 1, 2]
    assert reply.releases[0].payload["z"].shape == (3, 2)


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

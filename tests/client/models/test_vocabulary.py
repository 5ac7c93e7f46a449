"""Vocabularies as folders, as files of word vectors, and from checkpoints."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from client.models.vocabulary import load, load_cached, read_vectors, save
from mechanisms.vocabulary import Vocabulary
from simulations.artifacts import vocabulary as sources
from simulations.errors import UserError

GLOVE = "the 0.5 -1 2e-1\nfilm 1 2 3\n😀 0 0 1\nשלום 4 5 6\n"


def made(**more: object) -> Vocabulary:
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    return Vocabulary(("the", "a b", "\ud800", "天"), vectors, **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(folder: Path, content: str | bytes, name: str = "vectors.txt") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# -- folders


@pytest.mark.parametrize("more", [{}, {"counts": np.arange(4), "tags": np.array([0, 1, 2, 11], np.int8)}])
def test_a_folder_gives_back_what_it_was_given(tmp_path: Path, more: dict) -> None:
    vocabulary = made(**more)
    save(vocabulary, tmp_path / "new" / "v")
    found = load(tmp_path / "new" / "v")
    assert found == vocabulary and found.words == vocabulary.words
    for name in ("vectors", "counts", "tags"):
        ours, theirs = getattr(vocabulary, name), getattr(found, name)
        assert (ours is None and theirs is None) or (ours.dtype == theirs.dtype and (ours == theirs).all())
    assert isinstance(found.vectors.base, np.memmap)
    assert load_cached(tmp_path / "new" / "v") is load_cached(tmp_path / "new" / "v")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["v"]


def test_a_folder_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", fail)
        with pytest.raises(OSError, match="disk full"):
            save(made(), tmp_path / "v")
    assert not [p for p in tmp_path.iterdir() if p.name != "cache"]
    (tmp_path / "empty").mkdir()
    save(made(), tmp_path / "empty")
    with pytest.raises(ValueError, match="is there already"):
        save(made(), tmp_path / "empty")
    assert load(tmp_path / "empty") == made()


def test_a_folder_that_is_none_or_was_changed_is_refused_in_one_line(tmp_path: Path) -> None:
    def complaint() -> str:
        with pytest.raises(ValueError) as caught:
            load(tmp_path / "v")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "vocabulary.json is missing" in complaint()
    save(made(), tmp_path / "v")
    good = {p.name: p.read_bytes() for p in (tmp_path / "v").iterdir()}
    other = np.array(made().vectors) + 1
    np.save(tmp_path / "v" / "vectors.npy", other)
    assert "is not what its vocabulary.json states" in complaint()
    for name, content in (
        ("vectors.npy", b""),
        ("words.json", b"7"),
        ("vocabulary.json", b"[]"),
    ):
        for p, data in good.items():
            (tmp_path / "v" / p).write_bytes(data)
        (tmp_path / "v" / name).write_bytes(content)
        complaint()
    np.save(tmp_path / "v" / "vectors.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "v" / "vocabulary.json").write_bytes(good["vocabulary.json"])
    complaint()  # nothing is unpickled


# -- files of word vectors


@pytest.mark.parametrize(
    "data",
    [
        GLOVE.encode(),
        b"\xef\xbb\xbf4 3\n" + GLOVE.replace("\n", " \r\n").encode(),
        gzip.compress(b"4 3\n" + GLOVE.replace(" ", "\t").encode(), mtime=0),
    ],
)
def test_glove_and_word2vec_files(tmp_path: Path, data: bytes) -> None:
    found = read_vectors(written(tmp_path, data))
    assert found.words == ("the", "film", "😀", "שלום")
    assert found.vectors.tolist() == np.float32([[0.5, -1, 0.2], [1, 2, 3], [0, 0, 1], [4, 5, 6]]).tolist()


def test_which_words_are_taken(tmp_path: Path) -> None:
    lines = GLOVE + "the 9 9 9\nat a@b.c 1 1 1\n. . . 2 2 2\n\xa0 1 1 1\n\x85 1 1 1\na\u2028b 1 1 1\n\nlast 7 7 7"
    path = written(tmp_path, lines)
    found = read_vectors(path)
    assert found.words == ("the", "film", "😀", "שלום", "last")  # spaces inside: no text holds them as one word
    assert found.vectors[0].tolist() == [0.5, -1, np.float32(0.2)]  # the first of two stands


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("4 3\nthe 1 2\n", "line 2: expected"),
        (GLOVE + "bad 1 x 3\n", "line 5: "),
        (GLOVE + "bad 1  3\n", "line 5: "),
        (GLOVE + "bad 1 nan 3\n", "line 5: "),
        (GLOVE + "bad 1 1e39 3\n", "line 5: "),
        (GLOVE + "film 1 x 3\n", "line 5: "),  # a repeated word's line is checked too
        (GLOVE.encode() + b"\xff\xfe 1 2 3\n", "line 5: 'utf-8'"),
        (b"4 3\nthe \x00\x00\x80?", "line 2: is binary"),
        (b"\x80\xff" * 2**20, "line 1: is binary"),
        (gzip.compress(GLOVE.encode() * 50, mtime=0)[:60], "end-of-stream"),
        (b"\x1f\x8b" + b"nonsense" * 9, "compression"),
        ("\n\n", "holds 0 "),
        ("the 1 2 3\n", "holds 1 "),
        ("prose\n", "line 1: expected"),
        ("9 3\n" + GLOVE, "after 4 of 9 words"),
    ],
)
def test_a_bad_file_is_named_with_the_line(tmp_path: Path, content: str | bytes, expected: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ValueError) as caught:
        read_vectors(path)
    assert expected in str(caught.value) and str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


# -- sources of a simulation


def test_counts_are_of_public_texts(tmp_path: Path) -> None:
    vocabulary = read_vectors(written(tmp_path, GLOVE))
    found = sources.counted(vocabulary, ["The film, the end 😀😀", ("film", "the"), ""])
    assert found.counts is not None and found.counts.tolist() == [3, 2, 2, 0]
    assert found.words == vocabulary.words and found != vocabulary


def test_a_folder_is_made_once_for_each_content(tmp_path: Path) -> None:
    path = written(tmp_path, GLOVE)
    folder = sources.vocabulary_folder(path)
    assert load(folder).words[0] == "the" and sources.vocabulary_folder(path) == folder
    counted = sources.vocabulary_folder(path, public_texts=["the film"])
    other = sources.vocabulary_folder(path, public_texts=["the film the"])
    assert len({folder, counted, other}) == 3
    assert load(counted).counts.tolist() == [1, 1, 0, 0]  # type: ignore[union-attr]
    assert sources.vocabulary_folder(counted) == counted  # a vocabulary's own folder is one already
    path.write_text(GLOVE + "more 1 1 1\n")
    assert len(load(sources.vocabulary_folder(path))) == 5
    with pytest.raises(UserError, match="there is no such file"):
        sources.vocabulary_folder(tmp_path / "none.txt")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny_models import tiny_bert

    return tiny_bert(tmp_path_factory.mktemp("bert") / "model")


def test_words_of_a_wordpiece_checkpoint(bert: Path) -> None:
    from server import checkpoint
    from tests.support.tiny_models import WORDS

    found = sources.from_checkpoint(bert)
    assert found.words == tuple(w for w in WORDS if not w.startswith("##"))
    network, tokenizer = checkpoint.load(bert)
    table = network.get_input_embeddings().weight.detach().numpy()
    for word, vector in zip(found.words, found.vectors, strict=True):
        assert (vector == table[tokenizer.convert_tokens_to_ids(word)]).all()
    assert load(sources.vocabulary_folder(bert)) == found


@pytest.mark.parametrize(
    ("pieces", "kind", "expected"),
    [
        (["a", "##b", "c"], {"type": "WordPiece", "continuing_subword_prefix": "##"}, ["a", None, "c"]),
        (["Ġthe", "ing", "Ġcaf" + "Ã©", "ĠÃ"], {"type": "BPE"}, ["the", None, "café", None]),
        (["▁the", "ing", "▁天"], {"type": "Unigram"}, ["the", None, "天"]),
        (["the"], {"type": "WordLevel"}, ["the"]),
    ],
)
def test_spelling_of_pieces(pieces: list[str], kind: dict, expected: list[str | None]) -> None:
    spell = sources._speller(pieces, kind)
    assert [spell(p) for p in pieces] == expected


def test_byte_level_letters_are_those_of_the_tokenizers() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    from mechanisms.pieces import byte_letters

    assert sorted(byte_letters()) == sorted(ByteLevel.alphabet())
    spelled = ByteLevel(add_prefix_space=False).pre_tokenize_str(" שלום")[0][0]
    assert sources._decoded(spelled[1:], byte_letters()) == "שלום"

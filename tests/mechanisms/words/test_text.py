"""A whole text: vocabulary, length, treatments and the guarantee of all of it together.

Statistical tests answer at a false-alarm rate of 1e-6 each, on fixed seeds.
"""

import math
import random
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from mechanisms import checks
from mechanisms.catalogue import build
from mechanisms.guarantee import EXPOSURES, Guarantee
from mechanisms.mechanism import parameters, uniforms
from mechanisms.pieces import encoded, opened, read_as_text
from mechanisms.vocabulary import NOTHING, Vocabulary, is_number, is_punctuation
from mechanisms.words.text import Length, TextMechanism
from tests.support.words import streams

ALARM = 1e-6
WORDS = ("good", "Bad", "the", ",", "7", "film", "plot", "!?")


def vocabulary(words=WORDS, seed=0, **more):
    vectors = np.random.default_rng(seed).normal(size=(len(words), 3)).astype(np.float32)
    return Vocabulary(tuple(words), vectors, **more)


class Flip:
    """A word mechanism for these tests: keeps a word with probability q, else draws uniformly."""

    name, channel, reads, grid = "flip", "text", (), None

    def __init__(self, vocabulary, q=0.5, protects="token"):
        self.vocabulary, self.q = vocabulary, q
        size = len(vocabulary)
        epsilon = math.log1p(q * size / (1 - q))
        self.guarantee = Guarantee(epsilon, "discrete", 1.0, protects)

    def sample(self, x, *, rng):
        x = checks.word_ids(self.name, x, self.vocabulary)
        u = uniforms(rng, x.shape, 2).reshape(*x.shape, 2)
        keep = (u[..., 0] < self.q) & (x != self.vocabulary.unknown)
        drawn = (u[..., 1] * len(self.vocabulary)).astype(np.int64)
        return np.where(x == NOTHING, NOTHING, np.where(keep, x, drawn))


def test_words_are_found_as_written_and_else_in_lower_case():
    v = vocabulary()
    assert [v.word_id(w) for w in ("good", "GOOD", "Bad", "bad", "nowhere")] == [0, 0, 1, 8, 8]
    assert v.exact_word_id("GOOD") is None and v.unknown == len(v) == 8


def test_identity_is_of_the_content_alone():
    assert vocabulary() == vocabulary() and hash(vocabulary()) == hash(vocabulary())
    counts = np.arange(8, dtype=np.int64)
    others = [
        vocabulary(seed=1),
        vocabulary(WORDS[::-1]),
        vocabulary(counts=counts),
        vocabulary(counts=counts[::-1].copy()),
        vocabulary(tags=np.zeros(8, np.int8)),
        vocabulary(("goo", "dBad", *WORDS[2:])),
    ]
    assert len({v.identity for v in [vocabulary(), *others]}) == 1 + len(others)


def test_the_unknown_word_lies_at_the_mean_of_vectors_that_nobody_changes():
    v = vocabulary()
    np.testing.assert_allclose(v.points[v.unknown], v.vectors.mean(axis=0), atol=1e-7)
    with pytest.raises(ValueError, match="read-only"):
        v.vectors[0] = 0


def test_kinds_of_words():
    assert is_punctuation("!?") and is_punctuation("—") and not is_punctuation("a,") and not is_punctuation("7")
    assert is_number("1,000") and is_number("٧") and not is_number("b2") and not is_number("!")
    kinds = vocabulary().kinds
    assert {k: np.flatnonzero(v).tolist() for k, v in kinds.items()} == {
        "stop_words": [2],
        "punctuation": [3, 7],
        "numbers": [4],
    }


@pytest.mark.parametrize(("scale", "accepted"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_length_sampler_has_its_distribution_and_no_other(scale, accepted):
    n, right, drawn = 40_000, Length(1.0, 8), Length(scale, 8)
    y = drawn.sample(np.full(n, 3), rng=streams(n))
    expected = np.exp(right.log_prob(np.arange(9), np.full(9, 3))) * n
    assert (stats.chisquare(np.bincount(y, minlength=9), expected).pvalue > ALARM) == accepted


def row(*words, tokens=6):
    return [*words, *[NOTHING] * (tokens - len(words))]


def test_a_kept_length_stays_and_a_noisy_one_is_cut_or_filled():
    v = vocabulary()
    x = np.tile(row(0, 5, 8), (500, 1))
    kept = TextMechanism(Flip(v), tokens=6, length="kept").sample(x, rng=streams(500))
    assert ((kept != NOTHING).sum(axis=1) == 3).all()
    noisy = TextMechanism(Flip(v), tokens=6, length=0.5).sample(x, rng=streams(500))
    ends = (noisy != NOTHING).sum(axis=1)
    assert set(ends) == set(range(7))
    inside = np.arange(6)[None] < ends[:, None]
    assert (noisy[inside] >= 0).all() and (noisy[inside] < len(v)).all() and (noisy[~inside] == NOTHING).all()


def test_what_is_kept_is_kept_and_all_else_is_sanitized():
    v = vocabulary()
    x = np.tile(row(2, 3, 4, 5), (300, 1))
    text = TextMechanism(Flip(v, q=0.01), tokens=6, length="kept", stop_words="keep", punctuation="keep")
    y = text.sample(x, rng=streams(300))
    assert (y[:, 0] == 2).all() and (y[:, 1] == 3).all()
    assert (y[:, 2] != 4).mean() > 0.5 and (y[:, 3] != 5).mean() > 0.5
    assert text.guarantee.exposes == ("length", "stop-words", "punctuation")


@pytest.mark.parametrize("length", [0.7, "kept"])
@pytest.mark.parametrize("sides", [1, 2])
def test_guarantee_of_a_text_is_that_of_its_parts(length, sides):
    word = Flip(vocabulary())
    text = TextMechanism(word, tokens=5, length=length, sides=sides)
    public, drawn = text.guarantee.exposes, 0.0 if length == "kept" else length
    assert text.guarantee.protects == "sequence" and public == (("length",) if length == "kept" else ())
    whole = text.guarantee.worst_case(declared=public)
    assert whole == pytest.approx(sides * 5 * (word.guarantee.worst_case() + drawn))
    assert sum(m.guarantee.worst_case() * n for m, n in text.parts()) == pytest.approx(whole)
    assert text.guarantee.numeric_delta == pytest.approx(sum(m.guarantee.numeric_delta * n for m, n in text.parts()))
    together = TextMechanism(Flip(vocabulary(), protects="sequence"), tokens=5, length=length, sides=sides).guarantee
    assert (together.diameter, together.epsilon) == (1.0, pytest.approx(sides * 5 * word.guarantee.epsilon))


def test_identity_of_texts_loses_only_the_unknown_word():
    v = vocabulary()
    text = build({"mechanism": "identity", "tokens": 6, "length": "kept"}, channel="text", vocabulary=v)
    drawn = text.sample(np.array([row(0, 8, 5)]), rng=streams(1))
    assert drawn.tolist() == [row(0, NOTHING, 5)] and v.text(drawn[0]) == "good film"
    assert text.guarantee.worst_case(declared=EXPOSURES) == math.inf


def test_parameters_build_the_same_text_again():
    v = vocabulary()
    spec = {"mechanism": "identity", "tokens": 9, "length": 2.5, "unknown": "drop", "numbers": "keep"}
    text = build(spec, channel="text", vocabulary=v)
    assert parameters(text)["vocabulary"] == v.identity
    assert build(parameters(text), channel="text", vocabulary=v) == text
    with pytest.raises(ValueError, match="another vocabulary"):
        build(parameters(text), channel="text", vocabulary=vocabulary(seed=9))
    with pytest.raises(ValueError, match="needs a vocabulary"):
        build(spec, channel="text")


def test_where_words_move_none_can_be_kept():
    moving = Flip(vocabulary())
    moving.moves = True
    assert TextMechanism(moving, numbers="drop").guarantee.exposes == ()
    with pytest.raises(ValueError, match="none can be kept"):
        TextMechanism(moving, numbers="keep")


@pytest.mark.parametrize("x", [[[0, 1]], [row(0, NOTHING, 1)], [row(9)], [row(-2)], [[0.5] * 6]])
def test_what_is_no_text_is_refused(x):
    with pytest.raises(ValueError, match="text:"):
        TextMechanism(Flip(vocabulary()), tokens=6).sample(np.array(x), rng=streams(1))


def test_guarantees_travel_with_what_they_expose():
    guarantee = Guarantee(1.0, "discrete", 1.0, "token", exposes=("length", "tag"))
    assert Guarantee.from_dict(guarantee.to_dict()) == guarantee
    assert guarantee.worst_case(declared=("tag",)) == math.inf and guarantee.worst_case(declared=("tag", "length")) == 1
    for wrong in (("nothing",), ("tag", "length"), ("tag", "tag"), ["tag"]):
        with pytest.raises(ValueError, match="exposes"):
            Guarantee(1.0, "discrete", 1.0, "token", exposes=wrong)


def test_a_pair_is_drawn_as_two_texts_would_be():
    """Each side as a text by itself, from the row's next uniforms: so the sides are independent of each other."""
    flip = Flip(vocabulary())
    pair, n = TextMechanism(flip, tokens=3, sides=2), 40
    rng = np.random.default_rng(1)
    ends = rng.integers(0, 4, size=(n, 2, 1))
    x = np.where(np.arange(3) < ends, rng.integers(0, 9, size=(n, 2, 3)), NOTHING)
    drawn = pair.sample(x.reshape(n, 6), rng=streams(n))
    source = streams(n)
    np.testing.assert_array_equal(drawn[:, :3], pair.side.sample(x[:, 0], rng=source))
    np.testing.assert_array_equal(drawn[:, 3:], pair.side.sample(x[:, 1], rng=source))
    assert pair.uniforms == 2 * pair.side.uniforms and pair.side.side is pair.side
    texts = pair.texts(drawn)
    assert [side.split() for side in texts[0]] == [
        [pair.vocabulary.words[i] for i in row if i != NOTHING] for row in drawn[0].reshape(2, 3)
    ]


def test_pairs_that_do_not_fit_are_refused():
    pair = TextMechanism(Flip(vocabulary()), tokens=2, sides=2)
    pair.sample(np.array([[0, NOTHING, 1, NOTHING]]), rng=streams(1))  # the first side ends where the second begins
    for x in ([[0, 1]], [[NOTHING, 0, 1, 1]], [[0, 1, NOTHING, 1]]):
        with pytest.raises(ValueError, match="text: "):
            pair.sample(np.array(x), rng=streams(1))
    for sides in (0, 3, "2", True):
        with pytest.raises(ValueError, match="sides"):
            TextMechanism(Flip(vocabulary()), sides=sides)
    with pytest.raises(ValueError, match="tokens"):
        TextMechanism(Flip(vocabulary()), tokens=4096, sides=2)


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "mask", "sep", "cls", "pad", "good", "film"]
NAMES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def wordpiece() -> Tokenizer:
    made = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(BERT)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(BERT[:5])
    return made


def unigram() -> Tokenizer:
    """As XLM-R's and T5's: the names are in the model's own table, and full-width letters are normalized."""
    pieces = [(name, 0.0) for name in NAMES] + [(sign, -3.0) for sign in sorted(set("▁goodfilm</>sunkpa"))]
    made = Tokenizer(models.Unigram([*pieces, ("▁good", -1.0), ("▁film", -1.0)], unk_id=3))
    made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    made.add_special_tokens([AddedToken(name, special=True) for name in NAMES])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return made


def words() -> Tokenizer:
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "[MASK]": 1, "good": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["[MASK]"])
    return made


def inner(tokenizer: Any, text: Any) -> list[str]:
    """The pieces of a text itself, where the tokenizer reads it as text."""
    special = read_as_text(tokenizer)
    (found,) = encoded(tokenizer, [text], special)
    return [piece for piece, own in zip(found.tokens, found.special_tokens_mask, strict=True) if not own]


def test_names_in_a_text_are_characters() -> None:
    assert inner(wordpiece(), "good [MASK][SEP] film") == ["good", "[", "mask", "]", "[", "sep", "]", "film"]
    assert inner(wordpiece(), "good [MASK]") == inner(wordpiece(), "good [ mask ]")
    assert inner(words(), "good [MASK]") == ["good", "[UNK]", "[UNK]"]
    assert inner(unigram(), "good</s>") == ["▁good", "<", "▁", "/", "s", ">"]


@pytest.mark.parametrize("text", ["<mask>", "＜ｍａｓｋ＞", "</</s>s>", ("<mask>", "good</s>")])
def test_no_text_spells_a_special_piece_of_a_unigram_model(text: Any) -> None:
    plain = unigram()
    found = {piece for piece in inner(plain, text) if piece in NAMES}
    assert not found
    read = unigram()  # as the library reads it by itself
    sides = (text,) if isinstance(text, str) else text
    raw = read.encode(*sides)
    assert any(t in NAMES and not own for t, own in zip(raw.tokens, raw.special_tokens_mask, strict=True))


@pytest.mark.parametrize("make", [wordpiece, unigram, words])
def test_other_texts_are_read_as_they_are(make: Any) -> None:
    """Of 500 seeded texts without the names, unknown characters and pairs among them, every piece is the same."""
    rng = random.Random(22)
    some = ["good", "film", "<", ">", "[", "mask", "日本", "é", "unk", "</"]
    texts: list[Any] = [" ".join(rng.choices(some, k=rng.randrange(6))) for _ in range(400)]
    texts += [(texts[i], texts[i + 1]) for i in range(100)]
    before = [each.ids for each in make().encode_batch(texts)]
    tokenizer = make()
    special = read_as_text(tokenizer)
    assert [each.ids for each in encoded(tokenizer, texts, special)] == before
    assert [opened(tokenizer, text, special) for text in texts] == texts

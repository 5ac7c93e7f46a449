"""Texts are text: the names of special pieces in them are characters, whatever the tokenizer."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from mechanisms.pieces import encoded, opened, read_as_text

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


@pytest.mark.parametrize("text", [*NAMES, "＜ｍａｓｋ＞", "</</s>s>", "good <mask>" * 40, ("<mask>", "good</s>")])
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
    some = ["good", "film", "<", ">", "[", "]", "mask", "日本", "sun", "é", "unk", "[ mask", "</"]
    texts: list[Any] = [" ".join(rng.choices(some, k=rng.randrange(6))) for _ in range(400)]
    texts += [(texts[i], texts[i + 1]) for i in range(100)]
    before = [each.ids for each in make().encode_batch(texts)]
    tokenizer = make()
    special = read_as_text(tokenizer)
    assert [each.ids for each in encoded(tokenizer, texts, special)] == before
    assert [opened(tokenizer, text, special) for text in texts] == texts


def test_what_a_tokenizer_saves_stays() -> None:
    tokenizer = wordpiece()
    saved = tokenizer.to_str()
    read_as_text(tokenizer)
    assert tokenizer.to_str() == saved

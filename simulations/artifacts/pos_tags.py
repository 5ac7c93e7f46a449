"""The universal part of speech of a word, out of context: the likeliest by HanTa's English lexicon and endings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.vocabulary import TAGS, is_number, is_punctuation

# The tags of the British National Corpus (C5), by which the lexicon goes, as universal ones (Petrov et al. 2011).
# Possessives are pronouns and "not" an adverb, as in the mapping of the Penn treebank's tags.
_UNIVERSAL = {
    "NOUN": ("NN0", "NN1", "NN2", "NP0"),
    "ADJ": ("AJ0", "AJC", "AJS", "ORD"),
    "ADV": ("AV0", "AVQ", "XX0"),
    "PRON": ("PNI", "PNP", "PNQ", "PNX", "DPS", "EX0"),
    "DET": ("AT0", "DT0", "DTQ"),
    "ADP": ("PRF", "PRP"),
    "NUM": ("CRD",),
    "CONJ": ("CJC", "CJS", "CJT"),
    "PRT": ("AVP", "POS", "TO0"),
    ".": ("PUL", "PUN", "PUQ", "PUR"),
}
_NUMBER = {name: TAGS.index(tag) for tag, names in _UNIVERSAL.items() for name in names}
_VERB, _NUM, _MARK, _X = (TAGS.index(tag) for tag in ("VERB", "NUM", ".", "X"))
#: What is longer is no word; the analysis of endings takes time that grows steeply with the length.
_LONGEST = 40


def tag(words: Sequence[str]) -> NDArray[np.int8]:
    """Positions in TAGS, (n,): "." where a word has neither letter nor digit, NUM where it has digits and no letter.

    Each word on its own, so that a word has one tag whatever text it stands in; X for interjections, foreign words,
    single letters and what is longer than any word. English only. ModuleNotFoundError without the package HanTa.
    """
    return np.array([_tag_of(word) for word in words], dtype=np.int8)


def _tag_of(word: str) -> int:
    if is_punctuation(word):
        return _MARK
    if is_number(word):
        return _NUM
    if len(word) > _LONGEST:
        return _X
    likely = _lexicon().tag_word(word)
    name = str(likely[0][0]) if likely else ""
    return _VERB if name.startswith("V") else _NUMBER.get(name, _X)


@lru_cache(maxsize=1)
def _lexicon() -> Any:
    from HanTa.HanoverTagger import HanoverTagger

    return HanoverTagger("morphmodel_en.pgz")

"""Universal part of speech of a word, out of context: the likeliest by HanTa's English lexicon and endings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.vocabulary import TAGS, is_number, is_punctuation

# The tags of the British National Corpus (C5), which the lexicon uses, as universal ones (Petrov et al. 2011).
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
#: Longest word. The analysis of endings takes time that grows steeply with the length.
_LONGEST = 40


def tag(words: Sequence[str]) -> NDArray[np.int8]:
    """Return positions in TAGS, (n,): "." for a word without letters and digits, NUM for one of digits without letters.

    Each word is tagged on its own, so it has one tag in every text. X is for interjections, foreign words, single
    letters and anything longer than a word. English only.

    Raises:
        ModuleNotFoundError: The package HanTa is not installed.
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

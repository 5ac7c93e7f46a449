"""Truncation of a text to what a model reads, and replacement of invalid code points."""

from __future__ import annotations

import re

from mechanisms.pieces import Text

#: Characters of a text that are read: many times the longest input of a model here. Reading the characters behind them
#: would cost time, which tells how long a text is.
LONGEST = 2**14
#: Halves of surrogate pairs, which JSON may hold by themselves and no tokenizer takes.
_HALVES = re.compile("[\ud800-\udfff]")


def clean_text(text: Text, most: int | None = LONGEST) -> Text:
    """Truncate a text, or each of a pair, to `most` characters (None: all), and replace invalid code points by U+FFFD.

    No content of a text can make reading it fail.
    """
    if isinstance(text, str):
        text = text[:most]
        return text if text.isascii() else _HALVES.sub("\ufffd", text)
    first, second = text
    return str(clean_text(first, most)), str(clean_text(second, most))

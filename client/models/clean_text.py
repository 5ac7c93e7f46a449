"""What of a text a model reads: no more than it can use, in characters that exist."""

from __future__ import annotations

import re

from client.store.text_column import Text

#: Characters of a text that are read: many times what the longest input of a model here holds. What stands behind them
#: would cost time, which tells how long a text is.
LONGEST = 2**14
#: Halves of surrogate pairs, which JSON may hold by themselves and no tokenizer takes.
_HALVES = re.compile("[\ud800-\udfff]")


def clean_text(text: Text) -> Text:
    """The beginning of a text, or of each of two, with U+FFFD for what is no character: nothing that a text may hold
    makes reading it fail."""
    if isinstance(text, str):
        text = text[:LONGEST]
        return text if text.isascii() else _HALVES.sub("\ufffd", text)
    first, second = text
    return str(clean_text(first)), str(clean_text(second))

"""Names in experiment files: of keys, of choices, of arms; and how an error says which ones there are."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any


def slug(name: str) -> str:
    """A name as it appears in file names: lower-case letters, digits and hyphens; ε becomes eps."""
    plain = (
        unicodedata.normalize("NFKD", name.lower().replace("ε", "eps ")).encode("ascii", "ignore").decode()
    )
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def key(field: str) -> str:
    """A field's name as the file writes it."""
    return field.replace("_", "-")


def either(names: Iterable[str]) -> str:
    """The names, quoted, with commas between."""
    return ", ".join(f'"{n}"' for n in names)


def nearest(name: Any, names: Iterable[str]) -> str:
    """The end of an error about a name that is none of `names`: which of them it may have meant; "" where none."""
    close = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""

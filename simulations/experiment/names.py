"""Names in experiment files (keys, choices, arms), and their lists in error messages."""

from __future__ import annotations

import difflib
import hashlib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

#: Maximum length of a slug: that of an arm's name in a request (`mechanisms.checks.is_slug`).
LONGEST = 64


def slug(name: str) -> str:
    """Return a name as it appears in file names and requests: lower-case letters, digits and hyphens; ε becomes eps.

    If that is too long, or omits letters, digits or symbols of the name, a digest of the name is appended, so that
    other names have other slugs. The slug is the same in every Unicode form. It is "" if the name has none of these
    characters.
    """
    normal_form = unicodedata.normalize("NFKD", name.lower())
    plain = normal_form.replace("ε", "eps ").encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    foreign = _FOREIGN.findall(normal_form)
    if words and len(words) <= LONGEST and not any(map(_tells, foreign)):
        return words
    if not words and not any(map(_letters, foreign)):
        return ""
    digest = hashlib.sha256(normal_form.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{words[: LONGEST - 9].strip('-') or 'name'}-{digest}"


#: Runs of characters that a slug cannot represent.
_FOREIGN = re.compile(r"[^\x00-\x7f]+")


def _tells(run: str) -> bool:
    """Return True if characters distinguish a name from another.

    Those of other scripts and pictures do. Marks, punctuation and Latin letters without a plain form do not, nor does a
    single Greek letter, which stands for a quantity.
    """
    telling = [c for c in _letters(run) if not unicodedata.name(c, "").startswith("LATIN") and c != "°"]
    return len(telling) > 1 or any(not unicodedata.name(c, "").startswith("GREEK") for c in telling)


def _letters(run: str) -> list[str]:
    """Return its letters, digits and pictures."""
    return [c for c in run if unicodedata.category(c)[0] in "LN" or unicodedata.category(c) in ("So", "Co")]


#: Keys of fields that have another name in the code.
_KEYS = {"way": "protocol", "statistic": "vector"}


def key(field: str) -> str:
    """Return a field's name as the file writes it."""
    name = field.replace("_", "-")
    return _KEYS.get(name, name)


def either(names: Iterable[str]) -> str:
    """Return the names, quoted and separated by commas."""
    return ", ".join(f'"{n}"' for n in names)


def nearest(name: Any, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the most similar of `names`; "" if none is similar."""
    close = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""

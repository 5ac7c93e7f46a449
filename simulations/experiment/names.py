"""Names in experiment files: of keys, of choices, of arms; and how an error says which ones there are."""

from __future__ import annotations

import difflib
import hashlib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

#: Characters of a slug: what a request takes as the name of an arm (`mechanisms.checks.is_slug`).
LONGEST = 64


def slug(name: str) -> str:
    """Return a name as it appears in file names and requests: lower-case letters, digits and hyphens; ε becomes eps.

    Where that is too long, or leaves out letters, digits or symbols of the name, a digest of the name stands behind
    it, so that other names have other slugs. The same in every Unicode form. "" where the name has nothing of these.
    """
    known = unicodedata.normalize("NFKD", name.lower())
    plain = known.replace("ε", "eps ").encode("ascii", "ignore").decode()
    said = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    foreign = _FOREIGN.findall(known)
    if said and len(said) <= LONGEST and not any(map(_tells, foreign)):
        return said
    if not said and not any(map(_letters, foreign)):
        return ""
    digest = hashlib.sha256(known.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{said[: LONGEST - 9].strip('-') or 'name'}-{digest}"


#: Runs of characters that a slug has no letter for.
_FOREIGN = re.compile(r"[^\x00-\x7f]+")


def _tells(run: str) -> bool:
    """Whether characters tell a name from another: those of other scripts and pictures; not marks and punctuation, nor
    Latin letters that have no plain form, nor one Greek letter, which is a quantity's."""
    telling = [c for c in _letters(run) if not unicodedata.name(c, "").startswith("LATIN") and c != "°"]
    return len(telling) > 1 or any(not unicodedata.name(c, "").startswith("GREEK") for c in telling)


def _letters(run: str) -> list[str]:
    """Return its letters, digits and pictures."""
    return [c for c in run if unicodedata.category(c)[0] in "LN" or unicodedata.category(c) in ("So", "Co")]


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

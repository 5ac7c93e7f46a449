"""Normal form of names: two spellings that no person can distinguish are one user, or one class.

Readers keep a name as it is written and refuse a file in which one name has two spellings. A person with two names
would have two budgets, and a class with two names would be two classes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

#: Characters without a glyph: Default_Ignorable_Code_Point (The Unicode Standard, 5.21), which NFKC_Casefold drops too;
#: and marks of annotations and the blank pattern of Braille, which are invisible too.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
#: Decimal number. An exponent of more digits counts no users or classes.
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,6})?")
#: Signs, the point and the exponent of a number in their full-width forms, and the minus sign of typography.
_SIGNS = str.maketrans("＋－．ｅＥ\u2212", "+-.eE-")
#: Most digits of a number that is written out.
_WRITTEN_OUT = 40


def normal(name: str) -> str:
    """Return the normal form of a name: idempotent, "" if nothing of it is visible.

    It is Unicode NFC without invisible characters (zero-width, soft hyphens, marks of direction, BOM), with single
    spaces between words and none around them. A number in any script's digits has one spelling: "1.0", "+1", "01" and
    "1e0" are "1". Case is kept.
    """
    plain = name if name.isascii() else unicodedata.normalize("NFC", INVISIBLE.sub("", name))
    plain = " ".join(plain.split())
    return _number(plain) or plain


def folded(name: str) -> str:
    """Return the normal form of a name without its case and Unicode's compatibility forms ("Ａｎｎａ", "ANNA").

    Names of one folded form may be one name, which no rule can decide. An i has a dot or none, as in Turkish: "I" is
    both's.
    """
    if name.isascii():
        return normal(name).casefold()
    plain = unicodedata.normalize("NFKC", normal(name))
    for _ in range(2):  # upper case first: "ı" has no folding of its own
        plain = unicodedata.normalize("NFKC", plain.upper().casefold()).replace("i\u0307", "i")
    return normal(plain)


def alike(names: Iterable[str], form: Callable[[str], str]) -> list[tuple[str, ...]]:
    """Return the distinct names that share a form with another, in groups, in the order given."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(form(name), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def spelled(name: str) -> str:
    """Return a name as an error shows it, in quotes, with escapes if it is not as it looks, cut at 60 characters."""
    clear = unicodedata.normalize("NFC", name) == name and INVISIBLE.search(name) is None and name.isprintable()
    shown = name if clear else ascii(name)[1:-1]
    return f'"{shown if len(shown) <= 60 else f"{shown[:57]}..."}"'


def _number(name: str) -> str:
    """Return the one spelling of a number, or "" if the name is none."""
    name = name.translate(_SIGNS)
    if _NUMBER.fullmatch(name) is None:
        return ""
    value = Decimal(name).normalize(Context(prec=len(name), Emin=MIN_EMIN, Emax=MAX_EMAX))  # without rounding
    if not value:
        return "0"
    return f"{value:f}" if abs(value.adjusted()) < _WRITTEN_OUT else str(value).lower()

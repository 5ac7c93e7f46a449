"""Glossary of the field, for tooltips of the report and the explore page: entries of templates/glossary.md."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

#: Headings of the report's names, where they differ.
_CALLED = {
    "ε": "ε (epsilon)",
    "δ": "δ (delta)",
    "crowd": "shuffler, crowd",
    "shuffler": "shuffler, crowd",
    "shuffled ε": "shuffler, crowd",
    "ledger": "ledger, charge",
    "attack": "audit, attack",
    "audit": "audit, attack",
    "rung": "ladder, rung",
    "ladder": "ladder, rung",
    "central ε": "central differential privacy",
    "exposed": "exposure",
    "worst case ε": "worst case",
}


@cache
def entries() -> dict[str, str]:
    """Return the entries as plain text, by their headings."""
    text = (files("sottovoce.report") / "templates" / "glossary.md").read_text(encoding="utf-8")
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    result = re.findall(r"^\*\*(.+?)\*\*\n:   (.+?)(?=\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    return {heading: re.sub(r"\*+([^*]+)\*+", r"\1", " ".join(entry.split())) for heading, entry in result}


def meaning(name: str) -> str:
    """Return the entry of a word that the report uses.

    Raises:
        KeyError: The glossary has no such word.
    """
    return entries()[_CALLED.get(name, name)]

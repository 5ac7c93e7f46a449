"""Glossary of the field, for tooltips of the report and the explore page: entries of templates/glossary.md."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def entries() -> dict[str, str]:
    """Return the entries as plain text, by their headings."""
    text = (files("sottovoce.report") / "templates" / "glossary.md").read_text(encoding="utf-8")
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    result = re.findall(r"^\*\*(.+?)\*\*\n:   (.+?)(?=\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    return {heading: re.sub(r"\*+([^*]+)\*+", r"\1", " ".join(entry.split())) for heading, entry in result}


def meaning(name: str) -> str:
    """Return the entry of a word of a heading, as "crowd" of "shuffler, crowd".

    Raises:
        KeyError: The glossary has no such word.
    """
    words = {part.strip(" )"): entry for heading, entry in entries().items() for part in re.split("[,(]", heading)}
    return (words | entries())[name]

"""Which language model a text mechanism reads, of those that a client has: one folder, or a folder of several kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from client.models import generator, masked_lm
from client.models.generator import Generator
from client.models.masked_lm import MaskedLM

#: What a word mechanism calls the model that it reads (`model`).
MASKED_LM, GENERATOR, PARAPHRASER = "masked-lm", "generator", "paraphraser"
#: What they are called to people.
SAID = {MASKED_LM: "masked language model", GENERATOR: "generating model", PARAPHRASER: "paraphrasing model"}


def kind_of(mechanism: Any) -> str:
    """The kind of model that a text or word mechanism, or the class of one, reads."""
    return str(getattr(getattr(mechanism, "word", mechanism), "model", MASKED_LM))


def part(folder: Path | str, kind: str) -> Path:
    """The folder of a model of that kind: what lies under its name in the folder, or, where that is one model alone,
    the folder itself."""
    inside = Path(folder) / kind
    return inside if inside.is_dir() else Path(folder)


def identity(folder: Path | str, kind: str) -> str:
    """SHA-256 (hex) over the files of the model of that kind. Raises ValueError where one is missing."""
    read = masked_lm.identity if kind == MASKED_LM else generator.identity
    return read(part(folder, kind))


def files(folder: Path | str, kind: str) -> tuple[str, ...]:
    """The names of the files of the model of that kind."""
    return masked_lm.FILES if kind == MASKED_LM else generator.files(part(folder, kind))


def load(folder: Path | str, kind: str, threads: int | None = None) -> MaskedLM | Generator:
    """The model of that kind, kept for the life of the process. Raises ValueError, one line, where there is none."""
    if kind not in SAID:
        raise ValueError(f"text: reads a language model of the kind {kind!r}; known: {', '.join(SAID)}")
    place = part(folder, kind)
    return masked_lm.load(place, threads) if kind == MASKED_LM else generator.load(place, threads)


def known(folder: Path | str | None, kind: str, name: str) -> bool:
    """Whether the folder has the model of that kind, by the identity `name`."""
    try:
        return folder is not None and load(folder, kind).identity == name
    except ValueError:  # it holds another kind
        return False

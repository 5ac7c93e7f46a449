"""Selection of the language model that a text mechanism reads: one folder, or a folder of several kinds of models."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from client.models import generator, masked_lm
from client.models.content import content_hash
from client.models.generator import Generator
from client.models.masked_lm import MaskedLM

#: Kinds of models, as a word mechanism names them (`model`).
MASKED_LM, GENERATOR, PARAPHRASER = "masked-lm", "generator", "paraphraser"
#: Names of the kinds for people.
SAID = {MASKED_LM: "masked language model", GENERATOR: "generating model", PARAPHRASER: "paraphrasing model"}


def kind_of(mechanism: Any) -> str:
    """Return the kind of model that a text or word mechanism, or the class of one, reads."""
    return str(getattr(getattr(mechanism, "word", mechanism), "model", MASKED_LM))


def part(folder: Path | str, kind: str) -> Path:
    """Return the folder of a model of that kind: the subfolder of its name if there is one, else the folder itself."""
    inside = Path(folder) / kind
    return inside if inside.is_dir() else Path(folder)


def identity(folder: Path | str, kind: str) -> str:
    """Return the SHA-256 (hex) over the files of the model of that kind.

    Raises:
        ValueError: A file is missing.
    """
    return content_hash(part(folder, kind), files(folder, kind), kind)


def files(folder: Path | str, kind: str) -> tuple[str, ...]:
    """Return the names of the files of the model of that kind."""
    return masked_lm.FILES if kind == MASKED_LM else generator.files(part(folder, kind))


def load(folder: Path | str, kind: str) -> MaskedLM | Generator:
    """Return the model of that kind, kept for the life of the process.

    Raises:
        ValueError: There is none. The message is one line.
    """
    if kind not in SAID:
        raise ValueError(f"text: reads a language model of the kind {kind!r}; known: {', '.join(SAID)}")
    place = part(folder, kind)
    return masked_lm.load(place) if kind == MASKED_LM else generator.load(place)


def known(folder: Path | str | None, mechanism: Any, name: str) -> bool:
    """Return whether the folder has the model that a text mechanism reads, with the identity `name`."""
    try:
        if folder is None:
            return False
        return load(folder, kind_of(mechanism)).identity == name
    except ValueError:  # it holds another kind
        return False


def said(kind: Any, model: MaskedLM | Generator) -> dict[str, Any]:
    """Return the bounds of the model's logits, if a class of word mechanisms takes them as public parameters."""
    takes = {f.name for f in fields(kind)}
    return {name: value for name, value in (("low", model.low), ("high", model.high)) if name in takes}

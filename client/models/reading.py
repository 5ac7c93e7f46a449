"""Private inputs of a text mechanism besides the words of a text: logits in context, importance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models import language_models
from client.models.generator import Generator
from client.models.tokens import sides_of
from mechanisms.pieces import Text
from mechanisms.words.text import TextMechanism


def private_arguments(
    mechanism: TextMechanism,
    texts: Sequence[Text],
    x: NDArray[np.int64],
    folder: Path | str | None,
    *,
    threads: int | None = None,
) -> dict[str, Any]:
    """Return the private keyword arguments of `mechanism.sample(x, ...)`.

    They are those that `mechanism.word.reads` names, from a language model (`client.models.language_models`). A masked
    model reads the words, a generating one the text as written. For pairs, they are those of the first sides and then
    of the second ones: neither side is read for the other.

    Args:
        mechanism: The mechanism.
        texts: The texts, or pairs.
        x: Word ids (n, positions) of the texts.
        folder: Folder of the language model.
        threads: See `client.models.onnx.session`.

    Raises:
        ValueError: The mechanism needs a folder and there is none, or it reads something that no part of a client
            gives.
    """
    if len(texts) != len(x):
        raise ValueError(f"text: {len(texts)} texts, but word ids of {len(x)}")
    reads, kind = mechanism.word.reads, language_models.kind_of(mechanism)
    masked = kind == language_models.MASKED_LM
    unknown = sorted(set(reads) - ({"scores", "importance"} if masked else {"scores"}))
    if unknown:
        raise ValueError(f"{mechanism.name}: reads {', '.join(unknown)}, which no part of a client gives")
    if not reads:
        return {}
    if folder is None:
        raise ValueError(f"{mechanism.name}: needs a {language_models.SAID.get(kind, kind)}; name its folder")
    model, vocabulary = language_models.load(folder, kind, threads), mechanism.vocabulary
    given: dict[str, Any] = {}
    for name in reads:
        sides: list[Any]
        if isinstance(model, Generator):
            none: list[tuple[str, ...]] = [()] * mechanism.sides
            written = list(zip(*(sides_of(text, mechanism.sides) for text in texts), strict=True)) or none
            sides = [model.scores(side, vocabulary) for side in written]
        else:
            made: Any = {"scores": model.scores, "importance": model.importance}[name]
            sides = [made(x[:, side], vocabulary) for side in mechanism.slices]
        given[name] = sides[0] if mechanism.sides == 1 else sides
    return given

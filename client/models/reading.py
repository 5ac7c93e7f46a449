"""What a text mechanism reads of a private text beside its words: logits in context, importance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models import language_models
from client.models.generator import Generator
from client.models.tokens import sides_of
from client.store.text_column import Text
from mechanisms.words.text import TextMechanism


def private_arguments(
    mechanism: TextMechanism, texts: Sequence[Text], x: NDArray[np.int64], folder: Path | str | None, *,
    threads: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The private keyword arguments of `mechanism.sample(x, ...)`, for x the word ids (n, positions) of the texts:
    those that `mechanism.word.reads` names, from the language model in `folder` (`client.models.language_models`): a
    masked one reads the words, a generating one the text as written. Of pairs, what is read of their sides, one after
    the other: neither side is read for the other.

    Raises ValueError where the mechanism needs a folder and none is there, or it reads what nothing here can give.
    """
    if len(texts) != len(x):
        raise ValueError(f"text: {len(texts)} texts, but word ids of {len(x)}")
    reads, kind = mechanism.word.reads, language_models.kind_of(mechanism)
    masked = kind == language_models.MASKED_LM
    unknown = sorted(set(reads) - ({"scores", "importance"} if masked else {"scores", "states", "writer"}))
    if unknown:
        raise ValueError(f"{mechanism.name}: reads {', '.join(unknown)}, which no part of a client gives")
    if not reads:
        return {}
    if folder is None:
        raise ValueError(f"{mechanism.name}: needs a {language_models.SAID.get(kind, kind)}; name its folder")
    model, vocabulary = language_models.load(folder, kind, threads), mechanism.vocabulary
    word: Any = mechanism.word
    language_models.check(word, model)
    given: dict[str, Any] = {}
    for name in reads:
        sides: list[Any]
        if isinstance(model, Generator):
            none: list[tuple[str, ...]] = [()] * mechanism.sides
            written = list(zip(*(sides_of(text, mechanism.sides) for text in texts), strict=True)) or none
            if name == "writer":  # which knows nothing of the texts
                sides = [model.writer(vocabulary, word.window) for _ in written]
            elif name == "states":
                sides = [model.states(side, word.window) for side in written]
            else:
                sides = [model.scores(side, vocabulary) for side in written]
        else:
            made: Any = {"scores": model.scores, "importance": model.importance}[name]
            sides = [made(x[:, side], vocabulary) for side in mechanism.slices]
        given[name] = sides[0] if mechanism.sides == 1 else sides
    return given

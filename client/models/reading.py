"""What a text mechanism reads of a private text beside its words: logits in context, importance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models import masked_lm
from client.store.text_column import Text
from mechanisms.words.text import TextMechanism


def private_arguments(
    mechanism: TextMechanism, texts: Sequence[Text], x: NDArray[np.int64], folder: Path | str | None, *,
    threads: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The private keyword arguments of `mechanism.sample(x, ...)`, for x the word ids (n, positions) of the texts:
    those that `mechanism.word.reads` names, from the masked language model in `folder`. Of pairs, what is read of
    their sides, one after the other: neither side is read for the other.

    Raises ValueError where the mechanism needs a folder and none is there, or it reads what nothing here can give.
    """
    if len(texts) != len(x):
        raise ValueError(f"text: {len(texts)} texts, but word ids of {len(x)}")
    reads = mechanism.word.reads
    unknown = sorted(set(reads) - {"scores", "importance"})
    if unknown:
        raise ValueError(f"{mechanism.name}: reads {', '.join(unknown)}, which no part of a client gives")
    if not reads:
        return {}
    if folder is None:
        raise ValueError(f"{mechanism.name}: needs a masked language model; name its folder (masked_lm)")
    model = masked_lm.load(folder, threads)
    made = {"scores": model.scores, "importance": model.importance}
    given: dict[str, Any] = {}
    for name in reads:
        sides = [made[name](x[:, side], mechanism.vocabulary) for side in mechanism.slices]
        given[name] = sides[0] if mechanism.sides == 1 else sides
    return given

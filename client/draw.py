"""Sampling of mechanisms from private values: the only place that does it. No ledger, no policy, no disk.

`client.sanitizer` charges these draws before they leave. Other callers release nothing. Private texts are tokenized and
drawn in pieces of bounded memory, each from its own random stream. A mechanism may read more of a text than its words:
logits in context, importance.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models import language_models
from client.models.language_models import Generator
from client.models.tokens import padded_word_ids, sides_of
from mechanisms.channels import TEXT
from mechanisms.messages.questions import Lent, Question
from mechanisms.pieces import Text
from mechanisms.streams import SecureStreams, SimulationStreams
from mechanisms.words.text import TextMechanism

#: Texts that are drawn at once, at most, and of those that a language model reads; uniforms, at most (64 MB). A large
#: block pays: tables that do not fit into memory are made once for each.
_TEXTS, _READ, _UNIFORMS = 2**14, 2**10, 2**23


def draw(
    question: Question,
    values: Any,
    users: NDArray[np.int64],
    records: NDArray[np.int64],
    *,
    stage: str,
    streams: SimulationStreams | SecureStreams,
    step: int = 0,
    released: NDArray[Any] | None = None,
    masked_lm: Path | None = None,
) -> NDArray[Any]:
    """Answer a question once for each of n records, in the form of the wire (`Question.payload_form`).

    Every row depends on its own values and stream alone.

    Args:
        question: The question.
        values: n private inputs, in the form of the question's `values`.
        users: (n,), the user of each row's stream.
        records: (n,), the record of each row's stream.
        stage: Stage of the request.
        streams: Source of randomness.
        step: Step of the streams.
        released: What was just drawn for the question that this one reads (`Question.given`), if any.
        masked_lm: Folder of the model that some text mechanisms read.
    """
    about: dict[str, Any] = {"stage": stage, "step": step}
    texts = partial(draw_texts, users=users, records=records, streams=streams, masked_lm=masked_lm, **about)
    return question.draw(
        values, Lent(lambda: streams.rows(users, records, channel=question.channel, **about), texts, released)
    )


def batch_size(mechanism: TextMechanism) -> int:
    """Return the number of texts to draw in one call, for bounded memory."""
    if mechanism.word.reads:
        return _READ
    return min(_TEXTS, max(1, _UNIFORMS // max(1, mechanism.uniforms)))


def draw_texts(
    mechanism: TextMechanism,
    texts: Sequence[Text],
    users: NDArray[np.int64],
    records: NDArray[np.int64],
    *,
    streams: SimulationStreams | SecureStreams,
    stage: str,
    step: int = 0,
    masked_lm: Path | None = None,
) -> NDArray[np.int32]:
    """Return one draw for each of n texts: (n, positions) int32 word ids.

    No draw depends on the grouping of texts.

    Args:
        mechanism: The mechanism.
        texts: The texts, or pairs.
        users: (n,), the user of each text.
        records: (n,), the number of each text as a record of its user.
        streams: Source of randomness.
        stage: Stage of the request.
        step: Step of the streams.
        masked_lm: Folder of the model that some mechanisms read.
    """
    drawn = np.empty((len(texts), mechanism.positions), dtype=np.int32)
    size = batch_size(mechanism)
    for start in range(0, len(texts), size):
        piece = slice(start, start + size)
        x = padded_word_ids(texts[piece], mechanism)
        private = private_arguments(mechanism, texts[piece], x, masked_lm)
        rng = streams.rows(users[piece], records[piece], stage=stage, channel=TEXT.name, step=step)
        drawn[piece] = mechanism.sample(x, rng=rng, **private)
    return drawn


def private_arguments(
    mechanism: TextMechanism, texts: Sequence[Text], x: NDArray[np.int64], folder: Path | str | None
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
    model, vocabulary = language_models.load(folder, kind), mechanism.vocabulary
    arguments: dict[str, Any] = {}
    for name in reads:
        sides: list[Any]
        if isinstance(model, Generator):
            none: list[tuple[str, ...]] = [()] * mechanism.sides
            written = list(zip(*(sides_of(text, mechanism.sides) for text in texts), strict=True)) or none
            sides = [model.scores(side, vocabulary) for side in written]
        else:
            method: Any = {"scores": model.scores, "importance": model.importance}[name]
            sides = [method(x[:, side], vocabulary) for side in mechanism.slices]
        arguments[name] = sides[0] if mechanism.sides == 1 else sides
    return arguments

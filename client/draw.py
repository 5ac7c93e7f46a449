"""Sampling of a question's mechanism from private values: the only place that does it. No ledger, no policy, no disk.

`client.sanitizer` charges these draws before they leave. Other callers release nothing.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models import texts
from mechanisms.messages.questions import Lent, Question
from mechanisms.streams import SecureStreams, SimulationStreams


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
    rows = partial(streams.rows, stage=stage, channel=question.channel, step=step)
    return question.draw(
        values,
        Lent(
            rng=lambda: rows(users, records),
            texts=lambda mechanism, batch: texts.draw(
                mechanism, batch, users, records, streams=streams, stage=stage, step=step, masked_lm=masked_lm
            ),
            released=released,
        ),
    )

"""Sampling of a channel's mechanism from private values: the only place that does it. No ledger, no policy, no disk.

`client.sanitizer` charges these draws before they leave. Other callers release nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.models import texts
from mechanisms.identity import Identity
from mechanisms.messages.request import Request
from mechanisms.projection import linear_classes, project, softmax, statistic_vectors, user_means
from mechanisms.streams import SecureStreams, SimulationStreams


def draw(
    request: Request, channel: str, values: Any, users: NDArray[np.int64], records: NDArray[np.int64], *,
    streams: SimulationStreams | SecureStreams, step: int = 0, released: NDArray[Any] | None = None,
    masked_lm: Path | None = None,
) -> NDArray[Any]:  # fmt: skip
    """Draw a channel's part of a request once for each of n records, in the form of the wire (`Request.payload_form`).

    Every row depends on its own values and stream alone.

    Args:
        request: The request.
        channel: The channel.
        values: n texts or pairs; or embeddings (n, m) of the encoder's full width, also for an answer, which is the
            class that the request's maps and head predict from them; or labels (n,), where an invalid label counts as
            class 0, inside the mechanism's domain; or users' means (n, D) of length 1 at most (`statistic_means`).
        users: (n,), the user of each row's stream.
        records: (n,), the record of each row's stream.
        streams: Source of randomness.
        step: Step of the streams.
        released: Embeddings (n, m') that were just drawn, for a label mechanism that reads a prior from them.
        masked_lm: Folder of the model that some text mechanisms read.
    """
    mechanism: Any = request.mechanism(channel)
    if channel == "text":
        return texts.draw(
            mechanism, values, users, records, streams=streams, stage=request.stage, step=step, masked_lm=masked_lm
        )
    rng = streams.rows(users, records, stage=request.stage, channel=channel, step=step)
    drawn: NDArray[Any]
    if channel in ("embedding", "statistic"):
        if channel == "embedding":
            assert request.mean is not None and request.m1 is not None
            x = project(values, request.mean, request.m1)
        elif isinstance(mechanism, Identity):
            x = values
        else:
            x = signed_directions(values, rng.uniform(len(values), 1)[:, 0])
        y = mechanism.sample(x, rng=rng)
        drawn = y.astype(np.float32) if mechanism.grid is None else mechanism.grid.encode(y)
        return drawn
    if channel == "answer":
        assert request.mean is not None and request.m1 is not None and request.head is not None
        values = linear_classes(project(values, request.mean, request.m1), *request.head)
    labels = np.where((values >= 0) & (values < request.classes), values, 0)
    given = {}
    if request.prior is not None:
        assert released is not None
        grid = request.mechanism("embedding").grid
        z = released.astype(np.float64) if grid is None else grid.decode(released)
        given["prior"] = softmax(z, *request.prior)
    drawn = mechanism.sample(labels, rng=rng, **given)
    return drawn


def statistic_means(
    request: Request, embeddings: NDArray[np.float32], labels: NDArray[np.int64], starts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the user vector before randomization of each of u users, (u, D).

    It is the mean of label code ⊗ features over their records. An invalid label counts as class 0.

    Args:
        request: The request.
        embeddings: (n, m), of the users' records, contiguous for each user.
        labels: (n,), of the same records.
        starts: (u + 1,), the start of each user, and the end of the last.
    """
    assert request.mean is not None and request.m1 is not None and request.codes is not None
    labels = np.where((labels >= 0) & (labels < request.classes), labels, 0)
    return user_means(
        statistic_vectors(project(embeddings, request.mean, request.m1), labels, request.codes), starts
    )


def signed_directions(means: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a random unit vector for each mean (n, D) of length r <= 1, whose expectation is the mean.

    It is the direction of the mean with probability (1 + r)/2, else the opposite one. A mean without a direction gets
    the first basis vector as its direction.

    So a user of many records releases a unit vector like a user of one, under the same ε, and the number of records
    stays hidden.
    """
    lengths = np.minimum(np.sqrt(np.einsum("ij,ij->i", means, means)), 1.0)
    nowhere = lengths < 1e-12
    unit = means / np.where(nowhere, 1.0, lengths)[:, None]
    unit[nowhere] = np.eye(1, means.shape[1])
    unit /= np.sqrt(np.einsum("ij,ij->i", unit, unit))[:, None]
    directions: NDArray[np.float64] = np.where(uniforms < (1.0 + lengths) / 2, 1.0, -1.0)[:, None] * unit
    return directions

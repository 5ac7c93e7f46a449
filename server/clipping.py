"""Where the logits of a language model are clipped before a word is drawn by them."""

from __future__ import annotations

from collections.abc import Iterable


def clip_bounds(owner: str, moments: Iterable[tuple[int, float, float]]) -> tuple[float, float]:
    """(mean, mean + 4 standard deviations) of a model's logits on *public* texts (Meisenbacher et al. 2024, 5.1.1).

    moments: of each batch of logits, how many there are, their sum, and the sum of their squares. Raises ValueError,
    which begins with `owner`, where there are none, or all are equal.
    """
    count, total, squares = 0, 0.0, 0.0
    for n, each, square in moments:
        count, total, squares = count + n, total + each, squares + square
    if not count:
        raise ValueError(f"{owner}: public texts are needed, to say where logits are clipped")
    mean = total / count
    deviation = max(squares / count - mean**2, 0.0) ** 0.5
    if not deviation > 0:
        raise ValueError(f"{owner}: all logits are equal; this model has learned nothing")
    return mean, mean + 4 * deviation

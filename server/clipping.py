"""Clipping bounds for the logits of a language model that draws words."""

from __future__ import annotations

from collections.abc import Iterable


def clip_bounds(owner: str, moments: Iterable[tuple[int, float, float]]) -> tuple[float, float]:
    """Return (mean, mean + 4 standard deviations) of a model's logits on *public* texts.

    Args:
        owner: First word of error messages.
        moments: For each batch of logits: their number, their sum, and the sum of their squares.

    Raises:
        ValueError: There are no logits, or all are equal.

    Source: Meisenbacher et al. 2024, section 5.1.1.
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

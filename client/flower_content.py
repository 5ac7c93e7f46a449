"""Content of another app's messages: Flower's records as plain values and NumPy arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray


def plain_content(record: RecordDict) -> dict[str, dict[str, Any]]:
    """Return a message's records, with arrays as NumPy arrays.

    Raises:
        ValueError: An array cannot be read.
        TypeError: An array is of no type that NumPy has.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, Array):
            return value.numpy().copy()
        return f"bytes {value.hex()}" if isinstance(value, bytes) else value

    return {name: {key: plain(value) for key, value in values.items()} for name, values in record.items()}


def content_record(
    arrays: Mapping[str, Mapping[str, NDArray[Any]]], numbers: Mapping[str, Mapping[str, float]]
) -> RecordDict:
    """Return arrays and numbers, each by record and key, as a message's content."""
    made: dict[str, Any] = {
        name: ArrayRecord({key: Array(array) for key, array in of.items()}) for name, of in arrays.items()
    }
    return RecordDict(made | {name: MetricRecord({**values}) for name, values in numbers.items()})

"""Release: the only message that may carry values derived from private data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.channels import CHANNELS
from mechanisms.guarantee import Guarantee


@dataclass(frozen=True)
class Release:
    """Sanitized values of one channel at one stage, one row for each released record.

    Attributes:
        payload: Named arrays, first axis = rows; draws of the mechanism, on its public grid.
        channel: Channel.
        stage: Stage.
        guarantee: Theorem under which every row was drawn.
        digest: SHA-256 (hex) of all public parameters on which the draw depended: see `digest`.
    """

    payload: Mapping[str, NDArray[Any]]
    channel: str
    stage: str
    guarantee: Guarantee
    digest: str

    def __post_init__(self) -> None:
        if self.channel not in CHANNELS:
            raise ValueError(f"release: channel {self.channel!r} is not one of {', '.join(CHANNELS)}")
        if not self.payload:
            raise ValueError("release: the payload is empty")
        if len({len(a) for a in self.payload.values()}) != 1:
            raise ValueError("release: payload arrays differ in their number of rows")

    def __len__(self) -> int:
        return len(next(iter(self.payload.values())))

    @property
    def values(self) -> NDArray[Any]:
        """The payload's one array."""
        (values,) = self.payload.values()
        return values

    @property
    def bytes_per_row(self) -> int:
        """Return the bytes of payload of each record."""
        return sum(a.dtype.itemsize * int(np.prod(a.shape[1:])) for a in self.payload.values())

    def parts(self) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
        """Return arrays and strings from which `from_parts` makes an equal release."""
        about = {
            "channel": self.channel,
            "stage": self.stage,
            "guarantee": json.dumps(self.guarantee.to_dict(), sort_keys=True),
            "digest": self.digest,
        }
        return dict(self.payload), about

    @classmethod
    def from_parts(cls, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, str]) -> Release:
        """Return the inverse of `parts`.

        Raises:
            ValueError: A value is invalid.
            TypeError: A value has another type.
            KeyError: A value is missing.
        """
        guarantee = Guarantee.from_dict(json.loads(about["guarantee"]))
        return cls(dict(arrays), about["channel"], about["stage"], guarantee, about["digest"])


def digest(parameters: Mapping[str, Any]) -> str:
    """Return SHA-256 (hex) of parameters: JSON values, nested mappings, arrays (by dtype, shape and bytes)."""

    def canonical(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            data = np.ascontiguousarray(value)
            return ["array", data.dtype.str, list(data.shape), hashlib.sha256(data.tobytes()).hexdigest()]
        if isinstance(value, Mapping):
            return {str(k): canonical(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [canonical(v) for v in value]
        if isinstance(value, float) and value == np.inf:
            return "inf"
        return value

    text = json.dumps(canonical(parameters), sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

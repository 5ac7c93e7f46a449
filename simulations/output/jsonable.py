"""Conversion of values to JSON: infinity is "inf", and a value that does not apply is null."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from simulations.output import streams


def print_json(answer: Any) -> None:
    """Print one JSON object for --json, in ASCII if standard output has no other characters."""
    print(json.dumps(json_ready(answer), ensure_ascii=not streams.in_unicode(), allow_nan=False))


def json_ready(value: Any) -> Any:
    """Return the value with infinity as "inf", not-a-number as null, and NumPy numbers and arrays as plain ones."""
    if isinstance(value, dict):
        return {str(k): json_ready(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(v) for v in value]
    if isinstance(value, np.generic | np.ndarray):
        return json_ready(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value

"""Values as JSON can hold them: infinity is "inf", and what does not apply is null."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from simulations.output import streams


def print_json(answer: Any) -> None:
    """Print one JSON object, as --json promises it; in ASCII where standard output has no other characters."""
    print(json.dumps(json_ready(answer), ensure_ascii=not streams.in_unicode(), allow_nan=False))


def json_ready(value: Any) -> Any:
    """The value with infinity as "inf", not-a-number as null, NumPy's numbers and arrays as plain ones."""
    if isinstance(value, dict):
        return {str(k): json_ready(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(v) for v in value]
    if isinstance(value, np.generic | np.ndarray):
        return json_ready(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value

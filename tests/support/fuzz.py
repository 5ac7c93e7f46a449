"""Hostile messages, made from valid ones by a seeded generator: a Flower record is broken in one to three places.

Records are made as a hostile peer could send them: nothing of ours checks them on the way.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

HUGE = 100 * 2**20
#: What a message of 100 MB may take beside itself: a copy of its numbers, wider ones, and what is not ours.
ROOM = 3 * HUGE
_TEXTS = ("", "x", "é\u2028漢", "\x00", "../../etc/passwd", "f" * 64, "x" * 70_000, "1e999", "[" * 5000, "test")
_NUMBERS = (-1, 0, 1, 2, 3, 100, 32768, 2**31, 2**53, 2**63 - 1, -(2**63), 1.5, -0.0, math.nan, math.inf)
_VALUES = (*_TEXTS, *_NUMBERS, True, b"\x80\x04K\x01.", [1, 2], ["a"], [0.5], [])
_JSON = (*_NUMBERS, *_TEXTS, None, True, [], {}, [[["deep"]]], [["a", "b"]] * 50, 10**400, 1e-300, "kept")
_KEYS = ("epsilon", "sigma", "dim", "classes", "mechanism", "normalize", "length", "tokens", "vocabulary", "HIV")
_NAMES = ("HIV", "prior_w", "z", "users", "seed")
_RECORDS = ConfigRecord({"HIV": 1}), MetricRecord({"loss": 0.5}), ArrayRecord(), ConfigRecord()
#: Dtype, shape, stype and bytes of an array.
_ARRAYS: tuple[tuple[Any, ...], ...] = (
    ("float32", "int16", "int64", "float64", "object", "<f4", "U8", "complex128", "", "float32\n"),
    ((), (0,), (3,), (24, 4), (4, 24), (-1,), (-1, -4), (2**40,), (2**31, 2**31), (1.5,), ("4",)),
    ("", "pickle", "sottovoce.raw\n"),
    (b"", b"\x80\x04K\x01."),
)
_FLOATS = (math.nan, math.inf, -math.inf, 3e38, 1e-45, 0.0, -1.0)

#: Records by name, each of values by key; an array is a tuple of the four.
Parts = dict[str, Any]


class Fuzzer:
    """Broken copies of valid records, the same ones for the same seed. What Flower cannot carry is not made."""

    def __init__(self, valid: list[RecordDict], seed: int) -> None:
        self.valid, self.random = valid, random.Random(seed)
        self.pick = self.random.choice

    def messages(self, n: int, of: int | None = None) -> Iterator[RecordDict]:
        """n broken messages, small ones; of one of the valid records, or of any."""
        made = 0
        while made < n:
            parts = _apart(self.pick(self.valid) if of is None else self.valid[of])
            for _ in range(self.pick((1, 1, 2, 3))):
                self._break(parts)
            try:
                record = _together(parts)
            except (TypeError, ValueError, AttributeError, KeyError):
                continue
            made += 1
            yield record

    def huge(self) -> Iterator[RecordDict]:
        """Each kind of part blown up to 100 MB, and one array that only says that it is larger than all memory."""
        for valid in self.valid:
            for name, part in _apart(valid).items():
                for key, value in part.items():
                    large: list[Any] = ["[" + "0," * (HUGE // 2)] if isinstance(value, str) else []
                    if isinstance(value, tuple):
                        dtype, _, stype, data = value
                        large.append((dtype, (HUGE // np.dtype(dtype).itemsize,), stype, bytes(HUGE)))
                        large.append((dtype, (2**40, 2), stype, data))
                    for changed in large:
                        parts = _apart(valid)
                        parts[name][key] = changed
                        yield _together(parts)

    def _break(self, parts: Parts) -> None:
        """Leave out, add or change a value or a record; some are those of another valid message."""
        other = _apart(self.pick(self.valid))
        places = [(name, key) for name, part in parts.items() if isinstance(part, dict) for key in part]
        if not places or self.random.random() < 0.2:
            name = self.pick((*parts, *other, "loss", "text.arrays", "label.about", ""))
            record = self.pick((None, other.get(name), other.get(name), *_RECORDS))
            parts.pop(name, None)
            parts |= {} if record is None else {name: record}
            return
        name, key = self.pick(places)
        value = parts[name][key]
        if self.random.random() < 0.15:
            parts[name].pop(key)
            return
        key = self.pick((key, key, key, key, self.pick(_NAMES)))
        others = other.get(name, {})
        if isinstance(others, dict) and key in others and self.random.random() < 0.1:
            parts[name][key] = others[key]
        elif isinstance(value, tuple):
            parts[name][key] = self._array(value)
        elif isinstance(value, str) and self.random.random() < 0.7:
            parts[name][key] = self._json(value) if value.startswith("{") else self._text(value)
        else:
            parts[name][key] = self.pick(_VALUES)

    def _text(self, text: str) -> str:
        """Change, insert, cut or double; or put another digit in a hash."""
        at = self.random.randrange(len(text) + 1)
        hashes = [m.start() for m in re.finditer("[0-9a-f]{64}", text)]
        if hashes and self.random.random() < 0.8:
            at = self.pick(hashes)
            return text[:at] + self.pick("0123456789abcdef") + text[at + 1 :]
        changed = text[:at] + chr(self.random.randrange(1, 2000)) + text[at + 1 :]
        return self.pick((changed, text[:at] + self.pick(_TEXTS) + text[at:], text[:at], text * 2, text + "\n"))

    def _json(self, text: str) -> str:
        """A mechanism's description, or a guarantee, that says something else."""
        try:
            spec = json.loads(text)
        except (ValueError, RecursionError):
            spec = None
        if not isinstance(spec, dict) or self.random.random() < 0.3:
            return self._text(text)
        name = self.pick((*spec, *_KEYS))
        value = spec.pop(name, None)
        if self.random.random() < 0.8:
            nearby = [value * 2, -value, value * 1e9, value / 1e9] if isinstance(value, float) else []
            spec[name] = self.pick([*nearby, *_JSON])
        return json.dumps(spec)

    def _array(self, array: tuple[Any, ...]) -> tuple[Any, ...]:
        """An array of another form or of other bytes, or of the same form with numbers that are none."""
        changed, data = list(array), array[3]
        try:
            values = np.frombuffer(data, dtype=array[0]).copy()
        except (TypeError, ValueError):
            values = np.zeros(0)
        if values.size and values.dtype.kind in "fiu" and self.random.random() < 0.6:
            at, numbers = self.random.randrange(values.size), _FLOATS
            if values.dtype.kind != "f":
                limits = np.iinfo(values.dtype)
                numbers = (limits.min, limits.max, max(-1, int(limits.min)), 0, 1, 2, 3, 77)
            values[self.pick((slice(at, at + 1), slice(0, None), slice(at, None)))] = self.pick(numbers)
            return (*array[:3], values.tobytes())
        for at in self.pick(((0,), (1,), (2, 3), (3,), (0, 1))):
            bytes_of = (data[:-1], data + b"\0", data[::-1], data * 2) if at == 3 else ()
            changed[at] = self.pick((*_ARRAYS[at], *bytes_of))
        return tuple(changed)


def _apart(record: RecordDict) -> Parts:
    """A record as plain values."""
    return {
        name: {k: (a.dtype, tuple(a.shape), a.stype, a.data) for k, a in part.items()}
        if isinstance(part, ArrayRecord)
        else dict(part)
        for name, part in record.items()
    }


def _together(parts: Parts) -> RecordDict:
    content: dict[str, Any] = {}
    for name, part in parts.items():
        if isinstance(part, dict):
            about = name.endswith(".about")
            part = ConfigRecord(part) if about else ArrayRecord({k: Array(*value) for k, value in part.items()})
        content[name] = part
    return RecordDict(content)


def extra(call: Callable[[], object]) -> int:
    """Bytes of memory that a call takes at most beside what was there, its arguments among that."""

    def memory(name: str) -> int:
        return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) * 1024

    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is there now
    except OSError:
        pytest.skip("the peak of this process' memory cannot be set back here")
    before = memory("VmRSS")
    call()
    return memory("VmHWM") - before

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
_DTYPES = ("float32", "int16", "int64", "float64", "object", "<f4", "U8", "complex128", "", "float32\n")
_SHAPES = ((), (0,), (3,), (24, 4), (4, 24), (-1,), (-1, -4), (2**40,), (2**31, 2**31), (1.5,), ("4",))

Parts = dict[str, Any]


class Packed(list):
    """The dtype, shape, stype and bytes of an array."""


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
                    large: list[Any] = []
                    if isinstance(value, Packed):
                        dtype, _, stype, data = value
                        large.append(Packed([dtype, (HUGE // np.dtype(dtype).itemsize,), stype, bytes(HUGE)]))
                        large.append(Packed([dtype, (2**40, 2), stype, data]))
                    elif isinstance(value, str):
                        large.append("[" + "0," * (HUGE // 2))
                    for changed in large:
                        parts = _apart(valid)
                        parts[name][key] = changed
                        yield _together(parts)

    def _break(self, parts: Parts) -> None:
        places = [(part, key) for part in parts.values() if isinstance(part, dict) for key in part]
        if not places or self.random.random() < 0.2:
            self._break_records(parts)
            return
        part, key = self.pick(places)
        value = part[key]
        if self.random.random() < 0.15:
            part.pop(key)
        elif isinstance(value, Packed):
            name = self.pick((key, key, key, "HIV", "prior_w", "z", "users"))
            part[name] = self._numbers(value) if self.random.random() < 0.5 else self._array(value)
        elif isinstance(value, str) and value.startswith("{") and self.random.random() < 0.5:
            part[key] = self._json(value)
        elif isinstance(value, str) and self.random.random() < 0.6:
            part[key] = self._text(value)
        else:
            part[self.pick((key, key, key, "seed", "HIV"))] = self.pick(_VALUES)

    def _break_records(self, parts: Parts) -> None:
        """Leave out a record, put in another, or one, or a value, of another valid message."""
        other = _apart(self.pick(self.valid))
        name = self.pick(list(other))
        match self.random.randrange(4):
            case 0:
                parts.pop(self.pick([*parts, ""]), None)
            case 1:
                records = ConfigRecord({"HIV": 1}), MetricRecord({"loss": 0.5}), ArrayRecord(), ConfigRecord()
                parts[self.pick((*parts, "loss", "text.arrays", "label.about", "ids", ""))] = self.pick(records)
            case 2 if isinstance(parts.get(name), dict) and other[name]:
                key = self.pick(list(other[name]))
                parts[name][key] = other[name][key]
            case _:
                parts[name] = other[name]

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
            return text
        if not isinstance(spec, dict):
            return text
        for _ in range(self.pick((1, 1, 2))):
            name = self.pick((*spec, *_KEYS))
            value = spec.pop(name, None)
            if self.random.random() < 0.8:
                nearby = [value * 2, -value, value * 1e9, value / 1e9] if isinstance(value, float) else []
                spec[name] = self.pick([*nearby, *_JSON])
        return json.dumps(spec)

    def _array(self, array: Packed) -> Packed:
        """An array of another form or of other bytes."""
        dtype, shape, stype, data = array
        forms = [
            [self.pick(_DTYPES), shape, stype, data],
            [dtype, self.pick(_SHAPES), stype, data],
            [self.pick(_DTYPES), self.pick(_SHAPES), stype, data],
            [dtype, shape, self.pick(("", "pickle", "sottovoce.raw\n")), b"\x80\x04K\x01."],
            [dtype, shape, stype, self.pick((b"", data[:-1], data + b"\0", data[::-1], data * 2))],
        ]
        return Packed(self.pick(forms))

    def _numbers(self, array: Packed) -> Packed:
        """An array of the same form with other numbers in it, NaN and infinity among them."""
        dtype, shape, stype, data = array
        try:
            values = np.frombuffer(data, dtype=dtype).copy()
        except (TypeError, ValueError):
            return array
        if values.size and values.dtype.kind in "fi":
            at = self.random.randrange(values.size)
            limits = (math.nan, math.inf, -math.inf, 3e38, 1e-45, 0.0, -1.0)
            if values.dtype.kind == "i":
                limits = (np.iinfo(values.dtype).min, np.iinfo(values.dtype).max, -1, 0, 1, 2, 3, 77)
            values[self.pick((slice(at, at + 1), slice(0, None), slice(at, None)))] = self.pick(limits)
        return Packed([dtype, shape, stype, values.tobytes()])


def _apart(record: RecordDict) -> Parts:
    """A record as plain values."""
    parts: Parts = {}
    for name, part in record.items():
        if isinstance(part, ArrayRecord):
            parts[name] = {k: Packed([a.dtype, tuple(a.shape), a.stype, a.data]) for k, a in part.items()}
        else:
            parts[name] = dict(part)
    return parts


def _together(parts: Parts) -> RecordDict:
    content: dict[str, Any] = {}
    for name, part in parts.items():
        if not isinstance(part, dict):
            content[name] = part
        elif name.endswith(".about"):
            content[name] = ConfigRecord(part)
        else:
            arrays = {k: Array(dtype=v[0], shape=v[1], stype=v[2], data=v[3]) for k, v in part.items()}
            content[name] = ArrayRecord(arrays)
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

"""Hostile requests and replies, made from valid ones by a seeded generator: a message is broken in one to three ways.

Messages are made as Flower records, as a hostile peer could send them: nothing of ours checks them on the way.
"""

from __future__ import annotations

import json
import math
import pickle
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

HUGE = 100 * 2**20
_SMALL = ("x", "é\u2028漢", "\x00", "../../etc/passwd", "a" * 64, "f" * 64, "x" * 70_000, "1e999", "NaN", "[" * 5000)
_WORDS = (*_SMALL, "train", "test", "identity", "purkayastha", "gaussian", "dp-mlm", "")
_NUMBERS = (-1, 0, 1, 2, 2**31, 2**53, 2**63 - 1, -(2**63), 1.5, -0.0, math.nan, math.inf)
_VALUES: tuple[Any, ...] = (*_WORDS, *_NUMBERS, True, b"\x80\x04K\x01.", [1, 2], ["a"], [0.5], [])
_SIMPLE = (None, True, [], {}, "", "purkayastha", "identity", "x" * 5000)
_SIZES = (-1, 0, 1, 2, 3, 1e-300, 1e300, 10**400, math.nan, math.inf, -math.inf)
_NESTED = ([[["deep"]]], {"mechanism": "identity"}, [["a", "b"]] * 50)
_JSON: tuple[Any, ...] = (*_SIMPLE, *_SIZES, *_NESTED, 2**63, 0.5, "kept", "paper")
_KEYS = (
    *("epsilon", "sigma", "dim", "classes", "size", "mechanism", "normalize", "mode", "length", "tokens", "k", "w"),
    *("p", "vocabulary", "stop_words", "low", "high", "seed", "HIV"),
)
_DTYPES = ("float32", "int16", "int32", "int64", "float64", "object", "<f4", "U8", "complex128", "", "float32\n")
_SHAPES: tuple[Any, ...] = (
    *((), (0,), (1,), (3,), (24,), (4,), (24, 4), (4, 24), (0, 0), (-1,), (-1, -4)),
    *((2**40,), (2**31, 2**31), (1, 1, 1, 1), (24, 4, 1), (2**63,), (1.5,), ("4",)),
)

_HASH = re.compile("[0-9a-f]{64}")

Parts = dict[str, Any]
Change = Callable[["Fuzzer", Parts], None]


class Packed(list):
    """An array, apart: its dtype, shape, stype and bytes."""


class Fuzzer:
    """Broken copies of valid records, the same ones for the same seed. What Flower cannot carry is not made."""

    def __init__(self, valid: list[RecordDict], seed: int) -> None:
        self.valid = valid
        self.random = random.Random(seed)

    def messages(self, n: int, of: int | None = None) -> Iterator[RecordDict]:
        """n broken messages, small ones; of one of the valid records, or of any."""
        made = 0
        while made < n:
            parts = _apart(self.pick(self.valid) if of is None else self.valid[of])
            for _ in range(self.random.choice((1, 1, 2, 3))):
                self.pick(CHANGES)(self, parts)
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
                    parts = _apart(valid)
                    if isinstance(value, Packed):
                        data = bytes(HUGE)
                        parts[name][key] = Packed([value[0], (HUGE // np.dtype(value[0]).itemsize,), value[2], data])
                        yield _together(parts)
                        parts[name][key] = Packed([value[0], (2**40, 2), value[2], value[3]])
                    elif isinstance(value, str):
                        parts[name][key] = "[" + "0," * (HUGE // 2)
                    else:
                        continue
                    yield _together(parts)

    def pick(self, options: Any) -> Any:
        return self.random.choice(options)

    def entry(self, parts: Parts, kind: type) -> tuple[dict[str, Any], str] | None:
        """A place that holds a value of that kind: the part and the key."""
        places = [(p, k) for p in parts.values() if isinstance(p, dict) for k, v in p.items() if isinstance(v, kind)]
        return self.pick(places) if places else None


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


# -- ways to break a message ----------------------------------------------------------------------------------------


def _no_record(f: Fuzzer, parts: Parts) -> None:
    parts.pop(f.pick([*parts, ""]), None)


def _other_record(f: Fuzzer, parts: Parts) -> None:
    other = f.pick((ConfigRecord({"HIV": 1}), MetricRecord({"loss": 0.5}), ArrayRecord(), ConfigRecord()))
    parts[f.pick((*parts, "loss", "text.arrays", "label.about", "ids", ""))] = other


def _no_key(f: Fuzzer, parts: Parts) -> None:
    part = f.pick(list(parts.values()) or [None])
    if isinstance(part, dict) and part:
        part.pop(f.pick(list(part)))


def _other_value(f: Fuzzer, parts: Parts) -> None:
    found = f.entry(parts, str) or f.entry(parts, int)
    if found:
        found[0][f.pick((found[1], found[1], found[1], "seed", "HIV"))] = f.pick(_VALUES)


def _other_number(f: Fuzzer, parts: Parts) -> None:
    found = f.entry(parts, int)
    if found:
        found[0][found[1]] = f.pick((-1, 0, 1, 2, 3, 5, 100, 32767, 32768, 2**31, 2**53, 2**62, math.nan, 1.5))


def _scribbled(f: Fuzzer, parts: Parts) -> None:
    """A text with a character changed, cut, or doubled: hashes, names and JSON."""
    found = f.entry(parts, str)
    if not found:
        return
    text = found[0][found[1]]
    at = f.random.randrange(len(text) + 1)
    found[0][found[1]] = f.pick(
        (
            text[:at] + f.pick(_SMALL) + text[at:],
            text[:at] + chr(f.random.randrange(1, 2000)) + text[at + 1 :],
            text[:at],
            text + text,
            text.upper(),
            text + "\n",
        )
    )


def _other_hash(f: Fuzzer, parts: Parts) -> None:
    """A hash, alone or in a description, that is another one: a wrong digest, encoder or vocabulary."""
    places = [
        (p, k, m.start())
        for p in parts.values()
        if isinstance(p, dict)
        for k, v in p.items()
        if isinstance(v, str)
        for m in _HASH.finditer(v)
    ]
    if places:
        part, key, at = f.pick(places)
        part[key] = part[key][:at] + f.pick("0123456789abcdef") + part[key][at + 1 :]


def _other_json(f: Fuzzer, parts: Parts) -> None:
    """A mechanism's description, or a guarantee, that says something else."""
    places = [
        (p, k)
        for p in parts.values()
        if isinstance(p, dict)
        for k, v in p.items()
        if isinstance(v, str) and v.startswith("{")
    ]
    if not places:
        return
    part, key = f.pick(places)
    try:
        spec = json.loads(part[key])
    except (ValueError, RecursionError):
        return
    if not isinstance(spec, dict):
        return
    for _ in range(f.pick((1, 1, 2))):
        name = f.pick((*spec, *_KEYS))
        if f.random.random() < 0.2:
            spec.pop(name, None)
        else:
            value = spec.get(name)
            nearby = [value * 2, -value, value * 1e9, value / 1e9] if isinstance(value, float) else []
            spec[name] = f.pick([*nearby, *_JSON])
    part[key] = json.dumps(spec)


def _other_array(f: Fuzzer, parts: Parts) -> None:
    found = f.entry(parts, Packed)
    if not found:
        return
    array = Packed(found[0][found[1]])
    what = f.random.randrange(5)
    if what == 0:
        array[0] = f.pick(_DTYPES)
    elif what == 1:
        array[1] = f.pick(_SHAPES)
    elif what == 2:
        array[2] = f.pick(("numpy.ndarray", "", "pickle", "sottovoce.raw\n"))
        array[3] = pickle.dumps(np.zeros(3))
    elif what == 3:
        array[3] = f.pick((b"", array[3][:-1], array[3] + b"\0", array[3][::-1], array[3] * 2, b"\x80\x04K\x01."))
    else:
        array[0], array[1] = f.pick(_DTYPES), f.pick(_SHAPES)
    found[0][f.pick((found[1], found[1], "HIV", "prior_w", "z", "users"))] = array


def _other_numbers(f: Fuzzer, parts: Parts) -> None:
    """An array of the same form with other numbers in it, NaN and infinity among them."""
    found = f.entry(parts, Packed)
    if not found:
        return
    dtype, shape, stype, data = found[0][found[1]]
    try:
        values = np.frombuffer(data, dtype=dtype).copy()
    except (TypeError, ValueError):
        return
    if not values.size:
        return
    at = f.random.randrange(values.size)
    rows = f.pick((slice(at, at + 1), slice(0, None), slice(at, None)))
    if values.dtype.kind == "f":
        values[rows] = f.pick((math.nan, math.inf, -math.inf, 0.0, 3e38, 1e-45, -1.0))
    elif values.dtype.kind == "i":
        limits = np.iinfo(values.dtype)
        values[rows] = f.pick((limits.min, limits.max, -1, 0, 1, 2, 3, 77))
    found[0][found[1]] = Packed([dtype, shape, stype, values.tobytes()])


def _another_messages_part(f: Fuzzer, parts: Parts) -> None:
    """A part, or one value, as another valid message has it: another digest, arm, stage or shape."""
    other = _apart(f.pick(f.valid))
    name = f.pick(list(other))
    if f.random.random() < 0.5 or not isinstance(parts.get(name), dict):
        parts[name] = other[name]
    else:
        key = f.pick([*other[name], ""])
        if key:
            parts[name][key] = other[name][key]


CHANGES: tuple[Change, ...] = (
    _no_record,
    _other_record,
    _no_key,
    _other_value,
    _other_value,
    _other_number,
    _scribbled,
    _scribbled,
    _other_hash,
    _other_hash,
    _other_json,
    _other_json,
    _other_json,
    _other_array,
    _other_array,
    _other_numbers,
    _other_numbers,
    _other_numbers,
    _another_messages_part,
)

"""Inputs of a format, changed within it: tables of JSON, and Flower's records as bytes."""

from __future__ import annotations

import json
import math
import random
from typing import Any

from flwr.app import RecordDict

from mechanisms.messages.wire import record_from_bytes, record_to_bytes
from tests.support.fuzz import Fuzzer
from tests.support.guided import Change, scribbled

_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    0.5,
    -0.0,
    1e308,
    10**400,
    2**31,
    2**53,
    2**63 - 1,
    2**63,
    2**64,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "inf",
    "a",
    "é",
    "\ud800",
    "\0",
    "0",
    "1",
    "-1",
    "../x",
    "a" * 64,
    "f" * 300,
    [],
    {},
    [[]],
    ["a"],
    [1],
    {"a": 1},
    [["a", "b"]],
    "1" * 25,
    "os:system",
    "[" * 40,
)


def of_json(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A value of a table that is another one, is missing, is there twice, or is as another input has it."""
    try:
        whole = [json.loads(data)]
    except (ValueError, RecursionError):
        return scribbled(rng, data, other)
    places = list(_places(whole))
    box, key = rng.choice(places[:1] + places[1:] * 8)
    what = rng.randrange(10)
    if what == 0 and box is not whole:
        del box[key]
    elif what == 1 and isinstance(box, dict):
        box[rng.choice(("", "a", "0", "HIV", "é", f"{key}x", str(rng.randrange(9))))] = box[key]
    elif what == 1:
        box.insert(key, box[key])
    elif what in (2, 3):
        box[key] = _nearby(rng, box[key])
    elif what == 4:
        box[key] = _another(rng, other, box[key])
    elif what == 5 and isinstance(box, dict):  # under another name
        box[rng.choice([k for b, k in places if isinstance(b, dict)])] = box.pop(key)
    else:
        box[key] = rng.choice(_VALUES)
    try:
        made = json.dumps(whole[0] if whole else None, ensure_ascii=rng.random() < 0.9).encode("utf-8", "surrogatepass")
    except ValueError:
        return data
    return b"[" * 1500 if rng.random() < 0.005 else made


def _places(box: Any) -> Any:
    """Every value, by what holds it and under which key."""
    for key in list(box) if isinstance(box, dict) else range(len(box)):
        yield box, key
        if isinstance(box[key], dict | list) and box[key]:
            yield from _places(box[key])


def _nearby(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        try:
            return rng.choice((value + 1, value - 1, -value, value * 2, value / 3, float(value), str(value)))
        except (OverflowError, ValueError):
            return 0
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        scribble = rng.choice(("", "0", "a", "é", "\n", " ", "/", ":", "\0", chr(rng.randrange(32, 0x3000))))
        return rng.choice((value[:at] + scribble + value[at + 1 :], value[:at], value * 2, value.upper(), [value]))
    if isinstance(value, list):
        return rng.choice((value * 2, value[::-1], value[:1], dict.fromkeys(map(str, value), 1)))
    return rng.choice(([value], list(value), {**value, **{k + "0": v for k, v in value.items()}}))


def _another(rng: random.Random, other: bytes, value: Any) -> Any:
    try:
        return rng.choice([box[key] for box, key in _places([json.loads(other)])])
    except (ValueError, RecursionError):
        return value


def behind_line(change: Change) -> Change:
    """A change of what is behind the first line, which says what it is for."""

    def changed(rng: random.Random, data: bytes, other: bytes) -> bytes:
        head, _, body = data.partition(b"\n")
        return head + b"\n" + change(rng, body, other.partition(b"\n")[2])

    return changed


def behind(n: int, change: Change) -> Change:
    """A change of what is behind so many bytes."""
    return lambda rng, data, other: data[:n] + change(rng, data[n:], other[n:])


def of_records(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A message of Flower's that says something else: see `tests.support.fuzz`."""
    records: list[RecordDict] = []
    for sent in (data, other):
        try:
            records.append(record_from_bytes(sent))
        except ValueError:
            continue
    if not records or not any(records):
        return scribbled(rng, data, other)
    try:
        broken = next(Fuzzer([r for r in records if r], rng.getrandbits(32)).messages(1, of=0))
        return record_to_bytes(broken)
    except Exception:  # what Flower cannot carry
        return scribbled(rng, data, other)


def of_http(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """An HTTP message with a head's line changed, gone, twice or another's; or its length set right again."""
    head, end, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    at = rng.randrange(len(lines))
    what = rng.randrange(5)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(at, lines[at])
    elif what == 2:
        lines.append(rng.choice(other.partition(b"\r\n\r\n")[0].split(b"\r\n")))
    elif what == 3:
        lines[at] = scribbled(rng, lines[at], other)
    else:
        lines = [line for line in lines if not line.lower().startswith(b"content-length")]
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + end + body

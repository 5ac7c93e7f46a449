"""Parsers of what another party sends, as targets of tests, and corpora of inputs that broke them."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.paths import ROOT

CORPORA = ROOT / "tests" / "corpora"
#: Longer inputs are the business of tests of memory.
LONGEST = 6000
#: Bytes of memory that an input may take at most, beside so many for each of its own.
ROOM, EACH = 8 * 2**20, 200


@dataclass(frozen=True)
class Target:
    """Parser of what another party sends.

    run: reads an input and names the outcome; asserts what must hold of it. seeds: valid inputs. refuses: exceptions
    by which the parser rejects an input.
    """

    name: str
    run: Callable[[bytes], str]
    seeds: Sequence[bytes]
    refuses: tuple[type[Exception], ...] = (ValueError,)

    def outcome(self, data: bytes) -> str:
        """Run the parser. AssertionError for another exception, or a message of more than one line."""
        try:
            return self.run(data)
        except self.refuses as error:
            assert "\n" not in str(error), f"{self.name}: {error}: {data.hex()}"
            return type(error).__name__
        except Exception as error:
            raise AssertionError(f"{self.name}: {type(error).__name__}: {error}: {data.hex()}") from error

    def peak(self, data: bytes) -> int:
        """Return the bytes of memory that an input takes beside what was there."""
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            self.outcome(data)
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()


def read_corpus(name: str) -> tuple[set[str], list[bytes]]:
    """Return the outcomes that a corpus reaches, and its inputs: text, or hexadecimal digits."""
    about, *inputs = map(json.loads, (CORPORA / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")[:-1])
    return set(about["outcomes"]), [i.get("text", "").encode() + bytes.fromhex(i.get("hex", "")) for i in inputs]


def scribbled(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Return bytes of any format, changed in one place."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 32, 200)))
    number = rng.choice((0, 1, 0x7F, 0xFF, 0x8000, 2**31, 2**63, 2**64 - 1)).to_bytes(8, "little")
    number = number[: rng.choice((1, 2, 4, 8))]
    return rng.choice(
        (
            data[:at] + bytes(b ^ 1 << rng.randrange(8) for b in data[at : at + 1]) + data[at + 1 :],  # a bit
            data[:at] + bytes((b + rng.choice((-1, 1))) % 256 for b in data[at : at + 1]) + data[at + 1 :],  # one off
            data[:at] + rng.choice((number, number[::-1])) + data[at + len(number) :],
            data[:at] + data[end:],
            data[:end] + data[at:],
            data[:at],
            data[:at] + other[rng.randrange(len(other) + 1) :],  # of two inputs
        )
    )

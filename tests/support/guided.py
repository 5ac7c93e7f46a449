"""Fuzzing that is led by coverage, with nothing but Python's own tracing: an input that reaches a line from a line that
none before it did is kept, and the next ones are made of those that were kept.

The same seed makes the same inputs. (Atheris does the same faster: 35 MB of compiled code, for one system's Python.)
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tests.support.paths import ROOT

#: A file, a line of it, and the line before that in the same call: 0 where the call begins or goes on.
Edge = tuple[str, int, int]
#: An input made of one or two that were kept.
Change = Callable[[random.Random, bytes, bytes], bytes]

OURS = tuple(f"{ROOT / package}/" for package in ("client", "mechanisms", "server", "simulations", "sottovoce"))
CORPORA = ROOT / "tests" / "corpora"
#: Longer inputs say no more, and are the business of tests of memory.
LONGEST = 6000


class TooLong(BaseException):
    """A parser runs more lines than its bound. Not an Exception: parsers catch these."""


class Found(AssertionError):
    """An input that a parser does not survive as it says."""

    def __init__(self, target: str, data: bytes, what: str) -> None:
        self.data, self.what = data, what
        super().__init__(f"{target}: {what}\nof the input (hex) {data.hex()}")


@dataclass(frozen=True)
class Target:
    """A parser of what another party sends.

    run: reads an input, and names what came of it; asserts what must hold of that. refuses: the exceptions by which it
    says that an input is none. seeds: valid inputs. tokens: bytes that its format is made of. changes: of its format,
    in place of those of bytes three times of four. steps: of our lines that an input may take. visits: functions that
    its corpus must enter, by their qualified names.
    """

    name: str
    run: Callable[[bytes], str]
    seeds: Sequence[bytes]
    refuses: tuple[type[Exception], ...] = (ValueError,)
    tokens: Sequence[bytes] = ()
    changes: Sequence[Change] = ()
    steps: int = 100_000
    visits: Collection[str] = ()
    roots: tuple[str, ...] = OURS


@dataclass
class Seen:
    """What a run of one input has reached, and what came of it."""

    outcome: str
    edges: set[Edge]
    entered: set[str]


class _Tracer:
    def __init__(self, roots: tuple[str, ...], steps: int) -> None:
        self.edges: set[Edge] = set()
        self.entered: set[str] = set()
        self.left = steps
        self._roots = roots
        self._known: dict[object, str | None] = {}

    def called(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if code not in self._known:
            name = code.co_filename
            self._known[code] = name.removeprefix(f"{ROOT}/") if name.startswith(self._roots) else None
        place = self._known[code]
        if place is None:
            return None
        self.entered.add(code.co_qualname)
        before = 0

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal before
            if event == "line":
                self.edges.add((place, before, frame.f_lineno))
                before = frame.f_lineno
                self.left -= 1
                if self.left < 0:
                    raise TooLong
            return line

        return line


def attempt(target: Target, data: bytes) -> Seen:
    """Runs a target on an input. Raises Found where it fails in any other way than it may."""
    tracer, outcome, fault = _Tracer(target.roots, target.steps), "", ""
    before = sys.gettrace()
    sys.settrace(tracer.called)
    try:
        outcome = target.run(data)
    except target.refuses as error:
        outcome = type(error).__name__
        if "\n" in str(error):
            fault = f"says more than a line: {error}"
    except TooLong:
        pass
    except Exception as error:
        fault = f"raises {type(error).__name__}: {error}"
    finally:
        sys.settrace(before)
    if tracer.left < 0:  # whoever catches everything has caught that too
        fault = f"takes more than {target.steps:,} lines"
    if fault:
        raise Found(target.name, data, fault)
    return Seen(outcome, tracer.edges, tracer.entered)


@dataclass
class Exploration:
    """What fuzzing has kept: inputs that each reached something new, and all that they reach."""

    target: Target
    kept: list[bytes] = field(default_factory=list)
    edges: set[Edge] = field(default_factory=set)
    entered: set[str] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)

    def take(self, data: bytes, *, keep: bool = True) -> bool:
        """Runs an input; whether it reached something new. Raises Found."""
        seen = attempt(self.target, data)
        self.outcomes[seen.outcome] += 1
        new = not seen.edges <= self.edges
        if new and keep:
            self.kept.append(data)
        self.edges |= seen.edges
        self.entered |= seen.entered
        return new


def explore(target: Target, n: int, seed: int, *, known: Iterable[bytes] = (), guided: bool = True) -> Exploration:
    """n new inputs beside the seeds and those that are known. guided: off, every input is made of these alone."""
    found, rng = Exploration(target), random.Random(f"{target.name} {seed}")
    for data in (*target.seeds, *target.seeds, *known):  # twice: the first run fills what is cached
        found.take(data)
    pool = found.kept if guided else list(found.kept)
    for _ in range(n):
        # half of them of the latest: what was found last is where nobody has looked yet
        near = pool[-max(8, len(pool) // 8) :] if rng.random() < 0.5 else pool
        data, other = rng.choice(near), rng.choice(pool)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            data = _changed(target, rng, data, other)
        found.take(data[:LONGEST], keep=guided)
    return found


def _changed(target: Target, rng: random.Random, data: bytes, other: bytes) -> bytes:
    if target.changes and rng.random() < 0.75:
        return rng.choice(target.changes)(rng, data, other)
    return scribbled(rng, data, other, target.tokens)


_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def scribbled(rng: random.Random, data: bytes, other: bytes, tokens: Sequence[bytes] = ()) -> bytes:
    """Bytes of any format, changed in one place."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 32, 200)))
    what = rng.randrange(9 if tokens else 8)
    if what < 2 and not data:
        return bytes([rng.randrange(256)])
    if what == 0:  # a bit
        at = rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if what == 1:
        at = rng.randrange(len(data))
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if what == 2:
        return data[:at] + data[end:]
    if what == 3:
        return data[:end] + data[at:]
    if what == 4:
        return data[:at]
    if what == 5:  # of two inputs
        return data[:at] + other[rng.randrange(len(other) + 1) :]
    if what == 6:
        number = rng.choice(_NUMBERS).to_bytes(8, "little")[: rng.choice((1, 2, 4, 8))]
        return data[:at] + rng.choice((number, number[::-1])) + data[at + len(number) :]
    if what == 7:  # a length or another number that is one off
        at = min(at, max(0, len(data) - 1))
        return data[:at] + bytes((b + rng.choice((-1, 1))) % 256 for b in data[at : at + 1]) + data[at + 1 :]
    token = rng.choice(tokens)
    return data[:at] + token + data[rng.choice((at, at + len(token), end)) :]


# -- what is kept ------------------------------------------------------------------------------------------------------


def minimal(target: Target, inputs: Iterable[bytes]) -> Exploration:
    """The smallest of some inputs that reach all that they reach together, one after another, and of each outcome one
    more: what is accepted must be there even where something larger reaches as much."""
    least = Exploration(target)
    for data in target.seeds[:1]:
        attempt(target, data)
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        known = set(least.outcomes)
        if not least.take(data) and set(least.outcomes) != known:
            least.kept.append(data)
    return least


def write_corpus(path: Path, found: Exploration) -> None:
    """A line that says what the inputs reach, and a line for each: text where it is that, else hexadecimal digits."""
    about = {"edges": len(found.edges), "outcomes": sorted(found.outcomes)}
    lines = [json.dumps(about), *(json.dumps(_plain(data), ensure_ascii=False) for data in found.kept)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_corpus(path: Path) -> tuple[dict[str, Any], list[bytes]]:
    """What a corpus says that it reaches, and its inputs; of none, nothing."""
    if not path.exists():
        return {"edges": 0, "outcomes": []}, []
    about, *inputs = map(json.loads, path.read_text(encoding="utf-8").split("\n")[:-1])
    return about, [i.get("text", "").encode() + bytes.fromhex(i.get("hex", "")) for i in inputs]


def _plain(data: bytes) -> dict[str, str]:
    """Text where it is that."""
    return {"text": data.decode("ascii")} if set(data) <= _PRINTABLE else {"hex": data.hex()}


_PRINTABLE = {*range(32, 127), *b"\n\r\t"}


def corpus_of(name: str) -> Path:
    return CORPORA / f"{name}.jsonl"


def of_each(targets: Iterable[Target]) -> Iterator[tuple[Target, dict[str, Any], list[bytes]]]:
    for target in targets:
        yield (target, *read_corpus(corpus_of(target.name)))

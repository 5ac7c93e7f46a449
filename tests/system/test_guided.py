"""Every parser of what another party sends, under inputs that coverage leads to where none has been: it says that an
input is none in the one way that it documents, in a line, within a bound of steps. What was found is kept beside the
tests (tests/corpora), and read again each time.

To keep what a longer search finds, and after a parser has changed: KEEP=1 make soak.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import message_parsers, party_parsers
from tests.support.guided import (
    CORPORA,
    Exploration,
    Found,
    Target,
    attempt,
    corpus_of,
    explore,
    minimal,
    read_corpus,
    write_corpus,
)
from tests.support.paths import ROOT

NAMES = (
    "requests",
    "replies",
    "batches",
    "rounds",
    "answers",
    "questions",
    "objects",
    "nodes",
    "bundles",
    "apps",
    "fleets",
    "models",
    "deliveries",
    "enrolments",
    "doors",
)
#: New inputs of each parser in the fast tests, and in the long one.
FEW, MANY = 100, 10_000
#: Of what a corpus says that it reaches: a line more or less in a parser is no reason to make it anew.
PART = 0.9
#: Bytes that an input may take at most, beside so many for each of its own.
ROOM, EACH = 8 * 2**20, 200


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    folder = tmp_path_factory.mktemp("guided")
    return {t.name: t for t in (*message_parsers.targets(folder), *party_parsers.targets(folder))}


def test_each_target_has_its_name_here(targets: dict[str, Target]) -> None:
    assert tuple(targets) == NAMES and {p.stem for p in CORPORA.iterdir()} == set(NAMES)
    assert sum(p.stat().st_size for p in CORPORA.iterdir()) < 250_000


def reached(target: Target, inputs: list[bytes]) -> Exploration:
    """What inputs reach, without the seeds, which are read first and fill what is cached."""
    for data in target.seeds:
        attempt(target, data)
    found = Exploration(target)
    for data in inputs:
        found.take(data)
    return found


def lacks(target: Target, about: dict[str, Any], found: Exploration) -> list[str]:
    """What a corpus says of itself, and is not so: that a parser is exercised."""
    missing = sorted({*target.visits} - found.entered) + sorted({*about["outcomes"]} - {*found.outcomes})
    few = [f"{len(found.edges)} edges of {about['edges']}"] if len(found.edges) < PART * about["edges"] else []
    return [*missing, *few]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_found_is_survived_and_still_exercises_the_parser(targets: dict[str, Target], name: str) -> None:
    about, inputs = read_corpus(corpus_of(name))
    assert lacks(targets[name], about, reached(targets[name], inputs)) == []


def test_a_parser_that_is_exercised_no_more_is_noticed(targets: dict[str, Target]) -> None:
    target = targets["nodes"]
    about, inputs = read_corpus(corpus_of("nodes"))
    assert "_simulation" in lacks(target, about, reached(target, [i for i in inputs if b"simulation" not in i]))


@pytest.mark.parametrize("name", NAMES)
def test_what_was_found_takes_little_memory(targets: dict[str, Target], name: str) -> None:
    target, (_, inputs) = targets[name], read_corpus(corpus_of(name))
    for data in target.seeds:
        attempt(target, data)
    tracemalloc.start()
    try:
        for data in inputs[-20:]:  # the largest
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with suppress(*target.refuses):
                target.run(data)
            assert tracemalloc.get_traced_memory()[1] - before < ROOM + EACH * len(data), data.hex()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", NAMES)
def test_new_inputs_are_survived(targets: dict[str, Target], name: str) -> None:
    _, known = read_corpus(corpus_of(name))
    assert explore(targets[name], FEW, 1, known=known).outcomes.total() >= FEW


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_new_inputs_are_survived(targets: dict[str, Target], name: str) -> None:
    """And what they reach that nothing did before is kept, where KEEP is set, or said."""
    target, (_, known) = targets[name], read_corpus(corpus_of(name))
    before = reached(target, known)
    after = explore(target, int(os.environ.get("FUZZ", MANY)), int(os.environ.get("SEED", "2")), known=known)
    if not after.edges - before.edges and known:
        return
    least = minimal(target, [*known, *after.kept])
    if os.environ.get("KEEP"):
        write_corpus(corpus_of(name), least)
        print(f"{name}: {len(least.edges)} edges (before {len(before.edges)}), kept in {corpus_of(name)}")
    else:
        new = after.edges - before.edges
        print(f"{name}: {len(new)} edges that the corpus lacks; KEEP=1 make soak keeps what reaches them")


# -- that it finds what is there ---------------------------------------------------------------------------------------


def planted(data: bytes) -> str:
    """A parser with a fault behind branches within branches: nothing that is drawn at once gets there."""
    if data[:2] != b"SV":
        raise ValueError("no mark")
    if len(data) < 8 or data[2] != len(data):
        raise ValueError("no length")
    if data[3] == 0x80:
        if data[4] == 0x7F:
            if data[5] == data[6] == 0xFF:
                raise IndexError("planted")
            return "deeper"
        return "deep"
    return "accepted"


PLANTED = Target("planted", planted, [b"SV\x08\0\0\0\0\0"], steps=100, roots=(f"{ROOT}/tests/system/",))
BUDGET = 20_000


def searches(*, guided: bool) -> Iterator[bool]:
    for seed in range(3):
        try:
            explore(PLANTED, BUDGET, seed, guided=guided)
            yield False
        except Found as found:
            assert found.what == "raises IndexError: planted" and found.data[3:7] == b"\x80\x7f\xff\xff"
            yield True


def test_coverage_leads_to_a_fault_that_chance_does_not_find() -> None:
    assert list(searches(guided=True)) == [True] * 3 and list(searches(guided=False)) == [False] * 3


def test_the_same_seed_makes_the_same_inputs(targets: dict[str, Target]) -> None:
    def kept(seed: int) -> list[bytes]:
        return explore(targets["requests"], 60, seed).kept

    assert kept(1) == kept(1) != kept(2)


def test_other_failures_are_found() -> None:
    def endless(data: bytes) -> str:
        while True:
            try:
                len(data)
            except BaseException:
                return "caught"

    def wordy(data: bytes) -> str:
        raise ValueError("two\nlines")

    for run, what in ((endless, "takes more than 100 lines"), (wordy, "says more than a line")):
        with pytest.raises(Found, match=what):
            attempt(Target("t", run, [], steps=100, roots=PLANTED.roots), b"")


def test_a_corpus_is_read_as_it_was_written(tmp_path: Path) -> None:
    inputs = [b"", b'{"a": 1}\n', b"\xff\0", "é".encode(), b"\x1b[0m"]
    found = Exploration(PLANTED, kept=inputs)
    write_corpus(tmp_path / "a.jsonl", found)
    assert read_corpus(tmp_path / "a.jsonl") == ({"edges": 0, "outcomes": []}, inputs)

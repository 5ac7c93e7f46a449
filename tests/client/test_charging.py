"""The path of every release: nothing leaves uncharged, and nothing is drawn twice for a charge.

Every statement of the ledger, every draw and every step of the rollback guard is a point at which the process may end;
`tests.support.kills` ends it at every system call of a node.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import charging
from client.charging import Due, constant, recall, release
from client.policy import Policy, Refused
from client.store import ledger as ledgers
from client.store import rollback_guard
from client.store.ledger import Ledger, LedgerError
from mechanisms.guarantee import Guarantee
from mechanisms.messages.refusals import REFUSALS

#: What a ledger and an answer say: the bytes of each release, by user, record, stage and digest.
Rows = dict[tuple[int, int, str, str], bytes]
ONE = Due("train", "label", "a" * 64, Guarantee(1.0, "discrete", 1.0, "label"), np.dtype(np.int16))
TWO = replace(ONE, digest="b" * 64)
PEOPLE, RECORDS = np.array([4, 9], np.int64), np.zeros(2, np.int64)
POLICY = Policy(label=3.0, total=3.0)
_DRAWS = np.random.default_rng(0)


class Crash(BaseException):
    """The end of a process, which nothing handles."""


@contextmanager
def ending(at: int) -> Iterator[list[int]]:
    """The end of the process at that point: before each statement, draw and step of the rollback guard. Yields a list
    as long as points were passed. Nothing changes on the disk between two of them."""
    passed: list[int] = []

    def after(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            passed.append(at)
            if len(passed) == at:
                raise Crash
            return function(*given, **named)

        return wrapped

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *given: Any) -> Any:
            if statement == "ROLLBACK":  # a process that has ended says nothing; its journal does
                return super().execute(statement, *given)
            return after(super().execute)(statement, *given)

    connect = sqlite3.connect
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledgers.sqlite3, "connect", lambda *given, **named: connect(*given, factory=Connection, **named))
        patch.setattr(rollback_guard, "advance", after(rollback_guard.advance))
        patch.setattr(charging, "_drawn", after(charging._drawn))
        yield passed


def on(path: Path) -> Rows:
    if not path.exists():
        return {}
    with Ledger(path) as opened:
        return {(row.user, row.record, row.stage, row.digest): row.payload for row in opened.rows()}


def ask(path: Path, *due: Due) -> Rows:
    """What is released of both people; each draw is another."""
    with Ledger(path) as ledger:
        _, payloads = release(
            due,
            PEOPLE,
            RECORDS,
            policy=POLICY,
            ledger=ledger,
            draw=lambda one, at, *_: _DRAWS.integers(9999, size=len(at)),
        )
    return {
        (int(user), 0, one.stage, one.digest): payloads[one][i].tobytes()
        for one in due
        for i, user in enumerate(PEOPLE)
    }


@pytest.mark.parametrize("half", [False, True])
def test_a_process_that_ends_at_any_point(tmp_path: Path, half: bool) -> None:
    """On a ledger are all releases of an answer or none; what was charged is what leaves when it is asked again."""
    at, points = 0, [0]
    while len(points) >= at:
        at += 1
        path = tmp_path / str(at) / "ledger.sqlite"
        before = ask(path, ONE) if half else {}
        left: Rows = {}
        with ending(at) as points, suppress(Crash):
            left = ask(path, ONE, TWO)
        charged = on(path)
        assert before.items() <= charged.items() and left.items() <= charged.items(), "what left is not on the ledger"
        again = ask(path, ONE, TWO)
        after = on(path)
        assert charged in (before, after), "an answer was charged by halves"
        assert again == after, "a release was drawn twice for one charge"
        assert ask(path, ONE, TWO) == again and on(path) == after
    assert at > 20


SECRET = "a patient of /home/somebody"
FULL = sqlite3.OperationalError(SECRET)
FULL.sqlite_errorcode = sqlite3.SQLITE_FULL


@pytest.mark.parametrize(
    ("error", "cause", "reason"),
    [
        (SystemExit(SECRET), None, "failed"),
        (OSError(28, SECRET), None, "failed"),
        (LedgerError(SECRET), None, "failed"),
        (LedgerError(SECRET), ValueError(SECRET), "failed"),
        (LedgerError(SECRET), OSError(28, SECRET), "storage"),
        (LedgerError(SECRET), FULL, "storage"),
        (Refused("total"), None, "total"),
    ],
)
def test_what_leaves_of_an_error_is_a_constant(error: BaseException, cause: Exception | None, reason: str) -> None:
    error.__cause__ = cause
    refusal = constant(error)
    assert (refusal.code, refusal.text) == REFUSALS[reason] and SECRET not in str(refusal)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


def drawing(*values: int) -> Any:
    """A draw that gives these, and notes the rows and the step of each call."""
    calls: list[tuple[list[int], int]] = []

    def draw(one: Due, rows: Any, step: int, before: Any) -> Any:
        calls.append((rows.tolist(), step))
        return np.array(values[: len(rows)], np.int64)

    return draw, calls


def test_what_is_known_is_repeated_and_the_rest_drawn_from_the_next_step(ledger: Ledger) -> None:
    draw, calls = drawing(1, 2)
    given: dict[str, Any] = {"policy": POLICY, "ledger": ledger}
    assert recall([ONE], PEOPLE, RECORDS, **given) is None
    rows, first = release([ONE], PEOPLE[:1], RECORDS[:1], draw=draw, **given)
    rows, both = release([ONE, TWO], PEOPLE, RECORDS, draw=draw, **given)
    assert rows.tolist() == [0, 1] and both[ONE].tolist() == [first[ONE][0], 1]
    assert calls == [([0], 0), ([1], 0), ([1], 0), ([0], 1)]
    known = recall([ONE, TWO], PEOPLE, RECORDS, **given)
    assert known is not None and all(np.array_equal(known[one], both[one]) for one in (ONE, TWO))


def test_a_release_is_recalled_priced_and_drawn_under_one_lock(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any) -> Any:
            locked.append((function.__name__, ledger._connection.in_transaction))
            return function(*given)

        return wrapped

    steps = ((Ledger, "recall"), (charging, "_affordable"), (charging, "_drawn"), (Ledger, "commit"))
    for owner, name in ((Ledger, "exclusive"), *steps):
        monkeypatch.setattr(owner, name, noted(getattr(owner, name)))
    release([ONE], PEOPLE, RECORDS, policy=POLICY, ledger=ledger, draw=drawing(1, 2)[0])
    assert locked == [("exclusive", False), *((name, True) for _, name in steps)]


def test_a_user_who_cannot_pay_is_left_out_and_the_other_is_answered(ledger: Ledger) -> None:
    given: dict[str, Any] = {"policy": replace(POLICY, label=1.5), "ledger": ledger, "draw": drawing(5, 6)[0]}
    with pytest.raises(Refused, match="budget"):  # each is within the limit, and both are not
        release([ONE, TWO], PEOPLE, RECORDS, **given)
    assert ledger.rows() == []
    release([ONE], PEOPLE[:1], RECORDS[:1], **given)
    rows, payloads = release([TWO], PEOPLE, RECORDS, **given)
    assert rows.tolist() == [1] and payloads[TWO].tolist() == [5] and len(ledger.rows()) == 2


@pytest.mark.parametrize("made", [np.zeros(1, np.int64), np.int64(1), np.zeros((2, 1), np.int64), np.zeros(2)])
def test_a_draw_of_another_form_leaves_nothing(ledger: Ledger, made: Any) -> None:
    """One draw would otherwise be that of both."""
    with pytest.raises((TypeError, ValueError)):
        release([ONE], PEOPLE, RECORDS, policy=POLICY, ledger=ledger, draw=lambda *_: made)
    assert ledger.rows() == []

"""The path of every release, through its two doors: nothing leaves uncharged, and nothing is drawn twice for a charge.

Every statement of the ledger, every draw and every step of the rollback guard is a point at which the process may end;
`tests.support.kills` ends it at every system call of the node's door.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import charging
from client.accounted import Accountant
from client.charging import Book, Due, constant, recall, release
from client.node import load_node
from client.policy import Policy, Refused
from client.sanitizer import Sanitizer
from client.store import ledger as ledgers
from client.store import rollback_guard
from client.store.ledger import Ledger, LedgerError
from mechanisms.guarantee import Guarantee
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.request import Request
from tests.support.clients import OPEN, make_node, request

#: What a ledger says, and what an answer says: the bytes of each release.
Rows = dict[tuple[int, int, str, str], bytes]
ASKED = {"arrays": {"weight": np.zeros(4, np.float32)}}
TRAIN = {"arrays": {"mechanism": "privunit", "epsilon": 2.0, "norm": 1.0}}
LABEL = {"metrics.label": {"mechanism": "randomized-response", "epsilon": 1.0, "classes": 2}}


class Crash(BaseException):
    """The end of a process, which nothing handles."""


class Points:
    """Counts points, and ends the process at number `at`."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def here(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Crash


@contextmanager
def ending(at: int) -> Iterator[Points]:
    """The end of the process at that point: before each statement, draw and step of the rollback guard.

    Nothing changes on the disk between two of them.
    """
    points = Points(at)

    def after(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            points.here()
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
        yield points


def on(path: Path) -> Rows:
    if not path.exists():
        return {}
    with Ledger(path) as opened:
        rows = sorted(opened.rows(), key=lambda row: row.commit)  # of several digests, the last release
        return {(r.user, r.record, r.stage, r.channel): r.payload for r in rows}


class Node:
    """The node's door: records of three users."""

    def __init__(self, folder: Path, *, before: bool = False) -> None:
        self.folder = make_node(folder / "node", range(3), seed=None, policy=OPEN)
        self.ledger = self.folder / "ledger.sqlite"
        if before:
            self._answer(request(arm="", label=None))
        self.asked = request(arm="")

    def __call__(self) -> Rows:
        return self._answer(self.asked)

    def _answer(self, asked: Request) -> Rows:
        node = load_node(self.folder)
        with node.ledger("") as ledger:
            reply = Sanitizer(node.policy(""), ledger, node.streams).answer(asked, node.shard("train"))
        return {
            (int(user), int(record), release.stage, release.channel): payload[i].tobytes()
            for release in reply.releases
            for payload in release.payload.values()
            for i, (user, record) in enumerate(zip(reply.users, reply.records, strict=True))
        }


class Mod:
    """The mod's door: an app of one user that answers a vector and a label."""

    def __init__(self, folder: Path) -> None:
        policy = Policy(statistic=6.0, label=3.0, total=8.0)
        self.ledger = folder / "mod.sqlite"
        self.accountant = Accountant.of(self.ledger, policy, {"train": TRAIN | LABEL}, {})
        self.run: Callable[[], Any] = lambda: {
            "arrays": {"weight": np.full(4, 0.25, np.float32)},
            "metrics": {"label": 1},
        }

    def __call__(self, **changes: Any) -> Rows:
        arrays, numbers = self.accountant.answer("train", ASKED | changes, 3, self.run)
        label = int(numbers["metrics"]["label"])
        vector = arrays["arrays"]["weight"]
        there = on(self.ledger)  # the arrays are decoded: they are one release's, or of none
        codes = {key: np.frombuffer(payload, "<i2") for key, payload in there.items() if key[3] == "statistic"}
        mine = {
            key: there[key]
            for key, c in codes.items()
            if np.allclose(vector / np.linalg.norm(vector), c / np.linalg.norm(c), atol=1e-3)
        }
        assert len(mine) == 1, "what left is not on the ledger"
        return mine | {(3, 0, "train metrics.label", "label"): label.to_bytes(8, "little")}


DOORS: dict[str, Callable[[Path], Any]] = {
    "a node": Node,
    "a node that has answered a half": lambda folder: Node(folder, before=True),
    "a mod": Mod,
}


def crash(folder: Path, door: Callable[[Path], Any], at: int) -> bool:
    """One process that ends at that point, if it has so many, and the next one: False once there are no more points."""
    there = door(folder)
    before = on(there.ledger)
    with ending(at) as points:
        try:
            left = there()
        except Crash:
            left = {}
    charged = on(there.ledger)
    assert before.items() <= charged.items() and left.items() <= charged.items(), "what left is not on the ledger"
    again = there()
    after = on(there.ledger)
    assert charged.items() <= after.items() and again.items() <= after.items()
    assert charged in (before, after), "an answer was charged by halves"
    assert again == {key: after[key] for key in again}, "a release was drawn twice for one charge"
    assert there() == again and on(there.ledger) == after
    return points.count >= at


@pytest.mark.parametrize("door", DOORS)
def test_a_process_that_ends_at_any_point(tmp_path: Path, door: str) -> None:
    """On a ledger are all releases of an answer or none; what was charged is what leaves when it is asked again."""
    at = 1
    while crash(tmp_path / str(at), DOORS[door], at):
        at += 1
    assert at > 20


def test_the_same_question_while_the_app_runs_is_one_draw(tmp_path: Path) -> None:
    there, runs = Mod(tmp_path), 0
    run, inner = there.run, Rows()

    def slow() -> Any:
        nonlocal runs
        runs += 1
        if runs == 1:
            inner.update(there())
        return run()

    there.run = slow
    assert there() == inner and runs == 2 and len(on(there.ledger)) == 2


def test_another_question_while_the_app_runs_spends_first(tmp_path: Path) -> None:
    """Three of the answer are within the policy. The app that runs meanwhile finds nothing left."""
    there = Mod(tmp_path)
    run = there.run

    def slow() -> Any:
        there.run = run
        for number in range(2):
            there(config={"round": number})
        return run()

    there(config={"round": 7})
    there.run = slow
    with pytest.raises(Refused, match="budget"):
        there()
    with Ledger(there.ledger) as opened:
        assert sum(row.epsilon for row in opened.rows()) <= 8.0


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


# -- the library itself ---------------------------------------------------------------------------------------------

ONE = Due("train", "label", "a" * 64, Guarantee(1.0, "discrete", 1.0, "label"), np.dtype(np.int16))
TWO = replace(ONE, digest="b" * 64)
PEOPLE, RECORDS = np.array([4, 9], np.int64), np.zeros(2, np.int64)
POLICY = Policy(label=3.0, total=3.0)


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
    assert recall([ONE], PEOPLE, RECORDS, policy=POLICY, ledger=ledger) is None
    rows, first = release([ONE], PEOPLE[:1], RECORDS[:1], policy=POLICY, book=Book(ledger, draw))
    rows, both = release([ONE, TWO], PEOPLE, RECORDS, policy=POLICY, book=Book(ledger, draw))
    assert rows.tolist() == [0, 1] and both[ONE].tolist() == [first[ONE][0], 1]
    assert calls == [([0], 0), ([1], 0), ([1], 0), ([0], 1)] or calls == [([0], 0), ([1], 0), ([0, 1], 1)], calls
    known = recall([ONE, TWO], PEOPLE, RECORDS, policy=POLICY, ledger=ledger)
    assert known is not None and all(np.array_equal(known[one], both[one]) for one in (ONE, TWO))


@pytest.mark.parametrize("name", ["_recall", "_affordable", "_drawn"])
def test_a_release_is_recalled_priced_and_drawn_under_one_lock(
    ledger: Ledger, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, locked = getattr(charging, name), []

    def noted(*given: Any) -> Any:
        locked.append(ledger._connection.in_transaction)
        return function(*given)

    monkeypatch.setattr(charging, name, noted)
    release([ONE], PEOPLE, RECORDS, policy=POLICY, book=Book(ledger, drawing(1, 2)[0]))
    assert locked == [True]


def test_a_user_who_cannot_pay_is_left_out_and_the_other_is_answered(ledger: Ledger) -> None:
    draw, _ = drawing(5, 6)
    tight = replace(POLICY, label=1.5)
    with pytest.raises(Refused, match="budget"):  # each is within the limit, and both are not
        release([ONE, TWO], PEOPLE, RECORDS, policy=tight, book=Book(ledger, draw))
    assert ledger.rows() == []
    release([ONE], PEOPLE[:1], RECORDS[:1], policy=tight, book=Book(ledger, draw))
    rows, payloads = release([TWO], PEOPLE, RECORDS, policy=tight, book=Book(ledger, draw))
    assert rows.tolist() == [1] and payloads[TWO].tolist() == [5] and len(ledger.rows()) == 2


@pytest.mark.parametrize("made", [np.zeros(1, np.int64), np.int64(1), np.zeros((2, 1), np.int64), np.zeros(2)])
def test_a_draw_of_another_form_leaves_nothing(ledger: Ledger, made: Any) -> None:
    """One draw would otherwise be that of both."""
    with pytest.raises((TypeError, ValueError)):
        release([ONE], PEOPLE, RECORDS, policy=POLICY, book=Book(ledger, lambda *_: made))
    assert ledger.rows() == []

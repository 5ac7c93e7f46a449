"""A round: whom it asks, whose rows it keeps, and how it ends; with nodes that are functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from mechanisms.messages import signature
from mechanisms.messages.sealed import Sealed, _whole, unseal
from mechanisms.messages.wire import (
    reply_to_record,
    request_identity,
    request_to_record,
    sealed_from_record,
    sealed_to_record,
)
from simulations.shuffler.core import TOO_MANY
from simulations.shuffler.enrolment import Enrolled
from simulations.shuffler.rounds import Rounds, read_request
from simulations.shuffler.store import CLOSED, DISCARDED, Store
from tests.support.clients import honest
from tests.support.fuzz import HUGE, ROOM, Fuzzer, extra
from tests.support.rounds import (
    ENROLLED,
    ONE,
    OPENS,
    PRIVATE,
    TWO,
    Answer,
    Nodes,
    answer,
    device,
    enveloped,
    opened,
    served,
    wanted,
)
from tests.system.test_fuzz import text_request


def test_a_round_asks_each_node_once_and_closes(store: Store) -> None:
    request = wanted()
    replies = {ONE: answer(request, range(100, 104)), TWO: answer(request, range(104, 108), seed=2)}
    nodes = Nodes(replies)
    done = served(store, nodes)
    ((question, whom, timeout),) = nodes.asked
    assert question.digest("embedding") == request.digest("embedding")
    assert timeout == 0.5 and set(whom) == set(ENROLLED)
    assert (done.state, done.users, done.rows, done.dropped, done.errors) == (CLOSED, 8, 8, {}, {})
    rows = store.batch("train")
    assert sorted(map(bytes, rows)) == sorted(bytes(row) for r in replies.values() for row in r.rows)
    releases, mask = unseal(rows, request, PRIVATE)
    assert mask.all() and len(releases[0]) == 8
    assert Rounds(store, ENROLLED, nodes.ask, OPENS).work() == 0 and len(nodes.asked) == 1


def test_a_node_speaks_for_its_own_users_alone(store: Store) -> None:
    """Of users of another node, and of users of nobody: dropped, counted, and the others' own releases count."""
    request = wanted()
    mine = answer(request, range(104, 108), seed=2)
    liar = answer(request, [100, 104, 105, 999, -1, 101], seed=3)
    done = served(store, Nodes({ONE: liar, TWO: mine}))
    assert (done.users, done.rows, done.duplicates, done.dropped) == (6, 6, 0, {"not enrolled there": 4})
    expected = [*mine.rows, liar.rows[0], liar.rows[5]]
    assert sorted(map(bytes, store.batch("train"))) == sorted(map(bytes, expected))


def test_whoever_carries_replies_and_the_training_server_link_no_row_to_a_user(store: Store) -> None:
    """No bytes that passed by, and none of one user's rows but once, are in the batch that the training server gets."""
    passed: list[bytes] = []

    def carried(record: RecordDict, nodes: Mapping[int, int], timeout: float) -> Iterator[Answer]:
        for node, first in ((ONE, 100), (TWO, 104)):
            content = enveloped(answer(wanted(), range(first, first + 4)), record, node)
            passed.append(sealed_from_record(content).rows.tobytes())
            yield node, content, None

    served(store, carried)
    rows = store.batch("train")
    seen = b"".join(passed)
    assert len(rows) == 8 and not any(row.tobytes()[i : i + 16] in seen for row in rows for i in range(0, 112, 16))


@pytest.mark.parametrize("act", ["own rows", "one row twice", "another request", "another device", "another's rows"])
def test_replies_that_their_device_did_not_sign_for_this_request_come_to_nothing(store: Store, act: str) -> None:
    """A carrier that has all public keys, a device of its own, and honest replies, rewrites those of one node."""
    honest_reply = answer(wanted(), range(100, 104))

    def rewritten(record: RecordDict, nodes: Mapping[int, int], timeout: float) -> Iterator[Answer]:
        given = sealed_from_record(enveloped(honest_reply, record, ONE))
        if act == "own rows":
            mine = sealed_from_record(enveloped(answer(wanted(), range(100, 104), seed=9), record, TWO))
            given = replace(given, rows=np.concatenate([given.rows[:1], mine.rows[1:]]))
        elif act == "one row twice":
            given = replace(given, rows=given.rows[[0, 0, 2, 3]])
        elif act == "another request":  # which promises a larger crowd than the shuffler waits for
            given = sealed_from_record(enveloped(honest_reply, request_to_record(wanted(minimum_users=1000)), ONE))
        elif act == "another device":
            given = sealed_from_record(enveloped(honest_reply, record, TWO))
        else:  # the device of its own sends a user's row as its own, to see which row is in the batch twice
            yield ONE, sealed_to_record(given), None
            theirs = Sealed(np.arange(104, 108), np.zeros(4, np.int64), given.rows)
            about = _whole(theirs, request_identity(record))
            yield TWO, sealed_to_record(replace(theirs, signature=signature.sign(device(TWO)[0], "reply", about))), None
            return
        yield ONE, sealed_to_record(given), None

    done = served(store, rewritten)
    assert done.errors == {UNREADABLE: 1} and done.users == 4 * (act == "another's rows")


def test_every_row_is_counted_under_its_first_fault(store: Store) -> None:
    request = wanted(part=(1, 2), minimum_users=1)
    reply = answer(request, [101, 101, 101, 100, 555, 103, 103], records=[0, 0, 1, 0, -1, -5, 2**62])
    done = served(store, Nodes({ONE: reply}), request)
    assert (done.users, done.rows, done.duplicates) == (2, 3, 1)
    assert done.dropped == {"user of another part": 1, "not enrolled there": 1, "record below 0": 1}
    assert done.errors == {"no answer": 1}


def test_a_user_has_as_many_rows_as_records_that_are_enrolled(store: Store) -> None:
    """Two: 2,000 more of one user's, in one message and in the next after a restart, come to nothing and are counted;
    the other users', and the same record again, are as ever."""
    request = wanted(minimum_users=1)
    many = 2_000
    flood = Sealed(
        np.array([100] * many + [101], np.int64),
        np.array([*range(many), 0], np.int64),
        np.zeros((many + 1, 112), np.uint8),
    )
    opened(store, request)
    rounds = Rounds(store, ENROLLED, Nodes({ONE: flood, TWO: answer(request, range(104, 108))}).ask, OPENS)
    (stage,) = store.open_stages()
    dropped: Counter[str] = Counter()
    rounds._take(stage, (0, 1), ONE, answer(request, [100], records=[7]), dropped)  # by a process that was killed then
    assert not +dropped
    rounds.work()
    done = store.stage("train")
    assert done is not None and (done.users, done.rows, done.duplicates) == (6, 7, 1)
    assert done.dropped == {TOO_MANY: many - 2}


def test_a_node_may_send_what_its_users_may(store: Store) -> None:
    """In bytes: 2 records of each of 4 users, and what is around them."""
    limits = {}

    def ask(record: RecordDict, nodes: Mapping[int, int], timeout: float) -> Iterator[Answer]:
        limits.update(nodes)
        yield from ((node, None, "code 101") for node in nodes)

    served(store, ask)
    assert limits == dict.fromkeys(ENROLLED, 2**20 + 8 * (112 + 48 + 16))


def test_rows_of_another_length_are_dropped(store: Store) -> None:
    """They would show who sent them."""
    mine = answer(wanted(), range(104, 108))
    other = Sealed(np.arange(100, 104), np.zeros(4, np.int64), np.zeros((4, 113), np.uint8))
    done = served(store, Nodes({ONE: other, TWO: mine}))
    assert (done.rows, done.dropped) == (4, {"of another length": 4})


def test_what_nodes_answer_in_place_of_releases(store: Store) -> None:
    """Errors by their code, in words of ours; what is not sealed; what cannot be read; and whoever has nothing."""
    replies: list[Any] = [
        *("code 101", "code 5", "code 4711", "code -1", "unreadable reply", "no answer"),
        *(reply_to_record(honest(wanted())), RecordDict(), RecordDict({"ids": ConfigRecord({"HIV": 1})})),
        Sealed(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 0), np.uint8)),
    ]
    enrolled = {node: Enrolled(np.array([node]), np.array([1]), device(node)[1]) for node in range(1, len(replies) + 1)}
    done = served(store, Nodes(dict(enumerate(replies, start=1))), enrolled=enrolled)
    assert done.state == DISCARDED and not done.dropped
    assert done.errors["another error"] == 2 and done.errors[UNREADABLE] == 3
    assert done.errors["no answer"] == 1 and done.errors["unreadable reply"] == 1 and sum(done.errors.values()) == 9
    assert not any("4711" in reason or "HIV" in reason for reason in done.errors)


def test_a_node_that_comes_later_is_asked_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is time; the others, who have answered, are not."""
    monkeypatch.setattr("simulations.shuffler.rounds._AGAIN", 0.01)
    late = Nodes({TWO: answer(wanted(), range(104, 108))})

    def asked(record: RecordDict, nodes: Mapping[int, int], timeout: float) -> Iterator[Answer]:
        if len(late.asked) == 3:
            late.replies[ONE] = answer(wanted(), range(100, 104))
        return late.ask(record, nodes, timeout)

    done = served(store, asked, timeout=60.0)
    assert (done.state, done.users, done.duplicates, done.errors) == (CLOSED, 8, 0, {})
    assert [nodes for _, nodes, _ in late.asked] == [(ONE, TWO), (ONE,), (ONE,), (ONE,)]
    times = [timeout for _, _, timeout in late.asked]
    assert times == sorted(times, reverse=True)


UNREADABLE = "a reply that is not sealed and signed for this request, or unreadable"
REASONS = {TOO_MANY, "of another length", "not enrolled there", "user of another part", "record below 0"}


def signed_where_it_can_be(content: RecordDict) -> RecordDict | Sealed:
    """What a hostile device sends, which signs whatever it likes."""
    try:
        return sealed_from_record(content)
    except ValueError:
        return content


def test_hostile_replies_are_dropped_and_counted(store: Store) -> None:
    """Broken replies of 300 nodes, each with two users of its own."""
    request = wanted(minimum_users=1)
    fuzzer = Fuzzer([sealed_to_record(answer(request, [100, 101, 102, 103], records=[0, 1, 2, 0]))], 1)
    nodes = Nodes(dict(enumerate(map(signed_where_it_can_be, fuzzer.messages(300)), start=1)))
    enrolled = {node: Enrolled(np.array([100, 102]), np.array([1, 1]), device(node)[1]) for node in nodes.replies}
    done = served(store, nodes, request, enrolled=enrolled)
    assert done.state == CLOSED
    assert set(done.dropped) <= REASONS and set(done.errors) == {UNREADABLE}
    assert done.users <= 2 and len(store.batch("train")) == done.rows  # whatever was sent, however often
    assert done.dropped["not enrolled there"] > 30 and done.errors.total() > 30 and done.duplicates > 30


def test_replies_of_100_mb_within_bounded_memory(store: Store) -> None:
    """What is too long, and what is not sealed."""
    valid = sealed_to_record(answer(wanted(), range(100, 104)))
    wide = np.zeros((4, HUGE // 4), np.uint8)
    longer = sealed_to_record(Sealed(np.arange(100, 104), np.zeros(4, np.int64), wide))
    for i, content in enumerate((longer, *Fuzzer([valid], 3).huge())):
        nodes, request = Nodes({ONE: content, TWO: "code 5"}), wanted(stage=f"stage-{i}")
        assert extra(lambda nodes=nodes, request=request: served(store, nodes, request)) < ROOM
        done = store.stage(f"stage-{i}")
        assert done is not None and done.state == DISCARDED and not done.dropped


# -- what a shuffler reads ------------------------------------------------------------------------------------------


def test_a_request_is_read_without_a_vocabulary() -> None:
    """A text's, too: the shuffler has none, and passes it on."""
    request = read_request(request_to_record(text_request(minimum_users=7, part=(1, 4), stage="words")))
    assert (request.stage, request.minimum_users, request.part) == ("words", 7, (1, 4))
    good = request_to_record(wanted())
    for name, values in BAD.items():
        for value in values:
            about = ConfigRecord({**good["request.about"], name: value})
            with pytest.raises(ValueError, match="shuffler"):
                read_request(RecordDict({**good, "request.about": about}))


BAD: dict[str, list[Any]] = {
    "stage": ["../x"],
    "minimum_users": [-1, 2**62, True],
    "part_index": [1],
    "part_count": [0, 2**62],
}

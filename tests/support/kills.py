"""A device killed at every write and every send, and what its ledger says afterwards.

`python -m tests.support.kills FOLDER [--power] [--cases NAME,NAME] [--every N]` prints how many kills
there were, by the call that was about to be made, and ends with an error at the first one that a promise does not
survive. It runs in a process of its own: forks of one that has threads can stand still.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from client.app import NODES, release
from client.node import load_node
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.wire import reply_from_record
from simulations.shuffler.shuffle import shuffle
from tests.support.clients import context, make_node, message, request, with_prior
from tests.support.kill_points import Points

USERS = 3
MORE = {"stage": "more", "embedding": {"mechanism": "planar-laplace", "epsilon": 3.0}}
#: What a device is asked, in this order: before it may be killed, and while it may.
CASES: dict[str, tuple[list[Request], list[Request]]] = {
    "first": ([], [request(arm="")]),
    "later": ([request(arm="")], [with_prior(arm="", stage="later")]),
    "two": ([], [request(arm="", label=None), request(arm="", **MORE)]),
    "again": ([request(arm="")], [request(arm=""), request(arm="", **MORE, label=None)]),
    "many": ([], [request(arm="", stage=f"stage-{i}") for i in range(6)]),
}


def ask(asked: Request) -> Reply:
    """What the device answers; in this process, through Flower's handler."""
    answer = release(message(asked), context(0))
    if answer.has_error():
        raise AssertionError(answer.error.reason)
    return reply_from_record(answer.content)


def line(asked: Request, reply: Reply) -> bytes:
    """A reply as one line, so that what came of a send that was cut short is no line."""
    payloads = {r.channel: next(iter(r.payload.values())).tobytes().hex() for r in reply.releases}
    return (json.dumps([asked.stage, payloads]) + "\n").encode()


def answering(questions: Sequence[Request], sent: Path) -> Callable[[], None]:
    """A device that answers one question after another, each sent as soon as it is answered."""

    def child() -> None:
        for asked in questions:
            reply = ask(asked)
            with open(sent, "ab", buffering=0) as network:
                network.write(line(asked, reply))

    return child


def check(node: Path, questions: Sequence[Request], sent: Path, charged: int) -> None:
    """After a kill: the ledger opens, holds what left and only whole answers, and the device goes on where it was."""
    left = sent.read_bytes().splitlines(keepends=True) if sent.exists() else []
    with load_node(node).ledger("") as opened:
        rows = opened.rows()
    known = {stage: {r.channel: b"" for r in rows if r.stage == stage} for stage in {r.stage for r in rows}}
    for r in rows:
        known[r.stage][r.channel] += r.payload  # rows come in the order of users
    for text in left:  # the ledger never shows less than what left, to the byte
        stage, payloads = json.loads(text)
        for channel, data in payloads.items():
            kept = known.get(stage, {}).get(channel, b"")
            assert kept.hex() == data, "what left is not on the ledger"
    counts = Counter((r.stage, r.channel) for r in rows)
    assert set(counts.values()) <= {USERS}, "an answer was charged by halves"
    replies: dict[str, list[Reply]] = {}
    for asked in questions:
        before = known.get(asked.stage)
        reply = ask(asked)
        replies.setdefault(asked.stage, []).append(reply)
        for made in reply.releases:  # what was charged is not lost: it is what the device sends now
            if before and made.channel in before:
                data = next(iter(made.payload.values())).tobytes()
                assert before[made.channel] == data, "a release was drawn twice"
    with load_node(node).ledger("") as opened:
        rows = opened.rows()
        assert len(rows) == charged, "a release was counted twice"
        people = np.arange(USERS, dtype=np.int64)
        assert np.allclose(opened.spent(people).epsilon, sum(r.epsilon for r in rows) / USERS)
    for stage, given in replies.items():  # what was sent before and is sent again counts once
        batch = shuffle([*given, *given], minimum_users=0, rng=np.random.default_rng(0)).batch
        assert batch.users == USERS and batch.duplicates == USERS * (2 * len(given) - 1), f"{stage}: counted twice"


def run(folder: Path, cases: Sequence[str], *, power: bool, every: int) -> Counter[str]:
    """Kills at every `every`-th point of the cases; how many there were, by the call that was not made."""
    kills: Counter[str] = Counter()
    os.environ[NODES] = str(folder / "nodes")
    node, template, sent = folder / "nodes" / "0", folder / "template", folder / "sent"
    for name in cases:
        before, during = CASES[name]
        shutil.rmtree(folder, ignore_errors=True)
        make_node(node, range(USERS), seed=None)
        for asked in before:
            ask(asked)
        node.rename(template)
        shutil.copytree(template, node)
        for asked in during:
            ask(asked)
        with load_node(node).ledger("") as opened:
            charged = len(opened.rows())
        k = 0
        while True:
            shutil.rmtree(node)
            sent.unlink(missing_ok=True)
            shutil.copytree(template, node)
            call = Points(answering(during, sent), node).kill(k, power=power)
            if call is not None:
                kills[call] += 1
            check(node, [*before, *during], sent, charged)
            if call is None:
                break
            k += every
    return kills


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    print(json.dumps(run(given.folder, given.cases.split(","), power=given.power, every=given.every)))


if __name__ == "__main__":
    main()

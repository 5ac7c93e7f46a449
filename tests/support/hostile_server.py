"""A hostile SuperLink and training server, a program of its own: it tries all that it knows, one thing after another,
against a device that was installed from a bundle and is served by the command.

    python -m tests.support.hostile_server FOLDER

FOLDER: an empty one, for the device and the keys. What the device answered to each attempt is printed as a line of
JSON, and the exit code is 1 where anything but a constant text was among it: a release that nobody had allowed, words
of the device's own, or a device that had ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict

from client.device.records import add_records
from client.models.encoder import Encoder
from client.node import load_node
from client.policy import Policy
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import generate_keys
from mechanisms.messages.wire import request_to_record
from simulations.transport.quiet import QUIET
from sottovoce.deployment import certificates
from tests.support.devices import DIM, PUBLISHER, encoder_folder, make_bundle, request_for
from tests.support.fake_superlink import Fake, bundle
from tests.support.requests import changed

CONSTANT = set(REFUSALS.values())
LIMITS = Policy(
    embedding=31.5,
    label=2.0,
    total=33.5,
    releases=2,
    minimum_users=100,
    mechanisms=("gaussian", "purkayastha", "randomized-response"),
)
USERS, SECONDS = 3, 60.0


@dataclass(frozen=True)
class Attempt:
    """name: what is tried. content: what is sent, in a message of that kind. app: what the run ships, where it is not
    the installed client."""

    name: str
    content: RecordDict
    kind: str = "query.release"
    app: bytes | None = None


def attempts(honest: Request) -> Iterator[Attempt]:
    """Everything but the question that the bundle lists."""
    assert honest.projection is not None
    own = np.random.default_rng(5).normal(size=(honest.projection.width, DIM)).astype(np.float32)
    yield from _questions(honest, own)
    yield from _no_questions(honest, own)
    hostile, good = (request_to_record(asked) for asked in (changed(honest, m1=own), honest))
    yield Attempt("as a round of training", hostile, kind="train")
    yield Attempt("as a query of another name", hostile, kind="query.texts")
    app = bundle()
    yield Attempt("code of its own", good, app=app[:5000] + bytes([app[5000] ^ 1]) + app[5001:])
    yield Attempt("no app", good, app=b"no archive")


def _questions(honest: Request, own: np.ndarray) -> Iterator[Attempt]:
    """Others than the one that is listed. own: maps of the server's."""
    others: dict[str, dict[str, Any]] = {
        "a label at ε = 1000, of another arm": {"label": {"mechanism": "randomized-response", "epsilon": 1000.0}},
        "an ε above the limit": {"embedding": {"mechanism": "purkayastha", "epsilon": 10.18}},
        "in clear": {"embedding": {"mechanism": "identity"}},
        "labels in clear": {"embedding": None, "label": {"mechanism": "identity"}},
        "maps of its own": {"m1": own},
        "a mean of its own": {"mean": np.ones(len(own), np.float32)},
        "one coordinate less": {"m1": own[:, :2]},
        "an ε of 0": {"embedding": {"mechanism": "purkayastha", "epsilon": 0.0}},
        "noise at an ε of 0": {"embedding": {"mechanism": "gaussian", "sigma": 1e6}},
        "another split": {"split": "test"},
        "a crowd of nobody": {"minimum_users": 0},
        "a mechanism that the policy does not name": {"embedding": {"mechanism": "planar-laplace", "epsilon": 1.0}},
        "another encoder": {"encoder": "cd" * 32},
        "another arm": {"arm": "b"},
        "an answer by its own head": {
            "embedding": None,
            "label": None,
            "answer": {"mechanism": "randomized-response", "epsilon": 1.0},
            "head": (own[:DIM, :2].copy(), np.zeros(2, np.float32)),
        },
    }
    for name, changes in others.items():
        yield Attempt(name, request_to_record(changed(honest, **changes)))
    for number in range(3):
        yield Attempt(
            f"question {number + 1} of many", request_to_record(changed(honest, m1=own + number, stage=f"more{number}"))
        )


def _no_questions(honest: Request, own: np.ndarray) -> Iterator[Attempt]:
    """What is no question at all."""
    good = request_to_record(honest)
    about, arrays = good["request.about"], good["request.arrays"]
    assert isinstance(about, ConfigRecord) and isinstance(arrays, ArrayRecord)
    odd: dict[str, RecordDict] = {
        "nothing": RecordDict(),
        "numbers": RecordDict({"x": MetricRecord({"y": 1})}),
        "a mechanism by its place": RecordDict(
            {
                "request.about": ConfigRecord({**about, "embedding": '{"epsilon": 1.0, "mechanism": "os:system"}'}),
                "request.arrays": arrays,
            }
        ),
        "a stage that is a path": RecordDict(
            {"request.about": ConfigRecord({**about, "stage": "../../ledger"}), "request.arrays": arrays}
        ),
        "maps that are no numbers": RecordDict(
            {"request.about": about, "request.arrays": ArrayRecord({**arrays, "m1": Array(own * np.nan)})}
        ),
        "maps of another type": RecordDict(
            {"request.about": about, "request.arrays": ArrayRecord({**arrays, "m1": Array(own.astype(np.float64))})}
        ),
        "a pickle": RecordDict(
            {
                "request.about": about,
                "request.arrays": ArrayRecord({**arrays, "m1": Array("object", (1,), "numpy.ndarray", b"\x80\x04.")}),
            }
        ),
    }
    for name, content in odd.items():
        yield Attempt(name, content)


def messages_of(tried: list[Attempt], first: int) -> list[Message]:
    return [
        Message(
            one.content,
            metadata=Metadata(
                run_id=first,
                message_id=f"m{first + i}",
                src_node_id=0,
                dst_node_id=77,
                reply_to_message_id="",
                group_id="",
                created_at=time.time(),
                ttl=3600.0,
                message_type=one.kind,
            ),
        )
        for i, one in enumerate(tried)
    ]


@contextmanager
def served(folder: Path, node: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """The installed device, by the command."""
    command = [
        "device",
        "serve",
        node,
        "--superlink",
        address,
        "--root-certificates",
        folder / "ca.pem",
        "--key",
        folder / "node.key",
    ]
    with (folder / "device.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sottovoce.cli.main", *map(str, command)],
            stdout=log,
            stderr=log,
            env=os.environ | QUIET | {"OMP_NUM_THREADS": "1"},
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def verdict(reply: Any) -> str | None:
    """The constant text that an answer is; None for one that is anything else."""
    said = (reply.error.code, reply.error.reason)
    return said[1] if reply.HasField("error") and said in CONSTANT else None


def installed(folder: Path) -> tuple[Path, Request]:
    """A device of some users, from a signed bundle that lists one question; and that question."""
    honest = request_for(Encoder(encoder_folder(folder)))
    policy = replace(LIMITS, questions=tuple(honest.digest(channel) for channel in honest.channels))
    made = make_bundle(folder, policy=policy, seal=generate_keys()[1])
    node = folder / "node"
    made.install(node, PUBLISHER)
    for user in range(USERS):
        add_records(node, "train", [f"the secret film was good {user}"], np.array([1]), user)
    return node, honest


def main(folder: Path) -> int:
    certificates.make_authority(folder / "ca")
    certificates.issue(folder / "ca", folder, "superlink")
    certificates.node_keys(folder)
    node, honest = installed(folder)
    fake = Fake(folder)
    wrong = 0
    with served(folder, node, fake.address) as device:
        everything = list(attempts(honest))
        honestly = [everything[i : i + 1] for i in range(len(everything)) if everything[i].app is not None]
        batches = [[one for one in everything if one.app is None], *honestly]
        for number, batch in enumerate(batches):
            fake.replies.clear()
            fake.send(*messages_of(batch, 1000 * (number + 1)), fab=batch[0].app)
            _wait(lambda batch=batch: len(fake.replies) >= len(batch), device)
            answered = {reply.metadata.reply_to_message_id: reply for reply in fake.replies}
            for i, one in enumerate(batch):
                said = verdict(answered[f"m{1000 * (number + 1) + i}"])
                wrong += said is None
                print(json.dumps({"tried": one.name, "answered": said}, ensure_ascii=False))
        fake.replies.clear()
        fake.send(*messages_of([Attempt("", request_to_record(honest))], 9000))  # it still answers what was agreed to
        _wait(lambda: bool(fake.replies), device)
        print(json.dumps({"tried": "the question that is listed", "answered": not fake.replies[0].HasField("error")}))
    fake.close()
    with load_node(node).ledger("") as ledger:
        charged = {(row.stage, row.channel, row.digest) for row in ledger.rows()}
    left = charged - {(honest.stage, channel, honest.digest(channel)) for channel in honest.channels}
    print(json.dumps({"charged": len(charged), "of other questions": len(left)}))
    log = (folder / "device.log").read_text()
    print(json.dumps({"the log says what a text says": "secret" in log, "a traceback": "Traceback" in log}))
    return int(bool(wrong or left or "secret" in log or "Traceback" in log or fake.replies[0].HasField("error")))


def _wait(done: Callable[[], bool], device: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + SECONDS
    while not done():
        if device.poll() is not None:
            raise SystemExit(f"the device has ended: {device.returncode}")
        if time.monotonic() > end:
            raise SystemExit("the device does not answer")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""Golden digests: wires, releases and ledger keys of every channel and mechanism are those that were published.

They are the same on every CPU (`test_cpus`): the computed bounds of a guarantee, which are not, enter with few digits.
A changed digest means that a ledger of a released version repeats nothing, and charges and draws again. Change one on
purpose only: run this file as a program, look at the difference, and give the reason in the commit.

    .venv/bin/python -m tests.system.test_golden
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from client.policy import Policy
from client.shard import write_shard
from mechanisms.guarantee import Guarantee
from mechanisms.messages.request import Request
from mechanisms.messages.wire import record_to_bytes, reply_to_record, request_to_record
from mechanisms.vocabulary import Vocabulary
from sottovoce.contracts.cases import extras, inputs, small_vocabulary, streams
from tests.support.answers import ask, ledger_rows
from tests.support.clients import ENCODER, M, make_node, request, with_prior
from tests.support.mechanisms import instances
from tests.support.paths import ROOT

#: Accepts every release: what is tested is what is drawn, not what is refused.
EVERYTHING = Policy(
    delta=1e-6,
    embedding=1e6,
    label=1e6,
    text=1e6,
    statistic=1e6,
    answer=1e6,
    total=1e9,
    total_delta=1e-3,
    accept_unprotected=("group: public in this test", "length: public in this test"),
)

FILE = ROOT / "tests" / "golden" / "digests.json"
ROWS = 64

_RNG = np.random.default_rng(9)
HEAD = (_RNG.normal(size=(4, 3)).astype(np.float32), _RNG.normal(size=3).astype(np.float32) / 40)
CODES = np.eye(3, dtype=np.float32)
WIDE = np.random.default_rng(10).normal(size=(M, 12)).astype(np.float32)
NONE = {"embedding": None, "label": None}


def _text(words: Vocabulary, **spec: Any) -> Request:
    return request(
        **NONE,
        encoder="",
        mean=None,
        m1=None,
        vocabulary=words,
        text={"vocabulary": words.identity, "tokens": 4} | spec,
    )


REQUESTS: dict[str, Callable[[], Request]] = {
    "embedding purkayastha, label": request,
    "embedding planar-laplace": lambda: request(embedding={"mechanism": "planar-laplace", "epsilon": 8.0}, label=None),
    "embedding gaussian": lambda: request(embedding={"mechanism": "gaussian", "sigma": 0.5}, label=None),
    "label with prior": with_prior,
    "statistic of 12 features": lambda: request(
        **NONE, statistic={"mechanism": "privunit", "epsilon": 4.0}, codes=CODES, m1=WIDE
    ),
    "statistic": lambda: request(**NONE, statistic={"mechanism": "privunit", "epsilon": 4.0}, codes=CODES),
    "answer": lambda: request(**NONE, answer={"mechanism": "randomized-response", "epsilon": 2.0}, head=HEAD),
    "text santext": lambda: _text(small_vocabulary(), mechanism="santext", epsilon=3.0),
    "text custext": lambda: _text(small_vocabulary(), mechanism="custext", epsilon=3.0, k=4),
    "text madlib": lambda: _text(small_vocabulary(), mechanism="madlib", epsilon=3.0),
}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def of_request(make: Callable[[], Request], folder: Path) -> dict[str, Any]:
    """The wire of a request and of the reply to it, and the ledger's keys and payloads."""
    asked = make()
    _node(folder)
    reply = ask(folder, asked)
    reply = replace(reply, releases=tuple(replace(one, guarantee=_short(one.guarantee)) for one in reply.releases))
    rows = [
        [row.user, row.record, row.stage, row.channel, row.digest, sha(row.payload), f"{row.epsilon:.6g}"]
        for row in ledger_rows(folder)
    ]
    return {
        "request": sha(record_to_bytes(request_to_record(asked))),
        "digests": {channel: asked.digest(channel) for channel in asked.channels},
        "reply": sha(record_to_bytes(reply_to_record(reply))),
        "ledger": sha(json.dumps(rows).encode()),
    }


def _short(guarantee: Guarantee) -> Guarantee:
    bounds = ("diameter", "offset", "numeric_epsilon", "numeric_delta")
    return replace(guarantee, **{name: float(f"{getattr(guarantee, name):.2g}") for name in bounds})


def _node(folder: Path) -> None:
    """Eight users of one record: rows of numbers that no platform changes, and words of the small vocabulary."""
    make_node(folder, policy=EVERYTHING)
    users, none = np.arange(8), np.zeros(8, np.int64)
    texts = [f"word{user} the secret word{user + 1}" for user in users]
    rows = np.random.default_rng(4).normal(size=(8, M)).astype(np.float32)
    write_shard(folder, "train", users, none, texts, users % 3, embeddings=rows, identity=ENCODER)


def of_mechanism(mechanism: Any) -> str:
    """What 64 rows draw at a fixed seed, as it is rounded for the wire."""
    drawn = mechanism.sample(inputs(mechanism, ROWS), rng=streams(ROWS), **extras(mechanism, ROWS))
    return sha(np.ascontiguousarray(np.round(drawn, 9) + 0.0).tobytes())


def current() -> dict[str, Any]:
    """All digests, as the file keeps them."""
    with tempfile.TemporaryDirectory() as place:
        requests = {name: of_request(make, Path(place) / str(i)) for i, (name, make) in enumerate(REQUESTS.items())}
    return {"requests": requests, "mechanisms": {str(case.id): of_mechanism(case.values[0]) for case in instances()}}


def test_wires_releases_and_ledger_keys_are_those_published(tmp_path: Path) -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8"))["requests"]
    assert {name: of_request(make, tmp_path / str(i)) for i, (name, make) in enumerate(REQUESTS.items())} == golden


def test_draws_at_a_fixed_seed_are_those_published() -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8"))["mechanisms"]
    drawn = {str(case.id): of_mechanism(case.values[0]) for case in instances()}
    assert {id_: digest for id_, digest in drawn.items() if golden.get(id_) != digest} == {}
    assert golden.keys() == drawn.keys()


if __name__ == "__main__":
    FILE.write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")

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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from client.policy import Policy
from client.shard import write_shard
from mechanisms.guarantee import Guarantee
from mechanisms.messages.request import Request
from mechanisms.messages.wire import record_to_bytes, reply_to_record, request_to_record
from sottovoce.contracts.cases import extras, inputs, small_vocabulary, streams
from tests.support.answers import ask, ledger_rows
from tests.support.clients import ENCODER, M, make_node, request, with_prior
from tests.support.mechanisms import instances
from tests.support.paths import ROOT

#: Accepts every release: what is tested is what is drawn, not what is refused.
EVERYTHING = Policy(
    delta=1e-6,
    **dict.fromkeys(("embedding", "label", "text", "statistic", "answer"), 1e6),
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
PRIVUNIT, LAPLACE = {"mechanism": "privunit", "epsilon": 4.0}, {"mechanism": "planar-laplace", "epsilon": 8.0}
WORDS = small_vocabulary()
OF_TEXT = NONE | {"encoder": "", "mean": None, "m1": None, "vocabulary": WORDS}
TEXT = {"vocabulary": WORDS.identity, "tokens": 4, "epsilon": 3.0}
REQUESTS: dict[str, Request] = {
    "embedding purkayastha, label": request(),
    "embedding planar-laplace": request(embedding=LAPLACE, label=None),
    "embedding gaussian": request(embedding={"mechanism": "gaussian", "sigma": 0.5}, label=None),
    "label with prior": with_prior(),
    "statistic of 12 features": request(**NONE, statistic=PRIVUNIT, codes=CODES, m1=WIDE),
    "statistic": request(**NONE, statistic=PRIVUNIT, codes=CODES),
    "answer": request(**NONE, answer={"mechanism": "randomized-response", "epsilon": 2.0}, head=HEAD),
    "text santext": request(**OF_TEXT, text=TEXT | {"mechanism": "santext"}),
    "text custext": request(**OF_TEXT, text=TEXT | {"mechanism": "custext", "k": 4}),
    "text madlib": request(**OF_TEXT, text=TEXT | {"mechanism": "madlib"}),
}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def of_request(asked: Request, folder: Path) -> dict[str, Any]:
    """The wire of a request and of the reply to it, and the ledger's keys and payloads."""
    _node(folder)
    reply = ask(folder, asked)
    reply = replace(reply, releases=tuple(replace(r, guarantee=_short(r.guarantee)) for r in reply.releases))
    rows = ledger_rows(folder)
    kept = [[r.user, r.record, r.stage, r.channel, r.digest, sha(r.payload), f"{r.epsilon:.6g}"] for r in rows]
    return {
        "request": sha(record_to_bytes(request_to_record(asked))),
        "digests": {channel: asked.digest(channel) for channel in asked.channels},
        "reply": sha(record_to_bytes(reply_to_record(reply))),
        "ledger": sha(json.dumps(kept).encode()),
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


def requests_in(folder: Path) -> dict[str, Any]:
    return {name: of_request(asked, folder / str(i)) for i, (name, asked) in enumerate(REQUESTS.items())}


def mechanisms() -> dict[str, str]:
    return {str(case.id): of_mechanism(case.values[0]) for case in instances()}


def current() -> dict[str, Any]:
    """All digests, as the file keeps them."""
    with tempfile.TemporaryDirectory() as place:
        return {"requests": requests_in(Path(place)), "mechanisms": mechanisms()}


def test_wires_releases_and_ledger_keys_are_those_published(tmp_path: Path) -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8"))["requests"]
    assert requests_in(tmp_path) == golden


def test_draws_at_a_fixed_seed_are_those_published() -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8"))["mechanisms"]
    drawn = mechanisms()
    assert {id_: digest for id_, digest in drawn.items() if golden.get(id_) != digest} == {}
    assert golden.keys() == drawn.keys()


if __name__ == "__main__":
    FILE.write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")

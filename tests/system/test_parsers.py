"""Every parser of what another party sends: it rejects an input in the one way that it documents, in a line, within
bounded memory. Inputs that broke a parser, or reach far into it, are kept in tests/corpora.
"""

from __future__ import annotations

import random

import pytest

from client.policy import Policy
from tests.support.parsers import CORPORA, EACH, LONGEST, ROOM, Target, read_corpus, scribbled, targets

NAMES = sorted(path.stem for path in CORPORA.iterdir())
DEEP = b"[" * 100_000


def _said(status: str, text: str, *head: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", *head, f"Content-Length: {len(text)}", "", text)
    return "\r\n".join(lines).encode()


#: Of a batch of one row, whose identity is not that of its bytes.
HEAD = '{"batch": "ab", "rows": 1, "row_bytes": 4, "users": 1, "duplicates": 0, "dropped": {}, "errors": {}}\n'
#: Inputs that came to another exception than the documented ones, too long for a corpus or with a length of their own.
KNOWN: dict[str, list[bytes]] = {
    "nodes": [DEEP],
    "bundles": [
        *(b"e/%s\n%s" % (name, DEEP) for name in (b"request.json", b"policy.json")),
        b"e/request.json\n3",
        b'e/policy.json\n{"total": 1' + b"0" * 400 + b"}",
        b"e/m1.npy\nPK\x03\x04",
        b"e/m1.npy\n\x93NUMPY\x01\x00v\x00{'descr': (",
        b"e/m1.npy\n\x93NUMPY\x01\x00\x10\x00" + b"{" * 16,
    ],
    "fleets": [
        b"\3" + _said("500 Failed", "[" * 100_000),
        b"\3" + _said("401 Unauthorized", "", "Date: Fri, 31 Dec 9999 23:59:59 GMT"),
    ],
    "deliveries": [
        _said("202 Accepted", '{"users": "many"}'),
        _said("202 Accepted", '{"users": [1]}'),
        _said("202 Accepted", "[" * 60_000),
        _said("200 OK", "[" * 60_000 + "\n"),
        _said("200 OK", '{"rows": Infinity, "row_bytes": 4}\n'),
        _said("200 OK", '{"rows": 0, "row_bytes": 4, "batch": "", "users": Infinity}\n'),
        *(_said("200 OK", head) for head in ("", "\n", "[]\n", "{}\n", "nonsense", HEAD, HEAD + "123")),
        *(_said("200 OK", HEAD.replace(*change)) for change in (("{}", "[]"), ("4", "3"), ('"rows": 1', '"rows": -1'))),
    ],
}


@pytest.fixture(scope="module")
def parsers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return {target.name: target for target in targets(tmp_path_factory.mktemp("parsers"))}


@pytest.mark.parametrize("name", NAMES)
def test_kept_inputs_are_survived_in_bounded_memory(parsers: dict[str, Target], name: str) -> None:
    target, (outcomes, inputs) = parsers[name], read_corpus(name)
    for data in target.seeds:  # fills what is cached
        target.outcome(data)
    assert outcomes <= {target.outcome(data) for data in inputs}, "the parser is exercised no more"
    for data in (*target.seeds, *inputs[-20:], *KNOWN.get(name, ())):
        assert target.peak(data) < ROOM + EACH * len(data), data[:1000].hex()


def test_known_inputs_are_rejected(parsers: dict[str, Target]) -> None:
    for name, inputs in KNOWN.items():
        for data in inputs:
            assert parsers[name].outcome(data) not in ("accepted", "delivered", "rows 4"), data[:1000]
    for key in ("total", "delta", "embedding", "window"):
        with pytest.raises(ValueError, match=f"^policy: {key} must be"):
            Policy.from_dict({key: 10**400})


@pytest.mark.parametrize("n", [100, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.soak])])
@pytest.mark.parametrize("name", NAMES)
def test_changed_inputs_are_survived(parsers: dict[str, Target], name: str, n: int) -> None:
    """Seeds and kept inputs, each changed in one to three places."""
    target, rng = parsers[name], random.Random(f"{name} 1")
    pool = [*target.seeds, *read_corpus(name)[1]]
    for _ in range(n):
        data = rng.choice(pool)
        for _ in range(rng.choice((1, 1, 2, 3))):
            data = scribbled(rng, data, rng.choice(pool))
        target.outcome(data[:LONGEST])


def test_all_parsers_have_a_corpus(parsers: dict[str, Target]) -> None:
    assert sorted(parsers) == NAMES

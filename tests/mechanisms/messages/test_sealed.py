"""Sealed releases: what is sealed opens at its own request alone, and what carries them learns nothing from them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from client.app import answer
from client.node import load_node, write_node
from client.store.ledger import Ledger
from mechanisms.identity import Identity
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import (
    OVERHEAD,
    SUITE,
    Sealed,
    envelop,
    generate_keys,
    hpke_info,
    open_envelope,
    row_bytes,
    seal,
    sealed_bytes,
    unseal,
)
from mechanisms.messages.signature import public_of
from mechanisms.messages.wire import (
    record_from_bytes,
    record_to_bytes,
    reply_from_record,
    request_identity,
    request_to_record,
    sealed_from_record,
    sealed_to_record,
)
from mechanisms.vocabulary import Vocabulary
from tests.support.clients import OPEN, make_node, request, with_prior
from tests.support.fuzz import Fuzzer

PRIVATE, PUBLIC = generate_keys()
N = 7


@pytest.fixture(autouse=True)
def identity_without_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The form of an embedding that its mechanism rounds to nothing: no mechanism of the catalogue has it today."""
    monkeypatch.setattr(Identity, "grid", None)


def words() -> Vocabulary:
    return Vocabulary(("good", "bad", "fine", "film"), np.eye(4, dtype=np.float32))


def asked(*channels: str, tokens: int = 5, **changes: Any) -> Request:
    """A request for these channels: "wide" is an embedding on a grid of int32, "float" one without a grid."""
    values: dict[str, Any] = {"embedding": None, "label": None}
    if "text" in channels:
        known = words()
        spec = {"mechanism": "santext", "epsilon": 2.0, "tokens": tokens, "vocabulary": known.identity}
        values |= {"text": spec, "vocabulary": known}
    if "label" in channels:
        values["label"] = {"mechanism": "randomized-response", "epsilon": 2.0}
    if "embedding" in channels:
        values["embedding"] = {"mechanism": "purkayastha", "epsilon": 10.0}
    elif "float" in channels:
        values["embedding"] = {"mechanism": "identity"}
    elif "wide" in channels:
        values["embedding"] = {"mechanism": "gaussian", "sigma": 2.0}
    else:
        values |= {"encoder": "", "mean": None, "m1": None}
    return request(**(values | changes))


ALL = (("wide",), ("text", "float"), ("text", "embedding", "label"))


def reply_to(wanted: Request, n: int = N, seed: int = 0) -> Reply:
    """Any numbers at all, in the form that was asked for."""
    rng = np.random.default_rng(seed)
    releases = []
    for channel in wanted.channels:
        name, dtype, shape = wanted.named(channel).payload_form
        values: np.ndarray = rng.normal(size=(n, *shape)).astype(dtype)
        if dtype.kind == "i":
            limits = np.iinfo(dtype)
            values = rng.integers(limits.min, limits.max, size=(n, *shape), dtype=dtype, endpoint=True)
        guarantee = wanted.named(channel).mechanism.guarantee
        releases.append(Release({name: values}, channel, wanted.stage, guarantee, wanted.digest(channel)))
    return Reply(np.arange(n) + 50, np.arange(n) % 2, tuple(releases))


def same(releases: tuple[Release, ...], expected: tuple[Release, ...], rows: Any = slice(None)) -> bool:
    assert [r.channel for r in releases] == [r.channel for r in expected]
    for found, wanted in zip(releases, expected, strict=True):
        assert (found.stage, found.guarantee, found.digest) == (wanted.stage, wanted.guarantee, wanted.digest)
        ((name, values),) = found.payload.items()
        assert values.dtype == wanted.payload[name].dtype
        np.testing.assert_array_equal(values, wanted.payload[name][rows])
    return True


@pytest.mark.parametrize("channels", ALL, ids="+".join)
@pytest.mark.parametrize("n", [0, N])
def test_what_is_sealed_opens(channels: tuple[str, ...], n: int) -> None:
    wanted = asked(*channels)
    reply = reply_to(wanted, n)
    read = sealed_from_record(record_from_bytes(record_to_bytes(sealed_to_record(seal(reply, wanted, PUBLIC)))))
    np.testing.assert_array_equal(read.users, reply.users)
    np.testing.assert_array_equal(read.records, reply.records)
    assert read.rows.shape == (n, sealed_bytes(wanted)) and sealed_bytes(wanted) == row_bytes(wanted) + OVERHEAD
    releases, opened = unseal(read.rows, wanted, PRIVATE)
    assert opened.shape == (n,) and opened.all() and same(releases, reply.releases)


def test_a_row_holds_the_numbers_in_the_order_of_the_channels() -> None:
    """Little-endian, and zeros behind them, up to 64 or 128 bytes."""
    for channels, tokens, size in (
        (("wide",), 1, 64),
        (("text", "embedding", "label"), 13, 64),
        (("text", "float"), 14, 128),
    ):
        wanted = asked(*channels, tokens=tokens)
        reply = reply_to(wanted)
        for i, row in enumerate(seal(reply, wanted, PUBLIC).rows):
            plain = SUITE.decrypt(row.tobytes(), X25519PrivateKey.from_private_bytes(PRIVATE), hpke_info(wanted))
            numbers = (r.values[i].astype(r.values.dtype.newbyteorder("<")) for r in reply.releases)
            assert plain == b"".join(v.tobytes() for v in numbers).ljust(size, b"\0")


#: The label 22305, sealed by another version to the key of the bytes 0 to 31.
KNOWN = """
    2a27d4f4da25a5c68cbfadab693e87fe7dbe02daefb14831422cb35acf0d8c7a476c5167509aa3ada8fc685248c48cb2489b3e92aa7b8cd6
    19ed2222f5d71244bcf02111d0454adeaa683699344eb9778bda43d02025dc11b29ebba8d980f44e9f2fabd507538e02dcb25f5d4252e8b6
"""


def test_a_row_that_is_under_way_still_opens() -> None:
    """Suite, info and digest are fixed for good."""
    row = np.frombuffer(bytes.fromhex(KNOWN), np.uint8)[None]
    (release,), opened = unseal(row, asked("label"), bytes(range(32)))
    assert opened.all() and release.values.tolist() == [22305]


def others() -> dict[str, Request]:
    base = with_prior()
    m1 = base.projection.m1
    assert m1 is not None
    return {
        "stage": with_prior(stage="next"),
        "split": with_prior(split="test"),
        "m1": with_prior(m1=m1 * 2),
        "one channel less": request(label=None),
        "label": request(),
    }


@pytest.mark.parametrize("name", others())
def test_a_row_opens_at_its_own_request_alone(name: str) -> None:
    wanted, other = with_prior(), others()[name]
    rows = seal(reply_to(wanted), wanted, PUBLIC).rows
    releases, opened = unseal(rows, other, PRIVATE)
    assert not opened.any() and {len(r) for r in releases} == {0}
    assert unseal(rows, wanted, PRIVATE)[1].all()


def test_what_the_digest_leaves_out_may_differ_and_the_key_may_not() -> None:
    """Those who ask and who carries: the arm, the part, the smallest batch."""
    wanted = with_prior()
    rows = seal(reply_to(wanted), wanted, PUBLIC).rows
    assert unseal(rows, with_prior(arm="", part=(1, 2), minimum_users=3), PRIVATE)[1].all()
    assert not unseal(rows, wanted, generate_keys()[0])[1].any()


def test_a_device_signs_all_of_its_envelope() -> None:
    """A carrier who gave a row to another user, record, place or request would choose whose release it is."""
    wanted, (device, _) = request(), generate_keys()
    outer = envelop(seal(reply_to(wanted), wanted, PUBLIC), "a", PUBLIC, device)
    assert len(open_envelope(outer, "a", PRIVATE, public_of(device))) == N
    swapped = np.roll(np.arange(N), 1)
    changed = [(replace(outer, **{name: getattr(outer, name)[swapped]}), "a") for name in ("users", "records", "rows")]
    for envelope, name in [*changed, (replace(outer, signature=b""), "a"), (outer, "b")]:
        with pytest.raises(ValueError, match=r"not signed$"):
            open_envelope(envelope, name, PRIVATE, public_of(device))


def test_a_bit_that_changed_spoils_its_row_alone() -> None:
    """Any bit at all, the highest of the ephemeral key among them, which X25519 itself does not read."""
    wanted = asked("label")
    reply = reply_to(wanted, 1)
    row = seal(reply, wanted, PUBLIC).rows
    bits = np.unpackbits(row[0])
    changed = np.tile(bits, (len(bits) + 1, 1))
    changed[np.arange(len(bits)), np.arange(len(bits))] ^= 1
    _, opened = unseal(np.packbits(changed, axis=1), wanted, PRIVATE)
    assert opened.tolist() == [False] * len(bits) + [True]


def test_rows_that_are_cut_mixed_or_moved() -> None:
    wanted = request()
    reply = reply_to(wanted)
    rows = seal(reply, wanted, PUBLIC).rows
    for bad in (rows[:, :-1], rows[:, 1:], rows[:, :40], rows[:, :0], np.hstack([rows, rows[:, :1]])):
        releases, opened = unseal(bad, wanted, PRIVATE)
        assert opened.shape == (N,) and not opened.any() and {len(r) for r in releases} == {0}
    mixed, order = rows.copy(), [6, 0, 3, 1, 2, 5, 4]
    mixed[0, 32:], mixed[1, 32:] = rows[1, 32:], rows[0, 32:]  # one's ephemeral key with another's numbers
    releases, opened = unseal(mixed[order], wanted, PRIVATE)  # rows are in no order, so any order is as good
    assert opened.tolist() == [True, False, True, False, True, True, True]
    assert same(releases, reply.releases, np.array([6, 3, 2, 5, 4]))


def test_zeros_that_are_none() -> None:
    wanted = asked("label")
    rows = [
        SUITE.encrypt(p, X25519PublicKey.from_public_bytes(PUBLIC), hpke_info(wanted))
        for p in (bytes(64), bytes(63) + b"\1", b"\1\0\1" + bytes(61), b"\1\1" + bytes(62))
    ]
    table = np.frombuffer(b"".join(rows), np.uint8).reshape(4, -1)
    (release,), opened = unseal(table, wanted, PRIVATE)
    assert opened.tolist() == [True, False, False, True] and release.payload["y"].tolist() == [0, 257]


@pytest.mark.parametrize("key", [b"x" * 31, bytes(32), b"\1" + bytes(31), "x" * 32, None])
def test_keys_that_are_none(key: Any) -> None:
    """With the points of low order, at which everybody shares a secret with everybody."""
    with pytest.raises(ValueError, match="public key"):
        seal(reply_to(request()), request(), key)
    if not (isinstance(key, bytes) and len(key) == 32):
        with pytest.raises(ValueError, match="private key"):
            unseal(np.zeros((1, 112), np.uint8), request(), key)


def test_a_reply_to_another_request_is_not_sealed() -> None:
    wanted = request()
    for other in (
        with_prior(),
        request(stage="next"),
        request(label=None),
        asked("text", "embedding", "label"),
        request(embedding={"mechanism": "gaussian", "sigma": 2.0}),
    ):
        with pytest.raises(ValueError, match="sealed"):
            seal(reply_to(other), wanted, PUBLIC)


INTS, ROWS = np.zeros(2, np.int64), np.zeros((2, 3), np.uint8)


@pytest.mark.parametrize(
    ("users", "records", "rows"),
    [
        (np.zeros(2), INTS, ROWS),
        (INTS, [0, 0], ROWS),
        (INTS, INTS, ROWS[:1]),
        (INTS, INTS, ROWS * 1.0),
        (INTS, INTS, ROWS[0]),
        (INTS, INTS[:1], ROWS),
    ],
)
def test_a_sealed_reply_has_one_form(users: Any, records: Any, rows: Any) -> None:
    with pytest.raises(ValueError, match="sealed"):
        Sealed(users, records, rows)


def test_a_device_with_a_key_answers_sealed(tmp_path: Path) -> None:
    """The very releases of its ledger, and again with other bytes at no cost."""
    folder = make_node(tmp_path / "0", seed=None)
    opens, shuffler = generate_keys()
    write_node(folder, policy=OPEN, seal=PUBLIC, shuffler_seal=shuffler)
    node, wanted = load_node(folder), request(arm="")
    asked, device = request_to_record(wanted), public_of(node.device_key)
    outer = [sealed_from_record(answer(asked, node)) for _ in range(2)]
    assert all(sealed.rows.shape[1] == sealed_bytes(wanted) + 48 for sealed in outer)
    first, second = (open_envelope(sealed, request_identity(asked), opens, device) for sealed in outer)
    assert first.rows.tobytes() != second.rows.tobytes()
    (z, y), opened = unseal(first.rows, wanted, PRIVATE)
    assert opened.all() and same(unseal(second.rows, wanted, PRIVATE)[0], (z, y))
    with Ledger(folder / "ledger.sqlite") as ledger:
        rows = ledger.rows()
    assert len(rows) == 2 * len(first)
    assert b"".join(r.payload for r in rows if r.channel == "embedding") == z.payload["z"].tobytes()
    write_node(folder, policy=OPEN)
    clear = reply_from_record(answer(request_to_record(wanted), load_node(folder)))
    assert same(clear.releases, (z, y))


def test_a_simulation_does_not_seal(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give a policy"):
        write_node(tmp_path, seed=1, arms={}, seal=PUBLIC)
    write_node(tmp_path, seed=1, arms={})
    path = tmp_path / "node.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seal": PUBLIC.hex()}))
    with pytest.raises(ValueError, match="unknown key 'seal'"):
        load_node(tmp_path)


def test_hostile_sealed_replies() -> None:
    """Broken ones: unreadable, or rows that do not open, or the very rows that were sealed."""
    wanted = [request(), asked("text", "label"), asked("float")]
    replies = [reply_to(w) for w in wanted]
    fuzzer = Fuzzer([sealed_to_record(seal(r, w, PUBLIC)) for r, w in zip(replies, wanted, strict=True)], 1)
    outcomes: Counter[str] = Counter()
    for content in fuzzer.messages(600):
        try:
            read = sealed_from_record(content)
        except ValueError as error:
            assert "\n" not in str(error)
            outcomes["unreadable"] += 1
            continue
        for asked_for, reply in zip(wanted, replies, strict=True):
            releases, opened = unseal(read.rows, asked_for, PRIVATE)
            assert opened.shape == (len(read),) and {len(r) for r in releases} == {int(opened.sum())}
            for release, true in zip(releases, reply.releases, strict=True):
                known = {row.tobytes() for row in true.values}
                assert {row.tobytes() for row in release.values} <= known
            outcomes["opened"] += int(opened.sum())
            outcomes["dropped"] += int((~opened).sum())
    assert set(outcomes) == {"unreadable", "opened", "dropped"} and min(outcomes.values()) > 40

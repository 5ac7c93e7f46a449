"""What the training server makes of a batch: each release counts once, at its own stage, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from mechanisms.messages.request import Request
from mechanisms.messages.sealed import SUITE, batch_identity, generate_keys, hpke_info, row_bytes, seal
from server.sealed_batches import Taken, open_batch
from tests.support.clients import honest, request
from tests.system.test_fuzz import text_request

PRIVATE, PUBLIC = generate_keys()


def rows_of(wanted: Request, n: int = 6, seed: int = 1) -> np.ndarray:
    return seal(honest(wanted, n, seed), wanted, PUBLIC).rows


def small(**changes: Any) -> Request:
    return request(minimum_users=3, **changes)


@pytest.mark.parametrize("wanted", [small(), small(label=None, part=(1, 2)), text_request(minimum_users=3)])
def test_an_honest_batch_is_what_was_released(wanted: Request) -> None:
    """In the batch's order, with places for records and nobody for users; of any part of the users."""
    reply, dropped = open_batch(rows_of(wanted), wanted, [PRIVATE])
    assert not dropped and reply.users.tolist() == [0] * 6 and reply.records.tolist() == list(range(6))
    for found, sent in zip(reply.releases, honest(wanted).releases, strict=True):
        assert (found.channel, found.stage, found.digest) == (sent.channel, sent.stage, sent.digest)
        for name, values in sent.payload.items():
            np.testing.assert_array_equal(found.payload[name], values)


def test_rows_that_come_again_count_once() -> None:
    """Whether they lie side by side or apart, and the first of them counts."""
    rows = rows_of(small())
    again = rows[[0, 1, 0, 2, 2, 2, 5, 1]]
    reply, dropped = open_batch(again, small(), [PRIVATE])
    assert dropped == {"replayed": 4} and reply.records.tolist() == [0, 1, 3, 6]
    expected = honest(small()).releases[0].payload["z"][[0, 1, 2, 5]]
    np.testing.assert_array_equal(reply.releases[0].payload["z"], expected)


def test_rows_of_another_stage_or_key_do_not_open() -> None:
    mine, other = rows_of(small()), rows_of(small(stage="next"))
    foreign = seal(honest(small()), small(), generate_keys()[1]).rows
    changed = mine[3:4] ^ np.uint8(1)
    reply, dropped = open_batch(np.concatenate([other[:2], mine[:3], changed, foreign[:1]]), small(), [PRIVATE])
    assert dropped == {"does not open": 4} and reply.records.tolist() == [2, 3, 4]
    reply, dropped = open_batch(other, small(), [PRIVATE])
    assert dropped == {"does not open": 6} and len(reply) == 0
    assert [r.channel for r in reply.releases] == ["embedding", "label"]
    for rows in (mine[:, :-1], mine[:, :0]):  # of another length
        assert open_batch(rows, small(), [PRIVATE])[1].total() == 6


def test_rows_of_two_keys_are_two_crowds_and_one_of_them_counts() -> None:
    """While devices change from a key to the next: who holds both could tell the two crowds apart."""
    newer, public = generate_keys()
    both = np.concatenate([rows_of(small())[:2], seal(honest(small()), small(), public).rows])
    for keys in ([newer, PRIVATE], [PRIVATE, newer]):
        reply, dropped = open_batch(both, small(), keys)
        assert dropped == {"does not open": 2} and reply.records.tolist() == list(range(2, 2 + len(both) - 2))
    with pytest.raises(ValueError, match="private key"):
        open_batch(both, small(), [PRIVATE, b"short"])


def test_what_a_hostile_client_seals_is_validated() -> None:
    """It has the public key: it may seal what it likes, under the right request."""
    wanted = small()
    z, y = (r.values for r in honest(wanted).releases)
    plain = [
        z[0].tobytes() + y[0].tobytes(),
        bytes(8) + y[0].tobytes(),
        z[1].tobytes() + b"\xff\xff",
        z[2].tobytes() + b"\3\0",
        b"\0\x80" * 4 + b"\0\0",
        b"\xff" * row_bytes(wanted),
    ]
    key = X25519PublicKey.from_public_bytes(PUBLIC)
    sealed = b"".join(SUITE.encrypt(p.ljust(row_bytes(wanted), b"\0"), key, hpke_info(wanted)) for p in plain)
    reply, dropped = open_batch(np.frombuffer(sealed, np.uint8).reshape(len(plain), -1), wanted, [PRIVATE])
    assert reply.records.tolist() == [0]
    assert dropped == {
        "embedding: off the sphere": 1,
        "embedding: off the grid": 1,
        "label: out of range": 2,
        "does not open": 1,
    }


def test_a_batch_of_too_few_rows_is_refused() -> None:
    """Users have a row each, at least: so few rows are of fewer users yet."""
    for n in (0, 2):
        with pytest.raises(ValueError, match=rf"stage 'train': {n} rows are fewer than the 3 users"):
            open_batch(rows_of(small(), n), small(), [PRIVATE])
    assert len(open_batch(rows_of(small(), 3), small(), [PRIVATE])[0]) == 3
    reply, dropped = open_batch(np.zeros((0, 112), np.uint8), request(minimum_users=0), [PRIVATE])
    assert len(reply) == 0 and not dropped


# -- what was taken -------------------------------------------------------------------------------------------------


def batch(stage: str, seed: int = 1) -> tuple[str, np.ndarray]:
    rows = rows_of(small(stage=stage), seed=seed)
    return batch_identity(rows.tobytes()), rows


def test_a_batch_is_taken_once_and_again_for_its_own_stage(tmp_path: Path) -> None:
    one, two = batch("one"), batch("two")
    for _ in range(3):  # each time as after a restart
        Taken(tmp_path / "batches").take("one", *one)
        Taken(tmp_path / "batches").take("two", *two)
    assert sorted(p.name for p in (tmp_path / "batches").iterdir()) == ["one.batch", "two.batch"]


def test_a_batch_counts_at_one_stage_and_a_stage_has_one_batch(tmp_path: Path) -> None:
    """Also the same rows in another order: a shuffler permutes once."""
    (identity, rows) = batch("one")
    Taken(tmp_path).take("one", identity, rows)
    with pytest.raises(ValueError, match=r"^batch of stage 'two': it is replayed, and was taken for stage 'one'$"):
        Taken(tmp_path).take("two", identity, rows)
    for other in (rows[::-1], rows[:-1], batch("one", seed=2)[1]):
        with pytest.raises(ValueError, match="another one was taken for it before"):
            Taken(tmp_path).take("one", batch_identity(other.tobytes()), other)
    for name in ("", "0" * 64):
        with pytest.raises(ValueError, match="not those that its identity names"):
            Taken(tmp_path).take("three", name, rows)
    Taken(tmp_path).take("one", identity, rows)
    assert [p.name for p in tmp_path.iterdir()] == ["one.batch"]


@pytest.mark.parametrize("damage", ["", "0" * 63, "0" * 64 + "\n" + "1" * 64])
def test_a_damaged_record_takes_nothing(tmp_path: Path, damage: str) -> None:
    Taken(tmp_path).take("one", *batch("one"))
    (tmp_path / "one.batch").write_text(damage)
    for stage in ("one", "two"):
        with pytest.raises(ValueError, match=r"one\.batch: is damaged"):
            Taken(tmp_path).take(stage, *batch(stage))


def test_a_draft_that_a_kill_has_left_is_no_record(tmp_path: Path) -> None:
    (tmp_path / ".one.draft").write_text("half")
    Taken(tmp_path).take("one", *batch("one"))
    assert [p.name for p in tmp_path.iterdir()] == ["one.batch"]

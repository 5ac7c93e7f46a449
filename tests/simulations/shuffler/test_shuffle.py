"""The simulation's shuffler: rows of all channels stay joined, and an order that a seed repeats.

`test_guarantee` tests what it promises.
"""

import numpy as np
import pytest

from mechanisms.guarantee import Guarantee
from mechanisms.messages.questions import EmbeddingQuestion, LabelQuestion
from mechanisms.messages.release import Release
from mechanisms.messages.reply import Reply
from simulations.shuffler.shuffle import shuffle

EMBEDDING = Guarantee(4.0, "angular", np.pi, "sequence")
LABEL = Guarantee(1.0, "discrete", 1.0, "label")


def reply(users, records=None):
    users = np.asarray(users, np.int64)
    records = np.zeros_like(users) if records is None else np.asarray(records, np.int64)
    z = np.stack([users, records], axis=1).astype(np.int16)
    return Reply(
        users,
        records,
        (
            Release({"z": z}, "embedding", "train", EMBEDDING, "e"),
            Release({"y": (users % 3).astype(np.int16)}, "label", "train", LABEL, "l"),
        ),
    )


def ids(message):
    return zip(message.users.tolist(), message.records.tolist(), strict=True)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_rows_stay_joined_across_channels_and_origin_names_them():
    batch, origin, _ = shuffle([reply(range(0, 50)), reply(range(50, 90))], minimum_users=10, rng=rng())
    z, y = batch.of(EmbeddingQuestion).values, batch.of(LabelQuestion).values
    assert batch.users == 90 and batch.discarded is None
    assert np.array_equal(z[:, 0], origin.users)
    assert np.array_equal(y, origin.users % 3)
    assert sorted(origin.users) == list(range(90)) and list(origin.users) != list(range(90))


def test_the_batch_does_not_depend_on_the_order_of_messages():
    one, *_ = shuffle([reply([4, 2]), reply([9, 1])], minimum_users=1, rng=rng(3))
    two, *_ = shuffle([reply([1, 9]), reply([2, 4])], minimum_users=1, rng=rng(3))
    assert np.array_equal(one.of(EmbeddingQuestion).values, two.of(EmbeddingQuestion).values)


@pytest.mark.parametrize("seed", range(5))
def test_the_batch_is_what_sorting_and_permuting_all_rows_gives(seed):
    """Row by row, from many messages with repeated rows: the first of each (user, record), sorted, then permuted."""
    generator = rng(seed)
    replies = [reply(generator.integers(0, 20, n), generator.integers(0, 3, n)) for n in (5, 0, 17, 1, 40)]
    batch, origin, _ = shuffle(replies, minimum_users=1, rng=rng(seed + 10))
    rows = [(u, r, i, j) for i, m in enumerate(replies) for j, (u, r) in enumerate(ids(m))]
    first = {}
    for u, r, i, j in rows:
        first.setdefault((u, r), (i, j))
    keys = sorted(first)
    keys = [keys[k] for k in rng(seed + 10).permutation(len(keys))]
    assert list(zip(origin.users.tolist(), origin.records.tolist(), strict=True)) == keys
    assert batch.users == len({u for u, _ in keys}) and batch.duplicates == len(rows) - len(keys)
    for position, kind in enumerate((EmbeddingQuestion, LabelQuestion)):
        values = batch.of(kind).values
        expected = [next(iter(replies[i].releases[position].payload.values()))[j] for i, j in map(first.get, keys)]
        assert np.array_equal(values, expected) and values.dtype == np.int16

"""The shuffler: who sent what is gone, one row a (user, record), and no batch below its minimum."""

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
    batch, origin = shuffle([reply(range(0, 50)), reply(range(50, 90))], minimum_users=10, rng=rng())
    z, y = batch.of(EmbeddingQuestion).values, batch.of(LabelQuestion).values
    assert batch.users == 90 and batch.discarded is None
    assert np.array_equal(z[:, 0], origin.users)
    assert np.array_equal(y, origin.users % 3)
    assert sorted(origin.users) == list(range(90)) and list(origin.users) != list(range(90))


def test_the_batch_does_not_depend_on_the_order_of_messages():
    one, _ = shuffle([reply([4, 2]), reply([9, 1])], minimum_users=1, rng=rng(3))
    two, _ = shuffle([reply([1, 9]), reply([2, 4])], minimum_users=1, rng=rng(3))
    assert np.array_equal(one.of(EmbeddingQuestion).values, two.of(EmbeddingQuestion).values)


def test_repeated_rows_are_dropped_and_counted_and_n_is_distinct_users():
    batch, origin = shuffle([reply([1, 1, 2], [0, 1, 0]), reply([1, 2], [0, 0])], minimum_users=1, rng=rng())
    assert batch.duplicates == 2 and len(origin.users) == 3 and batch.users == 2


@pytest.mark.parametrize("users", [0, 9])
def test_a_batch_below_its_minimum_is_discarded(users):
    batch, origin = shuffle([reply(range(users))], minimum_users=10, rng=rng())
    assert batch.releases == () and batch.users == 0 and batch.discarded and len(origin.users) == 0


def test_several_records_of_one_user_do_not_make_a_minimum():
    batch, _ = shuffle([reply([7] * 20, range(20))], minimum_users=2, rng=rng())
    assert batch.discarded == "1 users are fewer than the 2 a batch must have"


def test_positions_are_uniform():
    """The first row is each of 8 users equally often: chi-square over 4,000 shuffles, false-alarm rate 1e-6.

    The same test rejects a shuffler that keeps the order in a tenth of the batches.
    """
    from scipy.stats import chisquare

    def p_value(keeps_order):
        generator, first = rng(11), np.zeros(8)
        for i in range(4000):
            _, origin = shuffle([reply(range(8))], minimum_users=1, rng=generator)
            first[0 if keeps_order and i % 10 == 0 else origin.users[0]] += 1
        return chisquare(first).pvalue

    assert p_value(False) > 1e-6
    assert p_value(True) < 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_the_batch_is_what_sorting_and_permuting_all_rows_gives(seed):
    """Row by row, from many messages with repeated rows: the first of each (user, record), sorted, then permuted."""
    generator = rng(seed)
    replies = [reply(generator.integers(0, 20, n), generator.integers(0, 3, n)) for n in (5, 0, 17, 1, 40)]
    batch, origin = shuffle(replies, minimum_users=1, rng=rng(seed + 10))
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

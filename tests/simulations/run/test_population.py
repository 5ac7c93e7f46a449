"""Who holds which record: every row at most once, records counted from 0 for each user, all from the seed."""

import numpy as np
import pytest

from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.run.population import assign, online

N, CLASSES = 3_000, 3


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    return Corpus(
        [f"text {i}" for i in range(N)],
        rng.integers(CLASSES, size=N),
        tuple("abc"),
        users=[f"user {i}" for i in rng.integers(200, size=N)],
    )


@pytest.mark.parametrize(
    ("assignment", "alpha", "users"),
    [("record", None, 500), ("column", None, 50), ("dirichlet", 0.1, 70), ("dirichlet", 1e-4, 70)],
)
def test_assignments(corpus, assignment, alpha, users):
    rows, held, records = assign(corpus, users=users, assignment=assignment, alpha=alpha, seed=1)
    assert rows.dtype == held.dtype == records.dtype == np.int64
    assert rows.shape == held.shape == records.shape
    assert len(set(rows.tolist())) == len(rows) and rows.min() >= 0 and rows.max() < N
    assert np.unique(held).tolist() == list(range(users))
    for user in range(users):
        assert records[held == user].tolist() == list(range((held == user).sum()))
    again = assign(corpus, users=users, assignment=assignment, alpha=alpha, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip((rows, held, records), again, strict=True))
    other = assign(corpus, users=users, assignment=assignment, alpha=alpha, seed=2)
    assert not np.array_equal(rows, other[0])


def test_a_column_s_users_hold_all_their_rows_and_no_others(corpus):
    rows, held, _ = assign(corpus, users=50, assignment="column", seed=1)
    names = np.asarray(corpus.users)
    for user in range(50):
        mine = rows[held == user]
        assert len(set(names[mine])) == 1 and len(mine) == (names == names[mine[0]]).sum()


def test_a_small_alpha_gives_users_of_one_label_and_a_large_one_users_like_the_whole(corpus):
    def largest_share(alpha: float) -> float:
        rows, held, _ = assign(corpus, users=50, assignment="dirichlet", alpha=alpha, seed=1)
        assert len(rows) == N and np.bincount(held).tolist() == [60] * 50
        counts = np.zeros((50, CLASSES))
        np.add.at(counts, (held, corpus.labels[rows]), 1)
        return float(np.mean(counts.max(axis=1) / 60))

    assert largest_share(0.01) > 0.85
    assert largest_share(1_000.0) < 0.5


def test_fewer_users_than_asked_for_are_all_returned(corpus):
    small = corpus.take(np.arange(10))
    for assignment in ("record", "dirichlet"):
        assert len(assign(small, users=99, assignment=assignment, alpha=1.0, seed=0)[0]) == 10


def test_dropout():
    users, p = 200_000, 0.25
    present = online(users, dropout=p, seed=1)
    # 4.9 standard deviations: a false alarm in a million, were the seed not fixed.
    assert abs(present.mean() - (1 - p)) < 4.9 * np.sqrt(p * (1 - p) / users)
    assert np.array_equal(present, online(users, dropout=p, seed=1))
    assert online(100, dropout=0.0, seed=1).all()


def test_mistakes_are_refused(corpus):
    with pytest.raises(UserError, match='unknown "rows"'):
        assign(corpus, users=1, assignment="rows", seed=0)
    with pytest.raises(UserError, match=r"population.alpha: nan"):
        assign(corpus, users=1, assignment="dirichlet", alpha=float("nan"), seed=0)
    with pytest.raises(UserError, match=r'"column" needs data.user'):
        assign(Corpus(["a"], np.array([0]), ("x",)), users=1, assignment="column", seed=0)
    with pytest.raises(UserError, match=r"population.dropout: 1.0"):
        online(5, dropout=1.0, seed=0)

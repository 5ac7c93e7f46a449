"""Errors and differences of accuracies, by distinct test text, of what arrived."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, multinomial

from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.run.accuracy import Counts, Difference, difference, score
from simulations.run.evaluation import Answers, on_device, read_answers, sanitized, write_answers
from simulations.run.population import assign, online
from simulations.run.prepare import Held, Holders
from simulations.shuffler.shuffle import Origin
from tests.support.studies import PURKAYASTHA as EMBEDDING
from tests.support.studies import LocalGrid, experiment, make_nodes, run_arms, use_folder


def held(texts: list[str], labels: list[int], repeats: int = 1) -> Held:
    """Test users 100, 101, ... each hold a copy of a test sentence; nobody else is there."""
    test = Corpus(texts, np.array(labels), ("bad", "good"))
    rows = np.tile(np.arange(len(texts)), repeats)
    nobody = Holders(np.zeros(1, np.int64), np.zeros(1, np.int64))
    return Held(test, test, nobody, Holders(100 + np.arange(len(rows)), np.zeros(len(rows), np.int64)), rows)


def origin(users: list[int]) -> Origin:
    return Origin(np.array(users, np.int64), np.zeros(len(users), np.int64))


def counts(guesses: list[int], right: list[int]) -> Counts:
    return Counts(np.array(guesses, np.int64), np.array(right, np.int64))


def test_the_error_counts_what_arrived() -> None:
    """34 of 872 test users are delivered: their error is that of 34 texts, and not of 872."""
    truth = held([f"text {i}" for i in range(872)], [0] * 872)
    guesses = np.array([0] * 20 + [1] * 14)
    result, unknown = sanitized(truth, guesses, origin([100 + 20 * i for i in range(34)]))
    scored = score(result)
    assert unknown == 0 and scored is not None and scored.accuracy == 20 / 34
    # with four more, two of them right, by hand
    assert scored.error == pytest.approx(math.sqrt(22 / 38 * 16 / 38 / 37)) and scored.error > 0.08


def test_a_text_that_is_asked_about_often_is_one_text() -> None:
    """By several users, or because it stands in the test part twice: repeats that agree tell nothing new."""
    once = score(counts([1] * 40, [1] * 30 + [0] * 10))
    often = score(counts([10] * 40, [10] * 30 + [0] * 10))
    assert once == often
    truth = held(["a", "b", "a", "c"] * 2, [0, 1, 0, 0] * 2)
    assert truth.test_texts.tolist() == [0, 1, 0, 2] * 2
    device = on_device(truth, np.zeros(8, np.int64))
    assert device.guesses.tolist() == [4, 2, 2] and device.right.tolist() == [4, 0, 2]


def test_what_nobody_asked_is_counted_apart() -> None:
    truth = held(["a", "b"], [0, 1], repeats=2)
    result, unknown = sanitized(truth, np.array([0, 1, 1, 0]), origin([101, 100, 999, 102]))
    assert unknown == 1 and result.guesses.tolist() == [2, 1] and result.right.tolist() == [1, 0]
    with pytest.raises(ValueError, match="4 guesses of 3 rows"):
        sanitized(truth, np.zeros(4, np.int64), origin([100, 101, 102]))


def test_where_there_is_nothing_to_say_nothing_is_said() -> None:
    empty = counts([0, 0], [0, 0])
    assert score(empty) is None and difference(empty, counts([1, 1], [1, 0])) is None
    alone = score(counts([5, 0], [3, 0]))
    assert alone is not None and alone.accuracy == 0.6 and math.isnan(alone.error)


def test_a_difference_is_paired_by_text() -> None:
    """Of 200 texts, 30 only the one gets right, 12 only the other: the error is that of the 42 on which they differ
    (McNemar 1947), and one more each, by hand; unpaired it would be nearly twice that."""
    one = counts([1] * 200, [1] * 130 + [1] * 30 + [0] * 12 + [0] * 28)
    other = counts([1] * 200, [1] * 130 + [0] * 30 + [1] * 12 + [0] * 28)
    result, unpaired = difference(one, other), [score(c) for c in (one, other)]
    assert result is not None and result.difference == pytest.approx(0.09)
    assert result.error == pytest.approx(math.sqrt((44 / 202 - (18 / 202) ** 2) / 201))
    assert result.error < 0.8 * math.hypot(*(s.error for s in unpaired if s is not None))
    assert difference(one, one) == Difference(0.0, pytest.approx(math.sqrt(2 / 202 / 201)))


def test_nothing_is_certain_because_it_never_failed() -> None:
    """All 100 texts right, or none: two errors are nearly the three of a hundred of the rule of three (Hanley and
    Lippman-Hand 1983), however often each text was asked about."""
    for right in (0, 7):
        scored = score(counts([7] * 100, [right] * 100))
        assert scored is not None and scored.accuracy == right / 7 and 0.025 < 2 * scored.error < 0.03
    every, none = counts([7] * 100, [7] * 100), counts([7] * 100, [0] * 100)
    for one, other, gap in ((every, every, 0), (every, none, 1), (none, every, -1)):
        result = difference(one, other)
        assert result is not None and result.difference == gap and 0.013 < result.error < 0.03


#: Shares of right answers, dense where nearly all are.
SHARES = np.concatenate([np.linspace(0.5, 0.99, 50), 1 - np.geomspace(1e-5, 0.01, 50)])


@pytest.mark.parametrize(("scale", "holds"), [(1, True), (2 / 3, False)])
def test_two_errors_hold_an_accuracy_wherever_it_is(scale: float, holds: bool) -> None:
    """Of 100 texts, exactly, by all 101 outcomes: two errors miss at most 7 %, however near to 1 the truth is. Without
    the four texts they would miss nearly always there."""
    n, right = 100, np.arange(101)
    errors = [s.error for k in right if (s := score(counts([1] * n, [1] * k + [0] * (n - k)))) is not None]
    plain = np.sqrt(right / n * (1 - right / n) / (n - 1))
    law = binom.pmf(right, n, SHARES[:, None])
    held_by, plainly = (
        np.where(np.abs(right / n - SHARES[:, None]) <= 2 * e, law, 0).sum(axis=1).min()
        for e in (scale * np.array(errors), plain)
    )
    assert (held_by > 0.93) == holds and plainly < 0.01


@pytest.mark.parametrize(("scale", "holds"), [(1, True), (2 / 3, False)])
def test_two_errors_hold_a_difference_of_arms_that_hardly_differ(scale: float, holds: bool) -> None:
    """Of 40 texts, by all outcomes: as above, where each arm alone is right about some."""
    n, misses, plainly = 40, [], []
    every = [(a, b) for a in range(n + 1) for b in range(n + 1 - a)]
    ours, theirs = np.array(every).T
    gaps = (ours - theirs) / n
    errors = []
    for a, b in every:
        one, other = ([1] * a + [0] * b, [0] * a + [1] * b)
        result = difference(*(counts([1] * n, each + [1] * (n - a - b)) for each in (one, other)))
        errors.append(math.nan if result is None else result.error)
    plain = np.sqrt(((ours + theirs) / n - gaps**2) / (n - 1))
    for p in (1e-4, 0.003, 0.01, 0.03, 0.1, 0.3):
        for q in (0, 1e-4, 0.003, 0.01, 0.03, 0.1, 0.3):
            law = multinomial.pmf(np.stack([ours, theirs, n - ours - theirs], axis=1), n, [p, q, 1 - p - q])
            for result, error in ((misses, scale * np.array(errors)), (plainly, plain)):
                result.append(law[np.abs(gaps - (p - q)) > 2 * error].sum())
    assert (max(misses) < 0.07) == holds and max(plainly) > 0.99


def drawn(rng: np.random.Generator, n: int) -> tuple[Counts, Counts]:
    """Two arms on 40 texts of unequal difficulty, each text asked one to five times, some of which are lost."""
    hard = rng.beta(1, 1, size=(n, 40))
    request = rng.integers(1, 6, size=(2, n, 40))
    request[rng.random(request.shape) < 0.2] = 0
    right = rng.binomial(request, np.stack([hard, np.minimum(1, 1.1 * hard)]))
    return Counts(request[0], right[0]), Counts(request[1], right[1])


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("scale", "holds"), [(1, True), (2 / 3, False), (3 / 2, False)])
def test_errors_are_as_large_as_estimates_vary(paired: bool, scale: float, holds: bool) -> None:
    """Over 2,000 studies the mean square of the stated error is the variance of the estimate. That of a variance from
    2,000 draws deviates by sqrt(2/1999) = .032 of itself; within 6 of these and 4 % for what is left out to first
    order, a sound error fails with probability below 1e-8 (of a normal estimate), and one of 2/3 or 3/2 does."""
    one, other = drawn(np.random.default_rng(11), 2000)
    estimates, squares = [], []
    studies = zip(one.guesses, one.right, other.guesses, other.right, strict=True)
    for a, b in ((each[:2], each[2:]) for each in studies):
        gap, alone = difference(Counts(*a), Counts(*b)), score(Counts(*a))
        assert gap is not None and alone is not None
        estimates.append(gap.difference if paired else alone.accuracy)
        squares.append((gap.error if paired else alone.error) ** 2)
    assert (abs(scale**2 * np.mean(squares) / np.var(estimates) - 1) < 6 * 0.032 + 0.04) == holds


def test_answers_are_a_table_that_reads_back(tmp_path: Path) -> None:
    truth = held(["secret a", "secret b", "secret a"], [1, 0, 1], repeats=2)
    request, _ = sanitized(truth, np.array([1, 1, 0]), origin([100, 101, 105]))
    answers = Answers(request, on_device(truth, np.array([1, 0, 0])))
    path = tmp_path / "answers" / "a.tsv"
    write_answers(path, truth, answers)
    text = path.read_text()
    assert text == (
        "text\tclass\tsentences\tright on device\tanswers\tright\n0\tgood\t2\t1\t2\t1\n1\tbad\t1\t1\t1\t0\n"
    )
    again = read_answers(path)
    assert score(again.sanitized) == score(answers.sanitized) and score(again.device) == score(answers.device)
    for broken in ("", text[:-10], text.replace("right", "wrong"), text.replace("\t2", "\ttwo")):
        path.write_text(broken)
        with pytest.raises(UserError, match=r"a\.tsv: does not hold what an arm answered"):
            read_answers(path)


def test_an_arms_error_is_of_the_test_users_who_were_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_folder(tmp_path, monkeypatch)
    study = experiment(
        {"name": "a", "embedding": EMBEDDING | {"epsilon": 2.0}}, population={"late": 0.6}, shuffle={"minimum-users": 2}
    )
    nodes = make_nodes(study, tmp_path)
    line = run_arms(study, LocalGrid(nodes))["a"].line
    arrived = 40 - line["dropped"]["test: late"]
    p = line["accuracy"]
    assert arrived < 25 and 0 < p < 1
    p = (p * arrived + 2) / (arrived + 4)
    assert line["accuracy_se"] == pytest.approx(math.sqrt(p * (1 - p) / (arrived + 3)))


# --- who holds which record

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

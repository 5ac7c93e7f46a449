"""Errors and differences of accuracies by distinct test text, and the assignment of records to users."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, multinomial

from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment.result import SPLITS, ArmResult
from simulations.run.accuracy import Counts, Difference, difference, score
from simulations.run.evaluation import Answers, Predicted, read_answers, requested, with_accuracies, write_answers
from simulations.run.population import assign, online
from simulations.run.prepare import Held, Holders
from simulations.shuffler.shuffle import Origin


def held(texts: list[str], labels: list[int], repeats: int = 1) -> Held:
    """Return test users 100, 101, ... who each hold a copy of a test sentence."""
    test = Corpus(texts, np.array(labels), ("bad", "good"))
    rows = np.tile(np.arange(len(texts)), repeats)
    nobody = Holders(np.zeros(1, np.int64), np.zeros(1, np.int64))
    return Held(test, test, nobody, Holders(100 + np.arange(len(rows)), np.zeros(len(rows), np.int64)), rows)


def origin(users: list[int]) -> Origin:
    return Origin(np.array(users, np.int64), np.zeros(len(users), np.int64))


def counts(guesses: list[int], right: list[int]) -> Counts:
    return Counts(np.array(guesses, np.int64), np.array(right, np.int64))


def scored(truth: Held, classes: list[int], users: list[int], device: list[int]) -> tuple[ArmResult, Answers]:
    sanitized = Predicted(np.array(classes), requested(truth, origin(users)))
    on_device = Predicted(np.array(device), np.arange(len(device)))
    return with_accuracies(ArmResult("a"), truth, {"sanitized": sanitized, "on_device": on_device})


def test_the_error_counts_what_arrived() -> None:
    """34 of 872 test users are delivered: their error is that of 34 texts, and not of 872."""
    truth = held([f"text {i}" for i in range(872)], [0] * 872)
    result, _ = scored(truth, [0] * 20 + [1] * 14, [100 + 20 * i for i in range(34)], [0] * 872)
    assert result.accuracy == 20 / 34 and result.guessed["sanitized"] == [20, 14]
    # with four more, two of them right, by hand
    assert result.accuracy_se == pytest.approx(math.sqrt(22 / 38 * 16 / 38 / 37)) and result.accuracy_clean_test == 1


def test_a_text_that_is_asked_about_often_is_one_text() -> None:
    """By several users, or because it stands in the test part twice; a record that nobody holds does not count."""
    assert score(counts([1] * 40, [1] * 30 + [0] * 10)) == score(counts([10] * 40, [10] * 30 + [0] * 10))
    truth = held(["a", "b", "a", "c"], [0, 1, 0, 0], repeats=2)
    _, answers = scored(truth, [0, 1, 1, 0], [101, 100, 999, 106], [0, 0, 0, 0])
    assert answers["on_device"].guesses.tolist() == [2, 1, 1] and answers["on_device"].right.tolist() == [2, 0, 1]
    assert answers["sanitized"].guesses.tolist() == [2, 1, 0] and answers["sanitized"].right.tolist() == [1, 0, 0]


def test_without_a_prediction_there_is_no_accuracy() -> None:
    empty = counts([0, 0], [0, 0])
    assert score(empty) is None and difference(empty, counts([1, 1], [1, 0])) is None
    alone = score(counts([5, 0], [3, 0]))
    assert alone is not None and alone.accuracy == 0.6 and math.isnan(alone.error)
    result, _ = with_accuracies(ArmResult("a"), held(["a"], [0]), dict.fromkeys(SPLITS))
    assert result.accuracy is None and result.guessed == {"sanitized": [], "on_device": []}


def test_a_difference_is_paired_by_text() -> None:
    """Of 200 texts, 30 only the one gets right, 12 only the other: the error is that of the 42 on which they differ
    (McNemar 1947), and one more each, by hand."""
    one = counts([1] * 200, [1] * 130 + [1] * 30 + [0] * 12 + [0] * 28)
    other = counts([1] * 200, [1] * 130 + [0] * 30 + [1] * 12 + [0] * 28)
    result = difference(one, other)
    assert result is not None and result.difference == pytest.approx(0.09)
    assert result.error == pytest.approx(math.sqrt((44 / 202 - (18 / 202) ** 2) / 201))
    assert difference(one, one) == Difference(0.0, pytest.approx(math.sqrt(2 / 202 / 201)))


#: Shares of right answers, dense where nearly all are.
SHARES = np.concatenate([np.linspace(0.5, 0.99, 50), 1 - np.geomspace(1e-5, 0.01, 50)])


@pytest.mark.parametrize(("scale", "holds"), [(1, True), (2 / 3, False)])
def test_two_errors_hold_an_accuracy_wherever_it_is(scale: float, holds: bool) -> None:
    """Of 100 texts, exactly, by all 101 outcomes: two errors miss at most 7 %, however near to 1 the truth is. Without
    the four texts they would miss nearly always there."""
    n, right = 100, np.arange(101)
    errors = [s.error for k in right if (s := score(counts([7] * n, [7] * k + [0] * (n - k)))) is not None]
    law = binom.pmf(right, n, SHARES[:, None])
    covered = np.where(np.abs(right / n - SHARES[:, None]) <= 2 * scale * np.array(errors), law, 0).sum(axis=1).min()
    assert (covered > 0.93) == holds


@pytest.mark.parametrize(("scale", "holds"), [(1, True), (2 / 3, False)])
def test_two_errors_hold_a_difference_of_arms_that_hardly_differ(scale: float, holds: bool) -> None:
    """Of 40 texts, by all outcomes: as above, where each arm alone is right about some."""
    n, misses = 40, []
    every = [(a, b) for a in range(n + 1) for b in range(n + 1 - a)]
    ours, theirs = np.array(every).T
    errors = []
    for a, b in every:
        one, other = ([1] * a + [0] * b, [0] * a + [1] * b)
        result = difference(*(counts([1] * n, each + [1] * (n - a - b)) for each in (one, other)))
        errors.append(math.nan if result is None else result.error)
    for p in (1e-4, 0.003, 0.01, 0.03, 0.1, 0.3):
        for q in (0, 1e-4, 0.003, 0.01, 0.03, 0.1, 0.3):
            law = multinomial.pmf(np.stack([ours, theirs, n - ours - theirs], axis=1), n, [p, q, 1 - p - q])
            misses.append(law[np.abs((ours - theirs) / n - (p - q)) > 2 * scale * np.array(errors)].sum())
    assert (max(misses) < 0.07) == holds


@pytest.mark.parametrize("paired", [False, True])
def test_errors_are_as_large_as_estimates_vary(paired: bool) -> None:
    """Over 2,000 studies of two arms on 40 texts of unequal difficulty, each text asked one to five times, some lost,
    the mean square of the stated error is the variance of the estimate. That of a variance from 2,000 draws deviates by
    sqrt(2/1999) = .032 of itself; within 6 of these and 4 % for what is left out to first order, a sound error fails
    with probability below 1e-8 (of a normal estimate), and one of 2/3 or 3/2 does."""
    rng = np.random.default_rng(11)
    hard = rng.beta(1, 1, size=(2000, 40))
    often = rng.integers(1, 6, size=(2, 2000, 40))
    often[rng.random(often.shape) < 0.2] = 0
    right = rng.binomial(often, np.stack([hard, np.minimum(1, 1.1 * hard)]))
    estimates, squares = [], []
    for asked, correct in zip(often.swapaxes(0, 1), right.swapaxes(0, 1), strict=True):
        one, other = (Counts(n, k) for n, k in zip(asked, correct, strict=True))
        gap, alone = difference(one, other), score(one)
        assert gap is not None and alone is not None
        estimates.append(gap.difference if paired else alone.accuracy)
        squares.append((gap.error if paired else alone.error) ** 2)
    ratio = np.mean(squares) / np.var(estimates)
    for scale, holds in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert (abs(scale**2 * ratio - 1) < 6 * 0.032 + 0.04) == holds


def test_answers_are_a_table_that_reads_back(tmp_path: Path) -> None:
    truth = held(["secret a", "secret b", "secret a"], [1, 0, 1], repeats=2)
    _, answers = scored(truth, [1, 1, 0], [100, 101, 105], [1, 0, 0])
    path = tmp_path / "answers" / "a.tsv"
    write_answers(path, truth, answers)
    text = path.read_text()
    assert text == (
        "text\tclass\tsentences\tright on device\tanswers\tright\n0\tgood\t2\t1\t2\t1\n1\tbad\t1\t1\t1\t0\n"
    )
    again = read_answers(path)
    assert all(score(again[split]) == score(answers[split]) for split in SPLITS)
    for broken in ("", text[:-10], text.replace("right", "wrong"), text.replace("\t2", "\ttwo")):
        path.write_text(broken)
        with pytest.raises(UserError, match=r"a\.tsv: does not hold what an arm answered"):
            read_answers(path)


# --- who holds which record

N, CLASSES = 3_000, 3


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    labels, users = rng.integers(CLASSES, size=N), [f"user {i}" for i in rng.integers(200, size=N)]
    return Corpus([f"text {i}" for i in range(N)], labels, tuple("abc"), users=users)


@pytest.mark.parametrize(
    ("assignment", "alpha", "users"), [("record", None, 500), ("column", None, 50), ("dirichlet", 1e-4, 70)]
)
def test_assignments(corpus: Corpus, assignment: str, alpha: float | None, users: int) -> None:
    rows, holders, records = assign(corpus, users=users, assignment=assignment, alpha=alpha, seed=1)
    assert len(set(rows.tolist())) == len(rows) and rows.min() >= 0 and rows.max() < N
    assert np.unique(holders).tolist() == list(range(users))
    names = np.asarray(corpus.users)
    for user in range(users):
        mine = rows[holders == user]
        assert records[holders == user].tolist() == list(range(len(mine)))
        if assignment == "column":  # all rows of one name, and no others
            assert len(set(names[mine])) == 1 and len(mine) == (names == names[mine[0]]).sum()
    again = assign(corpus, users=users, assignment=assignment, alpha=alpha, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip((rows, holders, records), again, strict=True))
    assert not np.array_equal(rows, assign(corpus, users=users, assignment=assignment, alpha=alpha, seed=2)[0])


def test_a_small_alpha_gives_users_of_one_label_and_a_large_one_users_like_the_whole(corpus: Corpus) -> None:
    def largest_share(alpha: float) -> float:
        rows, holders, _ = assign(corpus, users=50, assignment="dirichlet", alpha=alpha, seed=1)
        assert len(rows) == N and np.bincount(holders).tolist() == [60] * 50
        labels = np.zeros((50, CLASSES))
        np.add.at(labels, (holders, corpus.labels[rows]), 1)
        return float(np.mean(labels.max(axis=1) / 60))

    assert largest_share(0.01) > 0.85
    assert largest_share(1_000.0) < 0.5


def test_users_who_drop_out_are_a_share_by_seed() -> None:
    users, p = 200_000, 0.25
    present = online(users, dropout=p, seed=1)
    # 4.9 standard deviations: a false alarm in a million, were the seed not fixed.
    assert abs(present.mean() - (1 - p)) < 4.9 * np.sqrt(p * (1 - p) / users)
    assert np.array_equal(present, online(users, dropout=p, seed=1)) and online(100, dropout=0.0, seed=1).all()

"""Counts: unbiased and of the stated variance by enumeration, of largest likelihood by search, and inside intervals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from mechanisms.accounting.counting import of_local
from mechanisms.mechanism import CountMechanism, share_variance
from mechanisms.randomized_answer import RandomizedAnswer
from mechanisms.streams import SeededUniforms
from mechanisms.subset_selection import SubsetSelection
from server.counts import Confusion, answers_to, change, estimate, of_several

MECHANISMS: list[CountMechanism] = [RandomizedAnswer(1.0, 3), SubsetSelection(1.0, 3, 1), SubsetSelection(2.0, 5, 2)]
MIX = np.array([[90, 10, 0], [5, 80, 15], [0, 20, 80]])


def law(mechanism: CountMechanism) -> np.ndarray:
    every = np.arange(mechanism.outputs)
    return np.exp([mechanism.log_prob(every, np.full(len(every), x)) for x in range(mechanism.classes)])  # type: ignore[attr-defined]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("classes", [(0, 0), (0, 1), (2, 1)])
def test_the_estimate_is_unbiased_and_has_its_variance(mechanism: CountMechanism, classes: tuple[int, int]) -> None:
    """Two users, every pair of outputs. The mean of the squared standard errors is the variance, too."""
    table, k = law(mechanism), mechanism.classes
    mean, square, claimed = np.zeros(k), np.zeros(k), np.zeros(k)
    for drawn in itertools.product(range(mechanism.outputs), repeat=2):
        chance = math.prod(table[c, y] for c, y in zip(classes, drawn, strict=True))
        counts = estimate(mechanism, np.array(drawn))
        mean += chance * counts.unbiased
        square += chance * counts.unbiased**2
        claimed += chance * counts.errors**2
    shares = np.bincount(classes, minlength=k) / 2
    np.testing.assert_allclose(mean, shares, atol=1e-9)
    variance = share_variance(mechanism.hit, mechanism.miss, shares) / 2
    np.testing.assert_allclose(square - mean**2, variance, rtol=1e-6)
    np.testing.assert_allclose(claimed, variance, rtol=1e-6)


def test_with_confusion_true_classes_are_unbiased_and_the_variance_is_the_models_and_the_mechanisms() -> None:
    """Exact confusion: every class that the model may give two users, and every output, by their chances."""
    mechanism, classes = RandomizedAnswer(2.0, 3), (0, 2)
    big = Confusion(MIX * 10**12)  # as if the confusion were known
    table = big.shares @ law(mechanism)
    mean, square, claimed = np.zeros(3), np.zeros(3), np.zeros(3)
    for drawn in itertools.product(range(3), repeat=2):
        chance = math.prod(table[c, y] for c, y in zip(classes, drawn, strict=True))
        counts = estimate(mechanism, np.array(drawn), confusion=big)
        mean += chance * counts.unbiased
        square += chance * counts.unbiased**2
        claimed += chance * counts.errors**2
    np.testing.assert_allclose(mean, [0.5, 0.0, 0.5], atol=1e-9)
    np.testing.assert_allclose(claimed, square - mean**2, rtol=1e-6)


def test_uncertain_confusion_adds_the_variance_that_drawing_it_again_has() -> None:
    """20,000 confusion matrices of 100 texts a class. The delta method is within 10 % of them."""
    rng, shares, found = np.random.default_rng(0), np.array([0.5, 0.2, 0.3]), []
    there = shares @ (MIX / 100)
    for _ in range(20_000):
        drawn = np.stack([rng.multinomial(100, row / 100) for row in MIX])
        found.append(there @ np.linalg.inv(drawn / drawn.sum(axis=1, keepdims=True)))
    claimed, measured = Confusion(MIX).variance(shares), np.var(found, axis=0)
    for factor, fits in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert np.all(np.abs(claimed * factor / measured - 1) < 0.15) == fits


@pytest.mark.parametrize("mechanism", [RandomizedAnswer(1.0, 3), SubsetSelection(0.5, 3, 1)], ids=str)
@pytest.mark.parametrize("mixed", [False, True])
def test_no_shares_on_a_fine_grid_are_likelier(mechanism: CountMechanism, mixed: bool) -> None:
    grid = np.array([(i, j, 200 - i - j) for i in range(201) for j in range(201 - i)]) / 200
    confusion = Confusion(MIX) if mixed else None
    for seed in range(4):
        rng = np.random.default_rng(seed)
        seen = rng.integers(0, mechanism.outputs, 60) if seed else np.zeros(60, np.int64)
        table = law(mechanism) if confusion is None else confusion.shares @ law(mechanism)
        numbers = np.bincount(seen, minlength=mechanism.outputs)
        best = estimate(mechanism, seen, confusion=confusion).shares
        assert best.min() >= 0 and best.sum() == pytest.approx(1.0)
        assert numbers @ np.log(best @ table) >= (np.log(grid @ table) @ numbers).max() - 2e-3


def test_without_rounding_the_likeliest_shares_are_the_unbiased_ones_inside_the_simplex() -> None:
    drawn = RandomizedAnswer(2.0, 4).sample(np.arange(4000) % 4, rng=SeededUniforms(1))
    counts = estimate(RandomizedAnswer(2.0, 4), drawn)
    np.testing.assert_allclose(counts.shares, counts.unbiased, atol=1e-6)


@pytest.mark.parametrize(("epsilon", "mixed"), [(1.0, False), (6.0, False), (6.0, True)])
def test_intervals_hold_together(epsilon: float, mixed: bool) -> None:
    """300 rounds: fewer than 270 hold with probability below 1e-4 if 95 % do. benchmarks.counts has a thousand."""
    mechanism, rounds, users, classes, hold, narrow = of_local(12, epsilon), 300, 4_000, 12, 0, 0
    for seed in range(rounds):
        rng = np.random.default_rng(seed)
        mix = 0.2 * rng.dirichlet(np.full(classes, 0.5), classes) + 0.8 * np.eye(classes)
        true = rng.choice(classes, users, p=rng.dirichlet(np.full(classes, 2.0)))
        found = (mix.cumsum(axis=1)[true] < rng.random(users)[:, None]).sum(axis=1) if mixed else true
        public = np.arange(1_200) % classes
        said = (mix.cumsum(axis=1)[public] < rng.random(1_200)[:, None]).sum(axis=1)
        confusion = Confusion.of(public, said, classes) if mixed else None
        counts = estimate(mechanism, mechanism.sample(found, rng=SeededUniforms(seed)), confusion=confusion)
        shares = np.bincount(true, minlength=classes) / users
        away = np.abs(counts.unbiased - shares)
        width = np.maximum(counts.high - counts.unbiased, counts.unbiased - counts.low)
        hold += bool(((counts.low <= shares) & (shares <= counts.high)).all())
        narrow += bool((away <= width * 2 / 3).all())
    assert hold >= 270 and narrow < 270


def test_a_change_has_the_variance_of_both_counts() -> None:
    """400 rounds of two weeks in which a tenth of a class moves: fewer than 365 hold with probability 1e-4 at 95 %."""
    mechanism, hold, found = RandomizedAnswer(3.0, 4), 0, 0
    before = np.arange(4_000) % 4
    after = np.where((before == 0) & (np.arange(4_000) < 1_600), 1, before)
    true = (np.bincount(after) - np.bincount(before)) / 4_000
    for seed in range(400):
        one, two = (
            estimate(mechanism, mechanism.sample(each, rng=SeededUniforms(2 * seed + at)))
            for at, each in enumerate((before, after))
        )
        moved = change(one, two)
        hold += bool(((moved.low <= true) & (true <= moved.high)).all())
        found += bool(moved.high[0] < 0 < moved.low[1])
    assert hold >= 365 and found > 390
    with pytest.raises(ValueError, match="same classes"):
        change(one, estimate(RandomizedAnswer(3.0, 3), before % 3))


def test_arguments_out_of_range_are_refused_in_one_line() -> None:
    mechanism = RandomizedAnswer(1.0, 3)
    none = np.zeros(0, np.int64)
    for call, said in (
        (lambda: estimate(mechanism, none), "no release"),
        (lambda: estimate(mechanism, np.zeros(3, np.int64), confidence=1.0), "confidence"),
        (lambda: estimate(RandomizedAnswer(0.0, 3), np.zeros(3, np.int64)), "ε = 0"),
        (lambda: estimate(RandomizedAnswer(1.0, 2001), np.zeros(3, np.int64)), "at most 2,000"),
        (lambda: estimate(RandomizedAnswer(1.0, 4), np.zeros(3, np.int64), confusion=Confusion(MIX)), "does not fit"),
        (lambda: Confusion(np.ones((3, 3), np.int64)), "does not tell"),
        (lambda: Confusion(np.diag([1, 0, 1])), "class 1"),
    ):
        with pytest.raises(ValueError, match=said) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["randomized-response", "subset-selection"])
def test_answers_to_two_questions_are_counted_from_one_class(name: str) -> None:
    """Two and three answers, 4,000 users, 300 rounds: the squared error of each share is within 25 % of its variance.

    The mean of 300 squared errors over their variance has a standard error of about .08; the five shares have a false
    alarm with probability about .01 (the seed is fixed). Scales of 2/3 and 3/2 are ratios of .44 and 2.25.
    """
    mechanism = {"randomized-response": RandomizedAnswer, "subset-selection": SubsetSelection}[name](2.0, 6)
    rng = np.random.default_rng(4)
    held = rng.choice(6, 4000, p=[0.3, 0.05, 0.15, 0.1, 0.1, 0.3])
    for of in answers_to((2, 3)):
        share = np.bincount(of[held]) / len(held)
        errors, claimed, inside = np.zeros(len(share)), np.zeros(len(share)), 0
        for seed in range(300):
            found = estimate(mechanism, mechanism.sample(held, rng=SeededUniforms(seed)), of=of)
            errors += (found.unbiased - share) ** 2 / 300
            claimed += found.errors**2 / 300
            inside += bool(((found.low <= share) & (share <= found.high)).all())
            assert found.shares.sum() == pytest.approx(1.0)
        assert errors == pytest.approx(claimed, rel=0.25)
        assert inside >= 273  # of 300 with probability .96 each, fewer have probability 1e-4


@pytest.mark.parametrize(("sizes", "epsilon"), [((2, 2), 1.0), ((2, 2), 4.0), ((3, 4), 4.0), ((12, 12), 2.0)])
def test_the_way_to_ask_several_questions_has_the_smaller_error(sizes: tuple[int, int], epsilon: float) -> None:
    """Both ways, and ε in halves, are simulated with 2,000 users: the chosen way has the least squared error.

    The ways differ by a factor of 1.3 or more, and a mean of 200 errors has a relative standard error of at most .1.
    """
    users, rounds, rng = 2000, 200, np.random.default_rng(9)
    held = np.stack([rng.integers(0, size, users) for size in sizes])
    shares = [np.bincount(row, minlength=size) / users for row, size in zip(held, sizes, strict=True)]
    joint = of_local(sizes[0] * sizes[1], epsilon)
    way = of_several(sizes, lambda classes, every: of_local(classes, epsilon))
    assert way is not None
    errors = dict.fromkeys(("together", "one each", "halves"), 0.0)
    for seed in range(rounds):
        turn = rng.permutation(users) % 2
        batch = joint.sample(held[0] * sizes[1] + held[1], rng=SeededUniforms(seed))
        for place, (size, share) in enumerate(zip(sizes, shares, strict=True)):
            alone, half = of_local(size, epsilon), of_local(size, epsilon / 2)
            drawn = {
                "together": estimate(joint, batch, of=answers_to(sizes)[place]),
                "one each": estimate(alone, alone.sample(held[place][turn == place], rng=SeededUniforms(seed + 10**6))),
                "halves": estimate(half, half.sample(held[place], rng=SeededUniforms(seed + 10**7 * (1 + place)))),
            }
            for name, found in drawn.items():
                errors[name] += float(((found.unbiased - share) ** 2).sum())
    assert min(errors, key=lambda name: errors[name]) == ("together" if way.together else "one each")


def test_users_of_many_texts_have_intervals_that_hold() -> None:
    """2,000 users of two texts each, half of them of two classes, 400 rounds: 95 % intervals hold in 368 or more.

    Fewer have probability 1e-3 at .95 (the seed is fixed). The mean squared error is at most the claimed variance.
    """
    mechanism, rng = SubsetSelection(1.0, 7), np.random.default_rng(2)
    texts = rng.integers(0, 7, (2000, 2))
    texts[:1000, 1] = texts[:1000, 0]
    share = np.bincount(texts.ravel(), minlength=7) / texts.size
    inside, ratio = 0, 0.0
    for seed in range(400):
        chosen = texts[np.arange(2000), rng.integers(0, 2, 2000)]
        found = estimate(mechanism, mechanism.sample(chosen, rng=SeededUniforms(seed)), one_of_many=True)
        inside += bool(((found.low <= share) & (share <= found.high)).all())
        ratio += float(((found.unbiased - share) ** 2).sum() / (found.errors**2).sum()) / 400
    assert inside >= 368 and 0.8 < ratio < 1.05

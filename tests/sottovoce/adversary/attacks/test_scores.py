"""What a row's success says: alarms that sound code does not raise and a leak does, and bounds for who knows more."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from scipy.stats import binom

from mechanisms.spherical import Purkayastha
from mechanisms.vocabulary import NOTHING
from sottovoce.adversary.attacks import scores
from sottovoce.adversary.estimators import allowed

HALF, SIZE = np.array([0.5, 0.5]), 40


def entry(rate: scores.Rate, bound: float | None) -> dict:
    return {"bound": bound} | asdict(rate)


def rows(true: float, bound: float, count: int, seed: int) -> list[dict]:
    """What a run shows whose guesses are right with this probability, 100 texts in each of so many rows."""
    right = np.random.default_rng(seed).random((count, 100)) < true
    return [entry(scores.guesses_right(row.astype(int), np.ones(100, int)), bound) for row in right]


# --- alarms


def test_a_sound_run_does_not_alarm_and_one_standard_error_would():
    """2,000 rows at their bound: 16 % are more than one standard error above it. In 100 runs of 20 rows at a family
    rate of .05 there are five alarms expected, and more than 16 with probability below 1e-5."""
    plain = alarms = 0
    for seed in range(100):
        run = rows(0.7, 0.7, 20, seed)
        plain += sum(e["success"] > e["bound"] + e["error"] for e in run)
        alarms += any(e["alarm"] for e in scores.judged(run, family=0.05))
        assert not any(e["alarm"] for e in scores.judged(run))
    assert plain / 2000 > 0.10
    assert alarms <= 16


def test_a_leak_alarms_among_many_sound_rows():
    run = [*rows(0.7, 0.7, 39, 1), *rows(0.95, 0.7, 1, 2)]
    assert [e["alarm"] for e in scores.judged(run)] == [False] * 39 + [True]
    assert not any(e["alarm"] for e in scores.judged(rows(0.75, 0.7, 40, 3))), "half a standard error of a row"
    nothing = scores.judged([entry(scores.Rate(1.0, 0.0, 50), None), entry(scores.Rate(1.0, 0.0, 50), 1.0)])
    assert not any(e["alarm"] for e in nothing)


def test_nothing_is_certain_where_all_guesses_are_right():
    """A rate of 0 or 1 has an error and an interval, by hand: (α/2)^(1/n)."""
    for right, low, high in ((50, 0.025 ** (1 / 50), 1.0), (0, 0.0, 1 - 0.025 ** (1 / 50))):
        rate = scores.guesses_right((np.arange(50) < right).astype(int), np.ones(50, int))
        assert rate.error > 0.01
        assert scores.interval(rate.success, 50, 1.0) == (pytest.approx(low), pytest.approx(high))
    assert not scores.judged([entry(scores.guesses_right(np.ones(5, int), np.ones(5, int)), 0.9)])[0]["alarm"]
    inside = np.arange(40) < 20
    assert scores.balanced(inside, inside).error > 0.005


def test_tails_are_those_of_the_binomial():
    for n, right, p in ((20, 18, 0.7), (100, 75, 0.7), (7, 7, 0.2)):
        by_hand = sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(right, n + 1))
        assert scores.beyond(right / n, n, 1.0, p) == pytest.approx(by_hand)
        # the general tail is above it, whatever the weights
        assert by_hand <= scores.beyond(right / n, n, 1 - 1e-6, p) <= 1.0
    assert scores.beyond(0.5, 10, 1.0, 0.5) == 1.0 and scores.beyond(0.1, 10, 1.0, 0.0) == 0.0


def test_shares_of_texts_of_one_length_and_halves_that_add_up_are_no_coins():
    """The smallest worlds: two texts of two words, of each of which one word is guessed with probability .98; and two
    texts, each of which looks as near to both with probability .98, and is else not matched. The mean is .49. A half is
    right of all with .98²; a binomial of two texts would have it with less, 1 - .51²."""
    truth, where = np.zeros((2, 2), int), np.ones((2, 2), bool)
    for found in (scores.rate(np.array([[0, 1], [1, 0]]), truth, where), scores.matched(np.ones((2, 2)))):
        assert found.success == 0.5 and 1 - 0.51**2 < 0.98**2
        assert scores.beyond(found.success, found.observations, found.weight, 0.49) >= 0.98**2
    for coins in (scores.rate(truth[:, :1], truth[:, :1], where[:, :1]), scores.matched(np.eye(2))):
        assert scores.beyond(coins.success, coins.observations, coins.weight, 0.49) == pytest.approx(0.49**2)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Of 400 intervals each, exact ones miss at most 5 %: more than 40 misses have probability below 2e-5. Weighted:
    tokens of texts of 1 to 8, each text's all right or all wrong."""
    rng, missed = np.random.default_rng(4), {"alike": 0, "weighted": 0, "balanced": 0}
    for _ in range(400):
        right, places = rng.random(60) < 0.8, rng.integers(1, 9, size=60)
        where = np.arange(8)[None] < places[:, None]
        truth = np.zeros((60, 8), int)
        shown = {
            "alike": scores.guesses_right(right.astype(int), np.ones(60, int)),
            "weighted": scores.rate(np.where(right[:, None], truth, 1), truth, where),
            "balanced": scores.balanced(np.where(np.arange(60) < 20, right, ~right), np.arange(60) < 20),
        }
        for name, rate in shown.items():
            low, high = scores.interval(rate.success, rate.observations, rate.weight)
            assert 0 <= low < rate.success < high <= 1 or rate.success in (0, 1)
            missed[name] += not low <= 0.8 <= high
    assert all(count <= 40 for count in missed.values()), missed
    assert binom.sf(40, 400, 0.05) < 2e-5


# --- who knows the counts


def exchanged(epsilon: float) -> tuple[float, float]:
    """Two releases, of antipodes on a circle, one each: the success of exact Bayes on one release, and on both."""
    angles = (np.arange(2000) + 0.5) / 2000 * np.pi
    p = np.exp(-epsilon * angles)
    p /= p.sum()
    one, both = np.abs(p - p[::-1]).sum(), np.abs(np.outer(p, p[::-1]) - np.outer(p[::-1], p)).sum()
    return (1 + one / 2) / 2, (1 + both / 2) / 2


def test_who_knows_the_counts_gets_more_and_no_more_than_is_allowed():
    """The smallest world: two texts, one of each value. What is allowed for one release is exceeded, by exact Bayes;
    what is allowed who knows the counts is attained."""
    mechanism = Purkayastha(epsilon=1.0, dim=2)
    alone, together = exchanged(1.0)
    one, counts = (allowed.guess(allowed.curve(mechanism, n), HALF) for n in (1, 2))
    assert alone == pytest.approx(one, abs=1e-6) and together > one + 0.04
    assert together - 1e-6 <= counts <= together + 0.01


def test_found_at_counts_false_alarms():
    evidence = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    members = np.array([True, False, True, True, False, False])
    assert scores.found_at(evidence, members, 0.0) == pytest.approx(1 / 3)
    assert scores.found_at(evidence, members, 0.34) == 1.0
    assert scores.found_at(np.zeros(6), members, 0.01) == 0.0  # equal evidence finds nobody


def test_one_text_is_one_observation():
    truth = np.array([[1, 2, SIZE], [3, NOTHING, NOTHING], [4, 4, 4]])
    sent = np.array([[1, 0, 5], [3, 7, NOTHING], [4, NOTHING, 0]])
    where = scores.scored(sent, truth, SIZE)
    assert where.tolist() == [[True, True, False], [True, False, False], [True, False, True]]
    found = scores.rate(sent, truth, where)
    assert found.success == pytest.approx(3 / 5)
    assert found.error == pytest.approx(math.sqrt((1 - 6 / 5) ** 2 + (1 - 3 / 5) ** 2 + (1 - 6 / 5) ** 2) / 5)
    assert scores.frequencies(truth, where, SIZE)[[1, 2, 3, 4]].tolist() == [0.2, 0.2, 0.2, 0.4]


def test_the_best_of_many_is_chosen_on_other_texts_than_it_is_measured_on():
    """Forty guesses by chance, right in half of 400 words: the largest success of each forty is above 1/2 by more
    than 5 standard errors (of the mean of 50 runs), and where they are chosen on the other half it is not."""
    rng, truth, where = np.random.default_rng(0), np.zeros((200, 2), dtype=int), np.ones((200, 2), dtype=bool)
    chance = [{str(i): rng.integers(2, size=(200, 2)) for i in range(40)} for _ in range(50)]
    largest = [max((item == truth).mean() for item in guesses.values()) for guesses in chance]
    fair = [(scores.chosen_by_the_other_half(guesses, truth, where)[0] == truth).mean() for guesses in chance]
    error = 0.025 / np.sqrt(50)
    assert np.mean(largest) > 0.5 + 5 * error and abs(np.mean(fair) - 0.5) < 5 * error
    better = chance[0] | {"good": np.where(rng.random((200, 2)) < 0.8, 0, 1)}
    guesses, chosen = scores.chosen_by_the_other_half(better, truth, where)
    assert chosen == ("good", "good") and (guesses == better["good"]).all()

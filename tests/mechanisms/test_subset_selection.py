"""Subset selection by enumeration: laws, losses, blankets and draws; and its release as an answer."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from client.policy import Policy
from mechanisms import categorical
from mechanisms.accounting.shuffle import amplify
from mechanisms.catalogue import build
from mechanisms.losses.categorical import pair_loss
from mechanisms.mechanism import share_variance
from mechanisms.messages.questions import AnswerQuestion
from mechanisms.messages.wire import record_from_bytes, record_to_bytes, reply_from_record, reply_to_record
from mechanisms.randomized_answer import RandomizedAnswer
from mechanisms.streams import Points, SeededUniforms
from mechanisms.subset_selection import SubsetSelection, prime
from server.validation import validate
from tests.support.answers import ask
from tests.support.clients import DIM, make_node, request

ALARM = 1e-6
SMALL = [(1.0, 2, 1), (0.5, 5, 2), (2.0, 6, 1), (2.0, 6, 3), (4.0, 11, 4)]


def table(mechanism: SubsetSelection) -> np.ndarray:
    """P(y | x), (K, outputs)."""
    every = np.arange(mechanism.outputs)
    return np.exp([mechanism.log_prob(every, np.full(len(every), x)) for x in range(mechanism.classes)])


def held(mechanism: SubsetSelection) -> np.ndarray:
    """Whether the set of y holds x, from the definition, (K, outputs)."""
    v = mechanism.points
    named = itertools.product(range(1, v), range(v))
    return np.array([[(a * x + b) % v < mechanism.subset for x in range(mechanism.classes)] for a, b in named]).T


@pytest.mark.parametrize(("epsilon", "classes", "size"), SMALL)
def test_laws_rates_and_sums_by_enumeration(epsilon: float, classes: int, size: int) -> None:
    mechanism = SubsetSelection(epsilon, classes, size)
    law, holds, rng = table(mechanism), held(mechanism), np.random.default_rng(0)
    np.testing.assert_allclose(law.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.log(law).max(axis=1) - np.log(law).min(axis=1), epsilon)
    np.testing.assert_array_equal(law == law.max(axis=1, keepdims=True), holds)
    rates = np.where(np.eye(classes, dtype=bool), mechanism.hit, mechanism.miss)
    np.testing.assert_allclose(law @ holds.T, rates, rtol=1e-12)
    shares, weights = rng.random(classes), rng.random(mechanism.outputs)
    np.testing.assert_allclose(mechanism.inside(shares), shares @ holds)
    np.testing.assert_allclose(mechanism.support(weights), holds @ weights)


@pytest.mark.parametrize(("epsilon", "classes", "size"), SMALL)
def test_loss_and_blanket_of_every_pair_are_the_stated_ones(epsilon: float, classes: int, size: int) -> None:
    mechanism = SubsetSelection(epsilon, classes, size)
    law, cells = table(mechanism), mechanism.blanket()
    least = law.min(axis=0)
    assert math.log(least.sum()) == pytest.approx(cells.log_gamma, abs=1e-12)
    for x, other in itertools.permutations(range(classes), 2):
        pair = pair_loss(np.log(law[x]), np.log(law[other]))
        for at in (0.0, epsilon / 3, 0.99 * epsilon):
            assert mechanism.privacy_loss().delta(at) == pytest.approx(pair.delta(at), abs=1e-12)
        u, v = law[x] / least * least.sum(), law[other] / least * least.sum()
        for a, b, mass in zip(np.exp(cells.log_u_low), np.exp(cells.log_v_low), np.exp(cells.log_w), strict=True):
            there = np.isclose(u, a, rtol=1e-9) & np.isclose(v, b, rtol=1e-9)
            assert there.mean() == pytest.approx(mass, abs=1e-12)
    assert mechanism.privacy_loss().epsilon(0.0) == pytest.approx(epsilon) and not mechanism.privacy_loss(0).delta(0.0)


def test_two_shuffled_users_cost_what_enumeration_says() -> None:
    """The exact divergence of two users' histograms is below the bound: one user is always x, the target varies."""
    mechanism = SubsetSelection(1.0, 3, 1)
    law = table(mechanism)

    def batch(*classes: int) -> dict[tuple[int, ...], float]:
        chances: dict[tuple[int, ...], float] = {}
        for drawn in itertools.product(range(mechanism.outputs), repeat=len(classes)):
            key = tuple(sorted(drawn))
            chances[key] = chances.get(key, 0.0) + math.prod(law[c, y] for c, y in zip(classes, drawn, strict=True))
        return chances

    delta = 0.05
    found = amplify([mechanism], users=3, delta=delta).epsilon
    for x, other, rest in itertools.product(range(3), repeat=3):
        one, two = batch(x, rest, rest), batch(other, rest, rest)
        assert sum(max(0.0, one[y] - math.exp(found) * two[y]) for y in one) <= delta + 1e-12


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_draws_fit_their_law(epsilon: float) -> None:
    n, mechanism = 60_000, SubsetSelection(epsilon, 6, 2)
    drawn = np.bincount(mechanism.sample(np.full(n, 4), rng=SeededUniforms(3)), minlength=mechanism.outputs)
    for factor, fits in ((1, True), (2 / 3, False), (3 / 2, False)):
        law = table(SubsetSelection(epsilon * factor, 6, 2))[4]
        assert (stats.chisquare(drawn, law * n).pvalue > ALARM) == fits


class Cells:
    """Uniforms that are refined to one place in their cells."""

    def __init__(self, share: float) -> None:
        self._share = share

    def further(self, rows: np.ndarray, k: int) -> np.ndarray:
        return np.full((len(rows), k), self._share)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 5.0, 40.0, 1000.0])
def test_two_levels_are_the_sampler_of_a_table_of_weights(epsilon: float) -> None:
    """Also at the ends of intervals, where decimals decide."""
    likely, others = 3, 4
    weights = np.append(np.zeros(likely), np.full(others, -epsilon))
    total = float(np.exp(weights).sum())
    ends = np.cumsum(np.exp(weights))[:-1] / total
    near = np.concatenate([np.linspace(2**-53, 1 - 2**-53, 999), ends, np.nextafter(ends, 0), np.nextafter(ends, 1)])
    u = np.clip((np.floor(near * 2**52) + 0.5) * 2.0**-52, 2.0**-53, 1 - 2.0**-53)
    for share in (2**-53, 0.5, 1 - 2**-53):

        def drawn() -> Points:
            class Source(Cells):
                def uniform(self, rows: int, k: int) -> np.ndarray:
                    return u[:, None]

            return Points.drawn(Source(share), (len(u),), 1)  # noqa: B023

        table_of = np.broadcast_to(weights, (len(u), len(weights)))
        expected = categorical.sample(np.ascontiguousarray(table_of), drawn())
        np.testing.assert_array_equal(categorical.two_levels(likely, others, epsilon, drawn()), expected)


def test_the_size_of_least_variance_is_chosen_and_sizes_are_bounded() -> None:
    for epsilon, classes in ((0.5, 12), (1.0, 77), (3.0, 77), (1.0, 1000)):
        best = SubsetSelection(epsilon, classes)
        spread = [
            share_variance(each.hit, each.miss, 1 / classes)
            for size in range(1, prime(classes) // 2 + 1)
            for each in [SubsetSelection(epsilon, classes, size)]
        ]
        assert np.argmin(spread) + 1 == best.subset
    assert [prime(n) for n in (2, 4, 12, 77, 1000)] == [2, 5, 13, 79, 1009]
    for size in (-1, 7, 1.0, True):
        with pytest.raises(ValueError, match="subset-selection: subset"):
            SubsetSelection(1.0, 12, size)  # type: ignore[arg-type]
    built = build({"mechanism": "subset-selection", "epsilon": 1.0}, channel="answer", classes=12)
    assert built == SubsetSelection(1.0, 12, SubsetSelection(1.0, 12).subset)


def test_one_class_of_a_set_is_randomized_response() -> None:
    one, other = SubsetSelection(1.5, 7, 1), RandomizedAnswer(1.5, 7)
    assert (one.hit, one.miss) == (pytest.approx(other.hit), pytest.approx(other.miss))
    assert one.privacy_loss().delta(0.7) == pytest.approx(other.privacy_loss().delta(0.7))


# --- as an answer


def asked(classes: int) -> Any:
    rng = np.random.default_rng(9)
    head = (rng.normal(size=(DIM, classes)).astype(np.float32), np.zeros(classes, np.float32))
    return request(
        embedding=None, label=None, head=head, answer={"mechanism": "subset-selection", "epsilon": 2.0}, minimum_users=0
    )


@pytest.mark.parametrize(("classes", "dtype"), [(12, np.int16), (200, np.int32)])
def test_it_is_released_validated_and_repeated_as_an_answer(tmp_path: Path, classes: int, dtype: Any) -> None:
    folder, question = make_node(tmp_path / "node", policy=Policy(answer=2.0, total=2.0)), asked(classes)
    reply = ask(folder, question)
    assert ask(folder, question).releases[0].values.tolist() == reply.releases[0].values.tolist()
    sent = reply_from_record(record_from_bytes(record_to_bytes(reply_to_record(reply))))
    valid, dropped = validate(sent, question, enrolled=range(8))
    assert len(valid) == 8 and not dropped and valid.releases[0].values.dtype == dtype
    values = sent.releases[0].values.copy()
    values[0] = question.question(AnswerQuestion).outputs
    forged = replace(sent, releases=(replace(sent.releases[0], payload={"c": values}),))
    assert len(validate(forged, question, enrolled=range(8))[0]) == 7


def test_labels_are_not_released_as_sets() -> None:
    with pytest.raises(ValueError, match="sanitizes the answer, not the label"):
        build({"mechanism": "subset-selection", "epsilon": 1.0}, channel="label", classes=12)

"""δ with the samplers in it: on laws that are enumerated, and in what is printed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from mechanisms import PlanarLaplace, Purkayastha, RandomizedResponse
from mechanisms.accounting.ladder import ladder
from mechanisms.accounting.planner import Target, fits
from mechanisms.accounting.shuffle import amplify
from mechanisms.accounting.with_sampler_error import price, with_sampler_error
from mechanisms.guarantee import Guarantee

EPSILONS = (0.0, 0.5, 2.0, 8.0)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def test_samplers_add_what_the_theorem_says_and_can_add_that_much() -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        p, q, a, b = rng.dirichlet(np.full(6, 0.4), size=4)
        t = 0.05
        near_p, near_q = p + t * (a - p), q + t * (b - q)
        lost = max(np.abs(p - near_p).sum(), np.abs(q - near_q).sum()) / 2
        for epsilon in EPSILONS:
            assert hockey_stick(near_p, near_q, epsilon) <= hockey_stick(p, q, epsilon) + price(epsilon, lost) + 1e-12
    # an output that x has more often than its mechanism, and x' never: both sides of the sum are paid
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.5, 0.0])
    near_p, near_q = np.array([0.6, 0.4, 0.0]), np.array([0.4, 0.5, 0.1])
    assert hockey_stick(near_p, near_q, 0.1) == pytest.approx(price(0.1, 0.1) - 0.5 * math.expm1(0.1))


def test_what_is_set_aside_suffices() -> None:
    def bound(delta: float) -> float:
        asked.append(delta)
        return math.log(1e-3 / delta)

    for lost in (0.0, 1e-19, 1e-12, 1e-10, 1e-8, 2e-7, 1e-3):
        asked: list[float] = []
        epsilon = with_sampler_error(bound, 1e-6, lost)
        if epsilon is not None:
            assert asked[-1] + price(epsilon, lost) * (lost > 0) <= 1e-6 * (1 + 1e-15)
            assert len(asked) <= 4
    assert with_sampler_error(bound, 1e-6, 0.0) == bound(1e-6)
    assert with_sampler_error(bound, 1e-6, 2e-7) is None  # e^ε of them is more than δ
    assert with_sampler_error(lambda delta: None, 1e-6, 1e-12) is None


@dataclass(frozen=True)
class Poor(RandomizedResponse):
    """Randomized response whose sampler is off by so much."""

    lost: float = 0.0

    @property
    def guarantee(self) -> Guarantee:
        return replace(super().guarantee, numeric_delta=self.lost)


def printed(mechanism: Any) -> float | None:
    return {r.name: r for r in ladder(None, mechanism, users=1000, delta=1e-6)}["shuffled"].epsilon


def test_a_poor_sampler_is_counted_wherever_shuffling_is() -> None:
    """The samplers of a thousand users: as before where they are nothing, more where they are much, else no figure."""
    good = printed(Poor(1.0, 2, lost=1e-17))
    assert good == pytest.approx(printed(RandomizedResponse(1.0, 2)), rel=1e-6)
    worse = printed(Poor(1.0, 2, lost=1.5e-10))
    assert good is not None and worse is not None and worse > good * 1.001
    assert printed(Poor(1.0, 2, lost=1e-9)) is None
    found = amplify([Poor(1.0, 2, lost=1e-9)], users=1000, delta=1e-6)
    assert set(found.bounds.values()) == {None} and found.sampler_delta == pytest.approx(1e-6)
    target = Target(good * 1.0005, 1e-6, 1000)
    assert fits([Poor(1.0, 2, lost=1e-17)], target) and not fits([Poor(1.0, 2, lost=1e-9)], target)


def test_the_samplers_of_a_whole_study_are_in_its_delta() -> None:
    """They were a hundred times the printed δ."""
    found = amplify([Purkayastha(16, 2.0)], users=67_349, delta=1e-6)
    assert found.epsilon == pytest.approx(0.0543, rel=2e-3) and price(found.epsilon, found.sampler_delta) < 1e-12
    rung = ladder(Purkayastha(16, 2.0), RandomizedResponse(1.0, 2), users=10**6, delta=1e-8)[-1]
    assert rung.epsilon is not None and "δ holds all users' samplers" in rung.assumption


def test_a_hundred_million_users_are_hidden_at_a_small_delta() -> None:
    """Their tails, which the table of angles cut off, were as much as δ."""
    found = amplify([Purkayastha(16, 2.0)], users=10**8, delta=1e-10)
    assert found.reason == "" and 0.002 < found.epsilon < 0.0024 and found.sampler_delta < 1e-14
    raw = amplify([PlanarLaplace(16, 2.0, normalize=False)], users=10**8, delta=1e-10)
    assert raw.epsilon == raw.local_epsilon and raw.reason.startswith("the samplers of all users may be 1.0e+00")

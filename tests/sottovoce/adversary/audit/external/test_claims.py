"""Claims and spaces as they are stated, draws as they are read, and scores that are written down."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from simulations.errors import UserError
from sottovoce.adversary.audit.external.claim import Claim, approximate_loss
from sottovoce.adversary.audit.external.outputs import Reader
from sottovoce.adversary.audit.external.search import Pairs, space
from sottovoce.adversary.estimators import classifiers
from sottovoce.adversary.estimators.audit import learned


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (0.5, 0.01), (3.0, 1e-5), (0.0, 0.2)])
def test_the_loss_of_a_claim_is_that_of_the_theorem(epsilon: float, delta: float) -> None:
    """δ + (1 − δ)·(e^ε − e^t)/(1 + e^ε) at t <= ε, and δ beyond (Kairouz, Oh and Viswanath 2015)."""
    loss = approximate_loss(epsilon, delta)
    for t in (0.0, epsilon / 3, epsilon, epsilon + 1):
        beyond = max(0.0, math.exp(epsilon) - math.exp(t)) / (1 + math.exp(epsilon))
        assert loss.delta(t) == pytest.approx(delta + (1 - delta) * beyond, abs=1e-12)


def test_what_is_claimed_of_a_pair_follows_from_its_distance() -> None:
    words = Claim(epsilon=2.0, metric="euclidean", inputs=["a", "b"], places=[[0, 0], [3, 4]], releases="category")
    assert words.of_pair("a", "b", 1e-3).pure == pytest.approx(10)
    gaussian = Claim(mu=1.0, inputs={"low": 0, "high": 1}).of_pair(0.0, 1.0, 1e-3)
    assert math.isinf(gaussian.pure) and gaussian.at_delta == pytest.approx(3.14, abs=0.01)
    assert Claim(epsilon=1.0, delta=0.1, inputs=[1, 2]).of_pair(1, 2, 0.1).at_delta == pytest.approx(1.0)


GOOD: dict[str, Any] = {"epsilon": 1.0, "inputs": [0, 1]}
BAD = {
    "epsilon or mu": {"inputs": [0, 1]},
    "epsilon must be": GOOD | {"epsilon": "one"},
    "delta must be below 1": GOOD | {"delta": 1.0},
    "metric must": GOOD | {"metric": "cosine"},
    "neighbours must": GOOD | {"neighbours": "near"},
    "releases must": GOOD | {"releases": "image"},
    "states inputs or pairs": {"epsilon": 1.0},
    "inputs or pairs, one": GOOD | {"pairs": [[0, 1]]},
    "name must": GOOD | {"name": 3},
    "pairs must be a list": {"epsilon": 1.0, "pairs": "some"},
    "places are": GOOD | {"places": [[0.0], [1.0]]},
    "out of an audit's reach": {"mu": 100, "inputs": [0, 1]},
}


@pytest.mark.parametrize(("said", "manifest"), BAD.items())
def test_a_claim_that_says_too_little_or_too_much_is_one_line(said: str, manifest: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=said) as caught:
        Claim.of(manifest)
    assert "\n" not in str(caught.value)


def test_a_claim_is_what_it_states() -> None:
    claim = Claim.of(GOOD | {"metric": "euclidean", "version": "1.2"})
    assert Claim.of(json.loads(json.dumps(claim.stated()))) == claim


# --- spaces


@pytest.mark.parametrize(
    ("stated", "neighbours"),
    [
        (["a", "b", "c"], "any"),
        ({"low": 0, "high": 3}, "any"),
        ({"low": -1, "high": 3, "size": 4}, "any"),
        ({"radius": 2.0, "size": 3}, "any"),
        ({"records": {"radius": 1.0, "size": 2}, "count": 3}, "replace"),
        ({"records": {"low": 0, "high": 9, "whole": True}, "count": 5}, "add-remove"),
        ({"records": {"records": ["a", "b"], "count": 2}, "count": 3}, "replace"),
    ],
)
def test_pairs_are_neighbours_in_their_space_and_stay_so(stated: Any, neighbours: str) -> None:
    rng = np.random.default_rng(3)
    pairs = Pairs(space(stated), neighbours)
    for _ in range(60):
        pair = pairs.proposed(rng)
        for _ in range(3):
            pair = pairs.moved(pair, rng)
            _holds(stated, neighbours, *pair)


def _holds(stated: Any, neighbours: str, x: Any, other: Any) -> None:
    if neighbours == "add-remove":
        assert len(x) == stated["count"] and any([*x[:i], *x[i + 1 :]] == other for i in range(len(x)))
        x = other = x[0]
        stated = stated["records"]
    elif neighbours == "replace":
        assert len(x) == len(other) == stated["count"] and sum(a != b for a, b in zip(x, other, strict=True)) <= 1
    json.dumps([x, other], allow_nan=False)
    for value in (x, other):
        if isinstance(stated, list):
            assert value in stated
        elif "radius" in stated:
            assert np.linalg.norm(value) <= stated["radius"] and len(value) == stated["size"]
        elif "low" in stated:
            assert np.all(np.array(value) >= stated["low"]) and np.all(np.array(value) <= stated["high"])


@pytest.mark.parametrize(
    "stated",
    [
        3,
        ["a"],
        {},
        {"low": 2, "high": 1},
        {"low": 0, "high": "many"},
        {"radius": 1.0},
        {"radius": 1.0, "size": 0},
        {"records": [1, 2]},
        {"low": 0, "high": 1, "sise": 3},
    ],
)
def test_what_is_no_space_is_one_line(stated: Any) -> None:
    with pytest.raises(UserError, match="claim: inputs"):
        space(stated)


def test_records_differ_only_where_there_are_some() -> None:
    with pytest.raises(UserError, match="inputs must be records and count"):
        Pairs(space([1, 2]), "replace")


# --- draws


def read(kind: str, draws: list[Any]) -> Any:
    return Reader(Claim.of(GOOD | {"releases": kind})).rows(draws)


def test_the_same_draw_has_the_same_name_and_nothing_released_is_a_draw() -> None:
    for kind, one, other in (
        ("number", 1.5, 2),
        ("vector", [1.0, 2.0], [1.0, 2.5]),
        ("category", "a", 1),
        ("sequence", ["a"], ["a", 2]),
        ("text", "a fine film", "a film fine"),
    ):
        rows = read(kind, [one, other, None, one])
        assert len({rows[i, 0] for i in range(3)}) == 3 and rows[0, 0] == rows[3, 0]
        assert rows[:, 1].tolist() == [0, 0, 1, 0]
        assert (rows[0] == rows[3]).all() and np.isfinite(rows).all()
        assert ((rows >= 0) & (rows < 2.0**52))[:, 0].all() and (rows[:, 0] == rows[:, 0].astype(np.int64)).all()


def test_on_how_fine_a_grid_a_number_lies_is_seen() -> None:
    rows = read("number", [1.0, 0.75, 2.0**-40, 1 + 2.0**-52, 0.0, -6.0])
    assert rows[:, -1].tolist() == [0, -2, -40, -52, -1074, 1]


def test_a_sequence_shows_what_it_holds_and_in_which_place() -> None:
    rows = read("sequence", [["a", "b"], ["b", "a"], ["a", "b", "b"]])
    assert (rows[0, 2:20] == rows[1, 2:20]).all() and (rows[0, 20:] != rows[1, 20:]).any() and rows[2, 2] == 3


@pytest.mark.parametrize(
    ("kind", "draw"),
    [
        ("number", "1"),
        ("number", [1.0]),
        ("number", math.nan),
        ("number", math.inf),
        ("number", True),
        ("vector", [1.0]),
        ("vector", 1.0),
        ("vector", [1.0, "2"]),
        ("category", 1.5),
        ("category", ["a"]),
        ("sequence", "abc"),
        ("text", ["abc"]),
        ("sequence", [{1, 2}]),
    ],
)
def test_a_draw_that_is_not_of_its_kind_is_one_line(kind: str, draw: Any) -> None:
    good = {"number": 1.0, "vector": [1.0, 2.0], "category": "a", "sequence": ["a"], "text": "a b"}[kind]
    with pytest.raises(UserError):
        read(kind, [good, draw])


# --- scores


def told(fit: Any, first: Any, second: Any) -> float:
    """Of how many new rows of either kind a score says which they are of."""
    half = len(first) // 2
    score = fit(first[:half], second[:half])
    middle = np.median(np.concatenate([score(first[:half]), score(second[:half])]))
    return float(((score(first[half:]) > middle).mean() + (score(second[half:]) < middle).mean()) / 2)


def test_each_score_finds_what_it_is_there_for() -> None:
    rng = np.random.default_rng(2)
    n = 2000
    near, far = rng.normal(0, 1, (n, 2)), rng.normal(0, 1, (n, 2))
    signs = np.sign(rng.normal(size=(n, 2)))
    equal, unequal = signs * [[1, 1]], signs.copy()
    equal[:, 1], unequal[:, 1] = equal[:, 0], -unequal[:, 0]
    ring = near / np.linalg.norm(near, axis=1, keepdims=True) * 3
    tree, linear = classifiers.trees, learned
    equal, unequal = equal + near / 9, unequal + far / 9
    assert told(tree, equal, unequal) > 0.9 > 0.6 > told(linear, equal, unequal)
    assert told(tree, ring + near / 9, far / 2) > 0.9 > 0.6 > told(linear, ring + near / 9, far / 2)
    assert told(linear, near + 3, far) > 0.9
    words = rng.integers(0, 3, (n, 1)), rng.integers(2, 6, (n, 1))
    assert told(classifiers.frequencies, *words) > 0.7


@pytest.mark.parametrize("fit", [classifiers.trees, classifiers.frequencies])
def test_a_score_of_draws_that_are_all_the_same_says_nothing(fit: Any) -> None:
    same = np.zeros((200, 2))
    assert np.ptp(fit(same, same)(same)) == 0

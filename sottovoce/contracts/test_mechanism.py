"""Contracts of mechanisms: each is a test of one mechanism.

A mechanism can be rebuilt from its parameters, states its promise, draws each row by itself from a given source, and
refuses inputs outside its domain. Every contract is for every mechanism, except those of `ONLY`. Likelihood ratios are
compared with the guarantee at 10,000 random triples, so a contract that holds never fails.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import pickle
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mechanisms.catalogue import OWN_KINDS, admit, find
from mechanisms.channels import CHANNELS
from mechanisms.guarantee import Guarantee
from mechanisms.identity import Identity
from mechanisms.mechanism import parameters
from mechanisms.metrics import DISTANCES
from mechanisms.quantizer import SPHERE
from mechanisms.streams import SecureStreams, SeededUniforms
from mechanisms.vocabulary import NOTHING
from mechanisms.words.distances import metric_distances
from mechanisms.words.tables import Verbatim
from sottovoce.contracts.cases import (
    TOKENS,
    Recorder,
    constant,
    extras,
    inputs,
    instances,
    of_words,
    part_of,
    rebuilt,
    streams,
    unit,
    width,
)


def has_density(mechanism: Any) -> bool:
    """Return True if a mechanism other than a text mechanism states the density of its releases."""
    density = hasattr(mechanism, "log_prob") and getattr(mechanism, "normalize", False) is False
    return bool(density and not of_words(mechanism))


def words_alone(mechanism: Any) -> bool:
    """Return True for a text mechanism that reads nothing but the word, and states its probabilities."""
    return bool(of_words(mechanism) and not mechanism.reads and hasattr(mechanism, "log_probs"))


#: Contracts of some mechanisms only.
ONLY: dict[str, Callable[[Any], bool]] = {
    "test_the_log_likelihood_ratio_never_exceeds_the_guarantee": has_density,
    "test_all_pairs_of_words_keep_the_guarantee": words_alone,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Use the mechanisms that --sottovoce names."""
    if "mechanism" not in metafunc.fixturenames:
        return
    names = (name for name in metafunc.config.getoption("sottovoce") or ())
    applies = ONLY.get(metafunc.function.__name__, lambda mechanism: True)
    cases = [pytest.param(m, id=case_id) for name in names for case_id, m in instances(admit(name)) if applies(m)]
    metafunc.parametrize("mechanism", cases)


def test_is_a_frozen_value_that_its_parameters_rebuild(mechanism: Any) -> None:
    """Check that its parameters rebuild an equal, immutable mechanism."""
    spec = json.loads(json.dumps(parameters(mechanism)))
    assert spec["mechanism"] == mechanism.name
    assert OWN_KINDS.get((mechanism.name, mechanism.channel), find(mechanism.name)) is type(mechanism)
    copy = rebuilt(mechanism, spec)
    assert copy == mechanism and hash(copy) == hash(mechanism) and pickle.loads(pickle.dumps(mechanism)) == copy
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(mechanism, dataclasses.fields(mechanism)[0].name, 1)


def test_the_guarantee_is_a_sound_value(mechanism: Any) -> None:
    """Check that the guarantee survives JSON, and that its values are plausible."""
    guarantee = mechanism.guarantee
    assert Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict(), allow_nan=False))) == guarantee
    assert guarantee.protects in CHANNELS[mechanism.channel].protects
    assert guarantee.worst_case(1e-6) >= guarantee.loss(0.0) == 0.0
    assert guarantee.numeric_epsilon < 1e-6
    assert guarantee.numeric_delta < (1e-6 if mechanism.grid in (SPHERE, None) else 1e-2)


def test_draws_are_valid_and_fit_the_grid(mechanism: Any) -> None:
    """Check the type, shape and range of draws, and that they fit the quantizer."""
    x = inputs(mechanism, 300)
    copy = x.copy()
    y = mechanism.sample(x, rng=streams(300), **extras(mechanism, 300))
    np.testing.assert_array_equal(x, copy)
    if of_words(mechanism):  # dp-mlm-resized may return longer texts than its inputs
        assert len(y) == len(x) and y.dtype == np.int64
        assert y.min() >= NOTHING and y.max() < len(mechanism.vocabulary)
        return
    assert y.shape == x.shape and np.isfinite(y).all()
    if mechanism.grid is None:
        assert y.dtype == np.int64 and y.min() >= 0 and y.max() < getattr(mechanism, "outputs", width(mechanism))
        return
    assert y.dtype == np.float64
    points = mechanism.grid.decode(mechanism.grid.encode(y))
    mask = np.abs(y) <= mechanism.grid.limit * mechanism.grid.step
    assert np.all(np.abs(points - y)[mask] <= mechanism.grid.step / 2 * (1 + 1e-9))
    if mechanism.grid is SPHERE:
        np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1.0, atol=1e-12)


def test_two_groupings_of_rows_give_identical_draws(mechanism: Any) -> None:
    """Check that draws do not depend on the grouping of rows."""
    n = 60
    x, options = inputs(mechanism, n), extras(mechanism, n)
    draws = mechanism.sample(x, rng=streams(n), **options)
    for size in (1, 7):
        parts = [
            mechanism.sample(
                x[i : i + size], rng=streams(len(x[i : i + size]), offset=i), **part_of(options, slice(i, i + size))
            )
            for i in range(0, n, size)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), draws)
    np.testing.assert_array_equal(mechanism.sample(np.asfortranarray(x), rng=streams(n), **options), draws)


def test_every_row_uses_the_same_number_of_uniforms_whatever_its_value(mechanism: Any) -> None:
    """Check that the number of uniforms does not depend on the inputs."""
    requests = []
    for seed in (0, 1):
        recorder = Recorder(streams(20))
        mechanism.sample(inputs(mechanism, 20, seed), rng=recorder, **extras(mechanism, 20, seed))
        requests.append(recorder.requests)
    assert requests[0] == requests[1] and all(rows == 20 for rows, _ in requests[0])


def test_a_row_depends_on_no_other(mechanism: Any) -> None:
    """Check that a row's draw does not depend on other rows."""
    x, other, options = inputs(mechanism, 30), inputs(mechanism, 30, 5), extras(mechanism, 30)
    other[11] = x[11]
    a, b = (mechanism.sample(v, rng=streams(30), **options) for v in (x, other))
    np.testing.assert_array_equal(a[11], b[11])


def test_the_generator_is_required_and_global_ones_stay_untouched(mechanism: Any) -> None:
    """Check that the source of randomness is a required keyword, and that global generators stay unchanged."""
    x, options = inputs(mechanism, 10), extras(mechanism, 10)
    with pytest.raises(TypeError):
        mechanism.sample(x, **options)
    assert inspect.signature(mechanism.sample).parameters["rng"].kind is inspect.Parameter.KEYWORD_ONLY
    states = random.getstate(), pickle.dumps(np.random.get_state())  # noqa: NPY002
    secure = SecureStreams()
    for rng in (streams(10), secure.rows(np.arange(10), np.arange(10), stage="s", channel="c"), secure):
        mechanism.sample(x, rng=rng, **options)
    assert (random.getstate(), pickle.dumps(np.random.get_state())) == states  # noqa: NPY002


def test_sampling_by_hand_repeats_or_says_what_it_needs(mechanism: Any) -> None:
    """Check that seeded draws repeat, NumPy's as well, and that another generator is refused with an explanation."""
    x, options = inputs(mechanism, 10), extras(mechanism, 10)
    for source in (SeededUniforms, np.random.default_rng):
        first, second = (mechanism.sample(x, rng=source(3), **options) for _ in range(2))
        np.testing.assert_array_equal(first, second)
    if not isinstance(mechanism, Identity | Verbatim):  # which draw nothing
        with pytest.raises(TypeError, match=r"SecureStreams\(\), or SeededUniforms\(seed\).* got Random"):
            mechanism.sample(x, rng=random.Random(3), **options)


@pytest.mark.parametrize("uniform", [2.0**-53, 0.5 + 2.0**-53, 1 - 2.0**-53])
def test_extreme_uniforms_give_finite_draws(mechanism: Any, uniform: float) -> None:
    """Check that extreme uniforms give finite draws."""
    n = 10 if getattr(mechanism, "dim", 1) < 100 else 2  # each row is computed in decimals, which is slow
    x, options = inputs(mechanism, n), extras(mechanism, n)
    assert np.isfinite(mechanism.sample(x, rng=constant(uniform), **options)).all()


def test_an_empty_batch_is_a_batch(mechanism: Any) -> None:
    """Check that a batch without rows is accepted."""
    x = inputs(mechanism, 5)[:0]
    y = mechanism.sample(x, rng=streams(0), **extras(mechanism, 0))
    assert y.shape == x.shape or (of_words(mechanism) and len(y) == 0)


def test_bad_inputs_are_refused_in_one_line(mechanism: Any) -> None:
    """Check that inputs outside the domain raise a ValueError of one line."""
    n = 3
    bad: list[NDArray[Any]] = []
    if mechanism.grid is None and not of_words(mechanism):
        bad += [np.array([0, 1, width(mechanism)]), np.array([0, -1, 0]), np.array([0.5, 0, 0]), np.zeros((3, 1), int)]
    elif of_words(mechanism):
        x = np.zeros((n, TOKENS), int)
        mask = np.arange(TOKENS) == 2
        bad += [np.where(mask, len(mechanism.vocabulary) + 1, x), np.where(mask, -2, x), x + 0.5, x[None]]
    else:
        x = unit(n, width(mechanism))
        bad += [np.where(np.arange(n)[:, None] == 1, np.nan, x), x[:, :-1], x[0]]
        if getattr(mechanism, "normalize", True):
            bad += [x * 1.00001, np.zeros_like(x)]
    for values in bad:
        with pytest.raises(ValueError, match=re.escape(mechanism.name)) as error:
            mechanism.sample(values, rng=streams(3), **extras(mechanism, 3))
        assert "\n" not in str(error.value)


def test_the_log_likelihood_ratio_never_exceeds_the_guarantee(mechanism: Any) -> None:
    """Check 10,000 random triples, half of them with y drawn from the mechanism at x, where ratios are largest."""
    n = 10_000
    x, other, options = inputs(mechanism, n, 1), inputs(mechanism, n, 2), extras(mechanism, n)
    y = inputs(mechanism, n, 3)
    y[: n // 2] = mechanism.sample(x, rng=streams(n), **options)[: n // 2]
    first, second = mechanism.log_prob(y, x, **options), mechanism.log_prob(y, other, **options)
    support = np.isfinite(first)
    np.testing.assert_array_equal(support, np.isfinite(second))  # no output excludes an input
    distance = DISTANCES[mechanism.guarantee.metric](x, other)
    guarantee = mechanism.guarantee
    bound = np.array([guarantee.loss(d) for d in distance]) - guarantee.numeric_epsilon
    ratio = np.abs(first[support] - second[support])
    assert np.all(ratio <= bound[support] + 1e-9)


def test_the_loss_distribution_is_no_larger_than_the_guarantee(mechanism: Any) -> None:
    """Check the loss distribution of a text mechanism against its guarantee."""
    if of_words(mechanism):
        worst = mechanism.guarantee.worst_case(declared=mechanism.guarantee.exposes)
        assert mechanism.privacy_loss().epsilon(0.0) <= worst * (1 + 1e-12)
        assert mechanism.privacy_loss(0.0).epsilon(0.0) == 0.0


def test_all_pairs_of_words_keep_the_guarantee(mechanism: Any) -> None:
    """Check all pairs of words if nothing is exposed; mechanisms with exposures have their own tests."""
    vocabulary, guarantee = mechanism.vocabulary, mechanism.guarantee
    x = np.arange(len(vocabulary) + 1)
    try:
        table = mechanism.log_probs(x)
    except NotImplementedError:
        return
    np.testing.assert_allclose(np.exp(table).sum(axis=1), 1.0, rtol=0, atol=1e-12)
    first, other = np.repeat(x, len(vocabulary)), np.tile(x[:-1], len(x))
    np.testing.assert_allclose(mechanism.log_prob(other, first), table.ravel(), rtol=0, atol=1e-9)
    if guarantee.exposes:
        return
    apart = metric_distances(mechanism, x, x) if guarantee.metric == "euclidean" else np.ones((len(x), len(x)))
    bound = guarantee.epsilon * np.minimum(apart, guarantee.diameter) + guarantee.offset + 1e-9
    for a, b in itertools.permutations(x, 2):
        support = np.isfinite(table[a])
        assert np.all(support == np.isfinite(table[b]))
        assert np.abs(table[a][support] - table[b][support]).max() <= bound[a, b]

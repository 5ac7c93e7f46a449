"""Refusals of mechanisms and their accounting: one line each, which names what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from mechanisms.accounting import pld
from mechanisms.accounting.blanket import blanket_epsilon
from mechanisms.accounting.compose import compose
from mechanisms.accounting.generic import LEAST_DELTA, variation_ratio
from mechanisms.accounting.ladder import ladder
from mechanisms.accounting.planner import Target
from mechanisms.accounting.shuffle import amplify
from mechanisms.catalogue import build
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import pair_loss
from mechanisms.losses.gaussian import gaussian_loss, replaced_loss
from mechanisms.losses.loss import LossCells, no_loss
from mechanisms.privunit import PrivUnit
from mechanisms.quantizer import Quantizer
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import PlanarLaplace, Purkayastha
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.dp_mlm import DpMlm, DpMlmResized, DpParaphrase, DpPrompt
from mechanisms.words.madlib import Madlib
from mechanisms.words.madlib_syntax import MadlibSyntax
from mechanisms.words.mahalanobis import Mahalanobis
from mechanisms.words.santext import SanText, Tem
from mechanisms.words.text import TextMechanism
from tests.support.words import WORDS, streams

Rows = Iterator[tuple[Callable[[], Any], str]]
NAN, INF = math.nan, math.inf
ZERO = np.zeros(1)
TAGGED = replace(WORDS, tags=np.zeros(len(WORDS), np.int8))
RESPONSE = RandomizedResponse(1.0, 2)
EMBEDDING = Purkayastha(3, 1.0)
GUARANTEE = Guarantee(epsilon=10.0, metric="angular", diameter=math.pi, protects="sequence")


def words(*vectors: list[float]) -> Vocabulary:
    return Vocabulary(tuple("abcdef"[: len(vectors)]), np.array(vectors, np.float32))


def parameters() -> Rows:
    """Of the catalogue's mechanisms, as a file or a request states them."""
    for channel, spec, said in (
        ("embedding", {"mechanism": "purkayasta", "epsilon": 1.0}, "did you mean 'purkayastha'"),
        ("embedding", {"mechanism": "zzz"}, "known: "),
        ("embedding", {"epsilon": 1.0}, "no name"),
        ("embedding", {"mechanism": ["purkayastha"]}, "no name"),
        ("embedding", {"mechanism": "purkayastha"}, "missing parameter epsilon"),
        ("embedding", {"mechanism": "purkayastha", "epsilon": 1.0, "epsilom": 2}, "did you mean 'epsilon'"),
        ("label", {"mechanism": "purkayastha", "epsilon": 1.0}, "sanitizes the embedding, not the label"),
        ("embedding", {"mechanism": "randomized-response", "epsilon": 1.0}, "sanitizes the label"),
        ("embedding", {"mechanism": "identity", "channel": "label"}, "sanitizes the label"),
        ("embedding", {"mechanism": "gaussian", "epsilon": 1.0}, "epsilon"),
        ("embedding", {"mechanism": "gaussian"}, "missing parameter sigma"),
        ("embedding", {"mechanism": "purkayastha", "epsilon": 1.0, "dim": 1}, "dim must be from 2 to 1024, got 1"),
        ("embedding", {"mechanism": "purkayastha", "epsilon": 1.0, "dim": 1025}, "got 1025"),
        ("embedding", {"mechanism": "purkayastha", "epsilon": 1.0, "dim": 4.0}, "whole number"),
        ("embedding", {"mechanism": "planar-laplace", "epsilon": 0.0, "normalize": False}, "above 0"),
        ("embedding", {"mechanism": "planar-laplace", "epsilon": 1.0, "normalize": 1}, "true or false"),
        ("embedding", {"mechanism": "gaussian", "sigma": 0.0}, "sigma"),
        ("embedding", {"mechanism": "gaussian", "epsilon": 1.0, "delta": 0.0}, "delta"),
        ("label", {"mechanism": "randomized-response", "epsilon": -0.1}, "got -0.1"),
        ("label", {"mechanism": "randomized-response-prior", "epsilon": NAN}, "got nan"),
        ("label", {"mechanism": "randomized-response", "epsilon": 1.0, "classes": 1}, "classes"),
    ):
        yield partial(build, spec, channel=channel, dim=16, classes=12), said
    for epsilon, said in ((-1.0, "-1"), (NAN, "nan"), (INF, "inf"), (10**400, "inf"), (1000.0001, "1000.0001")):
        yield partial(Purkayastha, 16, epsilon), f"epsilon must be from 0 to 1000, got {said}"
    for epsilon in (1001, "10", True):
        yield partial(Purkayastha, 16, epsilon), f"got {epsilon!r}"
    for bad in (5e-324, 1e-310, 0.99e-100):
        for call in (partial(Purkayastha, 3), partial(PlanarLaplace, 3), partial(PrivUnit, 16)):
            yield partial(call, bad), "^[a-z-]+: epsilon must be 0, or from 1e-100 to "
        yield partial(RandomizedResponse, bad, 2), "^randomized-response: epsilon must be 0, or from 1e-100 to "
    for dim, epsilon, caps in (
        (1, 2.0, (None,)),
        (8193, 2.0, (None,)),
        (4.0, 2.0, (None,)),
        (8, -1.0, (None,)),
        (8, 101.0, (None,)),
        (8, NAN, (None,)),
        (8, 2.0, (0.0, 0.99, "half")),
        (8, 50.0, (1.0, 1 - 9e-7)),
        (8, 0.0, (9e-7, 1e-15, 5.6e-17, 1e-17, 5e-324)),
    ):
        for cap in caps:
            yield partial(PrivUnit, dim, epsilon, cap), "^privunit: "
    for change, said in (
        ({"metric": "cosine"}, "metric 'cosine'"),
        ({"protects": "user"}, "protects 'user'"),
        ({"epsilon": -1.0}, "epsilon must be at least 0, got -1.0"),
        ({"epsilon": NAN}, "epsilon must be at least 0, got nan"),
        ({"diameter": -1.0}, "diameter"),
        ({"numeric_delta": NAN}, "numeric_delta"),
        ({"sigma": 0.0}, "sigma must be above 0"),
    ):
        yield partial(replace, GUARANTEE, **change), said
    for bits, step in ((8, 1.0), (16, 0.0), (16, INF), (32, NAN)):
        yield partial(Quantizer, bits, step), "grid"


def texts() -> Rows:
    """Of vocabularies, words and texts."""
    for change, said in (
        ({"words": ("a",)}, "at least two"),
        ({"words": ("a", "")}, "empty"),
        ({"words": ("a", "a")}, "twice"),
        ({"vectors": np.zeros((2, 3))}, "float32"),
        ({"vectors": np.zeros((3, 3), np.float32)}, "each of 2 words"),
        ({"vectors": np.array([[0], [NAN]], np.float32)}, "word 1 is not finite"),
        ({"counts": np.array([1, -1])}, "counts"),
        ({"tags": np.array([1, 99], np.int8)}, "below 12"),
    ):
        yield partial(replace, words([0.0], [0.0]), **change), said
    yield lambda: SanText(1.0, words([1e30], [-1e30])).sample(np.array([0]), rng=streams(1)), "too long"
    for change, said in (
        ({"tokens": 0}, "tokens"),
        ({"length": "short"}, "kept"),
        ({"length": -1.0}, "length"),
        ({"unknown": "keep"}, "substitute or drop"),
        ({"numbers": "hide"}, "substitute or drop or keep"),
    ):
        yield partial(TextMechanism, SanText(1.0, WORDS), **change), said
    for kind in (DpMlm, DpMlmResized, DpPrompt, DpParaphrase):
        for low, high, said in ((3.0, 3.0, "low must be below high, got 3 and 3"), ("a", 3.0, "low must be a number")):
            yield partial(kind, 1.0, low, high, WORDS), said
        yield partial(kind, 1.0, NAN, 3.0, WORDS), "low must be from"
        for epsilon in (-1.0, INF):
            yield partial(kind, epsilon, -3.0, 5.0, WORDS), "epsilon must be from 0 to 1000"
    for options in ({"mode": "loose"}, {"antonyms": (("a",),)}, {"antonyms": (("a", "a"),)}, {"antonyms": ((1, 2),)}):
        yield partial(DpMlm, 1.0, -3.0, 5.0, WORDS, **options), "mode must be|antonyms must be"
    yield partial(DpMlmResized, 1.0, -3.0, 5.0, WORDS, deletion=1.5), "deletion must be from 0 to 1"
    yield partial(Madlib, 0.0, WORDS), "madlib: epsilon must be from 1e-06"
    yield partial(Madlib, INF, WORDS), "madlib: epsilon"
    yield partial(Madlib, 1.0, words([0.0], [0.0])), "madlib: .* 2 to 1024 coord"
    yield lambda: Madlib(1.0, WORDS).sample(np.array([201]), rng=streams(1)), "madlib: a word id is outside"
    yield partial(MadlibSyntax, 1.0, WORDS), "madlib-syntax: the vocabulary has no tags"
    for change, said in (
        ({"k": 0}, "k must be from 1"),
        ({"penalty": -1.0}, "penalty"),
        ({"mode": "x"}, "mode must be"),
    ):
        yield partial(MadlibSyntax, 1.0, TAGGED, **change), f"madlib-syntax: {said}"
    yield partial(Mahalanobis, 0.0, WORDS), "mahalanobis: epsilon must be from 1e-06"
    for lam in (1.0, -0.1):
        yield partial(Mahalanobis, 1.0, WORDS, lam), "mahalanobis: lam must be from 0 to 0.99"
    yield partial(Mahalanobis, 1.0, words([1.0, 1.0], [1.0, 1.0])), "mahalanobis: .* all equal"
    yield partial(Mahalanobis, 1.0, words([1.0], [1.0])), "mahalanobis: .* 2 to 1024"
    yield partial(Mahalanobis(1.0, WORDS).privacy_loss, 1e3), "mahalanobis: .*distance"
    yield partial(Tem, 0.0, WORDS), "tem: epsilon must be from 1e-06"
    yield partial(Tem, 1.0, WORDS, gamma=-1.0), "tem: gamma must be from 0"
    yield partial(Tem, 1.0, WORDS, gamma=INF), "tem: gamma"
    yield partial(Tem, 1.0, WORDS, beta=0.0), "tem: beta must be from 1e-09 to 0.5"
    yield partial(Tem(1.0, WORDS).privacy_loss, 1e9), "tem: .*distance"


class Foreign:
    name = "foreign"


def prices() -> Rows:
    """Of numbers of users, records and releases, of δ, and of what has no loss."""
    for delta in (0.0, 1.0, NAN):
        yield partial(amplify, [RESPONSE], users=10, delta=delta), "^shuffle: "
        yield partial(ladder, EMBEDDING, RESPONSE, users=100, delta=delta), "^ladder: "
        yield partial(variation_ratio, 1.0, 0.1, 100, delta), "^shuffle: "
        yield partial(Target, 1.0, delta, 10), "^plan: "
        yield partial(blanket_epsilon, RESPONSE.blanket(), 10, delta), "delta"
    for delta in (5e-324, 1e-300, 0.99 * LEAST_DELTA):
        yield partial(amplify, [EMBEDDING], users=10, delta=delta), "^shuffle: delta must be at least 1e-290, got "
    for users in (0, -5, 1.5, NAN, True):
        yield partial(amplify, [RESPONSE], users=users, delta=1e-6), "^shuffle: "
        yield partial(variation_ratio, 1.0, 0.1, users, 1e-6), "^shuffle: "
    for users in (0, -3, 2.5, True):
        yield partial(blanket_epsilon, RESPONSE.blanket(), users, 1e-6), "number of users"
    for change in ({"users": -1}, {"users": 1.5}, {"records": 0}, {"stages": 0}, {"draws": 0}):
        yield partial(ladder, EMBEDDING, RESPONSE, **({"users": 100, "delta": 1e-6} | change)), "^ladder: "
    for target in ((0.0, 1e-6, 10), (NAN, 1e-6, 10), (INF, 1e-6, 10), (1.0, 1e-6, 0), (1.0, 1e-6, True)):
        yield partial(Target, *target), "^plan: "
    yield partial(Target, 1.0, 1e-6, 10, 0), "^plan: "
    yield partial(Target, 1.0, 1e-6, 10, 1, 0), "^plan: "
    for epsilon in (NAN, -1.0):
        yield partial(variation_ratio, epsilon, 0.1, 100, 1e-6), "^shuffle: "
    for beta in (-0.1, 1.1, NAN):
        yield partial(variation_ratio, 1.0, beta, 100, 1e-6), "total variation"
    yield partial(amplify, [], users=10, delta=1e-6), "nothing is released"
    yield partial(amplify, [object()], users=10, delta=1e-6), "has no loss distribution"
    yield partial(compose, [], delta=1e-6), "nothing to compose"
    yield partial(compose, [(Foreign(), 1)], delta=1e-6), "foreign"
    for times, said in ((0, "at least 1"), (1.5, "whole"), (True, "whole")):
        yield partial(compose, [(EMBEDDING, times)], delta=1e-6), said
    for delta in (1.0, -1e-9, NAN):
        yield partial(compose, [(EMBEDDING, 1)], delta=delta), "delta"


def losses() -> Rows:
    """Of loss distributions themselves."""
    one_way = pair_loss(np.log([0.5, 0.5]), np.log([0.9, 0.1]))
    yield partial(pld.compose, [(one_way, 1)], interval=1e-3), "."
    yield partial(pld.compose, [(gaussian_loss(1.0), 1)], interval=0.0), "."
    yield partial(pld.compose, [(gaussian_loss(1.0), 1)], interval=NAN), "."
    yield partial(pld.compose([(gaussian_loss(1.0), 1)]).delta, NAN), "."
    yield partial(pld.compose, []), "."
    yield partial(pld.compose, [(gaussian_loss(1.0), 0)]), "."
    for cells in (
        (ZERO, ZERO - 1, ZERO, ZERO),
        (ZERO, ZERO * NAN, ZERO, ZERO),
        (ZERO, ZERO, np.zeros(2), ZERO),
        (ZERO, ZERO, ZERO + 0.1, ZERO),
        (ZERO, ZERO, ZERO, ZERO, -0.1),
        (ZERO, ZERO, ZERO, ZERO, 0.1),
    ):
        yield partial(LossCells, *cells), "^loss cells: "
    yield partial(no_loss().delta, NAN), "epsilon is not a number"
    for delta in (1.0, -0.1, NAN):
        yield partial(no_loss().epsilon, delta), "delta must be in"
    for noise in (5e-324, 1e-101, 1e101, INF, NAN):
        yield partial(replaced_loss, noise, 0.5), "^sampled gaussian: noise must be from "
    for value in (-1.0, NAN):
        yield partial(GUARANTEE.loss, value), "distance"
        yield partial(GUARANTEE.worst_case, value), "delta"


@pytest.mark.parametrize("rows", [parameters, texts, prices, losses])
def test_it_is_refused_in_one_line_that_names_it(rows: Callable[[], Rows]) -> None:
    for number, (call, said) in enumerate(rows()):
        with pytest.raises(ValueError, match=said) as refused:
            pytest.fail(f"row {number}, {said!r}, is accepted: {call()}")
        assert "\n" not in str(refused.value)

"""Mechanisms to test, inputs for them, and instrumented sources of randomness."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.catalogue import build, find, instance
from mechanisms.facts import tried
from mechanisms.mechanism import Uniforms
from mechanisms.streams import SimulatedUniforms, SimulationStreams
from mechanisms.vocabulary import NOTHING, Vocabulary

Array = NDArray[Any]

#: Places of a text.
TOKENS = 6


def small_vocabulary() -> Vocabulary:
    """Return twelve words in four dimensions, two of them at one place, two of them stop words; counted and tagged."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(12, 4)).astype(np.float32)
    vectors[7] = vectors[2]
    words = (*(f"word{i}" for i in range(10)), "the", "of")
    return Vocabulary(words, vectors, rng.integers(1, 50, 12), rng.integers(0, 3, 12).astype(np.int8))


#: Vocabulary of all word mechanisms here, so that they share what is computed of it.
VOCABULARY = small_vocabulary()


def instances(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield (id, mechanism) of a class, with every two of its declared values together (`mechanisms.facts`).

    Raises:
        ValueError: A parameter has neither a default nor declared values. The message is one line.
    """
    choices, seen = tried(kind, VOCABULARY), set[Any]()
    for values in itertools.product(*choices.values()):
        pairs = set(itertools.combinations(enumerate(values), 2)) or {values}
        if pairs <= seen:
            continue
        seen |= pairs
        arguments = dict(zip(choices, values, strict=True))
        labels = ["words" if value is VOCABULARY else str(value) for value in values]
        arguments.pop("vocabulary", None)
        name_parts = [kind.name] if find(kind.name) is kind else [kind.name, kind.channel]
        yield "-".join([*name_parts, *labels]), instance(kind, arguments, VOCABULARY)


def of_words(mechanism: Any) -> bool:
    """Return True for a mechanism of the words of a text."""
    return hasattr(mechanism, "vocabulary")


def unit(n: int, dim: int, seed: int = 0) -> Array:
    """Return random vectors of length 1, (n, dim)."""
    x = np.random.default_rng(seed).normal(size=(n, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def width(mechanism: Any) -> int:
    """Return the length of its vectors, or its number of classes."""
    return int(next(getattr(mechanism, f) for f in ("dim", "classes", "size") if hasattr(mechanism, f)))


def inputs(mechanism: Any, n: int, seed: int = 0) -> Array:
    """Return n random inputs of a mechanism: vectors of length 1, texts of word ids, or classes."""
    if mechanism.grid is not None:
        return unit(n, width(mechanism), seed)
    if of_words(mechanism):
        rng = np.random.default_rng(seed)
        numbers = rng.integers(0, len(mechanism.vocabulary) + 1, (n, TOKENS))
        return np.where(np.arange(TOKENS) < rng.integers(0, TOKENS + 1, n)[:, None], numbers, NOTHING)
    return np.random.default_rng(seed).integers(0, width(mechanism), n)


def extras(mechanism: Any, n: int, seed: int = 7) -> dict[str, Any]:
    """Return other arguments of `sample` and `log_prob`: public priors, or other data that the mechanism reads."""
    if of_words(mechanism):
        return {name: READ[name](mechanism, n, seed) for name in mechanism.reads}
    if not mechanism.needs_prior:
        return {}
    return {"prior": np.random.default_rng(seed).dirichlet(np.ones(width(mechanism)), n)}


def made_up_scores(mechanism: Any, n: int, seed: int) -> Callable[..., Array]:
    """Return a function to logits that depend only on the place and on the words around it."""
    table = np.random.default_rng(seed).normal(size=(64, 14, len(mechanism.vocabulary)))

    def scores(positions: Array, words: Array, rows: Array) -> Array:
        predecessors = np.where(positions > 0, words[rows, np.maximum(positions - 1, 0)], NOTHING)
        return table[positions % 64, predecessors]

    return scores


READ: dict[str, Callable[[Any, int, int], Any]] = {
    "importance": lambda mechanism, n, seed: np.random.default_rng(seed).random((n, TOKENS)),
    "scores": made_up_scores,
}


def part_of(more: dict[str, Any], rows: slice) -> dict[str, Any]:
    """Return the arguments for some of the rows."""
    return {k: v if callable(v) else v[rows] for k, v in more.items()}


def rebuilt(mechanism: Any, spec: dict[str, Any]) -> Any:
    """Return the mechanism that the catalogue builds from a mechanism's parameters."""
    if of_words(mechanism):
        return build(spec, channel=mechanism.channel, vocabulary=mechanism.vocabulary).word
    return build(spec, channel=mechanism.channel)


def streams(n: int, seed: int = 1, offset: int = 0) -> SimulatedUniforms:
    """Return the streams of n rows, from number `offset` on."""
    users = np.arange(offset, offset + n)
    return SimulationStreams(seed).rows(users, np.zeros(n, np.int64), stage="test", channel="any")


class Recorder:
    """Source of randomness that records its calls, which another source answers."""

    def __init__(self, source: Uniforms) -> None:
        self.source, self.requests = source, list[tuple[int, int]]()

    def uniform(self, rows: int, k: int) -> Array:
        """Return uniforms (rows, k), and record the call."""
        self.requests.append((rows, k))
        return self.source.uniform(rows, k)

    def further(self, rows: Array, k: int) -> Array:
        """Return further uniforms of some rows."""
        return self.source.further(rows, k)


def constant(value: float) -> Any:
    """Return a source of randomness whose uniforms all equal a lattice point, and whose further ones are 0.5."""
    return SimpleNamespace(
        uniform=lambda rows, k: np.full((rows, k), value), further=lambda rows, k: np.full((len(rows), k), 0.5)
    )

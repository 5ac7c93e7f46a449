"""Every entry of the catalogue with every parameter that is tried, and inputs for it."""

import dataclasses
import itertools
from functools import lru_cache

import numpy as np
import pytest
from scipy import stats

from mechanisms.catalogue import CATALOGUE, OWN_KINDS, build
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING, Vocabulary

ALARM = 1e-6


def small_vocabulary():
    """Twelve words in four dimensions, two of them at one place, two of them stop words; counted and tagged."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(12, 4)).astype(np.float32)
    vectors[7] = vectors[2]
    words = (*(f"word{i}" for i in range(10)), "the", "of")
    return Vocabulary(words, vectors, rng.integers(1, 50, 12), rng.integers(0, 3, 12).astype(np.int8))


# What a contract test tries for each parameter, by its name: a new mechanism that uses these names is found
# here by itself; one with a parameter of a new name says so.
VALUES = {
    "dim": (2, 3, 16, 768),
    "epsilon": (0.5, 10.0, 1000.0),
    "sigma": (0.7,),
    "normalize": (True, False),
    "classes": (2, 12),
    "channel": ("embedding", "answer", "label"),
    "size": (5,),
    "vocabulary": (small_vocabulary(),),
    "w": (0.5,),
    "p": (0.3, 1.0),
    "k": (3,),
    "similarity": ("euclidean", "cosine"),
    "rest": (8.0,),
    "share": (0.4,),
    "which": ("top", "bottom"),
    "strategy": ("aggressive", "conservative"),
    "mode": ("repaired", "paper"),
    "penalty": (1.0,),
    "low": (-2.0,),
    "high": (3.0,),
    "antonyms": ((("word0", "word1"),),),
    "addition": (0.1,),
    "deletion": (0.05,),
    "end": ("",),
    "cap_probability": (None, 0.5),
}
# ... and where one mechanism has a smaller range than the others.
RANGES = {("privunit", "epsilon"): (0.5, 10.0, 100.0)}
TOKENS = 6


def instances():
    for kind in (*CATALOGUE.values(), *(kind for (_, channel), kind in OWN_KINDS.items() if channel != "text")):
        names = [f.name for f in dataclasses.fields(kind)]
        for values in itertools.product(*(RANGES.get((kind.name, name), VALUES[name]) for name in names)):
            mechanism = kind(**dict(zip(names, values, strict=True)))
            shown = ["words" if isinstance(v, Vocabulary) else str(v) for v in values]
            own = [] if CATALOGUE[kind.name] is kind else [kind.channel]
            yield pytest.param(mechanism, id="-".join([kind.name, *own, *shown]))


every_mechanism = pytest.mark.parametrize("mechanism", list(instances()))


def unit(n, dim, seed=0):
    return _unit(n, dim, seed).copy()


@lru_cache(maxsize=4)  # a contract asks for the same rows of one mechanism after another
def _unit(n, dim, seed):
    x = np.random.default_rng(seed).normal(size=(n, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def width(mechanism):
    return next(getattr(mechanism, f) for f in ("dim", "classes", "size") if hasattr(mechanism, f))


def inputs(mechanism, n, seed=0):
    if mechanism.channel in ("embedding", "statistic"):
        return unit(n, width(mechanism), seed)
    if mechanism.channel == "text":
        rng = np.random.default_rng(seed)
        numbers = rng.integers(0, len(mechanism.vocabulary) + 1, (n, TOKENS))
        return np.where(np.arange(TOKENS) < rng.integers(0, TOKENS + 1, n)[:, None], numbers, NOTHING)
    return np.random.default_rng(seed).integers(0, width(mechanism), n)


def extras(mechanism, n, seed=7):
    """Further arguments of `sample`, and of `log_prob`: public priors, or what else of a text is read."""
    if mechanism.channel == "text":
        return {name: READ[name](mechanism, n, seed) for name in mechanism.reads}
    if not mechanism.needs_prior:
        return {}
    return {"prior": np.random.default_rng(seed).dirichlet(np.ones(width(mechanism)), n)}


def made_up_scores(mechanism, n, seed):
    """Logits that depend on the place and on the words around it, and on nothing else."""
    table = np.random.default_rng(seed).normal(size=(64, 14, len(mechanism.vocabulary)))

    def scores(positions, words, rows):
        before = np.where(positions > 0, words[rows, np.maximum(positions - 1, 0)], NOTHING)
        return table[positions % 64, before]

    return scores


READ = {
    "importance": lambda mechanism, n, seed: np.random.default_rng(seed).random((n, TOKENS)),
    "scores": made_up_scores,
}


def part_of(more, rows):
    """The same arguments for some of the rows."""
    return {k: v if callable(v) else v[rows] for k, v in more.items()}


def rebuilt(mechanism, spec):
    if mechanism.channel != "text":
        return build(spec, channel=mechanism.channel)
    return build(spec, channel="text", vocabulary=mechanism.vocabulary).word


def streams(n, seed=1, offset=0):
    users = np.arange(offset, offset + n)
    return SimulationStreams(seed).rows(users, np.zeros(n, np.int64), stage="test", channel="any")


class Recorder:
    """A source that remembers what was asked of it."""

    def __init__(self, source):
        self.source, self.asked = source, []

    def uniform(self, rows, k):
        self.asked.append((rows, k))
        return self.source.uniform(rows, k)

    def further(self, rows, k):
        return self.source.further(rows, k)


class Constant:
    """A source whose every uniform is one given lattice point."""

    def __init__(self, value):
        self.value = value

    def uniform(self, rows, k):
        return np.full((rows, k), self.value)

    def further(self, rows, k):
        return np.full((len(rows), k), 0.5)


def fits(values, distribution):
    return stats.kstest(values, distribution).pvalue > ALARM

"""Every entry of the catalogue with every parameter that is tried, and inputs for it."""

import dataclasses
import itertools

import pytest
from scipy import stats

from mechanisms.catalogue import CATALOGUE, OWN_KINDS
from mechanisms.vocabulary import Vocabulary
from sottovoce.contracts.cases import Recorder as Recorder
from sottovoce.contracts.cases import inputs as inputs
from sottovoce.contracts.cases import small_vocabulary
from sottovoce.contracts.cases import streams as streams
from sottovoce.contracts.cases import unit as unit

ALARM = 1e-6


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
    "gamma": (None, 1.5),
    "beta": (0.001,),
    "lam": (0.0, 0.4),
    "t": (0.5,),
    "lists": (2,),
    "clusters": (None, 5),
    "scale": (0.5,),
    "seed": (1,),
    "delta": (1e-6,),
    "width": (3,),
    "window": (4,),
    "clip": (0.1,),
    "cap_probability": (None, 0.5),
}
# ... and where one mechanism has a smaller range than the others.
RANGES = {("privunit", "epsilon"): (0.5, 10.0, 100.0)}


def instances():
    for kind in (*CATALOGUE.values(), *(kind for (_, channel), kind in OWN_KINDS.items() if channel != "text")):
        names = [f.name for f in dataclasses.fields(kind)]
        for values in itertools.product(*(RANGES.get((kind.name, name), VALUES[name]) for name in names)):
            mechanism = kind(**dict(zip(names, values, strict=True)))
            shown = ["words" if isinstance(v, Vocabulary) else str(v) for v in values]
            own = [] if CATALOGUE[kind.name] is kind else [kind.channel]
            yield pytest.param(mechanism, id="-".join([kind.name, *own, *shown]))


every_mechanism = pytest.mark.parametrize("mechanism", list(instances()))


def fits(values, distribution):
    return stats.kstest(values, distribution).pvalue > ALARM

"""opendp: measurements, with what their privacy map says of a distance of 1."""

import sys

import opendp.prelude as dp
from speak import COUNT, NUMBER, each, speak

dp.enable_features("contrib")
REAL = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
WHOLE = dp.atom_domain(T=int), dp.absolute_distance(T=int)
LABELS = ["red", "green", "blue"]


def laplace():
    measurement = dp.m.make_laplace(*REAL, scale=1.0)
    return measurement, {"epsilon": measurement.map(1.0)} | NUMBER


def integers():
    measurement = dp.m.make_laplace(*WHOLE, scale=2.0)
    return measurement, {"epsilon": measurement.map(1)} | COUNT


def gaussian():
    """Its map says ρ of zero-concentrated privacy, which of Gaussian noise is μ²/2."""
    measurement = dp.m.make_gaussian(*REAL, scale=1.0)
    return measurement, {"mu": (2 * measurement.map(1.0)) ** 0.5, "delta": 1e-5} | NUMBER


def response():
    measurement = dp.m.make_randomized_response(LABELS, prob=0.6)
    return measurement, {"epsilon": measurement.map(1), "inputs": LABELS, "releases": "category"}


KINDS = {"laplace": laplace, "integers": integers, "gaussian": gaussian, "response": response}
measurement, claim = KINDS[sys.argv[1]]()
speak(claim, each(measurement))

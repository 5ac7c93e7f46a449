"""trasgodp: categories, numbers and places, each with the mechanism that the package offers for local privacy."""

import sys

import numpy as np
import pandas as pd
from speak import NUMBER, each, rounded, speak
from trasgodp.categorical import dp_exponential_array
from trasgodp.geoindis import metric_privacy
from trasgodp.numerical import dp_clip_laplace_array

EPSILON = 1.0
METRES = 6_371_000 * np.pi / 180


def laplace(x, n):
    return dp_clip_laplace_array([x] * n, EPSILON, 0.0, 1.0).tolist()


def place(x):
    one = metric_privacy(pd.DataFrame({"lat": [x[0]], "lon": [x[1]]}), "lat", "lon", 0.01)
    return [round(float(v) * METRES) for v in one[["lat", "lon"]].to_numpy()[0]]


PLACES = [[i * 1e-3, j * 1e-3] for i in range(2) for j in range(2)]
KINDS = {
    "exponential": (
        each(lambda x: dp_exponential_array(x, EPSILON).tolist()),
        {"epsilon": EPSILON, "inputs": {"records": ["a", "b", "c"], "count": 4}, "neighbours": "replace"}
        | {"releases": "sequence"},
    ),
    "laplace": (laplace, {"epsilon": EPSILON} | NUMBER),
    "laplace-rounded": (rounded(laplace), {"epsilon": EPSILON} | NUMBER),
    "place": (
        each(place),
        {"epsilon": 0.01, "inputs": PLACES, "places": [[v * METRES for v in x] for x in PLACES]}
        | {"metric": "euclidean", "releases": "vector"},
    ),
}
draws, claim = KINDS[sys.argv[1]]
speak(claim, draws)

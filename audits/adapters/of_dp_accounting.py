"""dp-accounting: what its accountant says of three randomized responses, and draws of three."""

import sys

import numpy as np
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from speak import speak

RNG = np.random.default_rng()
COUNT, KEEP, DELTA = 3, np.e / (1 + np.e), 0.001
EVENT = dp_event.RandomizedResponseDpEvent(noise_parameter=2 * (1 - KEEP), num_buckets=2)


def draws(x, n):
    kept = RNG.random((n, COUNT)) < KEEP
    return ["".join(str(b) for b in row) for row in np.where(kept, x, 1 - x)]


accountant = PLDAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
if sys.argv[1] == "counted":
    accountant.compose(EVENT, COUNT)
else:
    for _ in range(COUNT):
        accountant.compose(EVENT)
said = {"epsilon": float(accountant.get_epsilon(DELTA)), "delta": DELTA}
speak(said | {"inputs": [0, 1], "releases": "category"}, draws)

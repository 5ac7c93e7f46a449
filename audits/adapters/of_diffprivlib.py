"""diffprivlib: `randomise` of its mechanisms."""

import sys

from diffprivlib import mechanisms
from speak import COUNT, NUMBER, each, rounded, speak

GAUSSIAN = mechanisms.GaussianAnalytic(epsilon=1, delta=0.01, sensitivity=1)
KINDS = {
    "laplace": (mechanisms.Laplace(epsilon=1, sensitivity=1), {"epsilon": 1.0} | NUMBER),
    "gaussian": (GAUSSIAN, {"epsilon": 1.0, "delta": 0.01} | NUMBER),
    "staircase": (mechanisms.Staircase(epsilon=1, sensitivity=1), {"epsilon": 1.0} | NUMBER),
    "geometric": (mechanisms.Geometric(epsilon=1, sensitivity=1), {"epsilon": 1.0} | COUNT),
}
mechanism, claim = KINDS[sys.argv[1]]
draws = each(mechanism.randomise)
speak(claim, rounded(draws) if sys.argv[2:] == ["rounded"] else draws)

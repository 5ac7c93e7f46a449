"""python-dp, Google's library in Python: `add_noise`."""

import sys

from pydp.algorithms.numerical_mechanisms import GaussianMechanism, LaplaceMechanism
from speak import NUMBER, each, speak

KINDS = {
    "laplace": (LaplaceMechanism(1.0, 1.0), {"epsilon": 1.0}),
    "gaussian": (GaussianMechanism(1.0, 0.01, 1.0), {"epsilon": 1.0, "delta": 0.01}),
}
mechanism, claim = KINDS[sys.argv[1]]
speak(claim | NUMBER, each(lambda x: mechanism.add_noise(float(x))))

"""pfl: one user's statistics, clipped and with noise, as `privatize` leaves them; NumPy is the framework."""

import sys

import numpy as np
from pfl.internal.ops import numpy_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.laplace_mechanism import LaplaceMechanism
from pfl.stats import MappedVectorStatistics
from speak import each, speak

set_framework_module(numpy_ops)
#: Vectors of up to twice the bound of the norm, which clipping brings back to 1: two are at most 2 apart.
SPACE = {"inputs": {"low": -2.0, "high": 2.0, "size": 2}, "releases": "vector"}
KINDS = {
    "gaussian": (GaussianMechanism(1.0, 2.0), {"mu": 1.0, "delta": 1e-5}),
    "laplace": (LaplaceMechanism(1.0, 1.0), {"epsilon": 2.0}),
}
mechanism, claim = KINDS[sys.argv[1]]
grid = 2**10 if sys.argv[2:] == ["rounded"] else None


def draw(x):
    clipped, _ = mechanism.constrain_sensitivity(MappedVectorStatistics({"w": np.array(x)}))
    y = mechanism.add_noise(clipped, 1)[0]["w"]
    return (np.rint(y * grid) / grid if grid else y).tolist()


speak(claim | SPACE, each(draw))

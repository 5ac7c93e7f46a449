"""pure-ldp: what its clients send about one of four values at ε = 1."""

import random
import sys

import numpy as np
import xxhash
from pure_ldp.frequency_oracles.direct_encoding import DEClient
from pure_ldp.frequency_oracles.histogram_encoding import HEClient
from pure_ldp.frequency_oracles.local_hashing import LHClient
from pure_ldp.frequency_oracles.unary_encoding import UEClient
from speak import LABEL, each, speak

D = 4
CLAIM = {"epsilon": 1.0, "inputs": list(range(D))}


def plain(client):
    return lambda x: int(client.privatise(x + 1))  # values begin at 1


def bits(client):
    return lambda x: "".join(str(int(b)) for b in client.privatise(x + 1))


def histogram(grid):
    client = HEClient(1.0, D)

    def draw(x):
        y = client.privatise(x + 1)
        return (np.rint(y * grid) / grid if grid else y).tolist()

    return draw


def hashed(client):
    """The hash's seed is a number of 63 bits; what a server uses of it is which values have the hash that was sent."""

    def draw(x):
        sent, seed = client.privatise(x + 1)
        return "".join(str(int(xxhash.xxh32(str(i), seed=seed).intdigest() % client.g == sent)) for i in range(D))

    return draw


KINDS = {
    "direct": (plain(DEClient(1.0, D)), LABEL),
    "symmetric-unary": (bits(UEClient(1.0, D)), LABEL),
    "optimal-unary": (bits(UEClient(1.0, D, use_oue=True)), LABEL),
    "local-hashing": (hashed(LHClient(1.0, D, use_olh=True)), LABEL),
    "histogram": (histogram(None), {"releases": "vector"}),
    "histogram-rounded": (histogram(2**10), {"releases": "vector"}),
}
random.seed()
draw, what = KINDS[sys.argv[1]]
speak(CLAIM | what, each(draw))

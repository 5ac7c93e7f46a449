"""multi-freq-ldpy: what its clients send about one of four values at ε = 1."""

import sys

from multi_freq_ldpy.pure_frequency_oracles.GRR import GRR_Client
from multi_freq_ldpy.pure_frequency_oracles.SS import SS_Client
from multi_freq_ldpy.pure_frequency_oracles.UE import UE_Client
from speak import LABEL, each, speak


def bits(optimal):
    return lambda x: "".join(str(int(b)) for b in UE_Client(x, 4, 1.0, optimal))


KINDS = {
    "grr": lambda x: int(GRR_Client(x, 4, 1.0)),
    "symmetric-unary": bits(False),
    "optimal-unary": bits(True),
    "subset-selection": lambda x: " ".join(str(int(i)) for i in sorted(SS_Client(x, 4, 1.0))),
}
speak({"epsilon": 1.0} | LABEL, each(KINDS[sys.argv[1]]))

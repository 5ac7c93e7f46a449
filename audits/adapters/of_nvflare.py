"""nvflare: what `SVTPrivacy` leaves of an update of eight numbers; the claim is what its accountant notes."""

import logging
import sys

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from speak import each, speak

logging.disable(logging.CRITICAL)
SIZE = 8
grid = 2**10 if "rounded" in sys.argv[1:] else None
filtered = SVTPrivacy(fraction=0.25, epsilon=1.0, epsilon_release=1.0, gamma=1.0, tau=0.5)
context = FLContext()


def draw(x):
    dxo = DXO(DataKind.WEIGHT_DIFF, data={"w": np.array(x)})
    y = filtered.process_dxo(dxo, Shareable(), context).data["w"]
    return (np.rint(y * grid) / grid if grid else y).tolist()


draw([0.0] * SIZE)
claim = {"epsilon": filtered.get_privacy_spent(), "inputs": {"low": -1.0, "high": 1.0, "size": SIZE}}
speak(claim | {"releases": "vector"}, each(draw))

"""flwr: `LocalDpMod` around a client whose update is the input; clipping norm 1."""

import logging
import sys
import time

import numpy as np
from flwr.app import Message
from flwr.app.metadata import Metadata
from flwr.clientapp.mod import LocalDpMod
from flwr.common import FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.typing import Code
from flwr.compat.common import recorddict_compat as compat
from speak import each, speak

logging.disable(logging.CRITICAL)
SENSITIVITY = float(sys.argv[1])
grid = 2**10 if sys.argv[2:] == ["rounded"] else None
mod = LocalDpMod(clipping_norm=1.0, sensitivity=SENSITIVITY, epsilon=1.0, delta=0.01)
zero = ndarrays_to_parameters([np.zeros(2, np.float32)])
about = Metadata(
    run_id=1,
    message_id="1",
    src_node_id=1,
    dst_node_id=2,
    reply_to_message_id="",
    group_id="",
    created_at=time.time(),
    ttl=1e9,
    message_type="train",
)
asked = Message(compat.fitins_to_recorddict(FitIns(zero, {}), True), metadata=about)


def draw(x):
    def client(message, context):
        update = ndarrays_to_parameters([np.array(x, np.float32)])
        result = FitRes(Status(Code.OK, ""), update, 1, {})
        return Message(compat.fitres_to_recorddict(result, True), reply_to=message)

    if grid and not any(x):
        x = [1e-6, 0.0]  # an update of zeros is another row's
    try:
        answer = compat.recorddict_to_fitres(mod(asked, None, client).content, True)
    except ZeroDivisionError:
        return None  # the client answers with an error in place of parameters
    (y,) = parameters_to_ndarrays(answer.parameters)
    return [float(v) for v in (np.rint(y * grid) / grid if grid else y)]


speak(
    {"epsilon": 1.0, "delta": 0.01, "inputs": {"low": -2.0, "high": 2.0, "size": 2}, "releases": "vector"}, each(draw)
)

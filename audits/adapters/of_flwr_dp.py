"""flwr: one round of its server-side clipping, as `FedAvg` samples and averages clients.

The input is the list of the clients there are; a client is its update. With fixed clipping three are sampled, and what
is claimed of one client more or less is what Flower's accountant answers for the round. With adaptive clipping there is
no accountant: claimed is the noise multiplier, of a client that changes nearly nothing or as much as is not clipped.
"""

import logging
import sys

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from flwr.supercore.privacy_accounting import NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from flwr.supercore.task_identity import TaskIdentity
from speak import each, speak

logging.disable(logging.CRITICAL)
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # what the server's process sets
SAMPLED, CLIP, NOISE, DELTA = 3, 1.0, 1.0, 0.01
KIND = sys.argv[1]
#: Clients of adaptive clipping whose updates are longer than the norm.
CLIPPED = [9.0] * 19
zero = ArrayRecord({"w": Array(np.zeros(1, np.float32))})


class Clients:
    """The part of a grid that sampling asks for."""

    def __init__(self, updates):
        self.updates = dict(enumerate(updates, 1))

    def get_node_ids(self):
        return list(self.updates)


def made(population):
    config = PrivacyConfig(DELTA, population, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    inner = FedAvg(min_train_nodes=SAMPLED, fraction_train=SAMPLED / population, min_available_nodes=SAMPLED)
    return DifferentialPrivacyServerSideFixedClipping(inner, NOISE, CLIP, SAMPLED, accountant=RdpAccountant(config))


def answered(message, update):
    arrays = ArrayRecord({"w": Array(np.array([update], np.float32))})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)


def adaptive(sampled):
    """Adaptive clipping, all as it comes but for how fast the norm adapts."""
    inner = FedAvg(min_train_nodes=sampled, min_available_nodes=sampled)
    return DifferentialPrivacyServerSideAdaptiveClipping(
        inner, NOISE, sampled, initial_clipping_norm=CLIP, clip_norm_lr=1.0
    )


def round_of(updates):
    clients, strategy = Clients(updates), (adaptive if KIND == "adaptive" else made)(len(updates))
    asked = list(strategy.configure_train(1, zero, ConfigRecord(), clients))
    replies = [answered(m, clients.updates[m.metadata.dst_node_id]) for m in asked]
    arrays, _ = strategy.aggregate_train(1, replies)
    return float(arrays["w"].numpy()[0]), strategy


def draw(x):
    try:
        y, _ = round_of(x)
    except ZeroDivisionError:
        return None  # the server stops: there is no round
    return round(y * 2**10) / 2**10


ends = -1.0, 1.0
if KIND == "adaptive":
    claim = {"mu": 1 / NOISE, "pairs": [[[1e-6, *CLIPPED], [end, *CLIPPED]] for end in ends]}
else:
    _, strategy = round_of([0.5] * SAMPLED)
    claim = {"epsilon": strategy.privacy_spent().epsilon}
    if KIND in ("zero", "small"):  # a client that changes nothing, or nearly, or all that it may
        nothing = {"zero": 0.0, "small": 1e-6}[KIND]
        claim["pairs"] = [[[nothing, a, b], [c, a, b]] for a in ends for b in ends for c in ends]
    else:  # a client more: the sample stays three
        claim["pairs"] = [[[-1.0] * SAMPLED, [1.0] + [-1.0] * SAMPLED], [[1.0] * SAMPLED, [-1.0] + [1.0] * SAMPLED]]
speak(claim | {"delta": DELTA, "releases": "number"}, each(draw))

"""flwr: one round of its server-side fixed clipping over a sample of three clients, as `FedAvg` samples them.

The input is the list of the clients there are; a client is its update. What is claimed of one client more or less is
what Flower's accountant answers for the round.
"""

import logging
import sys

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.privacy_accounting import NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from flwr.supercore.task_identity import TaskIdentity
from speak import each, speak

logging.disable(logging.CRITICAL)
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # what the server's process sets
SAMPLED, CLIP, NOISE, DELTA = 3, 1.0, 1.0, 0.01
KIND = sys.argv[1]
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


def round_of(updates):
    clients, strategy = Clients(updates), made(len(updates))
    asked = list(strategy.configure_train(1, zero, ConfigRecord(), clients))
    replies = [answered(m, clients.updates[m.metadata.dst_node_id]) for m in asked]
    arrays, _ = strategy.aggregate_train(1, replies)
    return float(arrays["w"].numpy()[0]), strategy.privacy_spent().epsilon


def draw(x):
    try:
        y, _ = round_of(x)
    except ZeroDivisionError:
        return None  # the server stops: there is no round
    return round(y * 2**10) / 2**10


_, epsilon = round_of([0.5] * SAMPLED)
claim = {"epsilon": epsilon, "delta": DELTA, "releases": "number"}
if KIND in ("zero", "small"):  # a client that changes nothing, or nearly, or all that it may
    nothing, ends = {"zero": 0.0, "small": 1e-6}[KIND], (-1.0, 1.0)
    claim["pairs"] = [[[nothing, a, b], [c, a, b]] for a in ends for b in ends for c in ends]
else:  # a client more: the sample stays three
    claim["pairs"] = [[[-1.0] * SAMPLED, [1.0] + [-1.0] * SAMPLED], [[1.0] * SAMPLED, [-1.0] + [1.0] * SAMPLED]]
speak(claim, each(draw))

"""Round of pfl-research's simulated backend: users without work, a statistic of m' numbers each.

Run it as a program in an environment with pfl, and without our packages: `python pfl_peer.py USERS REPEATS DIM` prints
users a second of each repeat, and the version.
"""

import json
import sys
import time
from importlib.metadata import version

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import FederatedAlgorithm
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import AlgorithmHyperParams, ModelHyperParams
from pfl.metrics import Metrics
from pfl.stats import MappedVectorStatistics

users, repeats, dim = map(int, sys.argv[1:])
value = np.zeros(dim, np.float32)


class Idle(FederatedAlgorithm):
    """Algorithm whose users do no work."""

    def get_next_central_contexts(self, *args, **kwargs):
        """Return no further context."""
        return None

    def process_aggregated_statistics(self, context, metrics, model, statistics):
        """Return the model unchanged."""
        return model, Metrics()

    def simulate_one_user(self, model, user_dataset, central_context):
        """Return the same statistic for each user."""
        return MappedVectorStatistics({"z": value}), Metrics()


names = iter(range(users * (repeats + 1)))
data = FederatedDataset(lambda user: Dataset((value,), user_id=user), lambda: str(next(names)))
backend = SimulatedBackend(data, data)
context = CentralContext(
    current_central_iteration=0,
    do_evaluation=False,
    cohort_size=users,
    population=Population.TRAIN,
    model_train_params=ModelHyperParams(),
    model_eval_params=ModelHyperParams(),
    algorithm_params=AlgorithmHyperParams(),
    seed=1,
)
speeds = []
for _ in range(repeats + 1):
    start = time.perf_counter()
    backend.gather_results(None, Idle(), central_context=context)
    speeds.append(users / (time.perf_counter() - start))
print(json.dumps({"per_second": speeds[1:], "version": version("pfl")}))

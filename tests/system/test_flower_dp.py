"""Flower's own differential privacy does what docs/how-to/flower-app.md says of it."""

import time
from collections.abc import Sequence

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from flwr.app import ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from flwr.supercore.privacy_accounting import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

DELTA = 1e-5


def _content(update: Sequence[float], metrics: dict | None = None) -> RecordDict:
    arrays = ArrayRecord([np.asarray(update, np.float32)])
    return RecordDict({"arrays": arrays, **({"metrics": MetricRecord(metrics)} if metrics else {})})


def _message(update: Sequence[float], metrics: dict | None = None) -> Message:
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
    return Message(_content(update, metrics), metadata=about)


def _answer(mod: LocalDpMod, update: Sequence[float], metrics: dict | None = None) -> tuple[np.ndarray, dict]:
    answer = mod(_message([0, 0]), None, lambda message, _: Message(_content(update, metrics), reply_to=message))
    return answer.content["arrays"].to_numpy_ndarrays()[0], dict(answer.content.get("metrics", {}))


def test_the_mod_states_no_sensitivity_of_its_own_and_passes_metrics_on():
    array, metrics = _answer(LocalDpMod(10.0, 0.0, 1.0, DELTA), [3, 4], {"train_loss": 0.123})
    assert array.tolist() == [3, 4] and metrics == {"train_loss": 0.123}


def test_the_mod_draws_from_the_global_generator_and_fails_at_zero():
    mod = LocalDpMod(1.0, 2.0, 1.0, DELTA)
    drawn = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        drawn.append(_answer(mod, [3, 4])[0].tolist())
    assert drawn[0] == drawn[1] != _answer(mod, [3, 4])[0].tolist()
    with pytest.raises(ZeroDivisionError):
        _answer(mod, [0, 0])


@pytest.mark.parametrize(("epsilon", "exact"), [(1.0, 0.75), (10.0, 10.4), (20.0, 25.4)])
def test_the_formula_of_the_mod_exceeds_its_epsilon_above_ten(epsilon: float, exact: float):
    deviation = np.sqrt(2 * np.log(1.25 / DELTA)) / epsilon
    assert from_gaussian_mechanism(deviation).get_epsilon_for_delta(DELTA) == pytest.approx(exact, rel=0.005)


def _strategy(accountant: RdpAccountant | None) -> DifferentialPrivacyServerSideFixedClipping:
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 2, accountant=accountant)
    strategy.current_arrays = _content([0, 0])["arrays"]
    strategy._pending_events[1] = GaussianPrivacyEvent(1.0, 2, 1000)
    return strategy


def test_strategies_account_for_arrays_of_equal_weights_and_for_no_metric():
    config = PrivacyConfig(
        DELTA, 1000, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION, max_epsilon=8.0
    )
    equal = [_message([3, 4], {"train_loss": loss, "num-examples": 5}) for loss in (0.1, 0.3)]
    strategy = _strategy(RdpAccountant(config))
    assert strategy.aggregate_train(1, equal)[1]["train_loss"] == pytest.approx(0.2)
    assert strategy.privacy_spent().epsilon == pytest.approx(4.73, abs=0.01)
    assert from_gaussian_mechanism(0.5).get_epsilon_for_delta(DELTA) == pytest.approx(10.0, abs=0.01)

    unequal = [_message([3, 4], {"train_loss": 0.1, "num-examples": count}) for count in (1, 1000)]
    with pytest.raises(ValueError, match="equal client weights"):
        _strategy(RdpAccountant(config)).aggregate_train(1, unequal)
    assert _strategy(None).aggregate_train(1, unequal)[0]
    with pytest.raises(TypeError, match="accountant"):
        DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 1.0, 2, accountant=RdpAccountant(config))

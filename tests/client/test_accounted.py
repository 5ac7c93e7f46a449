"""Somebody else's app, as Flower's quickstart has it, and the mod: without it the app leaks; with it nothing leaves but
what is on the ledger, and was there before.

Statistical, on fixed data with secure randomness: the mean of 6,000 released updates is compared with the true one by
the sum of squares of 7 coordinates in standard errors, so a false alarm has probability below 1e-6; 2/3 and 3/2 of it
are taken for it with probability 6e-8 at most.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from scipy.stats import chi2

from client import accounted as accounting
from client.accounted import Accountant
from client.app import _short, accounted
from client.policy import Policy, Refused
from client.store.ledger import Ledger
from mechanisms.accounting.privacy_filter import Account
from mechanisms.privunit import PrivUnit
from tests.support.answers import reason
from tests.support.clients import context
from tests.support.quickstart import FEATURES, arrays, asks, quickstart

POLICY = Policy(statistic=6.0, label=3.0, total=8.0)
VECTOR = {"mechanism": "privunit", "epsilon": 2.0, "norm": 1.0}
RELEASES = {
    "train": {"arrays": VECTOR},
    "query": {"metrics.label": {"mechanism": "randomized-response", "epsilon": 1.0, "classes": 2}},
}
INSTEAD = {"metrics.num-examples": 1, "metrics.train_loss": None}


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def app(ledger):
    return quickstart([accounted(ledger, POLICY, RELEASES, instead=INSTEAD)])


def rows(ledger):
    with Ledger(ledger) as opened:
        return opened.rows()


def content(answer):
    """What an answer says, as it would travel; plain values."""
    assert answer.has_content(), answer.error
    return {
        name: {k: v.numpy().tolist() if isinstance(v, Array) else v for k, v in record.items()}
        for name, record in answer.content.items()
    }


@pytest.mark.parametrize("change", [True, False])
def test_a_parameter_that_a_cpu_computes_is_in_no_digest(ledger, monkeypatch, change):
    """Another CPU may round the least-error cap of PrivUnit to another sixth decimal. A stated one is a parameter."""
    first = Accountant(ledger, POLICY, {"train": {"arrays": VECTOR}}, {})
    asked = {"arrays": {"w": np.zeros(4, np.float32)}}
    sent = first.answer("train", asked, 3, lambda: {"arrays": {"w": np.ones(4, np.float32)}})
    accounting._built.cache_clear()
    cap = PrivUnit(4, 2.0).cap_probability + 1e-6
    monkeypatch.setattr("mechanisms.privunit.best_cap_probability", lambda dim, epsilon: cap)
    spec = VECTOR | ({"cap_probability": cap} if change else {})
    again = Accountant(ledger, POLICY, {"train": {"arrays": spec}}, {})
    repeated = again.answer("train", asked, 3, lambda: {"arrays": {"w": np.ones(4, np.float32)}})
    assert len(rows(ledger)) == (2 if change else 1)
    if not change:
        np.testing.assert_allclose(repeated[0]["arrays"]["w"], sent[0]["arrays"]["w"], rtol=1e-4)


def test_with_it_an_update_leaves_blurred_and_constants_stand_for_the_rest(app, ledger):
    told = content(app(asks(), context(3)))
    assert told["metrics"] == {"num-examples": 1} and set(told) == {"arrays", "metrics"}
    released = np.append(told["arrays"]["weight"], told["arrays"]["bias"])
    # a draw of PrivUnit is a unit vector over its scale: the same length whatever the user's examples say
    told = content(app(asks(), context(9)))["arrays"]
    other = np.append(told["weight"], told["bias"])
    assert np.linalg.norm(released) == pytest.approx(np.linalg.norm(other), rel=1e-3)
    (row, another) = rows(ledger)
    assert (row.user, row.channel, row.epsilon, another.user) == (3, "statistic", pytest.approx(2.0), 9)


def test_the_same_question_again_is_the_same_bytes_at_no_cost_and_the_app_is_not_run(app, ledger, monkeypatch):
    first = content(app(asks(), context(3)))
    monkeypatch.setattr("tests.support.quickstart.examples", lambda partition: pytest.fail("the app was run"))
    again = quickstart([accounted(ledger, POLICY, RELEASES, instead=INSTEAD)])  # another process, the same ledger
    assert content(again(asks(), context(3))) == first and len(rows(ledger)) == 1


def test_what_another_request_does_while_the_app_runs(ledger):
    """The same request is one draw. Another spends first: two answers are within the policy."""
    accountant, runs = Accountant(ledger, POLICY, {"train": RELEASES["train"] | RELEASES["query"]}, {}), []

    def answer(number, *, meanwhile):
        def run():
            runs.append(number)
            for other in meanwhile:
                inner.append(answer(other, meanwhile=()))
            return {"arrays": {"w": np.full(4, 0.25)}, "metrics": {"label": 1}}

        return accountant.answer("train", {"arrays": {"w": np.zeros(4)}, "config": {"round": number}}, 3, run)

    inner: list = []
    outer = answer(1, meanwhile=[1])
    np.testing.assert_equal(outer, inner[0])
    assert runs == [1, 1] and len(rows(ledger)) == 2
    with pytest.raises(Refused, match="budget"):
        answer(2, meanwhile=[3])
    assert runs == [1, 1, 2, 3] and len(rows(ledger)) == 4


@pytest.mark.parametrize(
    "change",
    [{"key": b"\xff"}, {"epsilon": 100.0, "norm": 1e9, "mechanism": "identity"}],
)
def test_any_other_question_is_charged_anew_under_the_same_mechanism(app, ledger, change):
    """Whatever a server puts into its settings: none of it is about what leaves."""
    app(asks(), context(3))
    app(asks(**change), context(3))
    assert [row.epsilon for row in rows(ledger)] == pytest.approx([2.0, 2.0])
    assert len({row.digest for row in rows(ledger)}) == 2 and len({row.payload for row in rows(ledger)}) == 2


@pytest.mark.parametrize(("delta", "answers"), [(0.0, 80), (1e-6, 201)])
def test_the_total_is_the_sum_unless_a_delta_is_named(delta, answers):
    """Of answers of ε = .1 a total of 8 admits 80. The filter at a δ admits 201, which sum up to 20.1."""
    policy, _ = _short({"mechanism": "privunit", "epsilon": 0.1}, 8.0, delta, 1.0)
    cost = policy.cost(PrivUnit(epsilon=0.1, dim=16).guarantee)
    assert [policy.affords(Account.empty(1), cost, limit) for limit in ("statistic", "total")] == [answers] * 2


def test_a_type_of_message_that_nothing_accounts_for_is_refused_before_the_app_sees_it(app, ledger, monkeypatch):
    monkeypatch.setattr("tests.support.quickstart.examples", lambda partition: pytest.fail("the app was run"))
    assert reason(app(asks("evaluate"), context(3))) == "unaccounted" and not ledger.exists()


@pytest.mark.parametrize(
    "more",
    [
        {"metrics": MetricRecord({"train_loss": 0.5, "num-examples": 5, "accuracy": 0.9})},
        {"notes": ConfigRecord({"seen": "a secret"})},
        {"others": arrays()},
    ],
)
def test_what_nothing_accounts_for_has_the_answer_refused_and_said_here_alone(ledger, more, caplog):
    def adds(asked, context, call_next):
        reply = call_next(asked, context)
        return Message(RecordDict(dict(reply.content.items()) | more), reply_to=asked)

    app = quickstart([accounted(ledger, POLICY, RELEASES, instead=INSTEAD), adds])
    answer = app(asks(), context(3))
    assert reason(answer) == "unaccounted" and rows(ledger) == []
    assert "nothing accounts for" in caplog.text and "secret" not in caplog.text and "0.9" not in caplog.text


def test_of_listed_questions_no_other_is_answered(ledger):
    app = quickstart([accounted(ledger, replace(POLICY, questions=("0" * 64,)), RELEASES, instead=INSTEAD)])
    assert reason(app(asks(), context(3))) == "question" and not ledger.exists()


def test_a_failure_of_the_app_is_a_constant_text(ledger):
    """In a simulation, Ray says to the server what an actor has died of."""

    def answer(fail):
        mods = [accounted(ledger, POLICY, RELEASES, instead=INSTEAD), lambda asked, *_: fail(asked)]
        return quickstart(mods)(asks(), context(3))

    def raising(error):
        def fail(asked):
            raise error

        return fail

    def error(asked):
        return Message(Error(7, "HIV"), reply_to=asked)

    for fail in (raising(ValueError("HIV")), raising(SystemExit("HIV")), error):
        assert reason(answer(fail)) == "failed" and rows(ledger) == []
    with pytest.raises(KeyboardInterrupt) as ended:
        answer(raising(KeyboardInterrupt("HIV")))
    assert ended.value.args == () and ended.value.__cause__ is None and ended.value.__suppress_context__


def answering(ledger, **values):
    """An app that answers these arrays, whatever it is asked."""

    def says(asked, context, call_next):
        named = {key: Array(np.asarray(value, np.float64)) for key, value in values.items()}
        return Message(RecordDict({"arrays": ArrayRecord(named)}), reply_to=asked)

    return quickstart([accounted(ledger, POLICY, RELEASES), says])


@pytest.mark.parametrize("value", [math.nan, -1e300, 0.0])
def test_what_a_record_says_never_decides_whether_there_is_an_answer(ledger, value):
    told = content(answering(ledger, weight=np.full(FEATURES, value), bias=value)(asks(), context(3)))
    assert np.isfinite(told["arrays"]["weight"]).all() and len(rows(ledger)) == 1


def test_arrays_of_other_shapes_than_were_sent_are_refused(ledger):
    assert reason(answering(ledger, weight=np.zeros(FEATURES + 1), bias=0.0)(asks(), context(3))) == "failed"
    assert reason(answering(ledger, weight=np.zeros(FEATURES))(asks(), context(3))) == "failed"


@pytest.mark.parametrize(
    "model",
    [
        ArrayRecord(),
        ArrayRecord({"weight": Array(np.array(["a", "b"]))}),
        ArrayRecord({"weight": Array(np.zeros(9000, np.float32))}),
        ArrayRecord({"weight": Array("float32", (3,), "torch", b"other")}),
    ],
)
def test_a_model_that_nothing_can_be_measured_from_is_malformed(app, model, ledger):
    answer = app(asks(model=model), context(3))
    assert reason(answer) == "malformed" and (not ledger.exists() or rows(ledger) == [])


def test_a_label_leaves_by_randomized_response_and_one_that_is_none_as_the_first(app, ledger):
    for user, label in enumerate((1, 5, -1, 2**40)):
        told = content(app(asks("query", label=label), context(user)))
        assert told == {"metrics": {"label": rows(ledger)[user].payload[0], "num-examples": 1}}
    assert {(row.channel, row.epsilon) for row in rows(ledger)} == {("label", 1.0)}
    out = accounting.Outgoing.of("metrics.label", RELEASES["query"]["metrics.label"])
    part = accounting._Part.of("query", out, {})
    told = [part.value({"metrics": {"label": label}})[0] for label in (1, 0, 5, -1, 0.5, True, [1], None)]
    assert told == [1, 0, 0, 0, 0, 0, 0, 0] and part.value({})[0] == 0


def test_the_mean_of_what_leaves_is_the_update(tmp_path, monkeypatch):
    n, update = 6000, np.array([0.3, -0.2, 0.1, 0.0, 0.0, 0.2, 0.4])
    out = accounting.Outgoing.of("arrays", VECTOR | {"norm": 0.8})
    base = {"weight": np.zeros(FEATURES, np.float32), "bias": np.zeros((), np.float32)}
    part = accounting._Part.of("train", out, {"arrays": base})
    value = part.value({"arrays": {"weight": update[:FEATURES], "bias": update[FEATURES:].reshape(())}})
    drawn = []
    for user in range(n):
        moved = part.vector(part.draw(value, np.array([user]), 0))
        drawn.append(np.append(moved["weight"], moved["bias"]))
    error = np.std(drawn, axis=0) / math.sqrt(n)

    def fits(mean):
        return bool((((np.mean(drawn, axis=0) - mean) / error) ** 2).sum() < chi2.isf(1e-7, FEATURES + 1))

    assert fits(update) and not fits(update * 2 / 3) and not fits(update * 3 / 2)


def test_an_update_is_clipped_to_the_norm_that_this_side_has_fixed():
    out = accounting.Outgoing.of("arrays", VECTOR | {"norm": 0.5})
    part = accounting._Part.of("train", out, {"arrays": {"weight": np.ones(4, np.float32)}})
    for far in (1.0, 100.0, 1e200):
        assert np.linalg.norm(part.value({"arrays": {"weight": 1 + np.full(4, far)}})) == pytest.approx(1.0)
    np.testing.assert_allclose(part.value({"arrays": {"weight": 1 + np.full(4, 0.05)}})[0], 0.1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": Policy(statistic=6.0)}, "finite total"),
        ({"policy": replace(POLICY, accept_unprotected=("label: why not",))}, "nothing is declared public"),
        ({"policy": replace(POLICY, minimum_users=9)}, "no batch is waited for"),
        ({"policy": replace(POLICY, statistic=1.0)}, "arrays: the policy does not allow so large an epsilon"),
        ({"policy": replace(POLICY, mechanisms=("purkayastha",))}, "does not allow privunit"),
        ({"releases": {"train": {"arrays": VECTOR | {"norm": 0}}}}, "give the norm"),
        ({"releases": {"train": {"arrays": VECTOR | {"mechanism": "identity"}}}}, "identity"),
        ({"releases": {"train": {"metrics.label": RELEASES["query"]["metrics.label"] | {"norm": 1.0}}}}, "no norm"),
        ({"instead": {"metrics.loss": math.nan}}, "finite number or None"),
        ({"instead": {"metrics.loss": True}}, "finite number or None"),
        ({"instead": {"metrics.label": 1}}, "is released, and something else instead"),
        ({"instead": {"loss": 1}}, "record.key"),
        ({"delta": 1e-6}, "total_delta"),
        ({"total": 8.0}, "total and update"),
        ({"ledger": "mistyped/ledger"}, "is no folder"),
        ({"policy": None, "releases": None, "total": 8.0, "update": "privunit:epsilon=2.0,norm=3.0"}, r"norm=3\.0"),
    ],
)
def test_what_does_not_go_together_is_refused_before_any_request(tmp_path, changes, words):
    arguments = {"ledger": "ledger", "policy": POLICY, "releases": RELEASES, "instead": INSTEAD} | changes
    with pytest.raises(ValueError, match=words):
        accounted(tmp_path / arguments.pop("ledger"), **arguments)
    assert list(tmp_path.iterdir()) == []

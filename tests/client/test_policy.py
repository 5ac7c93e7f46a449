"""A policy refuses what asks for too much, and a mistyped one is an error."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from client.policy import Policy, Refused
from mechanisms.accounting.privacy_filter import Account, cost
from mechanisms.guarantee import Guarantee
from mechanisms.messages.refusals import REFUSALS
from tests.support.clients import OPEN, REFERENCE, request, with_prior

IDENTITY = request(embedding={"mechanism": "identity"}, label=None)
GAUSSIAN = request(embedding={"mechanism": "gaussian", "sigma": 1.0}, label=None)


def pure(epsilon):
    """What an ε-private release is charged."""
    return cost(Guarantee(epsilon=epsilon, metric="discrete", diameter=1.0, protects="label"), 0.0)


def charged(*epsilons):
    accounts = [Account.empty(1).plus(pure(epsilon), np.array([1])) for epsilon in epsilons]
    return Account(*(np.concatenate([getattr(a, f.name) for a in accounts]) for f in fields(Account)))


def refusal(policy, asked):
    with pytest.raises(Refused) as caught:
        policy.check(asked)
    return caught.value.reason


def test_the_default_agrees_to_nothing():
    assert refusal(Policy(), request()) == "channel"
    assert refusal(Policy(), IDENTITY) == "unprotected"


def test_channel_limits_are_on_the_worst_case():
    worst = request().named("embedding").mechanism.guarantee.worst_case()
    assert worst == pytest.approx(10 * math.pi)
    Policy(embedding=worst, label=2.0).check(request())  # 10π and the sampler's numerical loss
    assert refusal(Policy(embedding=31.4, label=2.0), request()) == "channel"
    assert refusal(Policy(embedding=worst, label=1.99), request()) == "channel"
    assert (
        refusal(
            Policy(embedding=worst, label=2.0, total=worst),
            request(label=None, embedding={"mechanism": "purkayastha", "epsilon": 10.1}),
        )
        == "channel"
    )
    assert refusal(replace(OPEN, total=31.0), request()) == "total"


def test_gaussian_noise_needs_a_delta():
    assert refusal(OPEN, GAUSSIAN) == "unprotected"
    need = GAUSSIAN.named("embedding").mechanism.guarantee.worst_case(1e-6)
    Policy(embedding=need, delta=1e-6).check(GAUSSIAN)
    assert refusal(Policy(embedding=need * 0.99, delta=1e-6), GAUSSIAN) == "channel"


def test_mechanisms_not_named_are_refused():
    assert refusal(replace(OPEN, mechanisms=("purkayastha",)), request()) == "mechanism"
    replace(OPEN, mechanisms=("purkayastha", "randomized-response")).check(request())
    OPEN.check(with_prior())


def test_small_batches_are_refused():
    assert refusal(replace(OPEN, minimum_users=101), request()) == "minimum-users"
    replace(OPEN, minimum_users=100).check(request())


def test_an_unprotected_channel_is_refused_unless_declared_public():
    assert refusal(OPEN, IDENTITY) == "unprotected"
    assert refusal(replace(OPEN, accept_unprotected=("label: public",)), IDENTITY) == "unprotected"
    Policy(accept_unprotected=("embedding: the texts are published",)).check(IDENTITY)
    clear = request(label={"mechanism": "identity"})
    REFERENCE.check(clear)
    declared = Policy(embedding=40.0, total=40.0, accept_unprotected=("label: public in this task",))
    declared.check(clear)  # a channel declared public does not count towards the total
    assert declared.allows(charged(math.inf), "label").all()


def test_sums_may_miss_a_limit_by_rounding_only():
    limit = Policy(total=0.3)
    assert limit.allows(charged(0.1 + 0.1 + 0.1, 0.300001), "total").tolist() == [True, False]


def test_what_one_release_is_refused_for():
    policy = Policy(embedding=5.0, label=9.0, total=6.0, accept_unprotected=("text: published",))
    reasons = {
        ("embedding", 5.0): None,
        ("embedding", 5.1): "channel",
        ("embedding", 7.0): "channel",
        ("label", 7.0): "total",
        ("label", math.inf): "unprotected",
        ("text", math.inf): None,
    }
    assert {(channel, cost): policy.refusal(channel, pure(cost)) for channel, cost in reasons} == reasons


def test_values_of_a_file():
    read = Policy.from_dict({"embedding": "inf", "label": 2, "mechanisms": ["identity"], "accept_unprotected": []})
    assert (read.embedding, read.label, read.mechanisms) == (math.inf, 2, ("identity",))
    for policy in (OPEN, REFERENCE, read, Policy()):
        assert Policy.from_dict(policy.to_dict()) == policy


@pytest.mark.parametrize(
    "values",
    [
        {"epsilon": 1.0},
        {"embedding": -1.0},
        {"embedding": math.nan},
        {"embedding": "much"},
        {"total": None},
        {"label": True},
        {"delta": 1.0},
        {"delta": -0.1},
        {"minimum_users": -1},
        {"minimum_users": 1.5},
        {"mechanisms": "purkayastha"},
        {"mechanisms": [1]},
        {"accept_unprotected": ["label"]},
        {"accept_unprotected": ["label: "]},
        {"accept_unprotected": ["texts: published"]},
        [],
    ],
)
def test_a_mistyped_policy_is_an_error(values):
    with pytest.raises(ValueError, match="policy: "):
        Policy.from_dict(values)


def test_refusals_are_constant_and_distinct():
    codes, texts = zip(*REFUSALS.values(), strict=True)
    assert len(set(codes)) == len(codes) and len(set(texts)) == len(texts) and min(codes) > 100
    assert all(str(Refused(reason)) == text for reason, (_, text) in REFUSALS.items())

"""A policy refuses what asks for too much, and its total holds for whatever a server asks in the light of answers."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.node import load_node
from client.policy import Policy, Refused
from client.sanitizer import Sanitizer
from client.store.ledger import Ledger
from mechanisms.accounting.privacy_filter import concentrated_limit
from mechanisms.guarantee import gaussian_epsilon
from mechanisms.messages.refusals import REFUSALS
from mechanisms.messages.request import Request
from tests.support.answers import ask, refusal
from tests.support.clients import OPEN, REFERENCE, make_node, request
from tests.support.paths import ROOT

IDENTITY = request(embedding={"mechanism": "identity"}, label=None)
GAUSSIAN = request(embedding={"mechanism": "gaussian", "sigma": 1.0}, label=None)


def reason(policy, asked):
    with pytest.raises(Refused) as caught:
        policy.check(asked)
    return caught.value.reason


def test_channel_limits_are_on_the_worst_case():
    worst = request().named("embedding").mechanism.guarantee.worst_case()
    assert worst == pytest.approx(10 * math.pi)
    Policy(embedding=worst, label=2.0).check(request())  # 10π and the sampler's numerical loss
    assert reason(Policy(embedding=31.4, label=2.0), request()) == "channel"
    assert reason(Policy(embedding=worst, label=1.99), request()) == "channel"
    assert reason(replace(OPEN, total=31.0), request()) == "total"


def test_gaussian_noise_needs_a_delta():
    assert reason(OPEN, GAUSSIAN) == "unprotected"
    need = GAUSSIAN.named("embedding").mechanism.guarantee.worst_case(1e-6)
    Policy(embedding=need, delta=1e-6).check(GAUSSIAN)
    assert reason(Policy(embedding=need * 0.99, delta=1e-6), GAUSSIAN) == "channel"


def test_mechanisms_not_named_and_small_batches_are_refused():
    assert reason(replace(OPEN, mechanisms=("purkayastha",)), request()) == "mechanism"
    replace(OPEN, mechanisms=("purkayastha", "randomized-response")).check(request())
    assert reason(replace(OPEN, minimum_users=101), request()) == "minimum-users"
    replace(OPEN, minimum_users=100).check(request())


def test_a_request_is_listed_if_each_of_its_channels_is():
    asked = request()
    digests = tuple(map(asked.digest, asked.channels))
    assert len(digests) == 2
    for listed in ((), digests[:1], digests[1:]):
        assert reason(replace(OPEN, questions=listed), asked) == "question"
    replace(OPEN, questions=digests).check(asked)


def test_an_unprotected_channel_is_refused_unless_declared_public():
    assert reason(OPEN, IDENTITY) == "unprotected"
    Policy(accept_unprotected=("embedding: the texts are published",)).check(IDENTITY)
    clear = request(label={"mechanism": "identity"})
    REFERENCE.check(clear)
    declared = Policy(embedding=40.0, total=40.0, accept_unprotected=("label: public in this task",))
    declared.check(clear)  # a channel declared public does not count towards the total


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
        {"total": None},
        {"label": True},
        {"delta": 1.0},
        {"minimum_users": -1},
        {"window": 3601.0},
        {"window": True},
        {"minimum_users": 1.5},
        {"mechanisms": "purkayastha"},
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


ONE = np.array([0], dtype=np.int64)


def label(stage: str, epsilon: float) -> Request:
    return request(stage=stage, embedding=None, label={"mechanism": "randomized-response", "epsilon": epsilon})


@pytest.mark.parametrize(
    ("many", "refusals", "above"),
    [(300, 1, 1.5), pytest.param(1000, 15, 5, marks=[pytest.mark.slow, pytest.mark.soak])],
)
def test_adaptively_chosen_releases_stay_within_the_policy(
    many: int, refusals: int, above: float, tmp_path: Path
) -> None:
    """Each ε is chosen by the last answers; now and then the server tries for more than is left. The account never
    passes the policy, and sums alone would have ended at two thirds, or a fifth, of it."""
    policy = Policy(label=math.inf, total=2.0, total_delta=1e-5, releases=many)
    make_node(tmp_path, [0], policy=policy)
    node, shard = load_node(tmp_path), load_node(tmp_path).shard("train")
    epsilon, refused = 0.012, 0
    with node.ledger("a") as ledger:
        client = Sanitizer(policy, ledger, node.streams)
        for i in range(many):
            if i % 50 == 49 and i > 250:  # the sums have room before that
                left = concentrated_limit(2.0, 5e-6) - ledger.spent(ONE).rho[0]
                with pytest.raises(Refused, match="budget"):
                    client.answer(label(f"s{i}", math.sqrt(2 * left) * 1.1), shard)
                refused += 1
            told = int(client.answer(label(f"s{i}", epsilon), shard).releases[0].payload["y"][0])
            epsilon = min(0.0135, epsilon * (1.3 if told else 0.8))
            if i % 25 == 24:  # the sums only grow
                spent = ledger.spent(ONE)
                assert spent.epsilon[0] <= 2.0 or spent.rho[0] <= concentrated_limit(2.0, 5e-6)
                assert spent.delta[0] <= 5e-6 and spent.releases[0] == i + 1
        assert spent.epsilon[0] > above * policy.total and refused == refusals
        with pytest.raises(Refused, match="budget"):
            client.answer(label("one-more", 1e-9), shard)
        assert len(client.answer(label("s0", 0.012), shard)) == 1  # what has left is repeated, whatever is spent


def test_releases_that_cost_nothing_are_counted(tmp_path: Path) -> None:
    policy = Policy(label=0.0, total=0.0, releases=3, accept_unprotected=("embedding: published",))
    make_node(tmp_path, [0, 1], policy=policy)
    for stage in ("a", "b", "c"):
        assert len(ask(tmp_path, label(stage, 0.0))) == 2
    assert refusal(tmp_path, label("d", 0.0)) == "spent"
    clear = request(stage="d", label=None, embedding={"mechanism": "identity"})
    assert refusal(tmp_path, clear) == "spent"  # declared public, and a release all the same
    assert len(ask(tmp_path, label("c", 0.0))) == 2


def test_a_ledger_that_was_written_before_there_was_a_filter_opens_with_its_account(tmp_path: Path) -> None:
    """What it holds are theorems, in the words of then; the account is made of them, at the policy's δ of today."""
    policy = Policy(embedding=20.0, label=math.inf, total=20.0, delta=1e-6)
    path = make_node(tmp_path, [0], policy=policy) / "ledger-a.sqlite"
    noise = (
        '{"diameter": 2.0, "epsilon": "inf", "inputs": "all", "metric": "euclidean", "numeric_delta": 4e-09, '
        '"numeric_epsilon": 0.0, "offset": 0.0, "protects": "sequence", "sigma": 1.0}'
    )
    keys = np.zeros((1, 2), "<i8").tobytes()
    with Ledger(path, durable=False):
        pass
    with closing(sqlite3.connect(path)) as old:
        old.execute("INSERT INTO draws VALUES (1, 'then', 'embedding', 'd', ?)", (noise,))
        old.execute(
            "INSERT INTO releases VALUES (1, 1, 1, 1, 1e9, 0.5, 0, 0, 0, 0, ?, ?, ?, ?)",
            (zlib.crc32(keys), zlib.crc32(b"ab"), keys, b"ab"),
        )
        old.commit()
    with Ledger(path, durable=False) as ledger:
        spent = policy.spent(ledger, ONE)
    one = gaussian_epsilon(2.0, 1e-6)
    assert spent.epsilon[0] == pytest.approx(one) and spent.rho[0] == 2.0 and spent.releases[0] == 1
    assert spent.delta[0] == pytest.approx(1e-6 + 4e-9)
    assert refusal(tmp_path, label("now", 20.0 - one + 0.1)) == "spent"
    assert len(ask(tmp_path, label("now", 20.0 - one - 0.1))) == 1


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from client.policy import Refused
from tests.client.test_policy import ask, label
for i in range(12):
    try:
        ask(Path(sys.argv[2]), label(f"{sys.argv[3]}{i}", 1.0))
        print("answered")
    except Refused as error:
        print(error.reason)
"""


def test_two_processes_on_one_ledger_spend_one_budget(tmp_path: Path) -> None:
    """24 questions of ε = 1 from two processes at once, and a total of 7: seven are answered."""
    make_node(tmp_path, [0], policy=Policy(label=math.inf, total=7.0))
    both = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(ROOT), str(tmp_path), name], stdout=subprocess.PIPE)
        for name in "ab"
    ]
    said = [process.communicate(timeout=120)[0].decode().split() for process in both]
    outcomes = sorted(said[0] + said[1])
    assert outcomes == ["answered"] * 7 + ["spent"] * 17
    with load_node(tmp_path).ledger("a") as ledger:
        assert ledger.spent(ONE).epsilon.tolist() == [7.0] and len(ledger.rows()) == 7


def test_a_policy_that_was_tightened_still_repeats_and_counts_what_is_public(tmp_path: Path) -> None:
    policy = Policy(label=math.inf, total=3.0, accept_unprotected=("embedding: published",))
    make_node(tmp_path, [0], policy=policy)
    for stage in "ab":
        ask(tmp_path, label(stage, 1.5))
    make_node(tmp_path, [0], policy=replace(policy, total=2.0))
    assert len(ask(tmp_path, label("a", 1.5))) == 1 and refusal(tmp_path, label("c", 0.1)) == "spent"
    assert len(ask(tmp_path, request(stage="c", label=None, embedding={"mechanism": "identity"}))) == 1

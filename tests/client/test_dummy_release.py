"""Who can pay no more answers all the same: with draws that say nothing of them, as often as the policy allows.

The statistical test answers at a false-alarm rate of 1e-6, on fixed seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from client.device.statement import format_statement, read_statement
from client.draw import draw
from client.dummy_release import apart, values
from client.node import Node, load_node, write_node
from client.policy import Policy, Refused
from client.sanitizer import Sanitizer
from client.shard import Shard, write_shard
from client.store.ledger import LedgerError
from mechanisms.messages.reply import Reply
from mechanisms.messages.request import Request
from mechanisms.streams import SecureStreams, SimulationStreams
from server.validation import validate
from tests.client.test_answer import asked as answer_of
from tests.client.test_statistic import asked as statistic_of
from tests.support.clients import ENCODER, M, make_node, request, with_prior
from tests.support.texts import vocabulary

ALARM = 1e-6
OPEN = Policy(embedding=math.inf, label=math.inf, text=math.inf, statistic=math.inf, answer=math.inf)
WORDS = vocabulary()


def text_of(**changes: object) -> Request:
    text = {"mechanism": "santext", "epsilon": 2.0, "tokens": 6, "vocabulary": WORDS.identity}
    return request(
        **{"embedding": None, "label": None, "encoder": "", "mean": None, "m1": None, "text": text, "vocabulary": WORDS}
        | changes
    )


QUESTIONS = {
    "embedding and label": request,
    "label by a prior": with_prior,
    "text": text_of,
    "statistic": statistic_of,
    "answer": answer_of,
}
questions = pytest.mark.parametrize("make", list(QUESTIONS.values()), ids=list(QUESTIONS))


def cost(asked: Request) -> float:
    return sum(OPEN.cost(asked.named(channel).mechanism.guarantee).epsilon for channel in asked.channels)


def node_of(folder: Path, asked: Request, *, data: int = 0, stand_ins: int = 100) -> Node:
    """A node whose users can pay once for what is asked. data: what their records say depends on it."""
    rng, people = np.random.default_rng(data), np.arange(8)
    texts = [" ".join(rng.choice(WORDS.words, 4)) for _ in people]
    write_shard(
        folder,
        "train",
        people,
        np.zeros(8, np.int64),
        texts,
        rng.integers(3, size=8),
        embeddings=rng.normal(size=(8, M)).astype(np.float32),
        identity=ENCODER,
    )
    policy = replace(OPEN, total=cost(asked) * (1 + 1e-9), stand_ins=stand_ins)
    write_node(folder, seed=7, arms={"a": policy})
    return load_node(folder)


def ask(node: Node, asked: Request, arm: str = "a", shard: Shard | None = None) -> Reply:
    with node.ledger(arm) as ledger, node.stand_ins(arm) or nullcontext() as other:
        client = Sanitizer(node.policy(arm), ledger, node.streams, other)
        return client.answer(asked, shard or node.shard("train"))


def bytes_of(reply: Reply) -> list[bytes]:
    return [next(iter(release.payload.values())).tobytes() for release in reply.releases]


def rows_of(node: Node, arm: str = "a") -> tuple[int, int]:
    """On the ledger, and on that of stand-ins."""
    with node.ledger(arm) as ledger, node.stand_ins(arm) or nullcontext() as other:
        return len(ledger.rows()), 0 if other is None else len(other.rows())


@questions
def test_who_can_pay_no_more_answers_all_the_same_and_is_charged_nothing(
    tmp_path: Path, make: Callable[..., Request]
) -> None:
    node = node_of(tmp_path, make())
    first, charged = ask(node, make()), rows_of(node)
    assert charged == (8 * len(make().channels), 0)
    second = ask(node, make(stage="two"))
    valid, dropped = validate(second, make(stage="two"), enrolled=range(8))
    assert len(valid.users) == 8 and not any(dropped.values())  # of the form that was asked for
    assert second.users.tolist() == first.users.tolist()
    assert rows_of(node) == (charged[0], charged[0])
    assert bytes_of(second) == bytes_of(ask(node, make(stage="two")))  # the same question, the same bytes
    assert bytes_of(first) == bytes_of(ask(node, make()))
    assert rows_of(node) == (charged[0], charged[0])


@questions
def test_a_stand_in_says_nothing_of_the_user(tmp_path: Path, make: Callable[..., Request]) -> None:
    """Bit for bit the same whatever the users hold, where their own releases differ."""
    nodes = [node_of(tmp_path / str(data), make(), data=data) for data in (1, 2)]
    own, stood_for = ([bytes_of(ask(node, make(stage=stage))) for node in nodes] for stage in ("one", "two"))
    assert own[0] != own[1]
    assert stood_for[0] == stood_for[1]


def test_nor_do_releases_of_a_stage_share_its_streams(tmp_path: Path) -> None:
    """What stands for a release, and the same user's release under other parameters at that stage."""
    asked = statistic_of(stage="two")
    node = node_of(tmp_path, asked)
    users, records, streams = np.arange(8), np.zeros(8, np.int64), SimulationStreams(7)
    vector = asked.named("statistic")
    x = values(vector, users, records, stage=asked.stage, streams=apart(streams, "stand-in"), step=0)
    own = draw(vector, x, users, records, stage=asked.stage, streams=streams)
    ask(node, statistic_of())
    (stood_for,) = ask(node, asked).releases
    assert (own != stood_for.payload["s"]).any(axis=1).all()
    assert isinstance(apart(SecureStreams(), "stand-in"), SecureStreams)


def test_they_are_as_many_as_the_policy_allows_and_all_of_a_user_s_records_together(tmp_path: Path) -> None:
    users, records = [1, 1, 2], [0, 1, 0]
    one = cost(request())
    policy = replace(OPEN, total=one * (1 + 1e-9), stand_ins=4)
    node = load_node(make_node(tmp_path, users, records, policy=policy))
    assert ask(node, request()).users.tolist() == [1, 1, 2]  # user 1 has two records and can pay for one
    assert rows_of(node) == (2, 4)
    assert ask(node, request(stage="two")).users.tolist() == [2]  # user 1 has none left
    assert ask(node, request(stage="three")).users.tolist() == [2]
    with pytest.raises(Refused) as caught:
        ask(node, request(stage="four"))
    assert caught.value.reason == "total"
    assert ask(node, request()).users.tolist() == [1, 1, 2]  # what has left may be repeated


def test_without_them_a_user_who_can_pay_no_more_is_missing(tmp_path: Path) -> None:
    node = node_of(tmp_path, request(), stand_ins=0)
    ask(node, request())
    with pytest.raises(Refused):
        ask(node, request(stage="two"))
    assert not list(tmp_path.glob("*stand-ins*"))


def test_what_stood_for_a_release_is_repeated_by_a_user_who_may_pay_again(tmp_path: Path) -> None:
    """Or the two would differ, and tell."""
    node = node_of(tmp_path, request())
    ask(node, request())
    before = ask(node, request(stage="two"))
    raised = replace(node.policy("a"), total=1e6)
    write_node(tmp_path, seed=7, arms={"a": raised})
    node = load_node(tmp_path)
    assert bytes_of(ask(node, request(stage="two"))) == bytes_of(before)
    ask(node, request(stage="three"))
    assert rows_of(node) == (32, 16)


def test_a_question_that_the_policy_never_allowed_is_refused_as_ever(tmp_path: Path) -> None:
    node = node_of(tmp_path, request())
    with pytest.raises(Refused) as caught:
        ask(node, request(embedding={"mechanism": "identity"}))
    assert caught.value.reason == "unprotected"
    assert rows_of(node) == (0, 0)


def test_nothing_leaves_where_what_stands_for_it_cannot_be_kept(tmp_path: Path) -> None:
    node = node_of(tmp_path, request())
    ask(node, request())
    (tmp_path / "ledger-a.stand-ins.sqlite").write_bytes(b"no ledger")
    with pytest.raises(LedgerError):
        ask(node, request(stage="two"))


def test_their_inputs_are_spread_over_all_there_are() -> None:
    """Classes and words evenly, directions without a mean: chi-squared statistics. Planted inputs fail them: always the
    first class, words of the first half, directions of one half-space."""
    n = 6000
    users, records, streams = np.arange(n), np.zeros(n, np.int64), SimulationStreams(3)

    def spread(asked: Request, channel: str) -> np.ndarray:
        return values(asked.named(channel), users, records, stage=asked.stage, streams=streams, step=0)

    def alarms(counts: np.ndarray) -> bool:
        return bool(stats.chisquare(counts).pvalue < ALARM)

    def leans(unit: np.ndarray) -> bool:
        """n·D·|mean|² is a chi-squared variable of D degrees, nearly."""
        size = unit.shape[1]
        return bool(stats.chi2.sf(n * size * (unit.mean(axis=0) ** 2).sum(), size) < ALARM)

    classes = spread(request(), "label")
    assert not alarms(np.bincount(classes, minlength=3)) and alarms(np.bincount(classes * 0, minlength=3))
    words = np.concatenate([text.split() for text in spread(text_of(), "text")])
    counts = np.unique(np.concatenate([words, WORDS.words]), return_counts=True)[1] - 1
    assert not alarms(counts) and alarms(counts * (np.arange(len(counts)) < len(counts) // 2))
    lengths = np.array([len(text.split()) for text in spread(text_of(), "text")])
    assert not alarms(np.bincount(lengths)[1:]) and lengths.max() == 6
    for asked, channel in ((request(), "embedding"), (statistic_of(), "statistic"), (answer_of(), "answer")):
        unit = spread(asked, channel)
        np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-5)
        assert not leans(unit) and leans(np.abs(unit))


def test_pairs_have_two_sides(tmp_path: Path) -> None:
    asked = text_of(text=text_of().named("text").spec | {"sides": 2})
    pairs = values(
        asked.named("text"), np.arange(5), np.zeros(5, np.int64), stage="train", streams=SimulationStreams(1), step=0
    )
    assert all(len(pair) == 2 and all(pair) for pair in pairs)


def test_a_device_says_how_many_there_were(tmp_path: Path) -> None:
    policy = replace(OPEN, total=cost(request()) * (1 + 1e-9), stand_ins=16)
    node = load_node(make_node(tmp_path, policy=policy, seed=None))
    for stage in ("one", "two"):
        ask(node, request(arm="", stage=stage), arm="")
    statement = read_statement(tmp_path)
    assert statement["stand_ins"] == 16 and statement["users"][0]["releases"] == 2
    said = format_statement(statement)
    assert "16 releases that say nothing of you" in said
    assert "16 releases of each user that say nothing of them" in said


def test_an_experiment_gives_them_to_its_clients() -> None:
    from simulations.experiment import load

    study = load("labelled-demo", ["policy.dummy-releases=3"])
    assert [setup.policy.stand_ins for setup in study.setups] == [0 if a.reference else 3 for a in study.arms]


def test_no_arm_shares_a_ledger_with_the_stand_ins_of_another(tmp_path: Path) -> None:
    write_node(tmp_path, seed=7, arms={"a": replace(OPEN, stand_ins=2), "a.stand-ins": OPEN})
    with pytest.raises(ValueError, match=r"^node: .*: the name of an arm cannot end in \.stand-ins$"):
        load_node(tmp_path)

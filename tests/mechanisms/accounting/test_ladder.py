"""The ladder: rungs in order, what is unprotected named, n at once as n one by one; the planner: its answers fit."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from mechanisms import Gaussian, Identity, Purkayastha, RandomizedResponse
from mechanisms.accounting.compose import compose
from mechanisms.accounting.ladder import NAMES, Rung, ladder, ledger_rung, widest
from mechanisms.accounting.planner import Target, best_privunit, fits, plan, users_needed
from mechanisms.accounting.shuffle import Amplification, amplify, central_epsilon, group_factor
from mechanisms.catalogue import build
from mechanisms.privunit import PrivUnit
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.text import TextMechanism

DELTA = 1e-6
EMBEDDING, LABEL = Purkayastha(16, 2.0), RandomizedResponse(1.0, 2)


def rungs(*arguments: Any, **options: Any) -> dict[str, Rung]:
    options = {"users": None, "delta": DELTA} | options
    found = ladder(*arguments, **options)
    assert [r.name for r in found if r.name in NAMES] == list(NAMES)
    for r in found:
        json.dumps(r.to_dict(), allow_nan=False)
        assert r.unit and r.neighbours and r.assumption, r
    return {r.name: r for r in found}


def shuffled(*mechanisms: Any, users: int, delta: float = DELTA) -> Amplification:
    return amplify(mechanisms, users=users, delta=delta)


def test_rung_by_rung() -> None:
    r = rungs(EMBEDDING, LABEL, users=67_349)
    assert r["token"].epsilon is None and r["text"].epsilon is None
    # published for Purkayastha (the issue's table): 4.37 at κ = 2, m' = 16
    assert r["embedding"].epsilon == pytest.approx(4.37, rel=0.01)
    assert r["embedding"].worst_case == pytest.approx(2 * math.pi, rel=1e-6)
    assert r["embedding"].statement == "2·d_angular" and r["record"].statement == "2·d_angular + 1"
    assert r["label"].epsilon == pytest.approx(1.0, abs=1e-5) and r["label"].worst_case == 1.0
    # jointly no more than the sum, and no less than the larger
    assert r["embedding"].epsilon < r["record"].epsilon <= r["embedding"].epsilon + 1.0
    assert r["user"].epsilon == r["record"].epsilon
    assert 0 < r["shuffled"].epsilon < r["user"].epsilon
    joint = shuffled(EMBEDDING, LABEL, users=67_349)
    assert r["shuffled"].epsilon == joint.epsilon and "67,349" in r["shuffled"].assumption
    assert r["shuffled"].details["bounds"]["blanket"] == joint.bounds["blanket"]


@pytest.mark.parametrize("what", ["embedding", "label", "gradients"])
def test_what_is_unprotected_is_named_on_every_rung_above(what: str) -> None:
    embedding = Identity("embedding", 16) if what == "embedding" else EMBEDDING
    label = Identity("label", 2) if what == "label" else LABEL
    r = rungs(embedding, label, users=10**6, unprotected={"gradients": "they leave"} if what == "gradients" else {})
    for name in (what, "record", "user", "shuffled"):
        assert r[name].epsilon == math.inf and what in r[name].unprotected, name
        assert r[name].to_dict()["epsilon"] == "inf"
    assert what in r["shuffled"].assumption
    for name in {"embedding", "label"} - {what}:
        assert r[name].epsilon < math.inf and not r[name].unprotected


def test_a_public_label_is_no_rung_and_neighbours_agree_on_it() -> None:
    r = rungs(EMBEDDING, None, users=None, public={"label": "public in this task"})
    assert r["label"].epsilon is None and "public in this task" in r["label"].assumption
    assert r["record"].epsilon == r["embedding"].epsilon
    assert "same label (public)" in r["record"].neighbours and "same label (public)" in r["user"].neighbours
    assert r["shuffled"].epsilon is None and "no shuffler" in r["shuffled"].assumption


def test_many_records_cost_what_they_cost_one_by_one() -> None:
    one, at_once = rungs(EMBEDDING, LABEL, records=1, stages=6), rungs(EMBEDDING, LABEL, records=6, stages=1)
    assert one["user"].epsilon == pytest.approx(at_once["user"].epsilon, rel=1e-12)
    assert one["user"].worst_case == pytest.approx(6 * (2 * math.pi + 1), rel=1e-6)
    assert rungs(EMBEDDING, LABEL)["record"].epsilon < one["user"].epsilon < one["user"].worst_case
    assert one["record"].epsilon == at_once["record"].epsilon
    assert rungs(EMBEDDING, LABEL, draws=3)["embedding"].statement == "3 × (2·d_angular)"


def test_records_nobody_knows_give_no_figure_for_a_user() -> None:
    r = rungs(EMBEDDING, LABEL, records=None, users=10**6)
    assert r["record"].epsilon is not None
    assert r["user"].epsilon is None and r["shuffled"].epsilon is None and "largest" in r["user"].assumption


def test_group_privacy_of_several_records() -> None:
    r = rungs(Purkayastha(16, 1.0), None, records=3, users=10**6)
    share = r["shuffled"].details["delta_of_one_record"]
    one = shuffled(Purkayastha(16, 1.0), users=10**6, delta=share).epsilon
    assert r["shuffled"].epsilon == pytest.approx(3 * one)
    assert share * (1 + math.exp(one) + math.exp(2 * one)) <= DELTA * (1 + 1e-9)
    assert r["shuffled"].epsilon > rungs(Purkayastha(16, 1.0), None, users=10**6)["shuffled"].epsilon * 3
    two, once = (rungs(Purkayastha(16, 1.0), None, stages=n, users=10**5)["shuffled"] for n in (2, 1))
    assert once.epsilon < two.epsilon < 2 * once.epsilon * 1.1 and "in each stage" in two.assumption
    assert group_factor(0.5, 3) == pytest.approx(1 + math.exp(0.5) + math.exp(1.0))
    assert group_factor(0.0, 4) == 4.0 and group_factor(1e-9, 4) == pytest.approx(4.0)
    assert group_factor(1000.0, 2) == math.inf and group_factor(300.0, 3) == pytest.approx(math.exp(600.0))


@pytest.mark.parametrize(("users", "words"), [(None, "no shuffler"), (0, "no batch"), (1, "no amplification")])
def test_no_amplification_is_no_number(users: int | None, words: str) -> None:
    strong = Purkayastha(16, 40.0)
    assert rungs(strong, None, users=1000)["shuffled"].epsilon is None
    r = rungs(EMBEDDING, LABEL, users=users)["shuffled"]
    assert r.epsilon is None and words in r.assumption and r.to_dict()["epsilon"] is None


def test_parameters_not_chosen_yet_show_the_largest() -> None:
    ladders = [ladder(Purkayastha(m, 2.0), None, users=None, delta=DELTA) for m in (2, 16)]
    wide = {r.name: r for r in widest(ladders, "of both")}
    assert wide["embedding"].epsilon == max(lad[2].epsilon for lad in ladders)
    assert wide["embedding"].assumption.endswith("of both") and wide["token"].assumption == ladders[0][0].assumption
    assert widest(ladders[:1], "of one") == ladders[0]


def test_a_ledgers_rung_adds_theorems() -> None:
    guarantees = [EMBEDDING.guarantee, LABEL.guarantee, Gaussian(16, 1.0).guarantee]
    r = ledger_rung("user", guarantees[:2], delta=DELTA, unit="user", neighbours="any", note="n")
    assert r.epsilon == r.worst_case == pytest.approx(2 * math.pi + 1, rel=1e-6) and r.delta < 1e-6
    noisy = ledger_rung("user", guarantees, delta=DELTA, unit="user", neighbours="any", note="n")
    assert math.isfinite(noisy.epsilon) and noisy.worst_case == math.inf and noisy.delta == DELTA
    open_ = ledger_rung("user", [Identity("label", 2).guarantee], delta=DELTA, unit="user", neighbours="any", note="n")
    assert open_.epsilon == math.inf and open_.unprotected == ("label",)
    assert ledger_rung("text", [], delta=DELTA, unit="text", neighbours="any", note="n").epsilon is None


WORDS = Vocabulary(tuple(f"w{i}" for i in range(40)), np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32))


def text(epsilon: float, **options: Any) -> TextMechanism:
    return build({"mechanism": "santext", "epsilon": epsilon, **options}, channel="text", vocabulary=WORDS)


def test_a_text_is_composed_of_its_words_and_its_length() -> None:
    whole = text(0.05, tokens=32, length=0.5)
    r = rungs(None, LABEL, text=whole, users=8000)
    word = whole.word.guarantee.worst_case()
    assert r["token"].worst_case == pytest.approx(word) and r["token"].epsilon <= word
    assert r["text"].worst_case == pytest.approx(32 * word + 32 * 0.5)
    # 32 words drawn independently: less than their sum at δ, and no less than composing them by hand says
    by_hand = compose([(whole.word, 32), (whole.lengths, 1)], delta=DELTA).epsilon
    assert r["text"].epsilon == pytest.approx(by_hand, rel=1e-9) and by_hand < r["text"].worst_case
    assert r["text"].statement == "0.05·Σd_euclidean + 0.5·|Δlength|"
    assert r["record"].statement == "0.05·Σd_euclidean + 0.5·|Δlength| + 1"
    assert r["text"].epsilon < r["record"].epsilon <= r["text"].epsilon + 1.0 and r["embedding"].epsilon is None
    # what is declared public is composed as tightly
    spec = {"mechanism": "custext", "epsilon": 0.5, "k": 5, "tokens": 32, "length": "kept"}
    kept, public = build(spec, channel="text", vocabulary=WORDS), {"length": "known", "group": "known"}
    declared = rungs(None, LABEL, text=kept, public=public)["text"]
    by_hand = compose([(kept.word, 32)], delta=DELTA, declared=public).epsilon
    assert declared.epsilon == pytest.approx(by_hand, rel=1e-9)
    assert declared.epsilon < declared.worst_case
    twice = rungs(None, LABEL, text=whole, records=2)["user"]
    assert twice.worst_case == pytest.approx(2 * r["record"].worst_case)
    assert r["record"].epsilon < twice.epsilon <= twice.worst_case


def test_what_a_text_passes_through_is_named_until_it_is_declared() -> None:
    kept = text(1.0, tokens=8, length="kept", stop_words="keep")
    r = rungs(None, None, text=kept, users=100)
    for name in ("text", "record", "user", "shuffled"):
        assert r[name].epsilon == math.inf and r[name].unprotected == ("text",)
    assert "the number of tokens (length) and stop words (stop-words)" in r["text"].assumption
    assert math.isfinite(r["token"].epsilon)  # a word that is drawn is drawn; what is kept is the text's
    some = rungs(None, None, text=kept, users=None, public={"length": "known"})
    assert some["text"].epsilon == math.inf and "(stop-words)" in some["text"].assumption
    both = rungs(None, None, text=kept, users=None, public={"length": "known", "stop-words": "grammar"})
    assert both["text"].worst_case == pytest.approx(8 * kept.word.guarantee.worst_case())
    for name in ("text", "record", "user"):
        assert "agree in the number of tokens and stop words (public)" not in both["token"].neighbours
        assert "agree in" in both[name].neighbours and "stop words" in both[name].neighbours
    assert "declared public (known)" in both["text"].assumption and "grammar" in both["text"].assumption


def test_what_is_exposed_and_not_declared_has_no_price() -> None:
    """Without a ladder around it, too: alone, and shuffled."""
    kept = text(0.05, tokens=2, length="kept")
    for declared, finite in (((), False), (("stop-words",), False), (("length",), True)):
        alone = compose([(kept, 1)], delta=DELTA, declared=declared).epsilon
        crowd = amplify([kept], users=1000, delta=DELTA, declared=declared)
        assert [math.isfinite(epsilon) for epsilon in (alone, crowd.epsilon, crowd.local_worst_case)] == [finite] * 3


class Showing(RandomizedResponse):
    @property
    def guarantee(self) -> Any:
        return replace(super().guarantee, exposes=("length",))


def test_exposures_are_declared_of_texts_alone() -> None:
    """Neither the neighbours nor the crowd of another channel agree in them."""
    r = rungs(EMBEDDING, Showing(1.0, 2), users=1000, public={"length": "known"})
    for name in ("label", "record", "user", "shuffled"):
        assert r[name].epsilon == math.inf and r[name].unprotected == ("label",)


def test_words_that_need_the_whole_text_have_no_token_rung() -> None:
    spec = {"mechanism": "dp-mlm", "epsilon": 50.0, "low": 0.0, "high": 8.0, "tokens": 16, "length": "kept"}
    whole = build(spec, channel="text", vocabulary=WORDS)
    r = rungs(None, None, text=whole, users=None, public={"length": "known"})
    assert r["token"].epsilon is None and "reads the whole text" in r["token"].assumption
    assert r["text"].worst_case == 16 * 50.0 and r["text"].statement == "800"


def test_one_hides_in_a_crowd_and_not_among_all_who_are_delivered() -> None:
    public = {"label": "public in this task"}
    unknown = rungs(EMBEDDING, None, users=67_349, public=public)["shuffled"]
    assert unknown.epsilon is None and unknown.crowd is None
    assert "who agree in label, sent in clear" in unknown.assumption
    some = rungs(EMBEDDING, None, users=67_349, crowd=674, public=public)["shuffled"]
    assert some.crowd == 674 and some.epsilon == shuffled(EMBEDDING, users=674).epsilon
    assert "a crowd of 674 users who agree in label, sent in clear, of 67,349 users" in some.assumption
    alone = rungs(EMBEDDING, None, users=67_349, crowd=1, public=public)["shuffled"]
    assert alone.epsilon is None and "nobody to hide among" in alone.assumption
    # what nothing in clear divides is one crowd, but for those who are not honest
    whole, honest = (rungs(EMBEDDING, None, users=1000, crowd=n)["shuffled"] for n in (None, 900))
    assert (whole.crowd, honest.crowd) == (1000, 900) and honest.epsilon > whole.epsilon
    assert rungs(EMBEDDING, None, users=1000, crowd=10**6)["shuffled"] == whole


def test_a_text_hides_among_texts_that_expose_the_same() -> None:
    kept, public = text(0.02, tokens=4, length="kept"), {"length": "known"}
    assert rungs(None, None, text=kept, users=100_000, public=public)["shuffled"].epsilon is None
    some = rungs(None, None, text=kept, users=100_000, crowd=5000, public=public)["shuffled"]
    same = text(0.02, tokens=4, length=0.0)
    fewer = rungs(None, None, text=same, users=5000)["shuffled"]
    # but for one sampler more, that of the length, which δ holds
    assert some.crowd == fewer.crowd == 5000 and some.epsilon == pytest.approx(fewer.epsilon, rel=1e-4)
    assert some.epsilon <= fewer.epsilon * (1 + 1e-9)  # to rounding
    assert "who agree in the number of tokens, sent in clear" in some.assumption


def test_the_largest_epsilon_fits_and_a_little_more_does_not() -> None:
    target = Target(0.203, DELTA, 10_000)
    found = plan(lambda e: [Purkayastha(16, e)], target)
    # κ = 2 costs 0.203 at n = 10,000 by a prototype's blanket; a better bound allows for more
    assert 2.0 * 0.97 < found < 4.0
    assert fits([Purkayastha(16, found)], target) and not fits([Purkayastha(16, found * 1.01)], target)
    cost = ladder(Purkayastha(16, found), None, users=10_000, delta=DELTA)[-1].epsilon
    assert 0.97 * 0.203 < cost <= 0.203 * 1.001  # the budget is used up, and no more


def test_without_a_shuffler_it_is_the_local_budget() -> None:
    target = Target(4.37, DELTA, None)
    found = plan(lambda e: [Purkayastha(16, e)], target)
    assert found == pytest.approx(2.0, rel=0.01)  # the table again
    pure = plan(lambda e: [RandomizedResponse(e, 2)], Target(1.0, DELTA, None))
    assert pure == pytest.approx(1.0, rel=5e-3)


def test_several_records_and_stages_share_the_budget() -> None:
    target = Target(1.0, DELTA, 100_000, records=2, stages=2)
    epsilon, delta = target.one_record
    assert epsilon == 0.25 and delta == pytest.approx(DELTA / 2 / (1 + math.exp(0.25)))
    found = plan(lambda e: [Purkayastha(16, e)], target, tolerance=0.02)
    alone = plan(lambda e: [Purkayastha(16, e)], Target(1.0, DELTA, 100_000), tolerance=0.02)
    assert found < alone
    cost, _ = central_epsilon((Purkayastha(16, found),), users=100_000, delta=DELTA, records=2, stages=2)
    assert 0.9 < cost <= 1.001


def test_users_needed() -> None:
    mechanism = [Purkayastha(16, 2.0)]
    needed = users_needed(mechanism, epsilon=0.203, delta=DELTA)
    assert 1000 < needed < 10_500  # 10,000 by a prototype's blanket
    assert fits(mechanism, Target(0.203, DELTA, needed))
    assert not fits(mechanism, Target(0.203, DELTA, int(needed * 0.9)))
    assert users_needed([RandomizedResponse(1.0, 2)], epsilon=1.0, delta=DELTA) == 1
    assert users_needed([Identity("label", 2)], epsilon=1.0, delta=DELTA) is None


@dataclass(frozen=True)
class RoughResponse(RandomizedResponse):
    """Randomized response by a sampler whose densities are off by a factor of e^(±0.1), and whose losses by 0.1."""

    @property
    def guarantee(self):
        return replace(super().guarantee, numeric_epsilon=0.1)


@pytest.mark.parametrize("users", [None, 10_000])
def test_a_sampler_that_is_off_is_in_the_plan(users) -> None:
    """The law farthest from the theorem's within that: its exact local δ, and amplify's bound, keep to the target."""
    target = Target(0.5, DELTA if users else 0.02, users)
    most = plan(lambda e: [RoughResponse(e, 2)], target)
    exact = plan(lambda e: [RandomizedResponse(e, 2)], target)
    assert most < exact
    if users:
        assert amplify([RoughResponse(most, 2)], users=users, delta=DELTA).epsilon <= 0.5
        assert amplify([RoughResponse(exact, 2)], users=users, delta=DELTA).epsilon > 0.5
    else:
        # the truth is told with odds e^0.1 higher: δ(ε) = p - e^ε·(1 - p)
        for found, keeps in ((most, True), (exact, False)):
            truth = 1 / (1 + math.exp(-found - 0.1))
            assert (truth - math.exp(0.5) * (1 - truth) <= 0.02) == keeps


@pytest.mark.parametrize(("users", "epsilon", "prototype"), [(20_000, 0.25, 0.253), (10**6, 1.0, 0.529)])
def test_the_privunit_of_least_error(users, epsilon, prototype) -> None:
    """No worse than a prototype's grid of p by tenths: E cos at D = 32."""
    target = Target(epsilon, DELTA, users)
    best = best_privunit(32, target)
    assert prototype <= best.scale <= 1.06 * prototype
    assert fits([best], target) and not fits([PrivUnit(32, best.epsilon * 1.01, best.cap_probability)], target)


def test_privunit_in_several_stages_and_where_nothing_fits() -> None:
    target = Target(1.0, DELTA, 2_000, stages=3)
    best = best_privunit(16, target, tolerance=0.05)
    cost, details = central_epsilon((best,), users=2_000, delta=DELTA, stages=3)
    assert 0.85 < cost <= 1.0 and details["stages_composed"] == cost  # to a twentieth of ε0
    assert best_privunit(16, Target(1e-5, 1e-9, 2)) is None


@pytest.mark.parametrize("mechanism", [Purkayastha(4, 2.0), Gaussian(4, 0.8), RandomizedResponse(4.0, 2)])
def test_what_fits_is_what_amplification_says(mechanism) -> None:
    """A δ at the target's ε and the search for an ε at δ are the same bounds, and part by little."""
    cost = amplify([mechanism], users=3000, delta=DELTA).epsilon
    assert fits([mechanism], Target(cost * 1.001, DELTA, 3000))
    assert not fits([mechanism], Target(cost * 0.98, DELTA, 3000))


def test_what_has_no_guarantee_fits_nothing() -> None:
    assert not fits([Identity("embedding", 16)], Target(10.0, DELTA, 10**6))
    assert fits([Gaussian.calibrated(2.0, DELTA, 4)], Target(2.01, DELTA, None))
    assert not fits([Gaussian.calibrated(2.0, DELTA, 4)], Target(1.9, DELTA, None))

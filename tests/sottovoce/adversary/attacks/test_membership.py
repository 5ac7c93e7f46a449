"""Membership inference finds a model that remembers, accuses none that does not, and its bound is the truth."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax, ndtr
from scipy.stats import norm

from mechanisms.identity import Identity
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import Purkayastha
from simulations.corpora.corpus import Corpus
from simulations.run import report
from simulations.run.journal import UNFINISHED
from simulations.run.run import run
from sottovoce.adversary.attacks import membership as attack_membership
from sottovoce.adversary.attacks import scores
from sottovoce.adversary.attacks.run import attack
from sottovoce.adversary.estimators import membership
from sottovoce.adversary.estimators.vectors import log_likelihood
from sottovoce.cli.main import main
from tests.support.mechanisms import unit
from tests.support.studies import (
    CLASSES,
    PRIOR,
    USERS,
    KnownEncoder,
    attacked_run,
    files_study,
    in_process,
    prepared,
)
from tests.support.studies import experiment as made_up
from tests.support.tiny_models import WORDS, tiny_bert


def log_probs(logit: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Log-probabilities (n, K) of this own-label logit; the other classes share the rest evenly."""
    rest = -np.logaddexp(0.0, logit) - math.log(CLASSES - 1)
    log_p = np.repeat(rest[:, None], CLASSES, axis=1)
    log_p[np.arange(len(labels)), labels] = -np.logaddexp(0.0, -logit)
    return log_p


def outputs(n: int, gap: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-probabilities (n, K) of a model whose own-label logit is N(0, 1), `gap` more for members; labels; members."""
    members = np.arange(n) % 2 == 0
    labels = rng.integers(CLASSES, size=n)
    return log_probs(rng.standard_normal(n) + gap * members, labels), labels, members


def test_copies_lack_words_at_random_and_never_all():
    text = " ".join(f"w{i}" for i in range(4000))
    left = membership.without_words(text, share=0.1, rng=np.random.default_rng(4)).split()
    assert abs(len(left) - 3600) < 4 * 19  # binomial; false alarms: 1e-4
    assert left == [word for word in text.split() if word in set(left)]
    rng = np.random.default_rng(5)
    assert {membership.without_words("a b", share=1.0, rng=rng) for _ in range(40)} == {"a", "b"}
    assert membership.without_words(("a b", "c"), share=0.0, rng=rng) == ("a b", "c")
    assert membership.without_words(("", "c"), share=1.0, rng=rng) == ("", "c")


def test_a_threshold_is_the_best_there_is_and_keeps_equal_values_together():
    rng = np.random.default_rng(3)
    for _ in range(50):
        evidence, members = rng.integers(4, size=12).astype(float), rng.permutation(np.arange(12) < 5)
        cut = membership.threshold(evidence, members)
        rates = [scores.balanced(evidence > c, members).success for c in (-1.0, 0.5, 1.5, 2.5, 9.0)]
        assert scores.balanced(evidence > cut, members).success == pytest.approx(max(rates))
        assert cut not in evidence


def shadow_world(n: int, models: int, gap: float, rng: np.random.Generator):
    """A model that remembers, and shadow models like it: records differ in how easy they are, which only an attack that
    looks at each by itself can take into account."""
    inside = membership.halves(n, models, rng=rng)
    easy, labels = 3.0 * rng.standard_normal(n), rng.integers(CLASSES, size=n)
    members = rng.permutation(n) < n // 2

    def said(where: np.ndarray) -> np.ndarray:
        return log_probs(easy + gap * where + rng.standard_normal(n), labels)

    return said(members), [said(where) for where in inside], inside, labels, members


@pytest.mark.parametrize("models", [16, 64])  # variances of all records together, and of each
def test_lira_finds_what_thresholds_miss(models):
    gap, rng = 3.0, np.random.default_rng(4)
    log_p, shadows, inside, labels, members = shadow_world(4000, models, gap, rng)
    evidence = membership.likelihood_ratio(
        membership.scaled(log_p, labels), np.stack([membership.scaled(s, labels) for s in shadows]), inside
    )
    rate = scores.balanced(evidence > 0, members)
    # The two means are known to 2/S each: what is compared with their middle has the variance 1 + 1/S.
    theory = ndtr(gap / 2 / math.sqrt(1 + 1 / models))
    assert rate.success == pytest.approx(theory, abs=4 * rate.error + 0.01)
    plain, *_ = scores.of_members(membership.confidence(log_p, labels), members)
    assert plain.success == pytest.approx(ndtr(gap / 2 / math.sqrt(10)), abs=4 * plain.error + 0.01)
    assert rate.success > plain.success + 0.15
    area = scores.area(membership.confidence(log_p, labels), members)
    assert area.success == pytest.approx(ndtr(gap / math.sqrt(20)), abs=4 * area.error)
    low = scores.found_at(evidence, members, 0.01)
    assert low == pytest.approx(norm.sf(norm.isf(0.01) - gap / math.sqrt(1 + 1 / models)), abs=0.1)


def test_lira_on_two_records_by_hand_halves_and_confidences_that_do_not_cancel():
    inside = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=bool)
    shadows = np.array([[2.0, 5.0], [0.0, 9.0], [4.0, 7.0], [2.0, 13.0]])
    # record 0: with (2, 4), without (0, 2); record 1: (9, 13) and (5, 7); variances pooled: (2 + 8)/2 and (2 + 2)/2
    found = membership.likelihood_ratio(np.array([3.0, 6.0]), shadows, inside)
    log = [norm.logpdf(a, m, math.sqrt(5)) - norm.logpdf(a, o, math.sqrt(2)) for a, m, o in ((3, 3, 1), (6, 11, 6))]
    assert np.allclose(found, log)
    inside = membership.halves(11, 6, rng=np.random.default_rng(5))
    assert inside.shape == (6, 11) and (inside.sum(axis=0) == 3).all() and set(inside.sum(axis=1)) == {5, 6}
    log_p = log_softmax(np.array([[60.0, 0.0], [0.0, 60.0]]), axis=1)
    assert np.allclose(membership.scaled(log_p, np.zeros(2, np.int64)), [60.0, -60.0])


def test_the_shadow_network_learns_what_shadow_models_show():
    """It does not see the label; the best test of max(p), a sum over the logit, is right with .977 here."""
    rng = np.random.default_rng(6)
    train, _, inside = outputs(6000, 4.0, rng)
    evidence = membership.shadow_network(train, inside, seed=6)
    log_p, _, members = outputs(4000, 4.0, rng)
    assert 0.95 < scores.balanced(evidence(log_p) > 0, members).success < 0.99


def test_a_model_that_does_not_remember_is_not_accused():
    """200 worlds without memory: thresholds exceed .5 by two standard errors in 2.3 % of them, hence in 13 at most, but
    for a probability of 1e-3; the same for the area under the curve."""
    rng = np.random.default_rng(7)
    high = {"threshold": 0, "area": 0}
    for _ in range(200):
        log_p, labels, members = outputs(200, 0.0, rng)
        evidence = membership.confidence(log_p, labels)
        rate, area = scores.of_members(evidence, members)[0], scores.area(evidence, members)
        high["threshold"] += rate.success - 0.5 > 2 * rate.error
        high["area"] += area.success - 0.5 > 2 * area.error
    assert all(count <= 13 for count in high.values()), high


def test_standard_errors_are_those_of_repetitions():
    """Over 800 attacks the mean square of the stated error is the variance of the rate. That of a variance from 800
    draws deviates by sqrt(2/799) = .05 of itself; within 5 of these and 2 % (errors divide by the 60 on either side,
    not by 59), a sound error fails with probability below 1e-5 (of a normal rate), and one of 2/3 or 3/2 does."""
    rng = np.random.default_rng(8)
    rates, areas = [], []
    for _ in range(800):
        log_p, labels, members = outputs(120, 1.0, rng)
        evidence = membership.confidence(log_p, labels)
        rates.append(scores.balanced(evidence > -1.0, members))
        areas.append(scores.area(evidence, members))
    for found in (rates, areas):
        ratio = np.mean([r.error**2 for r in found]) / np.var([r.success for r in found])
        for scale, holds in ((1, True), (2 / 3, False), (3 / 2, False)):
            assert (abs(scale**2 * ratio - 1) < 5 * 0.05 + 0.02) == holds


# --- what the theorem allows


def test_the_bound_of_randomized_response_is_attained_and_what_is_in_clear_has_none():
    """The best guess looks at the label: right with e^ε/(e^ε + K - 1) for members of one label, wrong with
    1/(e^ε + K - 1) for others' label."""
    for epsilon, classes in ((1.0, 2), (2.0, 5)):
        normal = math.exp(epsilon) + classes - 1
        theory = 0.5 + 0.5 * (math.exp(epsilon) - 1) / normal
        assert membership.bound([(RandomizedResponse(epsilon, classes), 1)]) == pytest.approx(theory, abs=1e-9)
    assert membership.bound([(RandomizedResponse(1.0, 2), 1)]) == pytest.approx(math.exp(1) / (1 + math.exp(1)))
    # two of them: what a sum of two bits tells, from the binomial law
    p = math.exp(1) / (1 + math.exp(1))
    assert membership.bound([(RandomizedResponse(1.0, 2), 2)]) == pytest.approx(p, abs=1e-4)
    three = sum(math.comb(3, k) * p**k * (1 - p) ** (3 - k) for k in (2, 3))
    assert membership.bound([(RandomizedResponse(1.0, 2), 3)]) == pytest.approx(three, abs=1e-4)
    noise, coin = Purkayastha(4, 1.0), RandomizedResponse(1.0, 2)
    assert membership.bound([(noise, 1), (Identity("label", 2), 1)]) == 1.0
    both = membership.bound([(noise, 1), (coin, 1)])
    assert max(membership.bound([(m, 1)]) for m in (noise, coin)) < both < 1.0


# --- the releases themselves


def test_evidence_is_the_likelihood_ratio_of_releases_and_labels(monkeypatch):
    """In pieces of a few releases; in clear it is the nearest."""
    monkeypatch.setattr(membership, "_ENTRIES", 40)
    mechanism, label = Purkayastha(4, 2.0), RandomizedResponse(3.0, 2)
    records, public, z = unit(2, 4, 3), unit(40, 4, 4), unit(3, 4, 5)
    labels = np.array([0, 1]), np.arange(40) % 2
    law = np.stack([label.log_prob(np.array([0, 1, 1]), np.full(3, c)) for c in range(2)], axis=1)
    own, others = (
        np.exp(log_likelihood(mechanism, z, rows) + law[:, of_rows])
        for rows, of_rows in zip((records, public), labels, strict=True)
    )
    evidence = membership.embedding_evidence(mechanism, z, records, public, labels=(law, *labels))
    np.testing.assert_allclose(evidence, np.log((own / others.mean(axis=1, keepdims=True)).mean(axis=0)))
    nearest = np.linalg.norm(z[:, None] - records, axis=2).min(axis=0)
    np.testing.assert_allclose(membership.embedding_evidence(Identity("embedding", 4), z, records, public), -nearest)


def test_texts_are_recognized_by_their_rare_words():
    released = np.array([[0, 1, 2, -1], [0, 1, 3, 4], [0, 5, 6, 7]])
    records = np.array([[0, 1, 4, 3], [0, 1, 2, 9], [0, 1, 8, 9], [9, 9, -1, -1]])
    evidence = membership.overlap(released, records, 9)
    assert evidence[0] == pytest.approx(1.0)  # whatever the order
    assert evidence[0] >= evidence[1] > evidence[2] and evidence[3] == 0.0


# --- whole runs


THRESHOLDS = ("membership-confidence", "membership-drops")
IDENTITY = {"mechanism": "identity", "dim": 4}
PURKAYASTHA = {"mechanism": "purkayastha", "epsilon": 2.0, "dim": 4}


def finished(folder: Path, way: str, *arms: dict, **more: dict) -> Path:
    """The folder of a run, made without Flower, of texts of random words with random labels: whatever a model knows of
    a training label, it has by heart."""
    if not (folder / "bert").exists():
        tiny_bert(folder / "bert")
        rng = np.random.default_rng(1)
        for name, n in (("train.tsv", 160), ("test.tsv", 80)):
            lines = {" ".join(rng.choice(WORDS[:13], size=8)): int(rng.integers(2)) for _ in range(n)}
            rows = [f"{text}\t{label}" for text, label in lines.items()]
            (folder / name).write_text("\n".join(["text\tlabel", *rows]) + "\n")
    sections: dict[str, dict] = {
        "data": {"public": {"fraction": 0.2, "labels": True, "split": "random"}, "overlap": "made of few words"},
        "population": {"users": USERS, "users-per-node": 30},
        "encoder": {"model": str(folder / "bert"), "max-length": 16},
        "training": {"protocol": way, "epochs": 2, "batch-size": 10},
        "policy": {"embedding": 7.0, "text": 1000.0, "label": 3.0, "accept-unprotected": ["label: made up"]},
    }
    sections |= {name: sections[name] | values for name, values in more.items()}
    out = folder / f"{way}-{sections['training']['epochs']}"
    out.mkdir()
    report.write(run(files_study(folder, seed=5, arm=list(arms), **sections), out, engine=in_process), out)
    shutil.rmtree(out / UNFINISHED)
    return out


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield tmp_path_factory.mktemp("shared")


def results(folder: Path, *names: str, **asked: object) -> dict[str, dict]:
    found = attack(folder, *(names or attack_membership.ATTACKS), **asked)
    return {f"{e['arm']}: {e['attack'].removeprefix('membership-')}": e for e in found["entries"]}


def remembers(e: dict) -> bool:
    """Of a model that does not, with a probability of 0.6 %."""
    return e["auc"] > 0.5 + 2.5 * e["auc_error"]


@pytest.fixture
def released(tmp_path, monkeypatch):
    """A run folder of 60 users who released made-up embeddings, and its data, which attacks read again."""
    arms = [
        {"name": "public", "protocol": "public-only", "embedding": PURKAYASTHA},
        {"name": "clear", "reference": True, "embedding": IDENTITY},
        {"name": "noisy", "embedding": PURKAYASTHA, "label": {"mechanism": "randomized-response", "epsilon": 1.0}},
        {"name": "prior", "embedding": PURKAYASTHA, "label": PRIOR},
    ]
    small = made_up(*arms, data={"test-size": USERS}, training={"label-stages": 2})
    ready = prepared(small)
    train, embeddings = ready.held.train, ready.held.train_embeddings
    near = 0.1 * np.random.default_rng(2).standard_normal(embeddings.shape)
    more = Corpus([f"other {i}" for i in range(USERS)], train.labels, train.classes)
    texts = [*train.texts, *more.texts]
    known = dict(zip(texts, [*embeddings, *(embeddings + near)], strict=True))
    parts = [(left, h) for text, h in known.items() for n in (1, 2) for left in combinations(text.split(), n)]
    encoder = KnownEncoder({" ".join(left): h for left, h in parts} | known)  # of copies that lose words
    ready = ready._replace(public=replace(ready.public, encoder=encoder), held=replace(ready.held, test=more))
    return attacked_run(small, ready, tmp_path, monkeypatch), ready


def test_release_once(released, capsys):
    """Without noise a release tells its record, though the model on it tells nothing; with ε=2 neither does."""
    folder, _ = released
    found = results(folder, shadows=8)
    assert len(found) == 3 * len(attack_membership.ATTACKS)
    for name, e in found.items():
        assert (e["texts"], e["others"], e["baseline"], e["stage"]) == (USERS, USERS, 0.5, "train-1, train-2")
        if name != "clear: releases":
            assert abs(e["success"] - 0.5) < 4 * 0.065, name  # sixty scored texts, false alarms below 1e-4
    assert found["clear: releases"]["success"] > 0.9 and found["clear: releases"]["bound"] == 1.0
    assert found["noisy: lira"]["shadow_models"] == 8 and found["noisy: lira"]["shadow_texts"] == USERS
    both = [(Purkayastha(epsilon=2.0, dim=4), 1), (RandomizedResponse(epsilon=1.0, classes=CLASSES), 1)]
    assert found["noisy: confidence"]["bound"] == membership.bound(both) < 1
    assert found["noisy: confidence"]["worst_case_epsilon"] == pytest.approx(2 * math.pi + 1)
    # the same run gives the same results, and the command prints them
    assert results(folder, "membership-lira", shadows=8)["prior: lira"] == found["prior: lira"]
    assert main(["attack", str(folder), "--arm", "noisy", "--attack", "membership-releases"]) == 0
    out = capsys.readouterr().out
    assert "| noisy | membership-releases |" in out and "Membership: of so many" in out


def test_what_cannot_be_attacked_is_one_line(released, monkeypatch, capsys):
    folder, ready = released

    def complains(*options: str) -> str:
        assert main(["attack", str(folder), *options]) == 2
        return capsys.readouterr().err.strip().splitlines()[-1]

    lira = ("--attack", "membership-lira")
    assert "membership-lira on public: no user takes part in it" in complains("--arm", "public", *lira)
    assert "needs 30 training records and as many others" in complains("--arm", "noisy", "--limit", "10", *lira)
    assert complains("--shadows", "5") == "sottovoce: --shadows 5: an even number is needed, at least 4"
    train = ready.held.train
    moved = replace(ready.held, train=Corpus(train.texts[::-1], train.labels, train.classes))
    with monkeypatch.context() as patch:
        patch.setattr("sottovoce.adversary.attacks.target.prepared", lambda run: ready._replace(held=moved))
        assert "not those that the run was made with" in complains("--arm", "noisy", *lira)
    (folder / "results.json").write_text(json.dumps({"arms": [{"name": "noisy", "delivered": 0}]}))
    assert "no training user's release was delivered" in complains("--arm", "noisy", *lira)


def test_releases_under_encoders_that_a_run_has_trained(shared):
    """Two rounds of self-training: the vectors of the last are attacked under the encoder of the first, embeddings of
    test users under that of the last."""
    arm = {"name": "one", "embedding": PURKAYASTHA, "vector": {"mechanism": "privunit", "epsilon": 4.0, "dim": 4}}
    folder = finished(
        shared,
        "statistics",
        arm,
        training={"self-training": True, "rounds": 2},
        data={"public": {"fraction": 0.2, "labels": False, "split": "random"}},
        policy={"vector": 4.0, "accept-unprotected": []},
    )
    found = attack(folder, "vector-text", "attribute-adaptive", attributes=("label",))["entries"]
    assert [(e["attack"], e["stage"]) for e in found] == [("attribute-adaptive", "test"), ("vector-text", "train-2")]
    vectors = found[1]
    assert vectors["texts"] == USERS // 2 and vectors["baseline"] + 3 * vectors["error"] < vectors["success"]
    assert vectors["success"] <= vectors["bound"] + 5 * 0.5 / math.sqrt(USERS / 2)


@pytest.mark.slow
def test_the_published_procedure_remembers(shared, capsys):
    """Random labels learnt by heart are found; after a single epoch there is nothing to find."""
    training = {"acknowledge-not-private": True, "epochs": 60}
    arms = [{"name": "clear", "reference": True, "embedding": {"mechanism": "identity", "dim": 32}}]
    folder = finished(shared, "paper", *arms, training=training)
    found = results(folder, *THRESHOLDS)
    assert remembers(found["clear: confidence"]) and found["clear: confidence"]["bound"] == 1.0
    assert remembers(found["clear: drops"]) and found["clear: drops"]["auc"] != found["clear: confidence"]["auc"]
    assert "gradients depend on raw text" in found["clear: confidence"]["note"]
    for name, complaint in (("lira", "--shadows 8"), ("releases", "nothing is released in this way")):
        assert main(["attack", str(folder), "--attack", f"membership-{name}"]) == 2
        assert complaint in capsys.readouterr().err
    training["epochs"] = 1
    folder = finished(shared, "paper", *arms, training=training)
    found = results(folder, *THRESHOLDS, "membership-shadow", "membership-lira", shadows=4)
    assert set(e["shadow_texts"] for e in found.values() if "shadow_texts" in e) == {USERS}
    for e in found.values():
        assert abs(e["success"] - 0.5) < 4 * 0.065


@pytest.mark.slow
@pytest.mark.soak
def test_sanitized_text(shared):
    """A model trained on texts as they are knows them in the form that it read; random words tell nothing."""
    arms = [
        {"name": "clear", "reference": True, "text": {"mechanism": "identity", "tokens": 8, "length": "kept"}},
        {
            "name": "random",
            "text": {"mechanism": "random", "tokens": 8},
            "label": {"mechanism": "randomized-response", "epsilon": 1.0},
        },
    ]
    folder = finished(shared, "sanitized-text", *arms, training={"train-encoder": True, "epochs": 40})
    found = results(folder, *THRESHOLDS, "membership-releases")
    assert remembers(found["clear: confidence"]) and found["clear: releases"]["success"] > 0.95
    assert remembers(found["clear: drops"])
    for name in ("confidence", "releases"):
        e = found[f"random: {name}"]
        assert abs(e["success"] - 0.5) < 4 * 0.065
    # random words say nothing, their number (ε=1 a word) and the label (ε=1) something
    assert 0.5 < found["random: confidence"]["bound"] < 1

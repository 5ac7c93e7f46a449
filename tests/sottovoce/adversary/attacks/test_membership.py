"""Membership inference finds a model that remembers, accuses none that does not, and its bound is the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit, log_softmax, ndtr
from scipy.stats import norm
from sklearn import metrics

from mechanisms.identity import Identity
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import PlanarLaplace, Purkayastha
from mechanisms.streams import SimulationStreams
from sottovoce.adversary.attacks import scores
from sottovoce.adversary.estimators import membership, presence

CLASSES = 3


def outputs(n: int, gap: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-probabilities (n, K) of a model whose own-label logit is N(0, 1), `gap` more for members; labels; members.
    The other classes share the rest evenly, so the scaled confidence is the logit."""
    members = np.arange(n) % 2 == 0
    labels = rng.integers(CLASSES, size=n)
    logit = rng.standard_normal(n) + gap * members
    own = -np.logaddexp(0.0, -logit)
    rest = -np.logaddexp(0.0, logit) - math.log(CLASSES - 1)
    log_p = np.repeat(rest[:, None], CLASSES, axis=1)
    log_p[np.arange(n), labels] = own
    return log_p, labels, members


def attacked(evidence: np.ndarray, members: np.ndarray) -> scores.Rate:
    """As a run does: the threshold from one half, the rate on the other."""
    half = np.arange(len(members)) % 4 < 2
    cut = membership.threshold(evidence[half], members[half])
    return scores.balanced(evidence[~half] > cut, members[~half])


def test_copies_lack_words_at_random_and_never_all():
    text = " ".join(f"w{i}" for i in range(4000))
    left = membership.without_words(text, share=0.1, rng=np.random.default_rng(4)).split()
    assert abs(len(left) - 3600) < 4 * 19  # binomial; false alarms: 1e-4
    assert left == [word for word in text.split() if word in set(left)]
    rng = np.random.default_rng(5)
    assert {membership.without_words("a b", share=1.0, rng=rng) for _ in range(40)} == {"a", "b"}
    assert membership.without_words(("a b", "c"), share=0.0, rng=rng) == ("a b", "c")
    assert membership.without_words(("", "c"), share=1.0, rng=rng) == ("", "c")


@pytest.mark.parametrize("gap", [2.0, 4.0])
def test_thresholds_find_a_model_that_remembers(gap):
    """Gaussians of distance g are told apart with Φ(g/2), by whatever threshold is best."""
    log_p, labels, members = outputs(8000, gap, np.random.default_rng(2))
    theory = ndtr(gap / 2)
    evidence = membership.confidence(log_p, labels)
    rate = attacked(evidence, members)
    assert rate.success == pytest.approx(theory, abs=4 * rate.error + 0.01)  # false alarms: 1e-4
    assert scores.area(evidence, members).success == pytest.approx(ndtr(gap / math.sqrt(2)), abs=0.02)


def test_a_threshold_is_the_best_there_is_and_keeps_equal_values_together():
    rng = np.random.default_rng(3)
    for _ in range(50):
        evidence, members = rng.integers(4, size=12).astype(float), rng.permutation(np.arange(12) < 5)
        cut = membership.threshold(evidence, members)
        rates = [scores.balanced(evidence > c, members).success for c in (-1.0, 0.5, 1.5, 2.5, 9.0)]
        assert scores.balanced(evidence > cut, members).success == pytest.approx(max(rates))
        assert cut not in evidence
    with pytest.raises(ValueError, match="members and others are needed"):
        membership.threshold(np.zeros(3), np.ones(3, dtype=bool))


def test_precision_is_that_of_another_implementation():
    rng = np.random.default_rng(31)
    for n in (5, 40, 500):
        members = rng.permutation(n) < n // 2
        evidence = np.round(rng.standard_normal(n) + members, 1)  # some are equal
        guesses = evidence > 0.5
        assert scores.precision(evidence, members) == pytest.approx(metrics.average_precision_score(members, evidence))
        recall = metrics.recall_score(members, guesses, average="macro")
        assert scores.balanced(guesses, members).success == pytest.approx(recall)


def shadow_world(n: int, models: int, gap: float, rng: np.random.Generator):
    """A model that remembers, and shadow models like it: records differ in how easy they are, which only an attack that
    looks at each by itself can take into account."""
    inside = membership.halves(n, models, rng=rng)
    easy, labels = 3.0 * rng.standard_normal(n), rng.integers(CLASSES, size=n)
    members = rng.permutation(n) < n // 2

    def said(where: np.ndarray) -> np.ndarray:
        logit = easy + gap * where + rng.standard_normal(n)
        rest = -np.logaddexp(0.0, logit) - math.log(CLASSES - 1)
        log_p = np.repeat(rest[:, None], CLASSES, axis=1)
        log_p[np.arange(n), labels] = -np.logaddexp(0.0, -logit)
        return log_p

    return said(members), [said(where) for where in inside], inside, labels, members


@pytest.mark.parametrize("models", [16, 64])
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
    plain = attacked(membership.confidence(log_p, labels), members)
    assert plain.success == pytest.approx(ndtr(gap / 2 / math.sqrt(10)), abs=4 * plain.error + 0.01)
    assert rate.success > plain.success + 0.15
    low = scores.found_at(evidence, members, 0.01)
    assert low == pytest.approx(norm.sf(norm.isf(0.01) - gap / math.sqrt(1 + 1 / models)), abs=0.1)


def test_lira_on_two_records_by_hand():
    inside = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=bool)
    shadows = np.array([[2.0, 5.0], [0.0, 9.0], [4.0, 7.0], [2.0, 13.0]])
    # record 0: with (2, 4), without (0, 2); record 1: (9, 13) and (5, 7); variances pooled: (2 + 8)/2 and (2 + 2)/2
    found = membership.likelihood_ratio(np.array([3.0, 6.0]), shadows, inside)
    log = [norm.logpdf(a, m, math.sqrt(5)) - norm.logpdf(a, o, math.sqrt(2)) for a, m, o in ((3, 3, 1), (6, 11, 6))]
    assert np.allclose(found, log)


def test_halves_put_every_record_into_half_of_the_models():
    inside = membership.halves(11, 6, rng=np.random.default_rng(5))
    assert inside.shape == (6, 11) and (inside.sum(axis=0) == 3).all() and set(inside.sum(axis=1)) == {5, 6}
    for models in (2, 5):
        with pytest.raises(ValueError, match="even number"):
            membership.halves(11, models, rng=np.random.default_rng(5))


def test_scaled_confidence_does_not_cancel():
    log_p = log_softmax(np.array([[60.0, 0.0], [0.0, 60.0]]), axis=1)
    assert np.allclose(membership.scaled(log_p, np.zeros(2, np.int64)), [60.0, -60.0])


def test_the_shadow_network_learns_what_shadow_models_show():
    """What it sees does not tell the label, so it cannot have all of Φ(g/2): it sees certainty, as entropy does."""
    rng = np.random.default_rng(6)
    train, _, inside = outputs(6000, 4.0, rng)
    evidence = membership.shadow_network(train, inside, seed=6)
    log_p, _, members = outputs(4000, 4.0, rng)
    rate = scores.balanced(evidence(log_p) > 0, members)
    # The best test of max(p): it sees p_y where that is the largest, and otherwise the class that is not.
    logits = np.linspace(-12, 16, 200_001)
    width = logits[1] - logits[0]
    seen = np.maximum(expit(logits), (1 - expit(logits)) / (CLASSES - 1))
    low, high = seen.min(), seen.max()
    bins = np.minimum(((seen - low) / (high - low) * 4000).astype(int), 3999)
    mass = [np.bincount(bins, norm.pdf(logits, centre) * width, minlength=4000) for centre in (4.0, 0.0)]
    theory = 0.5 + 0.25 * np.abs(mass[0] - mass[1]).sum()
    assert rate.success == pytest.approx(theory, abs=4 * rate.error + 0.01)


def test_a_model_that_does_not_remember_is_not_accused():
    """200 worlds without memory: thresholds exceed .5 by two standard errors in 2.3 % of them, hence in 13 at most, but
    for a probability of 1e-3; the same for the area under the curve."""
    rng = np.random.default_rng(7)
    high = {"threshold": 0, "area": 0, "lira": 0}
    for _ in range(200):
        log_p, labels, members = outputs(200, 0.0, rng)
        evidence = membership.confidence(log_p, labels)
        rate, area = attacked(evidence, members), scores.area(evidence, members)
        high["threshold"] += rate.success - 0.5 > 2 * rate.error
        high["area"] += area.success - 0.5 > 2 * area.error
        log_p, shadows, inside, labels, members = shadow_world(200, 8, 0.0, rng)
        ratio = membership.likelihood_ratio(
            membership.scaled(log_p, labels), np.stack([membership.scaled(s, labels) for s in shadows]), inside
        )
        rate = scores.balanced(ratio > 0, members)
        high["lira"] += rate.success - 0.5 > 2 * rate.error
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


def test_found_at_counts_false_alarms():
    evidence = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    members = np.array([True, False, True, True, False, False])
    assert scores.found_at(evidence, members, 0.0) == pytest.approx(1 / 3)
    assert scores.found_at(evidence, members, 0.34) == 1.0
    assert scores.found_at(np.zeros(6), members, 0.01) == 0.0  # equal evidence finds nobody


# --- what the theorem allows


def response(epsilon: float, classes: int = 2) -> RandomizedResponse:
    return RandomizedResponse(epsilon=epsilon, classes=classes)


def noise(epsilon: float, dim: int = 4) -> Purkayastha:
    return Purkayastha(epsilon=epsilon, dim=dim)


def test_the_bound_of_randomized_response_is_attained():
    """The best guess looks at the label: right with e^ε/(e^ε + K - 1) for members of one label, wrong with
    1/(e^ε + K - 1) for others' label."""
    for epsilon, classes in ((1.0, 2), (2.0, 5)):
        normal = math.exp(epsilon) + classes - 1
        theory = 0.5 + 0.5 * (math.exp(epsilon) - 1) / normal
        assert membership.bound([(response(epsilon, classes), 1)]) == pytest.approx(theory, abs=1e-9)
    assert membership.bound([(response(1.0), 1)]) == pytest.approx(math.exp(1) / (1 + math.exp(1)))
    # two of them: what a sum of two bits tells, from the binomial law
    p = math.exp(1) / (1 + math.exp(1))
    assert membership.bound([(response(1.0), 2)]) == pytest.approx(p, abs=1e-4)
    three = sum(math.comb(3, k) * p**k * (1 - p) ** (3 - k) for k in (2, 3))
    assert membership.bound([(response(1.0), 3)]) == pytest.approx(three, abs=1e-4)


@pytest.mark.parametrize(("epsilon", "dim"), [(1.0, 2), (8.0, 16)])
def test_the_bound_of_purkayastha_is_that_of_its_antipodal_pair(epsilon, dim):
    mechanism = noise(epsilon, dim)
    pole = np.zeros((20_000, dim))
    pole[:, 0] = 1.0
    rng = SimulationStreams(9).rows(np.arange(20_000), np.zeros(20_000, np.int64), stage="test", channel="embedding")
    right = (mechanism.sample(pole, rng=rng)[:, 0] > 0).mean()
    assert membership.bound([(mechanism, 1)]) == pytest.approx(right, abs=4 * math.sqrt(right * (1 - right) / 20_000))


def test_what_is_in_clear_has_no_bound():
    assert membership.bound([(Identity("label", 2), 1)]) == 1.0
    assert membership.bound([(noise(1.0), 1), (Identity("label", 2), 1)]) == 1.0
    both = membership.bound([(noise(1.0), 1), (response(1.0), 1)])
    assert max(membership.bound([(m, 1)]) for m in (noise(1.0), response(1.0))) < both < 1.0


# --- the releases themselves


def unit(n: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    rows = rng.standard_normal((n, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("mechanism", [Identity("embedding", 8), noise(60.0, 8), PlanarLaplace(8, 60.0)])
def test_releases_of_little_noise_show_who_took_part(mechanism, monkeypatch):
    rng = np.random.default_rng(10)
    records, public = unit(120, 8, rng), unit(200, 8, rng)
    members = np.arange(120) % 2 == 0
    streams = SimulationStreams(11).rows(np.arange(60), np.zeros(60, np.int64), stage="test", channel="embedding")
    z = mechanism.sample(records[members], rng=streams)
    if mechanism.grid is not None:
        z = mechanism.grid.decode(mechanism.grid.encode(z))
    evidence = presence.embedding_evidence(mechanism, z, records, public)
    assert attacked(evidence, members).success > 0.9
    monkeypatch.setattr(presence, "_ENTRIES", 1000)  # a few releases at a time
    assert np.allclose(presence.embedding_evidence(mechanism, z, records, public), evidence)


def test_releases_stay_within_the_theorem():
    """One user, two worlds: what the evidence can do is below the bound, and of a single release not far below."""
    mechanism, rng = noise(4.0, 3), np.random.default_rng(12)
    records, public = np.array([[0.0, 0.0, 1.0]]), unit(50, 3, rng)
    n = 3000
    values, members = np.empty(n), np.arange(n) % 2 == 0
    where = np.where(members[:, None], records, -records)
    streams = SimulationStreams(13).rows(np.arange(n), np.zeros(n, np.int64), stage="test", channel="embedding")
    drawn = mechanism.sample(where, rng=streams)
    for i, z in enumerate(drawn):
        values[i] = presence.embedding_evidence(mechanism, z[None], records, public)[0]
    rate = attacked(values, members)
    bound = membership.bound([(mechanism, 1)])
    assert bound - 0.05 < rate.success < bound + 4 * rate.error


def test_labels_count_as_evidence():
    mechanism, label = noise(0.1), response(6.0)
    rng = np.random.default_rng(14)
    records, public = unit(2, 4, rng), unit(40, 4, rng)
    y, truth, known = np.zeros(1, np.int64), np.array([0, 1]), rng.integers(2, size=40)
    law = np.stack([label.log_prob(y, np.full(1, c)) for c in range(2)], axis=1)
    evidence = presence.embedding_evidence(mechanism, unit(1, 4, rng), records, public, labels=(law, truth, known))
    assert evidence[0] > evidence[1] + 4


def test_texts_are_recognized_by_their_rare_words(monkeypatch):
    released = np.array([[0, 1, 2, -1], [0, 1, 3, 4], [0, 5, 6, 7]])
    records = np.array([[0, 1, 4, 3], [0, 1, 2, 9], [0, 1, 8, 9], [9, 9, -1, -1]])
    evidence = presence.overlap(released, records, 9)
    assert evidence[0] == pytest.approx(1.0)  # whatever the order
    assert evidence[0] >= evidence[1] > evidence[2] and evidence[3] == 0.0
    monkeypatch.setattr(presence, "_ENTRIES", 3)
    assert np.allclose(presence.overlap(released, records, 9), evidence)

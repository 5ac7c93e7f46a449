"""Attacks on sanitized text: as good as theory says they are, never better than it allows, blind where they must be.

Statistical tests allow for 5 standard errors, which an estimate of a true value exceeds with probability below 1e-6, on
fixed seeds.
"""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from scipy.optimize import linprog

from mechanisms.catalogue import build
from mechanisms.vocabulary import NOTHING, Vocabulary
from sottovoce.adversary.attacks import scores
from sottovoce.adversary.estimators import linkage, tokens
from sottovoce.adversary.estimators.channel import Channel
from tests.support.attacked_words import ESTIMATED, EXACT, LENGTH, SIGMAS, SIZE, V, again, law, released, success, text

# --- the law of a released word


@pytest.mark.parametrize("name", EXACT)
def test_the_adversarys_law_is_that_of_the_releases(name):
    mechanism = text(EXACT[name])
    n, table = 4000, law(mechanism)
    x = np.repeat(np.arange(SIZE)[:, None], LENGTH, axis=1)
    drawn = np.concatenate([again(mechanism, x, seed) for seed in range(n // LENGTH)], axis=1)
    for word in range(SIZE):
        seen = np.bincount(drawn[word], minlength=SIZE) / n
        spread = np.sqrt(table[word] * (1 - table[word]) / n)
        # of 14,400 cells each alarms with probability below 1e-11 (Poisson, at its worst mean)
        assert (np.abs(seen - table[word]) <= 7 * spread + 10 / n).all()


@pytest.mark.parametrize("name", ESTIMATED)
def test_an_estimated_law_is_near_that_of_the_releases(name):
    mechanism = text(ESTIMATED[name])
    channel = Channel(mechanism, seed=9)
    assert not channel.exact and channel.draws == 200
    table = law(mechanism)
    np.testing.assert_allclose(table.sum(axis=1), 1.0)
    x = np.repeat(np.arange(SIZE)[:, None], LENGTH, axis=1)
    drawn = np.concatenate([again(mechanism, x, seed) for seed in range(100)], axis=1)
    seen = np.stack([np.bincount(row, minlength=SIZE) for row in drawn]) / drawn.shape[1]
    apart = np.abs(seen - table[:SIZE]).sum(axis=1) / 2
    assert apart.mean() < 0.15, "total variation: 200 draws of each word and the noise's density"


def test_no_law_where_a_word_depends_on_the_whole_text():
    with pytest.raises(ValueError, match=r"^dp-mlm: a released word depends on the whole text[^\n]*$"):
        Channel(text({"mechanism": "dp-mlm", "epsilon": 2.0, "low": 0.0, "high": 1.0}))


def test_a_large_vocabulary_is_gone_through_in_blocks():
    """2,100 words do not fit into one block; alone, each word has the same law and the same guesses."""
    rng = np.random.default_rng(0)
    large = Vocabulary(tuple(f"w{i}" for i in range(2100)), rng.normal(size=(2100, 3)).astype(np.float32))
    channel = Channel(text({"mechanism": "santext", "epsilon": 4.0}, large))
    prior = tokens.unigram(large)
    assert len(list(channel.blocks(np.arange(2100)))) > 1
    found = tokens.decode(channel, prior[None])
    joint = prior[:, None] * np.exp(channel.log_probs(np.arange(2101)))
    np.testing.assert_array_equal(found.guesses[0], joint.argmax(axis=0))
    np.testing.assert_allclose(found.best[0], joint.max(axis=0).sum())
    np.testing.assert_array_equal(found.top, np.argsort(-joint, axis=0)[: tokens.TOP].T)


# --- the best guess


@pytest.mark.parametrize("name", EXACT)
def test_the_best_guess_succeeds_as_often_as_theory_says_and_no_other_more(name):
    mechanism = text(EXACT[name])
    prior = tokens.unigram(V)
    channel, table = Channel(mechanism), law(mechanism)
    found = tokens.decode(channel, prior[None])
    theory = (prior[:, None] * table).max(axis=0).sum()
    assert found.best[0] == pytest.approx(theory, rel=1e-12) == pytest.approx(found.expected(prior), rel=1e-9)

    x, y = released(mechanism, 3000, prior)
    measured = success(tokens.guessed(y, found.guesses[0]), x, y)
    assert abs(measured.success - theory) <= SIGMAS * measured.error + 1e-12
    five = success(tokens.guessed(y, found.top), x, y)
    expected = np.sort(prior[:, None] * table, axis=0)[-5:].sum()
    assert abs(five.success - expected) <= SIGMAS * five.error + 1e-12

    rng = np.random.default_rng(7)
    nearest = np.linalg.norm(V.vectors[:, None] - V.vectors[None], axis=2)
    others = [
        np.arange(SIZE),
        np.zeros(SIZE, dtype=np.int64),
        table[:SIZE].argmax(axis=0),
        (nearest / np.sqrt(prior[:SIZE, None])).argmin(axis=0),
        *(np.where(rng.random(SIZE) < 0.3, rng.integers(SIZE, size=SIZE), found.guesses[0]) for _ in range(200)),
    ]
    for guess in others:
        assert (prior[guess] * table[guess, np.arange(SIZE)]).sum() <= theory * (1 + 1e-12)


def test_without_noise_everything_is_guessed_and_from_noise_alone_the_most_frequent_word():
    prior = tokens.unigram(V)
    for spec, best in ((EXACT["identity"], 1.0), (EXACT["random"], prior.max())):
        mechanism = text(spec)
        found = tokens.decode(Channel(mechanism), prior[None])
        assert found.best[0] == pytest.approx(best)
        x, y = released(mechanism, 500, prior)
        measured = success(tokens.guessed(y, found.guesses[0]), x, y)
        assert abs(measured.success - best) <= SIGMAS * measured.error + 1e-12
        assert tokens.bound(mechanism, prior) == pytest.approx(best, rel=1e-9)


def test_what_nobody_can_have_written_is_not_guessed():
    mechanism = text({"mechanism": "identity"})
    prior = np.zeros(SIZE + 1)
    prior[3] = 1.0
    found = tokens.decode(Channel(mechanism), prior[None])
    assert found.best[0] == 1.0 and found.top[3].tolist() == [3, *[NOTHING] * 4]
    assert found.guesses[0].tolist() == list(range(SIZE)), "an output that no input gives is guessed to be itself"
    y = np.array([[3, NOTHING]])
    assert tokens.guessed(y, found.guesses[0]).tolist() == [[3, NOTHING]]
    assert tokens.guessed(y, found.top).shape == (1, 2, tokens.TOP)


# --- what the theorem allows


@pytest.mark.parametrize("name", [*EXACT, *ESTIMATED])
def test_no_mechanism_beats_what_its_theorem_allows(name):
    """Under its own prior and others; an estimated law is not the mechanism's, and stands aside with 5 % more."""
    mechanism = text((EXACT | ESTIMATED)[name])
    rng = np.random.default_rng(2)
    uneven = np.append(rng.dirichlet(np.full(SIZE, 0.2)), 0.0)
    priors = [tokens.unigram(V), uneven, np.append(np.full(SIZE, 1 / SIZE), 0.0)]
    found = tokens.decode(Channel(mechanism), np.stack(priors))
    for best, prior in zip(found.best, priors, strict=True):
        assert prior.max() - 1e-12 <= tokens.bound(mechanism, prior) <= 1
        assert best <= tokens.bound(mechanism, prior) * (1 + (1e-9 if name in EXACT else 0.05))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_bound_of_ldp_is_attained_by_randomized_response_and_by_nothing_better(epsilon):
    """Against the exact optimum over all mechanisms, a linear programme of its own, and one that attains it."""
    f = np.array([0.35, 0.3, 0.2, 0.1, 0.05])
    n, allowed = len(f), tokens.randomized(f, epsilon)
    attained = []
    for k in range(1, n + 1):
        table = np.full((n, k), 1 / k)
        table[:k] = (1 + (np.exp(epsilon) - 1) * np.eye(k)) / (np.exp(epsilon) + k - 1)
        ratio = table.max(axis=0) / table.min(axis=0)
        assert ratio.max() <= np.exp(epsilon) * (1 + 1e-12)
        attained.append((f[:, None] * table).max(axis=0).sum())
    assert allowed == pytest.approx(max(attained), rel=1e-12)
    # outputs named by what is guessed at them: P[x, y], success sum f(x)·P[x, x]
    rows = []
    for y in range(n):
        for x, other in product(range(n), range(n)):
            if x != other:
                row = np.zeros((n, n))
                row[x, y], row[other, y] = 1, -np.exp(epsilon)
                rows.append(row.ravel())
    ones = np.kron(np.eye(n), np.ones(n))
    best = linprog(-np.diag(f).ravel(), A_ub=np.array(rows), b_ub=np.zeros(len(rows)), A_eq=ones, b_eq=np.ones(n))
    assert -best.fun == pytest.approx(allowed, rel=1e-7)
    assert allowed <= min(1.0, np.exp(epsilon) * f.max())


def test_the_metric_bound_against_the_exact_optimum():
    """It allows at least what the best of all mechanisms on a line of words can do, and not everything."""
    n, epsilon = 6, 1.0
    f = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
    apart = np.abs(np.arange(n)[:, None] - np.arange(n)[None])
    rows = []
    for y, x, other in product(range(n), range(n), range(n)):
        if x != other:
            row = np.zeros((n, n))
            row[x, y], row[other, y] = 1, -np.exp(epsilon * apart[x, other])
            rows.append(row.ravel())
    ones = np.kron(np.eye(n), np.ones(n))
    best = linprog(-np.diag(f).ravel(), A_ub=np.array(rows), b_ub=np.zeros(len(rows)), A_eq=ones, b_eq=np.ones(n))
    allowed = tokens.metric(f, np.exp(-epsilon * apart) @ f)
    assert -best.fun <= allowed * (1 + 1e-9) < 0.95
    assert tokens.metric(f, f.sum() * np.ones(n)) == pytest.approx(f.max()), "no loss at all: the most frequent"
    assert tokens.metric(f, f) == pytest.approx(1.0), "any loss: everything"


def test_exposures():
    prior = tokens.unigram(V)
    shown = prior[:10].sum()  # stop words
    kept = tokens.bound(text({"mechanism": "random", "stop_words": "keep"}), prior)
    assert kept == pytest.approx(shown + prior[10:].max(), rel=1e-9)
    loud = text({"mechanism": "custext", "epsilon": 50.0, "k": 8})
    quiet = text({"mechanism": "custext", "epsilon": 0.0, "k": 8})
    groups = quiet.word.mapping.group[:SIZE]
    most = sum(prior[:SIZE][groups == g].max() for g in np.unique(groups))
    assert tokens.bound(quiet, prior) == pytest.approx(most, rel=1e-9) and tokens.bound(loud, prior) > 0.999
    filtered = build(
        {
            "mechanism": "dp-mlm",
            "epsilon": 1.0,
            "low": 0.0,
            "high": 1.0,
            "mode": "paper",
            "tokens": LENGTH,
            "antonyms": (("it", "not"),),
        },
        channel="text",
        vocabulary=V,
    )
    assert tokens.bound(filtered, prior) == 1.0


# --- linkage


def pairs(spec, n, seed=1):
    mechanism, prior = text(spec), tokens.unigram(V)
    x, first = released(mechanism, n, prior, seed)
    return linkage.scores(Channel(mechanism), prior, first, again(mechanism, x, seed, "again")), mechanism, first, x


def test_releases_without_noise_are_linked_and_noise_alone_is_not():
    evidence, _, first, _ = pairs({"mechanism": "identity"}, 200)
    assert len(np.unique(first, axis=0)) == 200
    assert scores.matched(evidence).success == 1.0 and scores.area_of_pairs(evidence).success == 1.0
    evidence, mechanism, _, _ = pairs({"mechanism": "random"}, 200)
    found, area = scores.matched(evidence), scores.area_of_pairs(evidence)
    assert abs(found.success - 1 / 200) < 1e-9 or abs(found.success - 1 / 200) <= SIGMAS * found.error
    assert abs(area.success - 0.5) <= SIGMAS * area.error + 1e-9
    assert linkage.bound(mechanism, 200) == 1.0, "a length that is kept may tell everything"


def test_the_evidence_is_the_likelihood_ratio():
    mechanism, prior = text(EXACT["santext"]), tokens.unigram(V)
    table = law(mechanism)
    joint = np.einsum("x,xy,xz->yz", prior, table, table)
    q = prior @ table
    a = np.array([[3, 17, *[NOTHING] * 8], [1, 2, *[NOTHING] * 8]])
    b = np.array([[5, 17, *[NOTHING] * 8], [3, *[NOTHING] * 9]])
    evidence = linkage.scores(Channel(mechanism), prior, a, b)
    expected = math.log(joint[3, 5] / q[3] / q[5] * joint[17, 17] / q[17] ** 2 * (LENGTH + 1))
    assert evidence[0, 0] == pytest.approx(expected)
    assert evidence[0, 1] < -600, "lengths that are kept, and differ"


@pytest.mark.parametrize("name", ["custext", "custext+", "kept", "santext+"])
def test_evidence_gathered_group_by_group_is_that_of_the_whole_table(name):
    mechanism, prior = text(EXACT[name]), tokens.unigram(V, unknown=0.1)
    table = law(mechanism)
    joint, q = np.einsum("x,xy,xz->yz", prior, table, table), prior @ table
    rng = np.random.default_rng(8)
    a, b = rng.integers(SIZE, size=(3, LENGTH)), rng.integers(SIZE, size=(4, LENGTH))
    a[0, 4:], b[1, 7:] = NOTHING, NOTHING
    evidence = linkage.scores(Channel(mechanism), prior, a, b)
    for i, j in product(range(3), range(4)):
        both = (a[i] != NOTHING) & (b[j] != NOTHING)
        y, z = a[i][both], b[j][both]
        least = np.maximum(joint[y, z], 1e-300)
        expected = (np.log(least) - np.log(np.maximum(q[y], 1e-300)) - np.log(np.maximum(q[z], 1e-300))).sum()
        expected += math.log(LENGTH + 1) if (a[i] != NOTHING).sum() == (b[j] != NOTHING).sum() else math.log(1e-300)
        assert evidence[i, j] == pytest.approx(expected)


def test_only_the_outputs_that_are_wanted_are_ranked():
    channel, prior = Channel(text(EXACT["santext"])), tokens.unigram(V)
    every = tokens.decode(channel, prior[None])
    some = tokens.decode(channel, prior[None], wanted=np.array([3, 17]))
    assert (some.top[[3, 17]] == every.top[[3, 17]]).all() and (np.delete(some.top, [3, 17], axis=0) == NOTHING).all()
    assert (some.guesses == every.guesses).all() and some.best == every.best


def test_a_larger_epsilon_links_more_and_no_other_evidence_does_better():
    found = []
    for epsilon in (0.3, 2.5, 4.0):
        evidence, _, _, _ = pairs({"mechanism": "santext", "epsilon": epsilon}, 300)
        found.append((scores.matched(evidence), scores.area_of_pairs(evidence)))
    for low, high in pairwise(found):
        for a, b in zip(low, high, strict=True):
            assert b.success - a.success > SIGMAS * math.hypot(a.error, b.error)
    evidence, mechanism, first, x = pairs({"mechanism": "santext", "epsilon": 1.5}, 300)
    second = again(mechanism, x, stage="again")
    same = (first[:, None] == second[None]).sum(axis=2).astype(float)
    near = -np.linalg.norm(V.vectors[first][:, None] - V.vectors[second][None], axis=3).sum(axis=2)
    best = scores.area_of_pairs(evidence)
    for other in (same, near):
        area = scores.area_of_pairs(other)
        assert best.success >= area.success - SIGMAS * math.hypot(best.error, area.error)
    assert best.success > scores.area_of_pairs(same).success


def test_what_a_texts_theorem_allows_of_linkage():
    """Two texts of one word, ε of 0.5 in all: matching by any evidence stays below the bound; ties are shared."""
    one = text({"mechanism": "custext", "epsilon": 0.5, "k": SIZE, "tokens": 1, "length": 0.0})
    n = 10
    allowed = linkage.bound(one, n)
    assert allowed == pytest.approx(1 / (1 + (n - 1) * math.exp(-2 * one.guarantee.worst_case())))
    prior, rates = tokens.unigram(V), []
    for seed in range(60):
        x = np.random.default_rng(seed).choice(SIZE + 1, size=(n, 1), p=prior)
        evidence = linkage.scores(Channel(one), prior, again(one, x, seed), again(one, x, seed, "again"))
        rates.append(scores.matched(evidence).success)
    assert np.mean(rates) <= allowed + SIGMAS * np.std(rates) / math.sqrt(len(rates))
    assert scores.matched(np.zeros((4, 4))).success == 0.25 and scores.area_of_pairs(np.zeros((4, 4))).success == 0.5


# --- scores


def test_one_text_is_one_observation():
    truth = np.array([[1, 2, SIZE], [3, NOTHING, NOTHING], [4, 4, 4]])
    sent = np.array([[1, 0, 5], [3, 7, NOTHING], [4, NOTHING, 0]])
    where = scores.scored(sent, truth, SIZE)
    assert where.tolist() == [[True, True, False], [True, False, False], [True, False, True]]
    found = scores.rate(sent, truth, where)
    assert found.success == pytest.approx(3 / 5)
    assert found.error == pytest.approx(math.sqrt((1 - 6 / 5) ** 2 + (1 - 3 / 5) ** 2 + (1 - 6 / 5) ** 2) / 5)
    assert scores.frequencies(truth, where, SIZE)[[1, 2, 3, 4]].tolist() == [0.2, 0.2, 0.2, 0.4]


def test_the_best_of_many_is_chosen_on_other_texts_than_it_is_measured_on():
    """Forty guesses by chance, right in half of 400 words: the largest success of each forty is above 1/2 by more
    than 5 standard errors (of the mean of 50 runs), and where they are chosen on the other half it is not."""
    rng, truth, where = np.random.default_rng(0), np.zeros((200, 2), dtype=int), np.ones((200, 2), dtype=bool)
    chance = [{str(i): rng.integers(2, size=(200, 2)) for i in range(40)} for _ in range(50)]
    largest = [max((each == truth).mean() for each in guesses.values()) for guesses in chance]
    fair = [(scores.chosen_by_the_other_half(guesses, truth, where)[0] == truth).mean() for guesses in chance]
    error = 0.025 / np.sqrt(50)
    assert np.mean(largest) > 0.5 + 5 * error and abs(np.mean(fair) - 0.5) < 5 * error
    better = chance[0] | {"good": np.where(rng.random((200, 2)) < 0.8, 0, 1)}
    guesses, chosen = scores.chosen_by_the_other_half(better, truth, where)
    assert chosen == ("good", "good") and (guesses == better["good"]).all()

"""The head in closed form, of users' noisy means and of class names: against what must come of it by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from mechanisms.identity import Identity
from mechanisms.privunit import MAX_DIM, PrivUnit
from mechanisms.projection import statistic_vectors
from mechanisms.streams import SimulationStreams
from server.training import statistic_head
from server.training.class_names import TEMPLATES, name_probabilities, prototypes_of, sentences_of
from server.training.statistic_head import (
    CANDIDATES,
    Evidence,
    Prospects,
    code_length,
    covering_features,
    expected_gain,
    features_allowed,
    head_with_names,
    linear_head,
    mean_noise,
    of_labels,
    of_users,
    shared_codes,
    simplex_codes,
    wide_features,
)

DIM = 6


def world(n: int, classes: int, *, seed: int = 0, dim: int = DIM) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows (n, dim) around one centre a class, and their labels, of unequal shares."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, dim))
    labels = rng.choice(classes, n, p=np.arange(1, classes + 1) / np.arange(1, classes + 1).sum())
    rows = centres[labels] + rng.normal(size=(n, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), labels


def users_of(features: np.ndarray, labels: np.ndarray, codes: np.ndarray, mechanism=None, seed: int = 1) -> Evidence:
    vectors = statistic_vectors(features, labels, codes)
    if mechanism is None:
        return of_users(vectors.mean(axis=0), 0.0, users=len(vectors), codes=codes)
    rows = np.arange(len(vectors))
    rng = SimulationStreams(seed).rows(rows, np.zeros_like(rows), stage="s", channel="statistic")
    drawn = mechanism.grid.encode(mechanism.sample(vectors, rng=rng))
    noise = mean_noise(mechanism, users=len(vectors))
    return of_users(mechanism.decoded_mean(drawn), noise, users=len(vectors), codes=codes)


def guesses(head: tuple[np.ndarray, np.ndarray], features: np.ndarray) -> np.ndarray:
    return (features @ head[0] + head[1]).argmax(axis=1)


@pytest.mark.parametrize("classes", [2, 12])
def test_codes_are_a_regular_simplex(classes: int) -> None:
    codes = simplex_codes(classes).astype(np.float64)
    assert codes.shape == (classes, classes - 1)
    products = codes @ codes.T
    np.testing.assert_allclose(np.diag(products), 1.0, atol=1e-6)
    np.testing.assert_allclose(products[~np.eye(classes, dtype=bool)], -1 / (classes - 1), atol=1e-6)
    np.testing.assert_allclose(codes.sum(axis=0), 0.0, atol=1e-6)
    with pytest.raises(ValueError, match="at least 2 classes, got 1"):
        simplex_codes(1)


@pytest.mark.parametrize(("classes", "dim"), [(2, 40), (4, DIM)])
@pytest.mark.parametrize("make", [simplex_codes, shared_codes])
def test_what_users_release_and_what_labels_say_are_the_same_moments(make, classes: int, dim: int) -> None:
    """By codes that tell where users are, too."""
    features, labels = world(500, classes, dim=dim)
    released, codes = users_of(features, labels, make(classes)), simplex_codes(classes)
    for known in (of_labels(features, labels, codes), of_labels(features, np.eye(classes)[labels], codes)):
        np.testing.assert_allclose(released.cross, known.cross, atol=1e-7)
        np.testing.assert_allclose(released.constant, known.constant, atol=1e-7)
    assert (released.mean is None) == (make is simplex_codes)
    if make is shared_codes:
        np.testing.assert_allclose(released.mean, features.mean(axis=0), atol=1e-7)


@pytest.mark.parametrize("classes", [2, 4])
def test_without_noise_it_is_the_linear_discriminant(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against scikit-learn's, fitted to the same rows, without a ridge: shrinkage fades with 200,000 of them."""
    monkeypatch.setattr(statistic_head, "RIDGE", 0.0)
    features, labels = world(200_000, classes)
    codes = simplex_codes(classes)
    ours = guesses(linear_head(features, codes, users=users_of(features, labels, codes)), features)
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(features, labels).predict(features)
    assert np.mean(ours == theirs) > 0.99
    shuffled = np.random.default_rng(0).permutation(labels)  # and a head of nothing is another
    nothing = guesses(linear_head(features, codes, users=users_of(features, shuffled, codes)), features)
    assert np.mean(nothing == theirs) < 0.8


def test_noise_is_shrunk_away() -> None:
    """Users under ε = .01 say nothing: beside labels they change next to no guess, alone they claim no direction."""
    features, labels = world(4_000, 2)
    codes = simplex_codes(2)
    noisy = users_of(features[:200], labels[:200], codes, PrivUnit(DIM + 1, 0.01))
    known = of_labels(features[200:], labels[200:], codes)
    alone = guesses(linear_head(features, codes, labels=known), features)
    both = guesses(linear_head(features, codes, users=noisy, labels=known), features)
    assert np.mean(alone == both) > 0.99
    weight, bias = linear_head(features, codes, users=noisy)
    signal, _ = linear_head(features, codes, labels=known)
    assert np.abs(weight[:, 1] - weight[:, 0]).max() < 0.2 * np.abs(signal[:, 1] - signal[:, 0]).max()
    assert np.isfinite(bias).all()
    weight, bias = linear_head(features, codes)  # nobody knows anything
    assert weight.shape == (DIM, 2) and not weight.any() and not bias.any()


def test_labels_of_another_kind_weigh_less_than_users() -> None:
    """Public labels that are the users' inverted: many exact users outweigh them."""
    features, labels = world(20_000, 2)
    codes = simplex_codes(2)
    users = users_of(features[:10_000], labels[:10_000], codes)
    inverted = of_labels(features[10_000:10_300], 1 - labels[10_000:10_300], codes)
    right = np.mean(guesses(linear_head(features, codes, users=users), features) == labels)
    beside = np.mean(guesses(linear_head(features, codes, users=users, labels=inverted), features) == labels)
    assert beside > right - 0.01 > 0.7


@pytest.mark.parametrize(("codes", "dim"), [(simplex_codes(3), DIM), (shared_codes(2), 40), (shared_codes(3), DIM)])
def test_noise_in_a_mean_is_noise_in_what_it_says(codes: np.ndarray, dim: int) -> None:
    """A change of one coordinate of the mean by 1 changes one entry of the evidence, by the root of its noise for 1."""
    size = codes.shape[1] * (dim + 1)
    for at, change in enumerate(np.eye(size)):
        users = of_users(change, 1.0, users=100, codes=codes)
        table = np.zeros((len(codes), dim + 1))
        table[divmod(at, dim + 1)] = 1.0
        np.testing.assert_allclose(users.cross, table[:-1, :dim] * users.noise**0.5, rtol=1e-12)
        np.testing.assert_allclose(users.constant, table[:-1, dim] * users.constant_noise**0.5, rtol=1e-12)
        if users.mean is not None:
            np.testing.assert_allclose(users.mean, table[-1, :dim] * users.mean_noise**0.5, rtol=1e-12)


@pytest.mark.parametrize(("mechanism", "labelled"), [(None, True), (PrivUnit(2 * (DIM + 1), 3.0), False)])
def test_public_text_of_another_domain_moves_no_threshold(mechanism: PrivUnit | None, labelled: bool) -> None:
    """Users' features lie elsewhere than public text's, and their classes are not equally frequent: with shared codes
    the head is as good as beside public text of their own; with simplex codes it guesses one class."""
    codes, (features, labels) = simplex_codes(2), world(12_000, 2)
    public = features[8_000:] + 1.5 * np.random.default_rng(3).normal(size=DIM)
    known = of_labels(public, labels[8_000:], codes) if labelled else None

    def right(asked: np.ndarray, drawn: PrivUnit | None, at: np.ndarray) -> float:
        users = users_of(features[:8_000], labels[:8_000], asked, drawn)
        return float(np.mean(guesses(linear_head(at, codes, users=users, labels=known), features) == labels))

    assert right(shared_codes(2), mechanism, public) > right(codes, None, features[8_000:]) - 0.02
    narrow = None if mechanism is None else PrivUnit(DIM + 1, 3.0)
    assert right(codes, narrow, public) < right(codes, None, features[8_000:]) - 0.1


def test_noise_of_a_shifted_constant_claims_no_direction() -> None:
    """Where users lie elsewhere, their constant's noise moves along the shift: the head reads nothing there."""
    features, labels = world(8_000, 2)
    users = replace(users_of(features, labels, shared_codes(2)), mean=features.mean(axis=0) + 3.0 * np.eye(DIM)[0])
    exact, noisy = (
        linear_head(features, simplex_codes(2), users=replace(users, constant_noise=noise))[0] for noise in (0.0, 100.0)
    )
    contrast = [abs(weight[0, 1] - weight[0, 0]) for weight in (exact, noisy)]
    assert contrast[1] < 0.1 * contrast[0]


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_the_noise_of_a_mean_is_what_is_stated(epsilon: float) -> None:
    """2,000 coordinates of means of users at one point: their variance by chi square, at a false-alarm rate of 1e-6; it
    rejects 2/3 and 3/2 of it."""
    mechanism, users, times = PrivUnit(20, epsilon), 50, 100
    point = np.zeros((users * times, 20))
    point[:, 0] = 1.0
    rows = np.arange(len(point))
    rng = SimulationStreams(5).rows(rows, np.zeros_like(rows), stage="s", channel="statistic")
    drawn = mechanism.sample(point, rng=rng).reshape(times, users, 20).mean(axis=1) / mechanism.scale
    # around a point, the first coordinate's variance is less: what is stated is the mean over all
    squares = ((drawn - point[:1]) ** 2).mean(axis=1) * 20
    stated = 20 * mean_noise(mechanism, users=users)

    accepted = [stats.ttest_1samp(squares, stated * factor).pvalue > 1e-6 for factor in (1, 2 / 3, 3 / 2)]
    assert accepted == [True, False, False]
    assert mean_noise(Identity("statistic", 9), users=5) == 0.0
    assert mean_noise(PrivUnit(9, 0.0), users=5) == np.inf


def test_more_users_and_more_epsilon_afford_more_features() -> None:
    rng = np.random.default_rng(2)
    embeddings = rng.normal(size=(3_000, 128)) * (np.arange(1, 129) ** -0.5)
    codes = simplex_codes(2)

    def chosen(epsilon: float, users: int) -> int:
        noise = lambda size: mean_noise(PrivUnit(size, epsilon), users=users)  # noqa: E731
        return Prospects(embeddings, codes).best(noise, users=users)[0]

    by_users = [chosen(4.0, n) for n in (100, 2_000, 50_000, 10**6)]
    by_epsilon = [chosen(e, 5_000) for e in (0.5, 2.0, 8.0)]
    assert by_users == sorted(by_users) and by_users[0] < by_users[-1]
    assert by_epsilon == sorted(by_epsilon) and by_epsilon[0] < by_epsilon[-1]
    assert set(by_users + by_epsilon) <= set(CANDIDATES)
    free, share = Prospects(embeddings, codes).best(lambda size: 0.0, users=50_000)
    assert free >= by_users[-2] and 0.9 < share < 1
    assert Prospects(embeddings[:, :5], codes).best(lambda size: 1.0, users=50)[0] == 5


@pytest.mark.parametrize(("classes", "shared"), [(2, True), (22, False), (22, True), (77, False), (1000, True)])
def test_as_many_features_as_a_vector_has_room_for(classes: int, shared: bool) -> None:
    """Of any number of classes: what is chosen, and all that may be, fits into the largest vector."""
    length = code_length(classes, shared=shared)
    assert length == (shared_codes if shared else simplex_codes)(classes).shape[1]
    allowed = features_allowed(length)
    assert allowed and all(length * (d + 1) <= MAX_DIM for d in allowed)
    h = np.random.default_rng(0).normal(size=(3_100, 384)) * (np.arange(1, 385) ** -0.1)
    codes = np.eye(classes, classes - 1, dtype=np.float32)
    d, share = Prospects(h, codes, length=length).best(lambda size: 0.0, users=10**9)
    assert d in allowed and 0 < share <= 1


@pytest.mark.parametrize("epsilon", [0.01, 2.0])
def test_users_never_make_labels_worse(epsilon: float) -> None:
    """500 users beside 100 labelled texts, in 20 worlds: on average no worse, and in none by much."""
    codes, gains = simplex_codes(2), []
    for seed in range(20):
        features, labels = world(6_000, 2, seed=seed)
        users = users_of(features[:500], labels[:500], codes, PrivUnit(DIM + 1, epsilon), seed=seed)
        known = of_labels(features[500:600], labels[500:600], codes)
        heads = [linear_head(features[500:], codes, users=e, labels=known) for e in (users, None)]
        with_users, without = (np.mean(guesses(head, features[1000:]) == labels[1000:]) for head in heads)
        gains.append(with_users - without)
    assert np.mean(gains) > -0.001 and min(gains) > -0.02


CLASSES, WIDTH = 4, 48


def named_world(rows: int, *, seed: int = 1, off: float = 0.6):
    """Embeddings around one mean for each class, their labels, and names that point `off` away from the means."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(7).normal(size=(CLASSES, WIDTH))
    labels = rng.integers(CLASSES, size=rows)
    embeddings = (means[labels] + 1.2 * rng.normal(size=(rows, WIDTH))).astype(np.float32)
    return embeddings, labels, means + off * np.random.default_rng(8).normal(size=means.shape) * 2


def test_sentences_stand_for_a_class_and_full_ones_are_left_alone():
    named, described = sentences_of([["card arrival"], ["The card has not come.", "lost"]])
    assert named == [template.format("card arrival") for template in TEMPLATES]
    assert described == ["The card has not come.", *(template.format("lost") for template in TEMPLATES)]
    prototypes = prototypes_of([np.array([[2.0, 0.0], [0.0, 5.0]]), np.array([[0.0, 3.0]])])
    assert np.allclose(prototypes, [[0.5, 0.5], [0.0, 1.0]])  # means of unit embeddings


def test_public_text_moves_names_to_where_texts_lie():
    embeddings, labels, names = named_world(600, off=1.0)
    unrefined = (embeddings @ (names - names.mean(axis=0)).T).argmax(axis=1)
    likely = name_probabilities(names, embeddings)
    assert likely.shape == (600, CLASSES) and np.allclose(likely.sum(axis=1), 1)
    right = (likely.argmax(axis=1) == labels).mean()
    assert right > (unrefined == labels).mean() and right > 0.9


def test_known_labels_stay_and_help():
    embeddings, labels, names = named_world(400, off=3.0)
    some = np.where(np.arange(400) < 60, labels, -1)
    likely = name_probabilities(names, embeddings, some)
    assert (likely[:60].argmax(axis=1) == labels[:60]).all() and (likely[:60].max(axis=1) == 1).all()
    unknown = name_probabilities(names, embeddings)
    assert (likely[60:].argmax(axis=1) == labels[60:]).mean() > (unknown[60:].argmax(axis=1) == labels[60:]).mean()


def users(features, labels, noise, seed=3) -> Evidence:
    """Evidence of users with features (n, d), under noise of that variance."""
    codes, rng = simplex_codes(CLASSES).astype(float), np.random.default_rng(seed)
    cross = codes[labels].T @ features / len(features)
    constant = codes[labels].mean(axis=0)
    return Evidence(
        cross + rng.normal(scale=noise**0.5, size=cross.shape),
        constant + rng.normal(scale=noise**0.5, size=constant.shape),
        noise,
        noise,
        len(features),
    )


def frames(embeddings):
    """Features of public text: few, and more of the same components."""
    centred = embeddings - embeddings.mean(axis=0)
    basis = np.linalg.svd(centred, full_matrices=False)[2].T
    unit = [centred @ basis[:, :d] for d in (6, 24)]
    return [x / np.linalg.norm(x, axis=1, keepdims=True) for x in unit]


@pytest.mark.parametrize(("off", "noise"), [(0.6, 3e-1), (0.6, 3e-4), (2.0, 3e-4)])
def test_both_are_as_good_as_the_better(off, noise):
    """Good names, and names that confuse classes, over 10 worlds: on average as good as names alone and users alone.

    Between the last two, where users' noise is as large as what they say, nothing tells which of both is wrong.
    """
    codes, gained = simplex_codes(CLASSES), []
    for seed in range(10):
        embeddings, labels, names = named_world(1200, seed=seed, off=off)
        few, many = frames(embeddings)
        likely, own = name_probabilities(names, embeddings), users(few[:400], labels[:400], noise, seed=seed)
        heads = {
            "names": (many, linear_head(many, codes, labels=of_labels(many, likely, codes, by_names=True))),
            "users": (few, linear_head(few, codes, users=own)),
            "both": (many, head_with_names(many, likely, codes, own)),
        }
        gained.append([((x @ w + b).argmax(axis=1) == labels)[400:].mean() for x, (w, b) in heads.values()])
    names, alone, both = np.mean(gained, axis=0)
    assert both > max(names, alone) - 0.005


def test_the_mean_over_models_is_that_of_the_integral(monkeypatch):
    """By brute force: draws of C from the prior, weighed by the likelihood of users' estimate; within 5 errors."""
    monkeypatch.setattr(statistic_head, "_LEVELS", np.exp(np.linspace(-3.0, 0.0, 4)))
    rng = np.random.default_rng(3)
    values, names = np.array([0.4, 0.1]), np.array([[0.3, -0.1]])
    seen, variance = np.array([[0.1, 0.05]]), np.array([0.01, 0.02])
    posterior = statistic_head._with_names((seen, variance), names, values)
    draws = 400_000
    scales, errors = statistic_head._SCALES, statistic_head._ERRORS
    belief = np.exp(-0.5 * ((scales - 1) / 0.4) ** 2)[:, None]
    belief = belief * np.exp(-0.5 * np.log(errors / statistic_head.ERROR) ** 2)
    at = rng.choice(belief.size, size=draws, p=(belief / belief.sum()).ravel())
    s, rho = scales[at // len(errors)], errors[at % len(errors)]
    level = rho * (names**2 / values).sum() / (values**0.5).sum()
    c = s[:, None] * names + rng.normal(size=(draws, 2)) * np.sqrt(level[:, None] * values**1.5)
    tau = rng.choice(statistic_head._LEVELS, size=draws) / (values**1.5).sum()
    alone = rng.normal(size=(draws, 2)) * np.sqrt(tau[:, None] * values**2.5)
    c = np.where(rng.random((draws, 1)) < 0.1, alone, c)
    weight = np.exp(-0.5 * ((seen - c) ** 2 / variance).sum(axis=1))
    mean = (weight[:, None] * c).sum(axis=0) / weight.sum()
    error = np.sqrt((weight[:, None] ** 2 * (c - mean) ** 2).sum(axis=0)) / weight.sum()
    assert (np.abs(posterior[0] - mean) < 5 * error).all() and error.max() < 0.001


def test_users_are_expected_to_add_more_the_less_noise_they_have():
    embeddings, _, names = named_world(800)
    likely, (few, _), codes = name_probabilities(names, embeddings), frames(embeddings), simplex_codes(CLASSES)
    gains = [expected_gain(few, likely, codes, noise, users=400) for noise in (0.0, 1e-4, 1e-2, 1.0, np.inf)]
    assert gains == sorted(gains, reverse=True) and gains[-1] == 0
    exact = expected_gain(few, likely, codes, 0.0, users=10**9)  # users who see all correct the whole error
    assert exact == pytest.approx(statistic_head.ERROR, rel=1e-4)
    assert expected_gain(few, likely, codes, 0.0, users=10) < gains[0] < exact


def test_features_cover_the_names():
    embeddings, _, names = named_world(800)
    likely = name_probabilities(names, embeddings)
    d = covering_features(embeddings, likely, simplex_codes(CLASSES))
    assert 2 <= d <= wide_features(embeddings) <= WIDTH

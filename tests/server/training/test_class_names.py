"""Class names as a model: refinement, known labels, and heads that names and users give together."""

from __future__ import annotations

import numpy as np
import pytest

from server.training import statistic_head
from server.training.class_names import TEMPLATES, name_probabilities, prototypes_of, sentences_of
from server.training.statistic_head import (
    Evidence,
    covering_features,
    expected_gain,
    head_with_names,
    linear_head,
    of_names,
    simplex_codes,
    wide_features,
)

CLASSES, WIDTH = 4, 48


def world(rows: int, *, seed: int = 1, off: float = 0.6):
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


def test_prototypes_are_means_of_unit_embeddings():
    found = prototypes_of([np.array([[2.0, 0.0], [0.0, 5.0]]), np.array([[0.0, 3.0]])])
    assert np.allclose(found, [[0.5, 0.5], [0.0, 1.0]])


def test_public_text_moves_names_to_where_texts_lie():
    embeddings, labels, names = world(600, off=1.0)
    unrefined = (embeddings @ (names - names.mean(axis=0)).T).argmax(axis=1)
    found = name_probabilities(names, embeddings)
    assert found.shape == (600, CLASSES) and np.allclose(found.sum(axis=1), 1)
    right = (found.argmax(axis=1) == labels).mean()
    assert right > (unrefined == labels).mean() and right > 0.9


def test_known_labels_stay_and_help():
    embeddings, labels, names = world(400, off=3.0)
    some = np.where(np.arange(400) < 60, labels, -1)
    found = name_probabilities(names, embeddings, some)
    assert (found[:60].argmax(axis=1) == labels[:60]).all() and (found[:60].max(axis=1) == 1).all()
    unknown = name_probabilities(names, embeddings)
    assert (found[60:].argmax(axis=1) == labels[60:]).mean() > (unknown[60:].argmax(axis=1) == labels[60:]).mean()


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


@pytest.mark.parametrize("noise", [1e3, 1e-1, 1e-3])
def test_noisy_users_leave_the_names_as_they_are(noise):
    embeddings, labels, names = world(800)
    likely, (few, many), codes = name_probabilities(names, embeddings), frames(embeddings), simplex_codes(CLASSES)
    alone_w, alone_b = linear_head(many, codes, labels=of_names(many, likely, codes))
    alone = (many @ alone_w + alone_b).argmax(axis=1)
    kept = 0
    for seed in range(20):
        weight, bias = head_with_names(many, likely, codes, users(few, labels, noise, seed=seed))
        kept += ((many @ weight + bias).argmax(axis=1) == alone).mean() > 0.97
    assert kept >= 18


def test_users_who_contradict_the_names_are_believed():
    embeddings, labels, names = world(800)
    likely = name_probabilities(names[[1, 2, 3, 0]], embeddings)  # each name is that of another class
    few, many = frames(embeddings)
    codes = simplex_codes(CLASSES)
    weight, bias = head_with_names(many, likely, codes, users(few, labels, 1e-9))
    assert weight.shape == (24, CLASSES)
    assert ((many @ weight + bias).argmax(axis=1) == labels).mean() > 0.9


@pytest.mark.parametrize(("off", "noise"), [(0.6, 3e-1), (0.6, 1e-2), (0.6, 3e-4), (2.0, 3e-1), (2.0, 3e-4)])
def test_both_are_as_good_as_the_better(off, noise):
    """Good names, and names that confuse classes, over 10 worlds: on average as good as names alone and users alone.

    Between the last two, where users' noise is as large as what they say, nothing tells which of both is wrong.
    """
    codes, gained = simplex_codes(CLASSES), []
    for seed in range(10):
        embeddings, labels, names = world(1200, seed=seed, off=off)
        few, many = frames(embeddings)
        likely, own = name_probabilities(names, embeddings), users(few[:400], labels[:400], noise, seed=seed)
        heads = {
            "names": (many, linear_head(many, codes, labels=of_names(many, likely, codes))),
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
    found = statistic_head._with_names(seen, names, variance, values)
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
    assert (np.abs(found[0] - mean) < 5 * error).all() and error.max() < 0.001


def test_users_are_expected_to_add_more_the_less_noise_they_have():
    embeddings, _, names = world(800)
    likely, (few, _), codes = name_probabilities(names, embeddings), frames(embeddings), simplex_codes(CLASSES)
    gains = [expected_gain(few, likely, codes, noise, users=400) for noise in (0.0, 1e-4, 1e-2, 1.0, np.inf)]
    assert gains == sorted(gains, reverse=True) and gains[-1] == 0
    exact = expected_gain(few, likely, codes, 0.0, users=10**9)  # users who see all correct the whole error
    assert exact == pytest.approx(statistic_head.ERROR, rel=1e-4)
    assert expected_gain(few, likely, codes, 0.0, users=10) < gains[0] < exact


def test_features_cover_the_names():
    embeddings, _, names = world(800)
    likely = name_probabilities(names, embeddings)
    d = covering_features(embeddings, likely, simplex_codes(CLASSES))
    assert 2 <= d <= wide_features(embeddings) <= WIDTH

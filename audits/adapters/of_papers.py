"""Published algorithms rebuilt from their papers, and two ways in which published code runs them."""

import sys

import numpy as np
from speak import of_words, speak, words

RNG = np.random.default_rng()
VOCABULARY = words()
NAMES, VECTORS = list(VOCABULARY), np.array(list(VOCABULARY.values()))
APART = np.linalg.norm(VECTORS[:, None] - VECTORS[None], axis=2)
EPSILON = 1.0


def santext(rows, uniforms):
    """Yue et al. 2021: a word with probability proportional to e^(−ε·d/2); one uniform a draw."""
    weights = np.exp(-EPSILON / 2 * APART)
    cumulated = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    return (uniforms[:, None] > cumulated[rows]).sum(axis=1).clip(max=len(NAMES) - 1)


def one_word(x, n):
    return [NAMES[i] for i in santext(np.full(n, NAMES.index(x)), RNG.random(n))]


def two_people(shared):
    """Words of two people, from two worker processes: forked after seeding, each has the other's uniforms."""

    def draws(x, n):
        one = RNG.random(n)
        other = one if shared else RNG.random(n)
        first, second = (santext(np.full(n, NAMES.index(w)), u) for w, u in zip(x, (one, other), strict=True))
        return [f"{NAMES[a]} {NAMES[b]}" for a, b in zip(first, second, strict=True)]

    return draws


def custext(x, n):
    """Chen et al. 2022: among the words of one group, by how near they are, scaled to lengths of 1."""
    group = NAMES.index(x) // 5 * 5 + np.arange(5)
    near = APART[NAMES.index(x), group]
    weights = np.exp(-EPSILON / 2 * (near - near.min()) / (near.max() - near.min()))
    return [NAMES[group[i]] for i in RNG.choice(5, n, p=weights / weights.sum())]


def madlib(x, n):
    """Feyisetan et al. 2020: the word nearest to its vector with noise of density e^(−ε·length)."""
    direction = RNG.normal(size=(n, 3))
    noise = direction / np.linalg.norm(direction, axis=1, keepdims=True) * RNG.gamma(3, 1 / EPSILON, (n, 1))
    noisy = VECTORS[NAMES.index(x)] + noise
    return [NAMES[i] for i in np.linalg.norm(noisy[:, None] - VECTORS[None], axis=2).argmin(axis=1)]


def sentence(epochs):
    """Du et al. 2023: an embedding on a circle, by angle, with density e^(−ε·angle); drawn anew in each epoch."""

    def draws(x, n):
        at = np.arctan2(x[1], x[0])
        u = RNG.random((n, epochs))
        noise = -np.log1p(-u * -np.expm1(-EPSILON * np.pi)) / EPSILON * RNG.choice([-1, 1], (n, epochs))
        y = np.rint(np.concatenate([np.cos(at + noise), np.sin(at + noise)], axis=1) * 2**10) / 2**10
        return y.tolist()

    return draws


TWO = {"pairs": [[["word0", b], [a, b]] for a in NAMES[1:] for b in NAMES[:4]], "releases": "category"}
LARGEST = EPSILON * float(APART.max())
CIRCLE = {"epsilon": EPSILON * np.pi, "inputs": {"radius": 1.0, "size": 2}, "releases": "vector"}
KINDS = {
    "santext": (one_word, {"epsilon": EPSILON} | of_words(VOCABULARY)),
    "santext-workers": (two_people(True), {"epsilon": LARGEST} | TWO),
    "santext-independent": (two_people(False), {"epsilon": LARGEST} | TWO),
    "custext": (custext, {"epsilon": EPSILON, "inputs": NAMES[:5], "releases": "category"}),
    "madlib": (madlib, {"epsilon": EPSILON} | of_words(VOCABULARY)),
    "sentence-ldp": (sentence(1), CIRCLE),
    "sentence-ldp-epochs": (sentence(3), CIRCLE),
}
draws, claim = KINDS[sys.argv[1]]
speak(claim, draws)

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


UNIT = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
#: A text of three words; two are neighbours where one word differs.
TEXT = {"inputs": {"records": NAMES[:4], "count": 3}, "neighbours": "replace", "releases": "sequence"}


def chosen(weights):
    """The place of one of several, with probability proportional to e^weight."""
    weights = np.exp(weights - np.max(weights))
    return RNG.choice(len(weights), p=weights / weights.sum())


def privrewrite(x, n):
    """Kim 2025: words by the exponential mechanism, rewrites of those by a language model, one of them chosen by x.

    The language model is one that changes the order of the words and one of them.
    """
    spent, rho = EPSILON / 2, 2.0
    private = np.array([NAMES.index(word) for word in x])
    released = []
    for _ in range(n):
        seen = np.array([chosen(spent / 2 * (1 + UNIT @ UNIT[i]) / 2) for i in private])
        rewrites = np.array([RNG.permutation(seen) for _ in range(8)])
        rewrites[np.arange(8), RNG.integers(len(x), size=8)] = RNG.integers(len(NAMES), size=8)
        means = UNIT[rewrites].mean(axis=1)
        kept = [0]
        for i in range(1, 8):
            if all(
                (1 + means[i] @ means[j] / np.linalg.norm(means[i]) / np.linalg.norm(means[j])) / 2 < 0.8 for j in kept
            ):
                kept.append(i)
        near = np.clip(1 / 2 + means[kept] @ UNIT[private].mean(axis=0) / rho, 0, 1)
        sensitivity = min(1.0, 2 / (len(x) * rho))
        released.append([NAMES[i] for i in rewrites[kept[chosen(spent / 2 / sensitivity * near)]]])
    return released


#: Of DP-Prompt: the highest temperature of the authors' program, the tokens that are written, and the logits' bounds.
TEMPERATURE, WRITTEN, BOUNDS = 1.75, 2, (0.0, 2.0)
#: Texts that name one person again and again, and texts of four words that differ, as public ones are here.
TEXTS = [f"{name} {name} {name} {name}" for name in NAMES[:3]] + [" ".join(NAMES[i : i + 4]) for i in (4, 8, 12)]


def dp_prompt(clipped):
    """Utpala et al. 2023: words drawn from the softmax of a language model's logits over a temperature.

    The language model is one that copies: a word's logit is twice the number of times that the text has it.
    """

    def draws(x, n):
        logits = 2.0 * np.array([x.split().count(name) for name in NAMES])
        weights = np.exp((np.clip(logits, *BOUNDS) if clipped else logits) / TEMPERATURE)
        written = RNG.choice(len(NAMES), (n, WRITTEN), p=weights / weights.sum())
        return [[NAMES[i] for i in row] for row in written]

    return draws


WIDE = np.array(list(words(size=256).values()))
FAR = np.linalg.norm(WIDE[:, None] - WIDE[None], axis=2)


def rantext(epsilon):
    """Tong et al. 2023: a word among those that are nearer than a noisy copy of its vector, noise as they set it."""
    scale = 0.01658160142016071 * np.log(epsilon * 19.064721649556482 - 38.1294334077209) + 9.311083811697406

    def draws(x, n):
        own = FAR[NAMES.index(x)]
        noise = RNG.laplace(size=(n, WIDE.shape[1])) * np.ptp(WIDE, axis=0) / scale
        radius = np.linalg.norm(noise, axis=1, keepdims=True)
        weights = np.where(own < radius, np.exp(epsilon / 2 * (radius - own) / radius), 0.0)
        cumulated = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
        return [NAMES[i] for i in (RNG.random((n, 1)) > cumulated).sum(axis=1).clip(max=len(NAMES) - 1)]

    return draws


TWO = {"pairs": [[["word0", b], [a, b]] for a in NAMES[1:] for b in NAMES[:4]], "releases": "category"}
LARGEST = EPSILON * float(APART.max())
CIRCLE = {"epsilon": EPSILON * np.pi, "inputs": {"radius": 1.0, "size": 2}, "releases": "vector"}
PROMPTED = {"epsilon": 2 * WRITTEN * (BOUNDS[1] - BOUNDS[0]) / TEMPERATURE, "inputs": TEXTS, "releases": "sequence"}
KINDS = {
    "santext": (one_word, {"epsilon": EPSILON} | of_words(VOCABULARY)),
    "santext-workers": (two_people(True), {"epsilon": LARGEST} | TWO),
    "santext-independent": (two_people(False), {"epsilon": LARGEST} | TWO),
    "custext": (custext, {"epsilon": EPSILON, "inputs": NAMES[:5], "releases": "category"}),
    "madlib": (madlib, {"epsilon": EPSILON} | of_words(VOCABULARY)),
    "privrewrite": (privrewrite, {"epsilon": EPSILON} | TEXT),
    "dp-prompt": (dp_prompt(False), PROMPTED),
    "dp-prompt-clipped": (dp_prompt(True), PROMPTED),
    "rantext": (rantext(3.0), {"epsilon": 3.0, "inputs": NAMES, "releases": "category"}),
    "sentence-ldp": (sentence(1), CIRCLE),
    "sentence-ldp-epochs": (sentence(3), CIRCLE),
}
draws, claim = KINDS[sys.argv[1]]
speak(claim, draws)

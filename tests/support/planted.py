"""Mechanisms that are not Sottovoce's, sound ones and ones with a known fault: functions of an input and a number of
draws, and their claims as a manifest states them. As a program, `python tests/support/planted.py NAME`, each answers in
JSON lines, and imports nothing of Sottovoce."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Draws = Callable[[Any, int], list[Any]]

RNG = np.random.default_rng(12)
LABELS = ["red", "green", "blue", "white"]


def snapped(y: Any) -> list[Any]:
    """On a grid that hides the low bits that floating-point noise has."""
    return (np.rint(np.asarray(y) * 2**10) / 2**10).tolist()


def randomized_response(scale: float) -> Draws:
    """ε = 1 at scale 1."""

    def draws(x: str, n: int) -> list[str]:
        keep = np.exp(1 / scale) / (np.exp(1 / scale) + len(LABELS) - 1)
        others = (LABELS.index(x) + RNG.integers(1, len(LABELS), n)) % len(LABELS)
        return [LABELS[i] for i in np.where(RNG.random(n) < keep, LABELS.index(x), others)]

    return draws


def laplace(scale: float, *, at: Callable[[Any], list[Any]] = snapped, reach: float = np.inf) -> Draws:
    """ε = 1/scale of a number between 0 and 1, or of each of several; reach: how far the noise may be."""

    def draws(x: Any, n: int) -> list[Any]:
        noise = RNG.laplace(0, scale, (4 * n, *np.shape(x)))
        return at(np.array(x) + noise[(np.abs(noise) <= reach).reshape(4 * n, -1).all(axis=1)][:n])

    return draws


def reseeded(x: float, n: int) -> list[float]:
    """The same noise in each answer."""
    return snapped(x + np.random.default_rng(7).laplace(0, 1, n))


def counted(kind: Any) -> Draws:
    """A sum of numbers from 0 to 100 in whole numbers of a kind, and noise for one of them more or less: ε = 1."""

    def draws(x: list[int], n: int) -> list[int]:
        total = int(np.array(x, dtype=kind).sum(dtype=kind))
        p = 1 - np.exp(-1 / 100)
        return (total + RNG.geometric(p, n) - RNG.geometric(p, n)).tolist()

    return draws


def gaussian(x: list[float], n: int) -> list[list[float]]:
    """μ = 1 for two vectors of length 1, which are at most 2 apart."""
    return snapped(np.array(x) + RNG.normal(0, 2, (n, len(x))))


def sgd(summed_first: bool) -> Draws:
    """A step of DP-SGD: gradients clipped to length 1, summed, noise of deviation 2: μ = 1/2 for one record more."""

    def clipped(g: Any) -> Any:
        return g / np.maximum(1, np.linalg.norm(g, axis=-1, keepdims=True))

    def draws(x: list[list[float]], n: int) -> list[list[float]]:
        g = np.array(x, dtype=float).reshape(-1, 2)
        total = clipped(g.sum(axis=0)) if summed_first else clipped(g).sum(axis=0)
        return snapped(total + RNG.normal(0, 2, (n, 2)))

    return draws


def shuffled(really: bool) -> Draws:
    """Twenty people's bits by randomized response at ε = 3/2, and their order."""

    def draws(x: list[int], n: int) -> list[list[int]]:
        bits = np.array(x) ^ (RNG.random((n, len(x))) < 1 / (1 + np.exp(1.5)))
        return (RNG.permuted(bits, axis=1) if really else bits).astype(int).tolist()

    return draws


def words(padded: bool) -> Draws:
    """Texts of up to four words, each word by randomized response at ε = 1/4; padded: to four words."""
    known = ["good", "bad", "film", "plot"]

    def draws(x: str, n: int) -> list[str]:
        given = x.split()
        kept = RNG.random((n, 4)) < (np.exp(0.25) - 1) / (np.exp(0.25) + 3)
        kept[:, len(given) :] = False
        drawn = RNG.integers(0, 4, (n, 4))[:, : 4 if padded else len(given)]
        return [
            " ".join(given[i] if keep[i] else known[word] for i, word in enumerate(row))
            for row, keep in zip(drawn, kept, strict=True)
        ]

    return draws


_LABEL = {"epsilon": 1.0, "inputs": LABELS, "releases": "category"}
_NUMBER = {"epsilon": 1.0, "inputs": {"low": 0.0, "high": 1.0}}
_TWO = {"epsilon": 1.0, "inputs": {"low": 0.0, "high": 1.0, "size": 2}, "releases": "vector"}
_SUM = {"epsilon": 1.0, "inputs": {"records": {"low": 0, "high": 100, "whole": True}, "count": 4}}
_STEP = {"inputs": {"records": {"radius": 10.0, "size": 2}, "count": 3}, "neighbours": "add-remove"}
_BITS = {"epsilon": 0.6, "delta": 0.03, "inputs": {"records": [0, 1], "count": 20}, "neighbours": "replace"}
_TEXT = {"epsilon": 1.0, "inputs": ["good", "bad film", "good plot film", "film good bad plot", "plot plot plot plot"]}

SOUND: dict[str, tuple[Draws, dict[str, Any]]] = {
    "randomized response": (randomized_response(1.0), _LABEL),
    "Laplace": (laplace(1.0), _NUMBER),
    "two numbers": (laplace(2.0), _TWO),
    "sum": (counted(np.int64), _SUM | {"neighbours": "add-remove"}),
    "Gaussian": (gaussian, {"mu": 1.0, "inputs": {"radius": 1.0, "size": 3}, "releases": "vector"}),
    "step": (sgd(False), {"mu": 0.5, "releases": "vector"} | _STEP),
    "shuffler": (shuffled(True), {"releases": "sequence"} | _BITS),
    "text": (words(True), {"releases": "text"} | _TEXT),
}
FAULTS: dict[str, tuple[Draws, dict[str, Any]]] = {
    "noise at two thirds": (laplace(2 / 3), _NUMBER),
    "label at two thirds": (randomized_response(2 / 3), _LABEL),
    "epsilon split wrongly": (laplace(1.0), _TWO),
    "low bits": (laplace(1.0, at=lambda y: y.tolist()), _NUMBER),
    "seed reused": (reseeded, _NUMBER),
    "overflow": (counted(np.int8), _SUM | {"neighbours": "add-remove"}),
    "truncated": (laplace(1.0, reach=4.0), _NUMBER),
    "length": (words(False), {"releases": "text"} | _TEXT),
    "order": (shuffled(False), {"releases": "sequence"} | _BITS),
    "clipped after summing": (sgd(True), {"mu": 0.5, "releases": "vector"} | _STEP),
}


def main(name: str) -> None:
    """Answers lines of JSON; names beginning with an exclamation mark do not do as they should."""
    broken = name.removeprefix("!") if name.startswith("!") else ""
    draws, claim = (FAULTS | SOUND)["Laplace" if broken else name]
    print(json.dumps(claim | {"name": name}) if broken != "talks" else "loading the model ...", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if broken == "hangs":
            time.sleep(60)
        if broken == "dies":
            raise MemoryError("too much of it")
        answer: dict[str, Any] = {"draws": draws(request["input"], request["draws"])}
        if broken == "few":
            answer["draws"].pop()
        if broken == "words":
            answer["draws"][3] = "three"
        print(json.dumps({"error": "no such input"} if broken == "refuses" else answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

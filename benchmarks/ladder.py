"""Draw the figures of docs/explanation/ladder.md: `python -m benchmarks.ladder [docs/figures]`, a few minutes.

Purkayastha with m' = 16, δ = 1e-6 in all. Nothing is measured: all numbers are those of the accountants.

- users.png: ε at 2 a radian against the number of users, by each bound of `mechanisms.accounting.shuffle`.
- rounds.png: ε of as many releases, added, composed and shuffled.
- split.png: the largest embedding ε for each label ε, at a central ε of 1.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms.accounting.compose import compose
from mechanisms.accounting.planner import Target, plan
from mechanisms.accounting.shuffle import amplify, central_epsilon
from mechanisms.mechanism import Mechanism
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import Purkayastha
from simulations.output.figures import COLOURS, MARKERS, new_figure, save

DIM, DELTA = 16, 1e-6
ONE = Purkayastha(DIM, 2.0)
LOCAL = {"worst case, local": "--", "at δ, local": "-"}
BOUNDS = {"variation_ratio": "variation ratio", "blanket": "blanket", "blanket_truncated": "truncated blanket"}
USERS = (10_000, 67_349, 1_000_000)
#: Points of a curve: users, rounds, and ε of the label.
CROWDS, ROUNDS = np.geomspace(1e3, 1e8, 16).astype(int).tolist(), (1, 2, 4, 8, 16, 32, 64, 128)
LABELS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0)

Curves = Mapping[str, Sequence[tuple[float, float | None]]]


def draw(curves: Curves, title: str, x: str, y: str, **scales: str) -> Any:
    """Return a figure of the curves, each points (x, y); a curve of LOCAL has no markers, and None is no point."""
    figure, axes = new_figure(7.2, 4.2)
    marked = [name for name in curves if name not in LOCAL]
    for name, points in curves.items():
        style: dict[str, Any] = {"color": "#555555", "linestyle": LOCAL.get(name)}
        if name in marked:
            k = marked.index(name)
            style = {"color": COLOURS[k], "marker": MARKERS[k], "markersize": 5}
        axes.plot(*zip(*((at, value) for at, value in points if value is not None), strict=True), label=name, **style)
    axes.set(xlabel=x, ylabel=y, **scales)
    axes.set_title(title, fontsize=9, loc="left")
    figure.legend(fontsize=8, frameon=False, loc="outside right upper")
    return figure


def by_users() -> Curves:
    """Return ε by each bound against the number of users of the crowd."""
    costs = {n: amplify([ONE], users=n, delta=DELTA) for n in CROWDS}
    local = zip(LOCAL, (ONE.guarantee.worst_case(), costs[CROWDS[0]].local_epsilon), strict=True)
    curves: dict[str, list[tuple[float, float | None]]] = {name: [(n, value) for n in CROWDS] for name, value in local}
    return curves | {label: [(n, cost.bounds[name]) for n, cost in costs.items()] for name, label in BOUNDS.items()}


def by_rounds() -> Curves:
    """Return ε of r releases by worst cases, by their loss distributions, and shuffled."""
    worst, exact = LOCAL
    return {
        worst: [(r, r * ONE.guarantee.worst_case()) for r in ROUNDS],
        exact: [(r, compose([(ONE, r)], delta=DELTA).epsilon) for r in ROUNDS],
        f"shuffled, {USERS[1]:,} users": [
            (r, central_epsilon((ONE,), users=USERS[1], delta=DELTA, stages=r)[0]) for r in ROUNDS
        ],
    }


def by_label() -> Curves:
    """Return the largest ε of the embedding against that of the label, for each number of users."""

    def largest(label: float, users: int) -> float | None:
        def release(epsilon: float) -> list[Mechanism]:
            return [Purkayastha(DIM, epsilon), RandomizedResponse(label, 2)]

        return plan(release, Target(1.0, DELTA, users))

    return {f"{users:,} users": [(label, largest(label, users)) for label in LABELS] for users in USERS}


def main() -> None:
    """Draw the figures into the folder of the command line."""
    folder, log = Path((sys.argv[1:] or ["docs/figures"])[0]), {"yscale": "log", "xscale": "log"}
    epsilon, of = "ε of one user", f"Purkayastha, ε = {ONE.epsilon:g}, m' = {DIM}, δ = {DELTA:g}"
    save(draw(by_users(), of, "users delivered", epsilon, **log), folder / "users.png")
    rounds = draw(by_rounds(), f"{of} in all", "rounds", epsilon, **log)
    rounds.axes[0].minorticks_off()
    rounds.axes[0].set_xticks(ROUNDS, ROUNDS)
    save(rounds, folder / "rounds.png")
    split = f"Purkayastha, m' = {DIM}: splits of a central ε of 1, δ = {DELTA:g}"
    label, embedding = "label ε (randomized response, 2 classes)", "largest embedding ε (a radian)"
    save(draw(by_label(), split, label, embedding), folder / "split.png")


if __name__ == "__main__":
    main()

"""Figures of a budget for print: ε against δ, users, crowds and rounds, all bounds, and the split of a budget.

Every figure shows the worst case. A bound without amplification has no mark there. All are of one mechanism,
Purkayastha, and one release a user. `sottovoce dev figures` makes the figures of docs/explanation/ladder.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.accounting.central import central_epsilon
from mechanisms.accounting.compose import compose
from mechanisms.accounting.planner import Target, frontier
from mechanisms.accounting.shuffle import Amplification, amplify
from mechanisms.randomized_response import RandomizedResponse
from mechanisms.spherical import Purkayastha
from simulations.output.figures import COLOURS, MARKERS, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Bounds in the order of their years, as the figures name them.
BOUNDS = {
    "erlingsson_2019": "Erlingsson et al. 2019",
    "clones_2021_closed": "clones 2021, closed",
    "clones_2021": "clones 2021, numerical",
    "stronger_clone": "stronger clone 2023",
    "variation_ratio": "variation ratio 2024",
    "blanket": "blanket of the mechanism",
    "blanket_truncated": "truncated blanket",
}
GREY = "#555555"
DELTAS = tuple(10.0**-k for k in range(4, 13))
USERS = tuple(round(10 ** (3 + k / 3)) for k in range(16))
#: Shares of the delivered users who agree with the target in all that is sent in clear.
SHARES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.003, 0.001, 0.0003, 0.0001)
ROUNDS = (1, 2, 4, 8, 16, 32, 64, 128)
LABELS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0)


def write(folder: Path, *, epsilon: float, dim: int, users: int, delta: float) -> list[Path]:
    """Write delta, users, crowds, rounds, bounds and split, as .png, into a folder, and return their paths.

    Raises:
        ValueError: A number is out of range for the mechanism or a bound.
    """
    mechanism = Purkayastha(dim, epsilon)
    figures = {
        "delta": against_delta(mechanism, users=users, deltas=DELTAS),
        "users": against_users(mechanism, users=USERS, delta=delta),
        "crowds": against_crowds(mechanism, users=(10_000, users, 1_000_000), shares=SHARES, delta=delta),
        "rounds": against_rounds(mechanism, users=users, rounds=ROUNDS, delta=delta),
        "bounds": side_by_side(mechanism, users=users, delta=delta),
        "split": split(dim, users=(10_000, users, 1_000_000), central_epsilon=1.0, labels=LABELS, delta=delta),
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        save(figure, paths[-1])
    return paths


def against_delta(mechanism: Purkayastha, *, users: int, deltas: Sequence[float]) -> Figure:
    """Draw ε against δ: the worst case, the exact local ε, and every shuffled bound."""
    answers = [amplify([mechanism], users=users, delta=d) for d in deltas]
    figure, axes = new_figure(7.2, 4.2)
    _lines(axes, deltas, answers)
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_xlabel("δ")
    return _titled(figure, axes, f"{_name(mechanism)}, one release each, {users:,} users")


def against_users(mechanism: Purkayastha, *, users: Sequence[int], delta: float) -> Figure:
    """Draw ε against the number of delivered users."""
    answers = [amplify([mechanism], users=n, delta=delta) for n in users]
    figure, axes = new_figure(7.2, 4.2)
    _lines(axes, users, answers)
    axes.set_xscale("log")
    axes.set_xlabel("users delivered")
    return _titled(figure, axes, f"{_name(mechanism)}, one release each, δ = {delta:g}")


def against_crowds(mechanism: Purkayastha, *, users: Sequence[int], shares: Sequence[float], delta: float) -> Figure:
    """Draw ε against the share of delivered users in the target's crowd. A user alone has the local ε."""
    figure, axes = new_figure(7.2, 4.2)
    for i, n in enumerate(users):
        crowds = [(share, int(n * share)) for share in shares if n * share >= 1]
        epsilons = [amplify([mechanism], users=crowd, delta=delta, lower_bounded=False).epsilon for _, crowd in crowds]
        style: dict[str, Any] = {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 5, "linewidth": 1.4}
        axes.plot([share for share, _ in crowds], epsilons, label=f"{n:,} users", **style)
    alone = amplify([mechanism], users=1, delta=delta, lower_bounded=False)
    axes.axhline(alone.local_epsilon, color=GREY, linewidth=1.6, label="exact, local: alone in a crowd")
    axes.axhline(alone.local_worst_case, color=GREY, linewidth=1.6, linestyle="--", label="worst case, local")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.invert_xaxis()
    axes.set_xlabel("crowd, as a share of the users delivered")
    return _titled(figure, axes, f"{_name(mechanism)}, one release each, δ = {delta:g}")


def against_rounds(mechanism: Purkayastha, *, users: int, rounds: Sequence[int], delta: float) -> Figure:
    """Draw ε of a user who releases anew in every round, by four compositions, and shuffled by their PLD."""
    figure, axes = new_figure(7.2, 4.2)
    worst = [mechanism.guarantee.worst_case() * k for k in rounds]
    axes.plot(rounds, worst, color=GREY, linestyle="--", linewidth=1.6, zorder=3, label="worst case, added")
    named = {"advanced": "advanced composition", "renyi": "Rényi", "pld": "exact (loss distributions)"}
    for i, (method, label) in enumerate(named.items()):
        values = [compose([(mechanism, k)], delta=delta, method=method).epsilon for k in rounds]
        axes.plot(rounds, values, color=COLOURS[i], marker=MARKERS[i], markersize=5, linewidth=1.4, label=label)
    shuffled = _shuffled_rounds(mechanism, users, rounds, delta)
    axes.plot(rounds, shuffled, color=COLOURS[5], marker="P", markersize=6, label=f"shuffled, {users:,} users")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(rounds), [str(k) for k in rounds])
    axes.set_xlabel("rounds")
    return _titled(figure, axes, f"{_name(mechanism)}, δ = {delta:g} in all")


def side_by_side(mechanism: Purkayastha, *, users: int, delta: float) -> Figure:
    """Draw every bound as a bar, for one setting. A bound without amplification is named as such."""
    answer = amplify([mechanism], users=users, delta=delta)
    shown: list[tuple[str, float | None]] = [("worst case, local", answer.local_worst_case)]
    shown.append(("exact, local", answer.local_epsilon))
    shown += [(label, answer.bounds.get(name)) for name, label in BOUNDS.items()]
    shown.append(("lower bound (data sets)", answer.lower_bound))
    figure, axes = new_figure(7.2, 3.4)
    least = min(v for _, v in shown if v is not None and v > 0) / 3
    for row, (label, value) in enumerate(shown):
        colour = GREY if row < 2 else COLOURS[2] if label.startswith("lower") else COLOURS[0]
        if value is None:
            axes.text(least * 1.1, row, "no amplification", va="center", fontsize=8, color=GREY)
        else:
            axes.barh(row, value, height=0.6, color=colour)
            axes.text(value * 1.05, row, f"{value:.3g}", va="center", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(least, answer.local_worst_case * 2.5)
    axes.set_yticks(range(len(shown)), [label for label, _ in shown])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("ε")
    axes.set_title(f"{_name(mechanism)}, {users:,} users, δ = {delta:g}", loc="left", fontsize=9)
    return figure


def split(dim: int, *, users: Sequence[int], central_epsilon: float, labels: Sequence[float], delta: float) -> Figure:
    """Draw the largest embedding ε beside each label ε within one central budget, for numbers of users."""
    figure, axes = new_figure(7.2, 4.2)
    for i, n in enumerate(users):
        points = frontier(
            lambda e, label: [Purkayastha(dim, e), RandomizedResponse(label, 2)],
            Target(central_epsilon, delta, n),
            labels,
            tolerance=0.02,
        )
        fitting = [(p.label_epsilon, p.embedding_epsilon) for p in points if p.embedding_epsilon is not None]
        if fitting:
            x, y = zip(*fitting, strict=True)
            axes.plot(x, y, color=COLOURS[i], marker=MARKERS[i], markersize=5, label=f"{n:,} users")
    # Without a shuffler the worst cases must fit the budget themselves.
    x = [label for label in labels if label < central_epsilon] or [central_epsilon / 2]
    local = [(central_epsilon - label) / math.pi for label in [0.0, *x]]
    axes.plot([0.0, *x], local, color=GREY, linestyle="--", label="worst case, no shuffler")
    axes.set_xlabel("label ε (randomized response, 2 classes)")
    axes.set_ylabel("largest embedding ε (per radian)")
    title = f"Purkayastha, m' = {dim}: splits of a central ε of {central_epsilon:g} at δ = {delta:g}"
    axes.set_title(title, loc="left", fontsize=9)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _lines(axes: Axes, x: Sequence[float], answers: Sequence[Amplification]) -> None:
    worst = [a.local_worst_case for a in answers]
    axes.plot(x, worst, color=GREY, linestyle="--", linewidth=1.6, label="worst case, local")
    axes.plot(x, [a.local_epsilon for a in answers], color=GREY, linewidth=1.6, label="exact, local")
    for i, (name, label) in enumerate(BOUNDS.items()):
        values = [a.bounds.get(name) for a in answers]
        if any(v is not None for v in values):
            y = [np.nan if v is None else v for v in values]
            axes.plot(x, y, color=COLOURS[i % 6], marker=MARKERS[i % 6], markersize=5, linewidth=1.4, label=label)
    low = [np.nan if not a.lower_bound else a.lower_bound for a in answers]
    if not np.isnan(low).all():
        axes.plot(x, low, color="#000000", linestyle=":", linewidth=1.2, label="lower bound (data sets)")
    axes.set_yscale("log")


def _titled(figure: Figure, axes: Axes, title: str) -> Figure:
    axes.set_ylabel("ε of one user")
    axes.set_title(title, loc="left", fontsize=9)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False, handlelength=3.0)
    return figure


def _shuffled_rounds(mechanism: Purkayastha, users: int, rounds: Sequence[int], delta: float) -> list[float]:
    """Return ε of several shuffled rounds; NaN if one round is not amplified."""
    epsilons = [central_epsilon((mechanism,), users=users, delta=delta, stages=k)[0] for k in rounds]
    return [np.nan if epsilon is None else epsilon for epsilon in epsilons]


def _name(mechanism: Purkayastha) -> str:
    return f"Purkayastha, ε = {mechanism.epsilon:g}, m' = {mechanism.dim}"

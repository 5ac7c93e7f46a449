"""Sentences a second on one core, with random streams: `python -m benchmarks.mechanisms`.

Purkayastha at m' = 16, ε = 10, against a plain baseline that treats one row at a time: a NumPy generator, bisection of
the tabulated distribution function of the angle, Gram-Schmidt. Figures are medians of repeated runs.
"""

from __future__ import annotations

import numpy as np
from scipy.integrate import cumulative_trapezoid

from benchmarks.timing import seconds, streams
from mechanisms.catalogue import build
from mechanisms.privunit import PrivUnit

DIM, EPSILON, ROWS, SLOW_ROWS = 16, 10.0, 100_000, 1_000
#: Coordinates of a user vector, and a usual local ε for it.
WIDE, LOCAL = 64, 5.0


def baseline(x: np.ndarray, epsilon: float) -> np.ndarray:
    """Return Purkayastha draws for the rows of x, one at a time."""
    rng = np.random.default_rng(0)
    angles = np.linspace(0.0, np.pi, 10_001)
    cdf = cumulative_trapezoid(np.sin(angles) ** (x.shape[1] - 2) * np.exp(-epsilon * angles), angles, initial=0.0)
    cdf /= cdf[-1]
    out = np.empty_like(x)
    for row, centre in enumerate(x):
        u, low, high = rng.random(), 0.0, np.pi
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if np.interp(middle, angles, cdf) < u else (low, middle)
        tangent = rng.normal(size=len(centre))
        tangent -= (tangent @ centre) * centre
        out[row] = np.cos(low) * centre + np.sin(low) * tangent / np.linalg.norm(tangent)
    return out


def main() -> None:
    """Print the figures."""
    x = np.random.default_rng(1).normal(size=(ROWS, DIM))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels = np.arange(ROWS) % 12
    slow = SLOW_ROWS / seconds(lambda: baseline(x[:SLOW_ROWS], EPSILON))
    print(f"{'one row at a time (baseline)':<46}{slow:>14,.0f} sentences/s")
    for spec in (
        {"mechanism": "purkayastha", "epsilon": EPSILON},
        {"mechanism": "planar-laplace", "epsilon": EPSILON},
        {"mechanism": "gaussian", "sigma": 1.0},
        {"mechanism": "randomized-response", "epsilon": 2.0, "classes": 12},
    ):
        channel = "label" if "classes" in spec else "embedding"
        mechanism = build(spec, channel=channel, dim=DIM)
        values = labels if channel == "label" else x
        speed = ROWS / seconds(lambda m=mechanism, v=values: m.sample(v, rng=streams(ROWS)))
        ratio = f"   ratio {speed / slow:,.0f}" if spec["mechanism"] == "purkayastha" else ""
        print(f"{spec['mechanism']:<46}{speed:>14,.0f} sentences/s{ratio}")
    words = ROWS / seconds(lambda: streams(ROWS).uniform(ROWS, DIM + 1))
    print(f"{'streams alone, 17 uniforms a sentence':<46}{words:>14,.0f} sentences/s")
    wide = np.random.default_rng(2).normal(size=(ROWS, WIDE))
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    vector = PrivUnit(WIDE, LOCAL)
    speed = ROWS / seconds(lambda: vector.sample(wide, rng=streams(ROWS)))
    print(f"{f'privunit, {WIDE} coordinates':<46}{speed:>14,.0f} users/s")
    words = ROWS / seconds(lambda: streams(ROWS).uniform(ROWS, WIDE + 1))
    print(f"{f'streams alone, {WIDE + 1} uniforms a user':<46}{words:>14,.0f} users/s")


if __name__ == "__main__":
    main()

"""Cells of losses: they dominate every law inside them, and err on the safe side."""

import math

import numpy as np
import pytest

from mechanisms.losses.loss import LossCells, no_loss, unbounded_loss


def test_cells_dominate_every_law_inside_them_and_are_dominated_when_collapsed():
    # truth: a fine discrete pair; cells: its outputs merged by rising loss, eight at a time
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(64)), rng.dirichlet(np.ones(64))
    order = np.argsort(np.log(p / q))
    p, q = p[order], q[order]
    loss = np.log(p / q).reshape(8, 8)
    p, q = p.reshape(8, 8), q.reshape(8, 8)
    cells = LossCells(loss.min(1), loss.max(1), np.log(p.sum(1)), np.log(q.sum(1)), symmetric=False)
    for epsilon in np.linspace(-3, 3, 61):
        exact = np.maximum(p - np.exp(epsilon) * q, 0).sum()
        assert cells.delta_optimistic(epsilon) - 1e-15 <= exact <= cells.delta(epsilon) + 1e-15
    # both masses are kept
    losses, masses = cells.pessimistic
    assert masses.sum() == pytest.approx(1.0) and (masses * np.exp(-losses)).sum() == pytest.approx(1.0)


def test_unbounded_cells_and_mass_left_out_go_to_the_safe_side():
    half = math.log(0.5)
    cells = LossCells([0.0], [math.inf], [half], [half], infinite=0.1, left_out=0.05)
    assert cells.delta(0.0) == pytest.approx(0.15)  # the mean ratio is 1, the lower end: nothing is spread
    assert cells.delta_optimistic(0.0) == pytest.approx(0.1)
    wide = LossCells([-math.inf], [math.inf], [0.0], [0.0])
    assert wide.delta(50.0) == 1.0 and wide.delta_optimistic(0.0) == 0.0
    assert wide.epsilon(0.5) == math.inf
    assert no_loss().epsilon(0.0) == 0.0 and unbounded_loss().epsilon(0.99) == math.inf


def test_cells_refuse_nonsense_in_one_line():
    one = np.zeros(1)
    for arguments in (
        (one, one - 1, one, one),
        (one, one * math.nan, one, one),
        (one, one, np.zeros(2), one),
        (one, one, one + 0.1, one),
        (one, one, one, one, -0.1),
        (one, one, one, one, 0.1),
    ):
        with pytest.raises(ValueError, match=r"^loss cells: [^\n]*$"):
            LossCells(*arguments)
    with pytest.raises(ValueError, match="epsilon is not a number"):
        no_loss().delta(math.nan)
    for delta in (1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="delta must be in"):
            no_loss().epsilon(delta)

"""Privacy blanket of a randomizer and its dominating pair, cut into cells of outputs.

A randomizer with densities p_z has the blanket γ·ω(y) = inf_z p_z(y) (Balle, Bell, Gascón and Nissim 2019): each user
draws from ω with probability γ, whatever the input. With W ~ ω the pair x, x' is known by the joint law of
U = p_x(W)/ω(W) and V = p_x'(W)/ω(W), both at least γ and of mean 1 (if p_x, p_x' << ω).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mechanisms.arrays import FloatArray, IntArray
from mechanisms.losses.loss import LossCells

_ROWS = ("log_w", "log_p", "log_q", "log_u_low", "log_u_high", "log_v_low", "log_v_high")


@dataclass(frozen=True, eq=False)
class BlanketCells:
    """Outputs in J cells, under the blanket ω and under the inputs x and x' of the dominating pair.

    The exchanged pair must have the same law. Masses have a relative error below 1e-12, as far as float64 holds their
    exponents.

    Attributes:
        log_gamma: Log of the blanket's weight γ. It includes `numeric`: γ is the weight that the sampled densities
            cover.
        log_w: (J,) log masses of the cells under ω.
        log_p: The same under x.
        log_q: The same under x'.
        log_u_low: (J,) lower bounds of log U everywhere in the cell.
        log_u_high: Upper bounds of log U.
        log_v_low: Lower bounds of log V.
        log_v_high: Upper bounds of log V.
        tail: Bound on the mass under x, and on that under x', of the outputs in no cell.
        numeric: Nats; the sampled densities are within e^(±numeric/2) of those of the cells, but for one factor of all
            of them, at most e^(numeric/2). The masses and the bounds of U and V do not include it.
    """

    log_gamma: float
    log_w: FloatArray
    log_p: FloatArray
    log_q: FloatArray
    log_u_low: FloatArray
    log_u_high: FloatArray
    log_v_low: FloatArray
    log_v_high: FloatArray
    tail: float = 0.0
    numeric: float = 0.0

    def __post_init__(self) -> None:
        size = self.log_w.shape
        for name in _ROWS:
            if getattr(self, name).shape != size or len(size) != 1:
                raise ValueError(f"blanket cells: {name} has shape {getattr(self, name).shape}, log_w has {size}")
        if not self.log_gamma <= 1e-9:
            raise ValueError(f"blanket cells: log_gamma must be at most 0, got {self.log_gamma}")
        if not 0 <= self.tail <= 1:
            raise ValueError(f"blanket cells: tail must be from 0 to 1, got {self.tail}")

    @classmethod
    def mirrored(
        cls,
        log_gamma: float,
        log_w: FloatArray,
        log_p: FloatArray,
        low: FloatArray,
        high: FloatArray,
        tail: float = 0.0,
    ) -> BlanketCells:
        """Return cells whose order backwards exchanges x and x'. `low` and `high` are the bounds of log U."""
        return cls(log_gamma, log_w, log_p, log_p[::-1].copy(), low, high, low[::-1].copy(), high[::-1].copy(), tail)

    @cached_property
    def orders(self) -> tuple[IntArray, IntArray]:
        """Return the cells by falling bound of U, and by falling V: (J,) each."""
        return np.argsort(-self.log_u_high), np.argsort(self.log_w - self.log_q)

    def product(self, other: BlanketCells) -> BlanketCells:
        """Return the joint randomizer of two independent releases of one user, J·J' cells.

        If inputs vary independently (any embedding with any label), the blanket of a product is the product of the
        blankets. Its dominating pair is the pair of dominating pairs: given the other's (U2, V2) = (u, v), (U1, V1) ->
        φ(u·U1 - c·v·V1) is submodular for convex φ, so each coordinate's countermonotone pair is the largest in the
        convex order (see mechanisms.losses.sphere).
        """
        tables = {name: (getattr(self, name)[:, None] + getattr(other, name)[None, :]).ravel() for name in _ROWS}
        log_gamma, tail = self.log_gamma + other.log_gamma, min(1.0, self.tail + other.tail)
        return replace(self, **tables, log_gamma=log_gamma, tail=tail, numeric=self.numeric + other.numeric)

    def loss(self) -> LossCells:
        """Return the privacy loss log(U/V) of the same cells: the pair without shuffling."""
        return LossCells(
            low=self.log_u_low - self.log_v_high,
            high=self.log_u_high - self.log_v_low,
            log_p=self.log_p,
            log_q=self.log_q,
            symmetric=True,
            left_out=self.tail,
        )

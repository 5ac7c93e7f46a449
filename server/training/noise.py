"""Noise of a mechanism inside a differentiable computation, with fresh draws at every call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.quantizer import SPHERE
from mechanisms.streams import SimulationStreams

if TYPE_CHECKING:
    import torch


def sanitize_public(mechanism: Any, z: NDArray[np.float64], *, seed: int, stage: str) -> NDArray[np.float64]:
    """Return one simulated draw for each unit row (n, m') of *public* text; nobody is charged for it.

    With their labels, such rows may join the users' rows in `head.train_head`.
    """
    n = len(z)
    rows = SimulationStreams(seed).rows(np.arange(n), np.zeros(n, np.int64), stage=stage, channel="embedding")
    drawn: NDArray[np.float64] = mechanism.sample(z, rng=rows)
    return drawn


class Noise:
    """Draws from a mechanism in the forward pass; the gradient moves each draw along with its input.

    On the sphere a draw is cos θ·z + sin θ·ξ, with ξ a unit tangent at z (the tangent-normal decomposition). For a
    mechanism that treats all directions alike, θ does not depend on z. So θ and the direction of ξ are held while z
    moves. This is the exact pathwise gradient of Purkayastha and of normalized planar Laplace noise. In R^m' the
    difference of draw and input is held, which is exact for additive noise.

    Args:
        mechanism: Mechanism of the draws.
        seed: Seed of the draws.
        stage: Name of the stage, which separates streams of draws.
    """

    def __init__(self, mechanism: Any, *, seed: int, stage: str) -> None:
        self.mechanism = mechanism
        self.streams = SimulationStreams(seed)
        self.stage = stage
        self.step = 0

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        """Return one draw for each unit row (n, m'), with the same shape, type and device.

        The mechanism draws on the CPU, in float64, wherever z lies.
        """
        import torch  # `sanitize_public` alone does not need torch

        n = len(z)
        rows = self.streams.rows(
            np.arange(n), np.zeros(n, np.int64), stage=self.stage, channel="embedding", step=self.step
        )
        self.step += 1
        at = z.detach().cpu().double()
        at = at / at.norm(dim=1, keepdim=True)
        draw = torch.from_numpy(self.mechanism.sample(at.numpy(), rng=rows))
        if self.mechanism.grid != SPHERE:
            return z + (draw - at).to(z)
        cosine = (draw * at).sum(1, keepdim=True)
        tangent = draw - cosine * at
        sine = tangent.norm(dim=1, keepdim=True)
        toward = (tangent / sine.clamp_min(1e-12)).to(z)
        moved = toward - (toward * z).sum(1, keepdim=True) * z
        unit = moved / moved.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return cosine.to(z) * z + sine.to(z) * unit

"""Mathematics of mechanisms, guarantees and releases. It touches neither files nor the network."""

from mechanisms.gaussian import Gaussian
from mechanisms.guarantee import Guarantee
from mechanisms.identity import Identity
from mechanisms.messages.release import Release
from mechanisms.randomized_response import RandomizedResponse, RandomizedResponsePrior
from mechanisms.spherical import PlanarLaplace, Purkayastha
from mechanisms.streams import SecureStreams, SimulationStreams

__all__ = [
    "Gaussian",
    "Guarantee",
    "Identity",
    "PlanarLaplace",
    "Purkayastha",
    "RandomizedResponse",
    "RandomizedResponsePrior",
    "Release",
    "SecureStreams",
    "SimulationStreams",
]

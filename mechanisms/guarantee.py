"""Theorem that a mechanism satisfies, as a frozen value that travels with every release."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr

METRICS = ("discrete", "euclidean", "angular")
UNITS = ("token", "sequence", "label", "record")
#: Exposures: properties that a text mechanism may pass through without noise, by the name under which a policy accepts
#: each. Two texts agree in one of them if it is the same at every place, after dropped tokens are left out. A place
#: behind the end of a text holds no word of any kind, group or part of speech.
EXPOSURES = {
    "length": "the number of tokens",
    "stop-words": "stop words",
    "punctuation": "punctuation marks",
    "numbers": "numbers",
    "unknown-words": "words outside the vocabulary",
    "frequent-words": "words declared not sensitive, some of which are kept",
    "group": "which group of the mapping a word belongs to",
    "tag": "a word's part of speech",
    "choice": "which words of a text were chosen for protection, and all the others",
    "repetition": "which tokens of a text are the same word of the vocabulary",
    "filter": "what a filter that looks at the private word leaves out",
}


@dataclass(frozen=True)
class Guarantee:
    """Metric local differential privacy: Pr[M(x) in O] <= exp(ε·d(x, x') + offset)·Pr[M(x') in O] for all x, x', O.

    Chatzikokolakis et al. 2013, Definition 1. The additive offset is that of UMLDP (Yue et al. 2021, Definition 3).
    With the discrete metric and offset 0 this is ordinary ε-LDP.

    Attributes:
        epsilon: ε per unit of `metric` (radians, Euclidean length, or 1 for "differs"); inf means no protection.
        metric: One of METRICS.
        diameter: Largest distance between two inputs of the mechanism's domain; inf if it is unbounded.
        protects: Unit of an input: token, sequence, label or record.
        offset: Additive bound, in nats.
        inputs: "all", or words that say which inputs the theorem covers.
        numeric_epsilon: Largest addition of a sampler's approximation (a table) to the loss of any pair. Its densities
            are within e^(±numeric_epsilon) of the theorem's: half of that at each output, half for their normalizer.
        numeric_delta: Probability with which the sampler's output, rounded to the public grid, may differ from an
            output that satisfies the theorem (a coupling, so at most this total-variation distance).
        sigma: Standard deviation of each coordinate, for Gaussian noise only. Then epsilon is inf, and the guarantee is
            finite only at a δ > 0.
        exposes: Names of EXPOSURES, in that order, that pass beside the theorem. The bound then holds only between
            inputs that agree in all of them, and the worst case is inf unless they are declared public.
    """

    epsilon: float
    metric: str
    diameter: float
    protects: str
    offset: float = 0.0
    inputs: str = "all"
    numeric_epsilon: float = 0.0
    numeric_delta: float = 0.0
    sigma: float | None = None
    exposes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"guarantee: metric {self.metric!r} is not one of {', '.join(METRICS)}")
        if self.protects not in UNITS:
            raise ValueError(f"guarantee: protects {self.protects!r} is not one of {', '.join(UNITS)}")
        for name in ("epsilon", "diameter", "offset", "numeric_epsilon", "numeric_delta"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"guarantee: {name} must be at least 0, got {value}")
        if self.sigma is not None and not self.sigma > 0:
            raise ValueError(f"guarantee: sigma must be above 0, got {self.sigma}")
        if not isinstance(self.exposes, tuple) or self.exposes != exposed(self.exposes):
            raise ValueError(f"guarantee: exposes must be names of {', '.join(EXPOSURES)}, in that order, each once")

    def loss(self, distance: float) -> float:
        """Return the bound on the log-likelihood ratio of two inputs at `distance`, in nats; inf without one.

        The two inputs must agree in the exposures.
        """
        if not distance >= 0:
            raise ValueError(f"distance must be at least 0, got {distance}")
        if distance == 0:
            return 0.0
        return self.epsilon * distance + self.offset + self.numeric_epsilon

    def worst_case(self, delta: float = 0.0, *, declared: Iterable[str] = ()) -> float:
        """Return the least ε such that this theorem makes any two inputs (ε, delta)-indistinguishable; inf without one.

        For pure mechanisms this is the supremum of `loss`. It does not improve with delta here (the exact loss
        distribution does). Their numeric_delta is added to delta: it is a failure probability of the sampler, not of
        the theorem. For Gaussian noise it is the exact profile of Balle and Wang 2018, Theorem 8.

        Args:
            delta: δ in [0, 1).
            declared: Exposures that are declared public: inputs that differ in them are not compared. The result is inf
                if the guarantee has other exposures.
        """
        if not 0 <= delta < 1:
            raise ValueError(f"delta must be in [0, 1), got {delta}")
        if not set(self.exposes) <= set(declared):
            return math.inf
        if self.sigma is not None:
            least = delta * math.exp(-self.numeric_epsilon)  # densities off by that factor raise a δ by it
            return gaussian_epsilon(self.diameter / self.sigma, least) + self.numeric_epsilon
        if self.epsilon == 0:
            return self.offset + self.numeric_epsilon
        return self.epsilon * self.diameter + self.offset + self.numeric_epsilon

    def given(self, declared: Iterable[str]) -> Guarantee:
        """Return the guarantee between inputs that agree in these exposures, which are declared public."""
        return replace(self, exposes=tuple(name for name in self.exposes if name not in set(declared)))

    def agrees(self, other: Guarantee) -> bool:
        """Return whether two CPUs may have computed these for one mechanism: equal but for the rounding of bounds.

        A bound differs by a part in 10^9 at most. What is left of two numbers that cancel may differ by more of itself,
        but by no more than 1e-9 nats or 1e-18 of probability.
        """
        slack = {"diameter": 0.0, "offset": 0.0, "numeric_epsilon": 1e-9, "numeric_delta": 1e-18}
        bounds = {name: getattr(other, name) for name in slack}
        near = (math.isclose(getattr(self, k), v, rel_tol=1e-9, abs_tol=slack[k]) for k, v in bounds.items())
        return replace(self, **bounds) == other and all(near)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready fields. Infinity is the string "inf"."""
        plain = {k: "inf" if v == math.inf else v for k, v in asdict(self).items()}
        return plain | {"exposes": list(self.exposes)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Guarantee:
        """Return the inverse of `to_dict`.

        Raises:
            ValueError: A value is invalid.
            TypeError: A key is unknown or missing.
        """
        values: dict[str, Any] = {k: math.inf if v == "inf" else v for k, v in fields.items()}
        return cls(**values | {"exposes": tuple(values.get("exposes", ()))})


def exposed(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of EXPOSURES among `names`, each once and in their order."""
    wanted = set(names)
    return tuple(name for name in EXPOSURES if name in wanted)


def condition(shared: Iterable[str]) -> str:
    """Return the condition of a finite ε, to stand behind it: "" without one.

    Args:
        shared: What two inputs have in common because it leaves in clear, declared public, in words. Between inputs
            that differ in it, ε is infinite.
    """
    phrase = " and ".join(shared)
    return f", between data that agree in {phrase}, declared public (else ε = ∞)" if phrase else ""


def gaussian_delta(ratio: float, epsilon: float) -> float:
    """Return δ(ε) of Gaussian noise with ratio = Δ/σ: Φ(r/2 - ε/r) - e^ε Φ(-r/2 - ε/r).

    Source: Balle and Wang 2018, Theorem 8.
    """
    if ratio == 0:
        return 0.0
    first = float(log_ndtr(ratio / 2 - epsilon / ratio))
    second = epsilon + float(log_ndtr(-ratio / 2 - epsilon / ratio))
    return math.exp(first) * -math.expm1(second - first) if second < first else 0.0


def gaussian_delta_bound(ratio: float, epsilon: float) -> float:
    """Return `gaussian_delta` from above: no less than the exact one, and at most a part in 10^11 more.

    With a = r/2 - ε/r, x = -a and Mills's ratio R = (1 - Φ)/φ it is φ(a)·(R(x) - R(x + r)), as e^ε·φ(x + r) = φ(a). For
    a small r that difference is computed as ∫ (1 - tR(t)) dt over [x, x + r], since R' = tR - 1: nothing cancels.
    """
    if ratio == 0:
        return 0.0
    a = ratio / 2 - epsilon / ratio
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    if a > 0.25:
        value = float(ndtr(a)) - density * float(_mills(ratio - a))
    elif ratio > 0.5:
        value = density * float(_mills(-a) - _mills(ratio - a))
    else:
        nodes, weights = np.polynomial.legendre.leggauss(16)
        points = -a + ratio / 2 * (1 + nodes)
        value = density * ratio / 2 * float(weights @ (1 - points * _mills(points)))
    return min(1.0, max(0.0, value) * (1 + 5e-12))


def _mills(x: Any) -> Any:
    """Return (1 - Φ(x))/φ(x), without underflow."""
    return math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """Return the least ε >= 0 with gaussian_delta(ratio, ε) <= delta, from above.

    It is inf at delta = 0, unless there is nothing to hide.
    """
    if ratio == 0:
        return 0.0
    if delta == 0 or math.isinf(ratio):
        return math.inf
    if gaussian_delta_bound(ratio, 0.0) <= delta:
        return 0.0
    from scipy.optimize import brentq  # takes a quarter of a second, which a device need not spend

    high = 1.0
    while gaussian_delta(ratio, high) > delta:
        high *= 2.0
    below = gaussian_delta(ratio, 0.0) <= delta  # except for its rounding
    root = 0.0 if below else float(brentq(lambda e: gaussian_delta(ratio, e) - delta, 0.0, high, xtol=1e-12))
    root = root * (1 + 1e-12) + 1e-12  # the root finder's tolerance goes to the safe side
    step = root * 1e-12
    while gaussian_delta_bound(ratio, root) > delta:
        root, step = root + step, 2 * step
    return root


def unprotected(metric: str, protects: str, diameter: float) -> Guarantee:
    """Return the guarantee of a value that passes unprotected: none.

    It is a value like any other, so no check is skipped.
    """
    return Guarantee(epsilon=math.inf, metric=metric, diameter=diameter, protects=protects)


def metric_statement(guarantees: Iterable[Guarantee]) -> str:
    """Return the composed loss bound in words: "10·d_angular + 2" for an embedding's ε = 10 and a label's ε = 2.

    Terms of one metric are added. A discrete distance is 0 or 1 and counts as 1. Gaussian noise bounds no loss (only at
    δ > 0) and makes the statement "inf".
    """
    rates: dict[str, float] = {}
    constant = 0.0
    for guarantee in guarantees:
        constant += guarantee.offset
        if guarantee.metric == "discrete":
            constant += guarantee.epsilon
        else:
            rates[guarantee.metric] = rates.get(guarantee.metric, 0.0) + guarantee.epsilon
    if math.isinf(constant) or any(math.isinf(rate) for rate in rates.values()):
        return "inf"
    terms = [f"{rate:g}·d_{metric}" for metric, rate in sorted(rates.items()) if rate]
    if constant or not terms:
        terms.append(f"{constant:g}")
    return " + ".join(terms)

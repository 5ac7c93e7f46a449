"""Claim about an external mechanism: a theorem, its inputs, and the form of releases."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mechanisms.catalogue import nearest
from mechanisms.checks import is_number
from mechanisms.guarantee import Guarantee
from mechanisms.losses.categorical import pair_loss
from mechanisms.losses.gaussian import gaussian_loss
from mechanisms.losses.loss import LossCells
from simulations.errors import UserError
from sottovoce.adversary.audit.games import PairClaim
from sottovoce.adversary.audit.games import claim as claim_of_pair

METRICS = ("discrete", "euclidean")
NEIGHBOURS = ("any", "replace", "add-remove")
KINDS = ("number", "vector", "category", "sequence", "text")


@dataclass(frozen=True)
class Claim:
    """Claim about an external mechanism.

    It is (epsilon, delta)-indistinguishability of any two neighbouring inputs. With `mu` in place of epsilon it is that
    of Gaussian noise, μ-GDP (Dong, Roth and Su 2022); delta then says where on its curve ε is measured.

    Args:
        epsilon: ε, or None with `mu`.
        delta: δ.
        mu: μ, or None with `epsilon`.
        inputs: Space of inputs. A list is one of its values. {"low": a, "high": b} is a number between, with "size": k
            a vector of them, with "whole": true integers. {"radius": r, "size": k} is a vector of at most that
            Euclidean length. {"records": SPACE, "count": n} is a list of n. Spaces nest: a client of a federation is a
            list of records.
        neighbours: "any" two inputs (local privacy), or lists that differ in one record: "replace" it, or "add-remove".
        pairs: Neighbouring inputs in place of a space: a list of pairs.
        metric: Factor of epsilon or mu: "discrete" 1, "euclidean" the distance.
        places: If `inputs` is a list, vectors of its values, which the metric then measures.
        releases: Form of a draw: a "number", a "vector" of one length, a "category" (a word or a number that names
            something), a "sequence" of categories, or a "text". None (null) in its place means that nothing was
            released.
        name: Name of the mechanism.
        version: Version of the mechanism.

    Raises:
        UserError: A field is invalid. The message is one line.
    """

    epsilon: float | None = None
    delta: float = 0.0
    mu: float | None = None
    inputs: Any = None
    neighbours: str = "any"
    pairs: Sequence[Any] = ()
    metric: str = "discrete"
    places: Sequence[Sequence[float]] | None = None
    releases: str = "number"
    name: str = "mechanism"
    version: str = ""

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.mu is None):
            raise UserError("claim: states epsilon or mu, one of them")
        for name in ("epsilon", "mu", "delta"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 <= value < math.inf):
                raise UserError(f"claim: {name} must be a finite number of at least 0, got {value!r}")
        if not self.delta < 1:
            raise UserError("claim: delta must be below 1")
        if self.mu is not None and self.mu > _STEEPEST:
            raise UserError(f"claim: mu above {_STEEPEST:g} is out of an audit's reach")
        for name, values in (("metric", METRICS), ("neighbours", NEIGHBOURS), ("releases", KINDS)):
            if getattr(self, name) not in values:
                raise UserError(f"claim: {name} must be one of {', '.join(values)}, got {getattr(self, name)!r}")
        if isinstance(self.pairs, str) or not isinstance(self.pairs, Sequence):
            raise UserError("claim: pairs must be a list of pairs")
        if (self.inputs is None) == (not self.pairs):
            raise UserError("claim: states inputs or pairs, one of them")
        for name in ("name", "version"):
            if not isinstance(getattr(self, name), str):
                raise UserError(f"claim: {name} must be a str, got {getattr(self, name)!r}")
        if self.places is not None:
            per_input = isinstance(self.inputs, list | tuple) and len(self.inputs) == len(self.places)
            if not per_input or self.metric != "euclidean":
                raise UserError("claim: places are a vector for each of a list of inputs, under the euclidean metric")

    @classmethod
    def of(cls, manifest: Any, where: str = "manifest") -> Claim:
        """Return the claim in a JSON object of its fields.

        Raises:
            UserError: It is not a claim.
        """
        if not isinstance(manifest, Mapping):
            raise UserError(f"{where}: must be a JSON object that states the claim")
        names = [field.name for field in fields(cls)]
        for key in manifest:
            if key not in names:
                raise UserError(f"{where}: unknown key {key!r}; {nearest(str(key), names)}")
        try:
            return cls(**manifest)
        except (TypeError, ValueError) as error:
            raise UserError(f"{where}: {error}") from error

    def stated(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, JSON-ready."""
        entries = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        return {key: value for key, value in entries.items() if value != defaults[key]}

    def distance(self, x: Any, other: Any) -> float:
        """Return the distance of two inputs by the metric.

        Raises:
            UserError: The metric does not apply to such inputs.
        """
        if self.metric == "discrete":
            return float(key_of(x) != key_of(other))
        return float(np.linalg.norm(self._place(x) - self._place(other)))

    def _place(self, x: Any) -> Any:
        if self.places is not None:
            at = [key_of(value) for value in self.inputs].index(key_of(x))
            return np.asarray(self.places[at], dtype=np.float64)
        try:
            return np.asarray(x, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise UserError("claim: the euclidean metric is one of numbers, or state places") from error

    def loss(self, distance: float) -> LossCells:
        """Return a loss distribution that dominates the claim about two inputs at a distance."""
        if self.mu is not None:
            return gaussian_loss(self.mu * distance)
        assert self.epsilon is not None
        return approximate_loss(self.epsilon * distance, self.delta if distance else 0.0)

    def of_pair(self, x: Any, other: Any, delta: float) -> PairClaim:
        """Return the claim about two inputs; at_delta is ε at `delta`."""
        exact, distance = Guarantee(0.0, "discrete", 1.0, "record"), self.distance(x, other)
        result = claim_of_pair(self.loss(distance), exact, delta)
        if not self.delta or delta != self.delta or self.epsilon is None:
            return result
        # the claimed point itself, which rounding would miss
        epsilon = self.epsilon * distance
        return replace(result, at_delta=epsilon, points=np.vstack([result.points, [epsilon, delta]]))

    @property
    def at(self) -> float:
        """Return the δ at which ε is compared beside the pure one: the claim's own, or a thousandth."""
        return self.delta or _DELTA


#: δ at which ε is compared if a claim names none.
_DELTA = 1e-3
#: A larger μ distinguishes any two inputs.
_STEEPEST = 20.0


def approximate_loss(epsilon: float, delta: float) -> LossCells:
    """Return the loss that dominates any (ε, δ)-indistinguishable pair.

    With probability δ the release is the input itself, otherwise binary randomized response.

    Source: Kairouz, Oh and Viswanath 2015, Theorem 3.4.
    """
    keep = -math.log1p(math.exp(-epsilon))
    log_delta, log_rest = (math.log(delta) if delta else -math.inf), math.log1p(-delta)
    first = np.array([log_delta, -math.inf, log_rest + keep, log_rest + keep - epsilon])
    second = np.array([-math.inf, log_delta, log_rest + keep - epsilon, log_rest + keep])
    support = np.isfinite(first) | np.isfinite(second)
    return pair_loss(first[support], second[support])


def key_of(value: Any) -> str:
    """Return a unique text for each JSON value.

    Raises:
        UserError: The value is not JSON.
    """
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise UserError(f"audit: {type(value).__name__} is no value of JSON, as inputs and draws must be") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(type(value).__name__)

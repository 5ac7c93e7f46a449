"""What is claimed of somebody else's mechanism: a theorem, the inputs that it speaks of, and what is released."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
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

METRICS = ("discrete", "euclidean", "hamming")
NEIGHBOURS = ("any", "replace", "add-remove")
KINDS = ("number", "vector", "category", "sequence", "text")
#: In place of pairs: the program is asked for each.
ASKED = "asked"


@dataclass(frozen=True)
class Claim:
    """A claim about a mechanism that is audited from outside. It is (epsilon, delta)-indistinguishability of any two
    neighbouring inputs, or with `mu` in place of epsilon that of Gaussian noise, μ-GDP (Dong, Roth and Su 2022), of
    which delta says where on its curve ε is measured.

    inputs: a space. A list is one of its values; {"low": a, "high": b} a number between, with "size": k a vector of
        them, with "whole": true integers; {"radius": r, "size": k} a vector of at most that Euclidean length;
        {"records": SPACE, "count": n} a list of n. Spaces nest: a client of a federation is a list of records.
    neighbours: "any" two inputs (local privacy), or lists that differ in one record: "replace" it, or "add-remove".
    pairs: neighbouring inputs in place of a space: a list of pairs, or a function that makes one from a number; of a
        program "asked", which is then sent {"pair": number} and answers {"pair": [x, x']}.
    metric: what epsilon or mu is multiplied by: "discrete" 1, "euclidean" the distance, "hamming" the number of
        places that differ. places: where `inputs` is a list, its values' vectors, which are then what is measured.
    releases: what a draw is: a "number", a "vector" of one length, a "category" (a word or a number that names
        something), a "sequence" of categories, or a "text". None (null) in its place: nothing was released.
    time: whether the time of an answer is claimed to tell no more either; each draw is then asked for alone.
    density: a function of an input and draws that says how likely each is, as logarithms, up to what is the same for
        all inputs; of a program true, which is then sent {"input": x, "outputs": [draws]} and answers
        {"log_density": [numbers]}. Its ratio is one more score; its word is not taken.
    one_run: whether one draw is all that is asked for: training whose input says of each of many canaries whether it is
        in, and whose draw is a score of each. inputs are {"records": [0, 1], "count": m}, neighbours "replace".
    name, version: of what is audited.

    UserError, of one line, on anything else.
    """

    epsilon: float | None = None
    delta: float = 0.0
    mu: float | None = None
    inputs: Any = None
    neighbours: str = "any"
    pairs: Sequence[Any] | str | Callable[[int], Any] = ()
    metric: str = "discrete"
    places: Sequence[Sequence[float]] | None = None
    releases: str = "number"
    time: bool = False
    density: bool | Callable[[Any, Any], Any] = False
    one_run: bool = False
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
        for name, known in (("metric", METRICS), ("neighbours", NEIGHBOURS), ("releases", KINDS)):
            if getattr(self, name) not in known:
                raise UserError(f"claim: {name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if (self.inputs is None) == (isinstance(self.pairs, Sequence) and not self.pairs):
            raise UserError("claim: states inputs or pairs, one of them")
        for name, kind in (("time", bool), ("one_run", bool), ("name", str), ("version", str)):
            if not isinstance(getattr(self, name), kind):
                raise UserError(f"claim: {name} must be a {kind.__name__}, got {getattr(self, name)!r}")
        if not (isinstance(self.density, bool) or callable(self.density)):
            raise UserError(f"claim: density must be a bool, or a function, got {self.density!r}")
        if isinstance(self.pairs, str) and self.pairs != ASKED:
            raise UserError(f"claim: pairs must be a list of pairs, or {ASKED!r}")
        if self.places is not None:
            listed = isinstance(self.inputs, list | tuple) and len(self.inputs) == len(self.places)
            if not listed or self.metric != "euclidean":
                raise UserError("claim: places are a vector for each of a list of inputs, under the euclidean metric")

    @classmethod
    def of(cls, manifest: Any, where: str = "manifest") -> Claim:
        """From a JSON object of its fields. UserError on anything else."""
        if not isinstance(manifest, Mapping):
            raise UserError(f"{where}: must be a JSON object that states the claim")
        known = [field.name for field in fields(cls)]
        for key in manifest:
            if key not in known:
                raise UserError(f"{where}: unknown key {key!r}; {nearest(str(key), known)}")
        try:
            return cls(**manifest)
        except (TypeError, ValueError) as error:
            raise UserError(f"{where}: {error}") from error

    def stated(self) -> dict[str, Any]:
        """JSON-ready fields, those that are as by default left out; a function that makes pairs is "asked"."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        if callable(self.pairs):
            found["pairs"] = ASKED
        found["density"] = bool(self.density)
        return {key: value for key, value in found.items() if value != defaults[key]}

    def distance(self, x: Any, other: Any) -> float:
        """By the metric. UserError where it does not measure such inputs."""
        if self.metric == "discrete":
            return float(key_of(x) != key_of(other))
        if self.metric == "hamming":
            if not isinstance(x, list | tuple) or not isinstance(other, list | tuple) or len(x) != len(other):
                raise UserError("claim: the hamming metric is one of lists of one length")
            return float(sum(key_of(a) != key_of(b) for a, b in zip(x, other, strict=True)))
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
        """A loss distribution that dominates what is claimed of two inputs so far apart."""
        if self.mu is not None:
            return gaussian_loss(self.mu * distance)
        assert self.epsilon is not None
        return approximate_loss(self.epsilon * distance, self.delta if distance else 0.0)

    def of_pair(self, x: Any, other: Any, delta: float) -> PairClaim:
        """What is claimed of two inputs; at_delta is ε at `delta`."""
        exact, distance = Guarantee(0.0, "discrete", 1.0, "record"), self.distance(x, other)
        found = claim_of_pair(self.loss(distance), exact, delta)
        if not self.delta or delta != self.delta or self.epsilon is None:
            return found
        # the point that is claimed, which rounding would miss
        stated = self.epsilon * distance
        return replace(found, at_delta=stated, points=np.vstack([found.points, [stated, delta]]))

    @property
    def at(self) -> float:
        """The δ at which ε is compared beside the pure one: the claim's own, or a thousandth."""
        return self.delta or _DELTA


#: δ at which ε is compared where a claim names none.
_DELTA = 1e-3
#: μ above this tells any two inputs apart.
_STEEPEST = 20.0


def approximate_loss(epsilon: float, delta: float) -> LossCells:
    """The loss that dominates any (ε, δ)-indistinguishable pair: with probability δ the input itself, otherwise binary
    randomized response (Kairouz, Oh and Viswanath 2015, Theorem 3.4)."""
    keep = -math.log1p(math.exp(-epsilon))
    shown, hidden = (math.log(delta) if delta else -math.inf), math.log1p(-delta)
    own = np.array([shown, -math.inf, hidden + keep, hidden + keep - epsilon])
    other = np.array([-math.inf, shown, hidden + keep - epsilon, hidden + keep])
    there = np.isfinite(own) | np.isfinite(other)
    return pair_loss(own[there], other[there])


def key_of(value: Any) -> str:
    """One text for each JSON value. UserError for what JSON cannot hold."""
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise UserError(f"audit: {type(value).__name__} is no value of JSON, as inputs and draws must be") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(type(value).__name__)

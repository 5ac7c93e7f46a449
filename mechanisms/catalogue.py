"""Mechanisms by the names that experiment files, requests and commands use: one line for each."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from mechanisms.gaussian import Gaussian
from mechanisms.identity import Identity
from mechanisms.randomized_response import RandomizedResponse, RandomizedResponsePrior
from mechanisms.spherical import PlanarLaplace, Purkayastha

CATALOGUE: dict[str, type[Any]] = {
    kind.name: kind
    for kind in (Identity, Purkayastha, PlanarLaplace, Gaussian, RandomizedResponse, RandomizedResponsePrior)
}


def build(
    spec: Mapping[str, Any], *, channel: str, dim: int | None = None, classes: int | None = None
) -> Any:
    """The mechanism that a spec such as {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 16} describes.

    channel: what it is to sanitize; a mechanism of another channel is refused. dim and classes serve where
    the spec does not give them. `gaussian` may be given epsilon and delta (for unit vectors) in place of
    sigma, and `identity` its size as dim or classes. Inverse of `mechanisms.mechanism.parameters`. ValueError
    (one line) on unknown names, and on unknown, missing or impossible parameters.
    """
    given = dict(spec)
    name = given.pop("mechanism", None)
    if not isinstance(name, str):
        raise ValueError(f'{channel}: the mechanism has no name; write mechanism = "..."')
    if name not in CATALOGUE:
        raise ValueError(f"{channel}: unknown mechanism {name!r}; {_nearest(name, CATALOGUE)}")
    kind = CATALOGUE[name]

    known = {f.name for f in fields(kind)}
    sizes = {"dim": dim, "classes": classes}
    if kind is Identity:
        key = "dim" if channel == "embedding" else "classes"
        if key in given:
            given.setdefault("size", given.pop(key))
        given.setdefault("channel", channel)
        sizes = {"size": sizes[key]}
    for key, value in sizes.items():
        if key in known and value is not None:
            given.setdefault(key, value)
    calibrate = kind is Gaussian and "sigma" not in given and {"epsilon", "delta"} <= given.keys()
    if calibrate:
        known = {"epsilon", "delta", "dim"}

    for key in given:
        if key not in known:
            raise ValueError(f"{name}: unknown parameter {key!r}; {_nearest(key, known)}")
    needed = known if calibrate else {f.name for f in fields(kind) if f.default is MISSING}
    missing = sorted(needed - given.keys())
    if missing:
        raise ValueError(f"{name}: missing parameter {', '.join(missing)}")
    mechanism = Gaussian.calibrated(**given) if calibrate else kind(**given)
    if mechanism.channel != channel:
        raise ValueError(f"{name}: sanitizes the {mechanism.channel}, not the {channel}")
    return mechanism


def _nearest(word: str, known: Any) -> str:
    """What to write instead of `word`: the nearest known name, and otherwise all of them."""
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"

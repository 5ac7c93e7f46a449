"""Catalogue of mechanisms by the names in experiment files, requests and commands, one line for each.

A process also knows plugins (`mechanisms.plugin`) once its user has named them. The source of a name matters: `build`
and `admit` import what they name, and are for names that the user wrote. `rebuild` never imports, and is for names that
others sent.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from mechanisms import plugin
from mechanisms.channels import CHANNELS, Domain
from mechanisms.gaussian import Gaussian
from mechanisms.identity import Identity
from mechanisms.privunit import PrivUnit
from mechanisms.randomized_response import RandomizedAnswer, RandomizedResponse, RandomizedResponsePrior
from mechanisms.spherical import PlanarLaplace, Purkayastha
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.custext import CusText, CusTextImportance, CusTextPlus
from mechanisms.words.dp_mlm import DpMlm, DpMlmResized, DpParaphrase, DpPrompt
from mechanisms.words.madlib import Madlib
from mechanisms.words.madlib_syntax import MadlibSyntax
from mechanisms.words.mahalanobis import Mahalanobis
from mechanisms.words.santext import SanText, SanTextPlus, Tem
from mechanisms.words.tables import RandomSubstitution, Verbatim
from mechanisms.words.text import TEXT_FIELDS, TextMechanism

CATALOGUE: dict[str, type[Any]] = {
    kind.name: kind
    for kind in (
        Identity,
        Purkayastha,
        PlanarLaplace,
        Gaussian,
        PrivUnit,
        RandomizedResponse,
        RandomizedResponsePrior,
        RandomSubstitution,
        SanText,
        SanTextPlus,
        CusText,
        CusTextPlus,
        CusTextImportance,
        Madlib,
        MadlibSyntax,
        Tem,
        Mahalanobis,
        DpMlm,
        DpMlmResized,
        DpPrompt,
        DpParaphrase,
    )
}

#: Classes of names on a channel that has a class of its own.
OWN_KINDS: dict[tuple[str, str], type[Any]] = {
    (Identity.name, "text"): Verbatim,
    (RandomizedResponse.name, RandomizedAnswer.channel): RandomizedAnswer,
}

#: Plugins that this process has admitted, by the names that their releases carry.
_ADMITTED: dict[str, type[Any]] = {}


def find(name: str) -> type[Any] | None:
    """Return the class of a name that this process knows, or None. It imports nothing."""
    return CATALOGUE.get(name) or _ADMITTED.get(name)


def admit(name: str) -> type[Any]:
    """Return the class of a mechanism that this process's user has named; from now on `find` and `rebuild` know it.

    It is of the catalogue, installed as an entry point, or "package.module:Class". This imports other people's code, so
    the name must never come from a message.

    Raises:
        ValueError: The name is unknown, or the plugin is invalid.
    """
    if (kind := find(name)) is not None:
        return kind
    if not plugin.is_reference(name) and name not in (plugins := plugin.installed()):
        raise ValueError(f"unknown mechanism {name!r}; {nearest(name, {*CATALOGUE, *plugins})}")
    kind = plugin.load(name, frozenset(CATALOGUE))
    return _ADMITTED.setdefault(kind.name, kind)


def admit_installed(names: Iterable[str]) -> None:
    """Admit those of a policy's names that are installed here as entry points.

    A name that nobody knows here allows nothing: no request for it can be read. Policies of earlier versions list the
    mechanisms that they had. Names by place are refused, since policies travel in bundles.

    Raises:
        ValueError: A name is by place.
    """
    for name in names:
        if plugin.is_reference(name):
            raise ValueError(
                f"policy: {name!r}: a device takes mechanisms of the catalogue, and those that are installed on it as "
                f"entry points of {plugin.GROUP}, by their names"
            )
        if find(name) is None and name in plugin.installed():
            admit(name)


def build(spec: Mapping[str, Any], *, channel: str, **sizes: Any) -> Any:
    """Return `rebuild` of a spec that this process's user wrote: it may name plugins (`admit`)."""
    name = spec.get("mechanism")
    if isinstance(name, str):
        try:
            kind = admit(name)
        except ValueError as error:
            raise ValueError(f"{channel}: {error}") from error
        if kind.name != name:  # named by its place, installed under its name
            spec = {**spec, "mechanism": kind.name}
    return rebuild(spec, channel=channel, **sizes)


def rebuild(
    spec: Mapping[str, Any],
    *,
    channel: str,
    dim: int | None = None,
    classes: int | None = None,
    vocabulary: Vocabulary | None = None,
) -> Any:
    """Return the mechanism that a spec such as {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 16} describes.

    It is the inverse of `mechanisms.mechanism.parameters`. `gaussian` may be given epsilon and delta (for unit vectors)
    in place of sigma, and `identity` its size as dim or classes.

    Args:
        spec: Name and parameters. The spec of a text holds the word mechanism's parameters and those of `TextMechanism`
            together, and one mechanism is built.
        channel: Channel to be sanitized. A mechanism of another channel is refused.
        dim: Dimension, if the spec does not give it.
        classes: Number of classes, if the spec does not give it.
        vocabulary: Vocabulary of a text. Its spec may name this one by its identity, and no other.

    Raises:
        ValueError: The name is unknown, or a parameter is unknown, missing or impossible.
    """
    arguments = dict(spec)
    name = arguments.pop("mechanism", None)
    if not isinstance(name, str):
        raise ValueError(f'{channel}: the mechanism has no name; write mechanism = "..."')
    known_kind = find(name)
    if known_kind is None:
        raise ValueError(f"{channel}: unknown mechanism {name!r}; {nearest(name, CATALOGUE)}")
    kind = OWN_KINDS.get((name, channel), known_kind)
    domain = CHANNELS[channel].domain
    texts = domain is Domain.TEXT
    of_text = {k: arguments.pop(k) for k in TEXT_FIELDS if k in arguments} if texts else {}

    names = {f.name for f in fields(kind)}
    sizes: dict[str, Any] = {"dim": dim, "classes": classes}
    if texts and "vocabulary" in names:
        if vocabulary is None:
            raise ValueError(f"{name}: a text mechanism needs a vocabulary")
        if arguments.pop("vocabulary", vocabulary.identity) != vocabulary.identity:
            raise ValueError(f"{name}: names another vocabulary than the one that is there")
        sizes["vocabulary"] = vocabulary
    if kind is Identity:
        key = "classes" if domain is Domain.CLASSES else "dim"
        if key in arguments:
            arguments.setdefault("size", arguments.pop(key))
        arguments.setdefault("channel", channel)
        sizes = {"size": sizes[key]}
    for key, value in sizes.items():
        if key in names and value is not None:
            arguments.setdefault(key, value)
    calibrate = kind is Gaussian and "sigma" not in arguments and {"epsilon", "delta"} <= arguments.keys()
    if calibrate:
        names = {"epsilon", "delta", "dim"}

    for key in arguments:
        if key not in names:
            listed = names | set(TEXT_FIELDS) - {"vocabulary"} if texts else names
            raise ValueError(f"{name}: unknown parameter {key!r}; {nearest(key, listed)}")
    needed = names if calibrate else {f.name for f in fields(kind) if f.default is MISSING}
    missing = sorted(needed - arguments.keys())
    if missing:
        raise ValueError(f"{name}: missing parameter {', '.join(missing)}")
    if calibrate:
        mechanism: Any = Gaussian.calibrated(**arguments)
    else:
        mechanism = plugin.made(kind, arguments) if name in _ADMITTED else kind(**arguments)
    if mechanism.channel != channel:
        raise ValueError(f"{name}: sanitizes the {mechanism.channel}, not the {channel}")
    return TextMechanism(mechanism, **of_text) if texts else mechanism


def instance(kind: type[Any], given: Mapping[str, Any], vocabulary: Vocabulary) -> Any:
    """Return the mechanism of a known class with given parameters; for texts, the mechanism of their words.

    Raises:
        ValueError: A parameter is unknown, missing or impossible. The message is one line.
    """
    channel = given.get("channel") or kind.channel
    built = build({"mechanism": kind.name} | dict(given), channel=channel, vocabulary=vocabulary)
    return built.word if isinstance(built, TextMechanism) else built


def nearest(word: str, known: Any) -> str:
    """Return a suggestion in place of `word`: the nearest known name, and otherwise all of them."""
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"

"""Declarations of mechanisms: values of their parameters for use and for tests, and what they need to know of words.

A mechanism declares its own as the class attribute `facts`, beside `name` and `channel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum, auto
from typing import Any

from mechanisms.vocabulary import Vocabulary

#: Values of parameters that many mechanisms have, where the mechanism declares none: one for use, several for tests.
_USUAL: Mapping[str, Any] = {"epsilon": 1.0, "dim": 16, "classes": 10}
_TRIED: Mapping[str, tuple[Any, ...]] = {"epsilon": (0.5, 10.0), "dim": (2, 16), "classes": (2, 12)}

#: Values of ε and of dimensions that hold the extremes of most mechanisms.
EPSILONS, DIMS = (0.5, 10.0, 1000.0), (2, 3, 64)


class AboutWords(Enum):
    """Public property of each word, beside its vector."""

    #: Number of occurrences in a public corpus.
    COUNTS = auto()
    #: Part of speech.
    TAGS = auto()


@dataclass(frozen=True)
class Facts:
    """Declaration of one mechanism.

    Args:
        needs: Properties of words that the mechanism cannot do without.
        usual: Values for use of parameters without a default. epsilon, dim and classes have one without it.
        tried: Valid values for tests, the extreme ones among them, by parameter. epsilon, dim and classes have some
            without it.
    """

    needs: frozenset[AboutWords] = frozenset()
    usual: Mapping[str, Any] = field(default_factory=dict)
    tried: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


def facts_of(kind: type[Any]) -> Facts:
    """Return the declaration of a mechanism's class; one without a declaration has the default values.

    Raises:
        ValueError: It is no `Facts`, names no parameter, or would leave nothing to test. The message is one line.
    """
    facts = getattr(kind, "facts", Facts())
    if not isinstance(facts, Facts):
        raise ValueError(f"{kind.name}: its facts are a {type(facts).__name__}, and must be Facts")
    if unknown := sorted({*facts.usual, *facts.tried} - {f.name for f in fields(kind)}):
        raise ValueError(f"{kind.name}: its facts name {unknown[0]}, which is no parameter of it")
    if empty := [name for name, values in facts.tried.items() if not values]:
        raise ValueError(f"{kind.name}: its facts list nothing under {empty[0]}, and a test without cases would pass")
    return facts


def usual(kind: type[Any]) -> dict[str, Any]:
    """Return a value for use of each parameter without a default, except the vocabulary.

    Raises:
        ValueError: A parameter has none. The message is one line.
    """
    values = {**_USUAL, **facts_of(kind).usual}
    return {name: values[name] for name in _named(kind, values)}


def tried(kind: type[Any], vocabulary: Vocabulary) -> dict[str, tuple[Any, ...]]:
    """Return the values for tests of each parameter that has any, in the order of the fields.

    Args:
        kind: Class of the mechanism.
        vocabulary: Value of a parameter of that name.

    Raises:
        ValueError: A parameter has neither values nor a default. The message is one line.
    """
    values = {**_TRIED, **facts_of(kind).tried}
    needed = _named(kind, values)
    chosen = {name: values[name] for name in (*needed, *facts_of(kind).tried)} | {"vocabulary": (vocabulary,)}
    return {f.name: chosen[f.name] for f in fields(kind) if f.name in chosen}


def _named(kind: type[Any], known: Mapping[str, Any]) -> list[str]:
    """Return the parameters without a default, except the vocabulary. ValueError if one is not among the known."""
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    needed = [name for name in needed if name != "vocabulary"]
    if unknown := [name for name in needed if name not in known]:
        raise ValueError(
            f"{kind.name}: nobody knows what to try as {', '.join(unknown)}; give defaults, or declare them in `facts` "
            "(mechanisms.facts.Facts)"
        )
    return needed

"""Declarations of mechanisms: parameters to try, the pair that an audit distinguishes, and sliders of the page.

A mechanism declares its own as the class attribute `facts`, beside `name` and `channel`. The contract tests, the audit
and the page of `sottovoce explore` read them there, so that a new mechanism needs no line in any of these.
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
EPSILONS, DIMS = (0.5, 10.0, 1000.0), (2, 3, 16, 768)


class Pair(Enum):
    """Two inputs of a mechanism that an audit distinguishes."""

    #: Those that differ most by the stated probabilities and by a pilot of draws; of vectors, two antipodal pairs.
    SEARCHED = auto()
    #: A unit vector and its negative.
    ANTIPODAL = auto()
    #: Labels 0 and 1.
    LABELS = auto()
    #: The lowest and the highest label.
    ENDS = auto()
    #: Words whose stated probabilities differ most; words farthest apart where no probabilities are stated.
    WORDS = auto()
    #: Texts whose tokens are weighed in opposite ways.
    IMPORTANCE = auto()
    #: Texts for which a language model's logits are opposite.
    LOGITS = auto()


class AboutWords(Enum):
    """Public property of each word, beside its vector."""

    #: Number of occurrences in a public corpus.
    COUNTS = auto()
    #: Part of speech.
    TAGS = auto()


@dataclass(frozen=True)
class Range:
    """Slider of a parameter beside ε. It starts at the parameter's default.

    Args:
        label: Description of the parameter.
        least: Least value; a parameter of whole numbers has whole bounds.
        most: Largest value.
        step: Step.
    """

    label: str
    least: float
    most: float
    step: float


@dataclass(frozen=True)
class Slider:
    """Sliders of a mechanism on the page.

    Args:
        usual: First ε.
        least: Least ε.
        most: Largest ε.
        more: Sliders of parameters beside ε and dim, by parameter.
        calibrated: Whether δ is a parameter, at which the noise is calibrated to ε.
    """

    usual: float
    least: float
    most: float
    more: Mapping[str, Range] = field(default_factory=dict)
    calibrated: bool = False


@dataclass(frozen=True)
class Absent:
    """Reason why the page does not show a mechanism.

    Args:
        reason: Relative clause after the mechanism's name.
    """

    reason: str


#: Of mechanisms that decide about a word by more than the word.
WHOLE_TEXT = Absent(
    "whose chance of a word depends on the whole text or on a language model, so that no list of a word's chances can "
    "be shown"
)


@dataclass(frozen=True)
class Facts:
    """Declaration of one mechanism.

    Args:
        label: Name and a few words for people who choose a mechanism.
        needs: Properties of words that the mechanism cannot do without.
        usual: Values for use of parameters without a default. epsilon, dim and classes have one without it.
        tried: Valid values for tests, the extreme ones among them, by parameter. epsilon, dim and classes have some
            without it.
        few_words: Values that suit a vocabulary of four words, of parameters whose other values do not.
        audits: Parameters of each audit, in place of the usual ones.
        pair: Pair that the audits distinguish.
        slider: Sliders of the page, or the reason why there are none.
    """

    label: str = ""
    needs: frozenset[AboutWords] = frozenset()
    usual: Mapping[str, Any] = field(default_factory=dict)
    tried: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    few_words: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    audits: tuple[Mapping[str, Any], ...] = ({},)
    pair: Pair = Pair.SEARCHED
    slider: Slider | Absent = Absent("which declares no slider")


def facts_of(kind: type[Any]) -> Facts:
    """Return the declaration of a mechanism's class; one without a declaration has the default values.

    Raises:
        ValueError: Its `facts` are no `Facts`, name no parameter, or would leave nothing to test. The message is one
            line.
    """
    found = getattr(kind, "facts", Facts())
    if not isinstance(found, Facts):
        raise ValueError(f"{kind.name}: its facts are a {type(found).__name__}, and must be Facts")
    named = {name for values in (found.usual, found.tried, found.few_words, *found.audits) for name in values}
    if isinstance(found.slider, Slider):
        named |= found.slider.more.keys()
    if unknown := sorted(named - {f.name for f in fields(kind)}):
        raise ValueError(f"{kind.name}: its facts name {unknown[0]}, which is no parameter of it")
    listed = {**found.tried, **found.few_words, "audits": found.audits}
    if empty := [name for name, values in listed.items() if not values]:
        raise ValueError(f"{kind.name}: its facts list nothing under {empty[0]}, and a test without cases would pass")
    return found


def usual(kind: type[Any]) -> dict[str, Any]:
    """Return a value for use of each parameter without a default, except the vocabulary.

    Raises:
        ValueError: A parameter has none. The message is one line.
    """
    known = {**_USUAL, **facts_of(kind).usual}
    return {name: known[name] for name in _named(kind, known)}


def tried(kind: type[Any], vocabulary: Vocabulary) -> dict[str, tuple[Any, ...]]:
    """Return the values for tests of each parameter that has any, in the order of the fields.

    Args:
        kind: Class of the mechanism.
        vocabulary: Value of a parameter of that name.

    Raises:
        ValueError: A parameter has neither values nor a default. The message is one line.
    """
    known = {**_TRIED, **facts_of(kind).tried}
    needed = _named(kind, known)
    chosen = {name: known[name] for name in (*needed, *facts_of(kind).tried)} | {"vocabulary": (vocabulary,)}
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

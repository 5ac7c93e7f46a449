"""Costs of a request, in numbers and in words, by the functions behind `sottovoce budget`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mechanisms.accounting.ladder import ladder_of
from mechanisms.channels import Domain, domain_of
from mechanisms.guarantee import EXPOSURES, condition
from mechanisms.mechanism import Mechanism
from mechanisms.words.text import TextMechanism
from simulations.analysis.budget import described
from simulations.output.numbers import epsilon as shown
from sottovoce.explore.inference import limit
from sottovoce.explore.settings import Settings
from sottovoce.explore.world import POOL, World

#: Inputs that the worst case compares, by channel; TIMES is the ratio of probabilities.
_WHATEVER = {
    "embedding": "Whatever you had typed, what leaves is at most TIMES likelier from one sentence",
    "text": "Whatever you had typed, what leaves is at most TIMES likelier from one sentence",
    "statistic": "Whatever you had typed and think of it, what leaves is at most TIMES likelier from one pair of "
    "sentence and label",
    "label": "Whatever your label is, what leaves is at most TIMES likelier from one label",
}


def cost(settings: Settings, world: World, declared: Mapping[str, str]) -> dict[str, Any]:
    """Return {"worst_case", "local", "words"} of one answer.

    worst_case is the theorems' ε, which trusts nobody. local is the least proved ε at δ, by the distribution of the
    loss. words has all of it as sentences, with the bound of two sentences that are alike, and of a guess which class,
    or which of POOL sentences, it was.

    Args:
        settings: Settings of the page.
        world: Public data.
        declared: Exposures declared public, with their reasons.

    Raises:
        ValueError: A setting is invalid.
    """
    mechanisms = world.mechanisms(settings)
    public = {name: reason for name, reason in declared.items() if name in mechanisms[0].guarantee.exposes}
    rungs = ladder_of(mechanisms, users=None, delta=settings.delta, public=public)  # without a shuffler
    record = next(rung for rung in rungs if rung.name == "record")
    assert record.worst_case is not None and record.epsilon is not None
    lines = [_worst(settings, mechanisms[0], record.worst_case)]
    if math.isfinite(record.epsilon):
        lines += _words(settings, mechanisms, record.worst_case, record.epsilon, len(world.classes))
    if "d_" in record.statement:
        alike = re.sub(r"d_\w+", "d", record.statement) + _condition(mechanisms[0])
        lines.append(
            f"For two sentences that are alike it is less: ε is at most {alike}, where d is how far apart they are."
        )
    return {"worst_case": record.worst_case, "local": record.epsilon, "words": lines}


def named(mechanism: Any) -> str:
    """Return a mechanism in words; for a text, its name, its ε and the most words."""
    if isinstance(mechanism, TextMechanism):
        word: Any = mechanism.word
        return f"{mechanism.name}, ε = {word.epsilon:g}, at most {mechanism.tokens} words"
    return described(mechanism)


def _worst(settings: Settings, mechanism: Mechanism, worst: float) -> str:
    if mechanism.guarantee.sigma is not None:
        return (
            "Worst case: no limit. Gaussian noise promises nothing of every draw, only of nearly all of them: with a "
            f"chance of δ = {small(settings.delta)} more may be told."
        )
    if math.isinf(worst):
        return (
            "Worst case: no limit. Something leaves without protection, so that no finite ε holds; a device refuses "
            "this, unless its user has declared it public."
        )
    phrase = _WHATEVER[settings.channel].replace("TIMES", _times(worst))
    return (
        f"Worst case: ε = {shown(worst)}{_condition(mechanism)}. {phrase} than from any other. Nobody else has to be "
        "trusted for that."
    )


def _condition(mechanism: Mechanism) -> str:
    """Return the condition of a finite ε, of whose exposures all are declared public."""
    return condition(EXPOSURES[name] for name in mechanism.guarantee.exposes)


def _words(settings: Settings, made: list[Mechanism], worst: float, local: float, classes: int) -> list[str]:
    """Return the lines below that of the worst case."""
    lines, mechanism = [], made[0]
    if shown(local) != shown(worst):
        lines.append(
            f"Nearly always: ε = {shown(local)}, except with a chance of δ = {small(settings.delta)}"
            f"{_condition(mechanism)}. This is the exact loss of the most different pair of sentences."
        )
    else:
        text = f"ε = {shown(local)}{_condition(mechanism)}"
        lines.append(f"At δ = {small(settings.delta)} there is nothing to gain: {text}.")
    if domain_of(settings) is not Domain.TEXT:
        guessed = domain_of(settings) is Domain.CLASSES
        count, pool = (classes, f"{classes} classes") if guessed else (POOL, f"{POOL} sentences")
        # a label beside it may reveal the sentence too
        label_epsilon = sum(label.guarantee.worst_case() for label in made[1:])
        bound = limit(mechanism, np.full(count, 1 / count), beside=label_epsilon)
        lines.append(
            f"A guess at which of {pool} it was is right in at most {bound:.1%} of cases, whatever the server computes."
        )
    return lines


def _times(epsilon: float) -> str:
    """Return e^ε as a factor, in words."""
    exponent = math.floor(epsilon / math.log(10))
    if exponent < 6:
        return f"{math.exp(epsilon):,.3g} times" if exponent < 3 else f"{math.exp(epsilon):,.0f} times"
    return f"{math.exp(epsilon - exponent * math.log(10)):.1f}·10{_raised(exponent)} times"


def small(delta: float) -> str:
    """Return δ in the form 10⁻⁶."""
    exponent = math.floor(math.log10(delta) + 1e-9)
    first = delta / 10.0**exponent
    return f"10{_raised(exponent)}" if abs(first - 1) < 1e-9 else f"{first:.3g}·10{_raised(exponent)}"


def _raised(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))

"""Costs of a request, in numbers and in words, by the functions behind `sottovoce budget`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from mechanisms.accounting.ladder import ladder_of
from mechanisms.accounting.shuffle import amplify
from mechanisms.channels import Domain, domain_of
from mechanisms.guarantee import EXPOSURES, condition
from mechanisms.mechanism import Mechanism
from mechanisms.vocabulary import Vocabulary
from mechanisms.words.text import TextMechanism
from simulations.analysis.budget import described
from simulations.output.numbers import epsilon as shown
from sottovoce.adversary.estimators.tokens import unigram
from sottovoce.explore.inference import uniform_limit, word_limit
from sottovoce.explore.settings import SLIDERS, Settings
from sottovoce.explore.world import POOL

#: Inputs that the worst case compares, by channel; TIMES is the ratio of probabilities.
_WHATEVER = {
    "embedding": "Whatever you had typed, what leaves is at most TIMES likelier from one sentence",
    "text": "Whatever you had typed, what leaves is at most TIMES likelier from one sentence",
    "statistic": "Whatever you had typed and think of it, what leaves is at most TIMES likelier from one pair of "
    "sentence and label",
    "label": "Whatever your label is, what leaves is at most TIMES likelier from one label",
}


def rungs_of(
    settings: Settings, classes: int, vocabulary: Vocabulary | None, declared: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the ladder of one request without a shuffler, rung by rung, as `sottovoce budget ladder` prints it.

    Args:
        settings: Settings of the page.
        classes: Number of classes.
        vocabulary: Vocabulary of texts, if it is loaded.
        declared: Exposures declared public, with their reasons.
    """
    made = settings.mechanisms(classes, vocabulary)
    public = {name: why for name, why in declared.items() if name in made[0].guarantee.exposes}
    return [rung.to_dict() for rung in ladder_of(made, users=None, delta=settings.delta, public=public)]


def price(
    settings: Settings, classes: int, vocabulary: Vocabulary | None, declared: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fast part of one answer's cost: {"mechanisms", "worst_case", "delta", "limit", "words"}.

    It trusts nobody. `loss` computes the slow part, from the distribution of the loss. worst_case is the theorems' ε.
    limit is the largest share of right guesses of which of POOL sentences (or which class) it was; None if it takes
    longer. words has all of it as sentences.

    Args:
        settings: Settings of the page.
        classes: Number of classes.
        vocabulary: Vocabulary of texts, if it is loaded.
        declared: Exposures declared public, with their reasons.

    Raises:
        ValueError: A setting is invalid.
    """
    made = settings.mechanisms(classes, vocabulary)
    worst = math.fsum(m.guarantee.worst_case(declared=declared) for m in made)
    most = None if SLIDERS[settings.mechanism].slow else _limit(settings, made, classes)
    return {
        "mechanisms": [named(m) for m in made],
        "worst_case": worst,
        "delta": settings.delta,
        "limit": most,
        "words": [_worst(settings, made[0], worst)],
    }


def loss(
    settings: Settings, classes: int, vocabulary: Vocabulary | None, declared: Mapping[str, str]
) -> dict[str, Any]:
    """Return {"worst_case", "local", "metric", "limit", "words"} of one answer, by the distribution of its loss.

    local is the least proved ε at δ, trusting nobody. metric is the bound of two sentences. limit is that of a guess of
    a word, a class, or which of POOL sentences it was.

    Args:
        settings: Settings of the page.
        classes: Number of classes.
        vocabulary: Vocabulary of texts, if it is loaded.
        declared: Exposures declared public, with their reasons.

    Raises:
        ValueError: A setting is invalid.
    """
    made = settings.mechanisms(classes, vocabulary)
    rungs = rungs_of(settings, classes, vocabulary, declared)
    whole = next(r for r in rungs if r["rung"] == "record")
    worst, local = _infinite(whole["worst_case"]), _infinite(whole["epsilon"])
    most = _limit(settings, made, classes)
    return {
        "worst_case": worst,
        "local": local,
        "metric": whole["statement"] + _condition(made[0]),
        "limit": most,
        "words": _words(settings, made[0], worst, local, most, classes),
    }


def named(mechanism: Any) -> str:
    """Return a mechanism in words; for a text, its name, its ε and the most words."""
    if isinstance(mechanism, TextMechanism):
        word: Any = mechanism.word
        return f"{mechanism.name}, ε = {word.epsilon:g}, at most {mechanism.tokens} words"
    return described(mechanism)


def crowd(settings: Settings, classes: int) -> dict[str, Any]:
    """Return {"users", "epsilon", "words"} of one answer in a crowd; ε is None for a text."""
    if domain_of(settings) is Domain.TEXT:
        said = "What a crowd adds to a text: see the ladder of a protocol, below."
        return {"users": settings.users, "epsilon": None, "words": said}
    return dict(_crowd(tuple(settings.mechanisms(classes, None)), settings.users, settings.delta))


@lru_cache(maxsize=256)
def _crowd(released: tuple[Mechanism, ...], users: int, delta: float) -> dict[str, Any]:
    epsilon = amplify(released, users=users, delta=delta, lower_bounded=False, bracketed=False).epsilon
    said = (
        f"Hidden among {users:,} users, with names and order taken off by an honest shuffler: ε = "
        f"{shown(epsilon)} at δ = {small(delta)}. What you sent makes what the server sees at most {_times(epsilon)} "
        "likelier."
    )
    return {"users": users, "epsilon": epsilon, "words": said}


def curve(settings: Settings, classes: int, vocabulary: Vocabulary | None, *, seconds: float) -> dict[str, Any]:
    """Return {"epsilon": [...], "limit": [...]}: the theorem's bound of any guess, as ε rises.

    Each call computes at least one more point, and keeps it. Points beyond the time limit are None.

    Args:
        settings: Settings of the page.
        classes: Number of classes.
        vocabulary: Vocabulary of texts, if it is loaded.
        seconds: Time limit.
    """
    slider = SLIDERS[settings.mechanism]
    delta = settings.delta if slider.calibrated else Settings.delta
    alone = replace(settings, epsilon=0.0, users=1, delta=delta, rounds=1, records=1)
    known = _points(alone, classes, vocabulary)
    end = time.monotonic() + seconds
    for epsilon in slider.curve:
        if epsilon not in known:
            at = alone.at(epsilon)
            known[epsilon] = _limit(at, at.mechanisms(classes, vocabulary), classes)
            if time.monotonic() >= end:
                break
    return {"epsilon": list(slider.curve), "limit": [known.get(e) for e in slider.curve]}


@lru_cache(maxsize=64)
def _points(settings: Settings, classes: int, vocabulary: Vocabulary | None) -> dict[float, float]:
    """Return the known bounds, by ε."""
    return {}


def _limit(settings: Settings, made: list[Mechanism], classes: int) -> float:
    """Return the bound of a guess of a word, a class, or which of POOL sentences it was."""
    first: Any = made[0]
    if domain_of(settings) is Domain.TEXT:
        return word_limit(first)
    # a label beside it may reveal the sentence too
    beside = sum(label.guarantee.worst_case() for label in made[1:])
    return uniform_limit(first, _candidates(settings, classes)[0], beside=beside)


def blind(settings: Settings, classes: int, vocabulary: Vocabulary | None) -> float:
    """Return the share of right guesses without any release."""
    if domain_of(settings) is Domain.TEXT and vocabulary is not None:
        return float(unigram(vocabulary).max())
    return 1 / _candidates(settings, classes)[0]


def _candidates(settings: Settings, classes: int) -> tuple[int, str]:
    """Return the number of values among which a guess is made, also in words."""
    return (classes, f"{classes} classes") if domain_of(settings) is Domain.CLASSES else (POOL, f"{POOL} sentences")


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
    compared = _WHATEVER[settings.channel].replace("TIMES", _times(worst))
    return (
        f"Worst case: ε = {shown(worst)}{_condition(mechanism)}. {compared} than from any other. Nobody else has to be "
        "trusted for that."
    )


def _condition(mechanism: Mechanism) -> str:
    """Return the condition of a finite ε, of whose exposures all are declared public."""
    return condition(EXPOSURES[name] for name in mechanism.guarantee.exposes)


def _words(
    settings: Settings, mechanism: Mechanism, worst: float, local: float, most: float, classes: int
) -> list[str]:
    """Return the lines below that of the worst case."""
    if math.isinf(local):
        return []
    lines = []
    if shown(local) != shown(worst):
        lines.append(
            f"Nearly always: ε = {shown(local)}, except with a chance of δ = {small(settings.delta)}"
            f"{_condition(mechanism)}. This is the exact loss of the most different pair of sentences."
        )
    else:
        said = f"ε = {shown(local)}{_condition(mechanism)}"
        lines.append(f"At δ = {small(settings.delta)} there is nothing to gain: {said}.")
    if domain_of(settings) is not Domain.TEXT:
        among = _candidates(settings, classes)[1]
        lines.append(
            f"A guess at which of {among} it was is right in at most {most:.1%} of cases, whatever the server computes."
        )
    return lines


def _times(epsilon: float) -> str:
    """Return e^ε in words."""
    if epsilon > 700:
        return f"e{_raised(round(epsilon))} times"
    times = math.exp(epsilon)
    if times < 1.1:
        return f"{times - 1:.2%}"
    if times < 100:
        return f"{times:.3g} times"
    if times < 1e6:
        return f"{times:,.0f} times"
    exponent = math.floor(math.log10(times))
    if exponent < 15:
        named = {2: "million", 3: "billion", 4: "trillion"}[exponent // 3]
        return f"{times / 1000 ** (exponent // 3):.3g} {named} times"
    return f"{times / 10**exponent:.1f}·10{_raised(exponent)} times"


def small(delta: float) -> str:
    """Return δ in the form 10⁻⁶."""
    exponent = math.floor(math.log10(delta) + 1e-9)
    first = delta / 10.0**exponent
    return f"10{_raised(exponent)}" if abs(first - 1) < 1e-9 else f"{first:.3g}·10{_raised(exponent)}"


def _raised(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _infinite(value: Any) -> float:
    return math.inf if value == "inf" else float(value)

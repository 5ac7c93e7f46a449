"""Declarations of mechanisms: complete for the catalogue, with defaults for mechanisms of other packages."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import pytest

from mechanisms.catalogue import CATALOGUE
from mechanisms.facts import Facts, Pair, Slider, facts_of, tried, usual
from mechanisms.plugin import OwnMechanism
from sottovoce.contracts.cases import small_vocabulary

WORDS = small_vocabulary()


@dataclass(frozen=True)
class Plain(OwnMechanism):
    epsilon: float
    classes: int
    width: int = 3

    metric: ClassVar[str] = "discrete"


@dataclass(frozen=True)
class Demanding(Plain):
    strength: float = 0.0
    facts: ClassVar[Facts] = Facts(tried={"strength": (0.0, 1.0)}, usual={"epsilon": 2.0})


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=lambda kind: kind.name)
def test_the_catalogue_declares_a_pair_and_values_of_every_parameter(kind: type[Any]) -> None:
    facts = facts_of(kind)
    assert facts.pair is not Pair.SEARCHED and all(name in facts.tried for name in usual(kind))
    assert set(facts.tried) | {"vocabulary"} >= {f.name for f in fields(kind)}
    if isinstance(facts.slider, Slider):
        curve = facts.slider.curve
        assert facts.label and list(curve) == sorted(set(curve)) and curve[0] <= facts.slider.usual <= curve[-1]
    else:
        assert facts.slider.reason.startswith("wh") and not facts.slider.reason.endswith(".")


def test_a_mechanism_without_a_declaration_has_the_usual_values() -> None:
    assert usual(Plain) == {"epsilon": 1.0, "classes": 10}
    assert tried(Plain, WORDS) == {"epsilon": (0.5, 10.0), "classes": (2, 12)}


def test_what_is_declared_stands_in_place_of_the_usual_values_and_beside_them() -> None:
    assert usual(Demanding) == {"epsilon": 2.0, "classes": 10}
    assert tried(Demanding, WORDS) == {"epsilon": (0.5, 10.0), "classes": (2, 12), "strength": (0.0, 1.0)}
    assert list(tried(CATALOGUE["santext+"], WORDS)) == ["epsilon", "vocabulary", "w", "p"]


def test_what_is_no_declaration_or_names_no_parameter_is_one_line() -> None:
    wrong = type("Wrong", (Plain,), {"facts": {"pair": Pair.LABELS}, "name": "wrong"})
    with pytest.raises(ValueError, match=r"^wrong: its facts are a dict, and must be Facts$"):
        usual(wrong)
    other = dataclass(frozen=True)(type("Other", (Plain,), {"facts": Facts(tried={"w": (1,)}), "name": "other"}))
    with pytest.raises(ValueError, match=r"^other: its facts name w, which is no parameter"):
        tried(other, WORDS)


@pytest.mark.parametrize("empty", [{"audits": ()}, {"tried": {"epsilon": ()}}, {"few_words": {"width": ()}}])
def test_a_declaration_that_leaves_nothing_to_test_is_refused(empty: dict[str, Any]) -> None:
    kind = dataclass(frozen=True)(type("Idle", (Plain,), {"facts": Facts(**empty), "name": "idle"}))
    with pytest.raises(ValueError, match=r"^idle: its facts list nothing under \w+, and a test without"):
        facts_of(kind)

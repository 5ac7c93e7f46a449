"""Class i of one corpus is class i of another only where somebody has said so, or the names do."""

from __future__ import annotations

import pytest

from simulations.corpora.builtin import GENRES, SENTIMENTS
from simulations.corpora.classes import described, matched
from simulations.errors import UserError


def test_names_and_published_numbers_say_it_and_no_order_does() -> None:
    assert matched(("0", "1"), SENTIMENTS, None) == {"0": "negative", "1": "positive"}
    assert matched(("1", "0"), SENTIMENTS, None) == {"1": "positive", "0": "negative"}
    assert matched(("Positive", "Negative"), SENTIMENTS, None) == {"Positive": "positive", "Negative": "negative"}
    shuffled = sorted(GENRES)
    assert matched(shuffled, GENRES, None) == {name: name for name in shuffled}


@pytest.mark.parametrize(
    "names",
    [
        ("favourable", "unfavourable"),
        ("1", "2"),
        ("-1", "1"),
        ("bad", "positive"),
        ("negative", "neutral", "positive"),
        ("positive", "Positive"),
    ],
)
def test_other_names_are_asked_about(names: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"data.public\.classes: is missing: .* which is which") as caught:
        matched(names, SENTIMENTS, None)
    assert "\n" not in str(caught.value)


def test_what_is_said_counts_and_must_say_all() -> None:
    said = {"unfavourable": "negative", "favourable": "positive"}
    assert matched(("favourable", "unfavourable"), SENTIMENTS, said) == said
    turned = {"0": "positive", "1": "negative"}
    assert matched(("0", "1"), SENTIMENTS, turned) == turned  # somebody's own data may mean it
    for bad in (
        {"favourable": "positive"},
        said | {"so": "so"},
        {"unfavourable": "negative", "favourable": "good"},
        {"unfavorable": "negative", "favourable": "positive"},
    ):
        with pytest.raises(UserError, match=r"data\.public\.classes: must name each class once"):
            matched(("favourable", "unfavourable"), SENTIMENTS, bad)


@pytest.mark.parametrize(
    "classes, texts",
    [
        (("card_arrival", "Refund-not_showing"), [("card arrival",), ("Refund not showing",)]),
        (("negative", "positive"), [("negative",), ("positive",)]),
        (("0", "1"), None),
        (("class 1", "class 2"), None),
        (("label_a", "label_b"), None),
        (("x", "y"), None),
        (("sports", "7"), None),
    ],
)
def test_names_of_words_describe_classes(classes, texts) -> None:
    assert described(classes, "names", numbers=False, pairs=False) == texts
    for nothing in ({"numbers": True, "pairs": False}, {"numbers": False, "pairs": True}):
        assert described(classes, "names", **nothing) is None
    assert described(classes, "none", numbers=False, pairs=False) is None


def test_a_table_describes_each_class_once() -> None:
    said = {"1": ("great", "good"), "0": ("terrible",)}
    assert described(("0", "1"), said, numbers=False, pairs=False) == [("terrible",), ("great", "good")]
    with pytest.raises(UserError, match=r"data\.class-descriptions: must name each class once: the data have 0, 1, 2"):
        described(("0", "1", "2"), said, numbers=False, pairs=False)

"""Nobody is kept out: axe-core finds no serious fault on any view of the page, light and dark, narrow and wide."""

from __future__ import annotations

from itertools import product

import pytest

from tests.sottovoce.explore.conftest import Person
from tests.support.axe import faults, needs_axe
from tests.support.browser import CHROMIUM
from tests.support.exploring import TEXT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian's package of that name)"),
    needs_axe,
]
VIEWS = list(product(("light", "dark"), (360, 1920)))
#: All that is folded away, and a term's meaning.
OPEN = """
for (const one of document.querySelectorAll("details")) one.open = true;
document.querySelector(".term").focus();
"""


def seen(person: Person) -> dict[str, list[list[str]]]:
    """What is wrong with what stands there now, by view."""
    person.settles()
    person.does(OPEN)
    found = {}
    for theme, pixels in VIEWS:
        person.browser.theme(theme)
        person.browser.width(pixels)
        if wrong := faults(person.browser):
            found[f"{theme}, {pixels}"] = wrong
    return found


def test_a_page_on_which_nothing_was_typed(person: Person) -> None:
    assert seen(person) == {}


@pytest.mark.parametrize(
    "channel", ["embedding", "text", *(pytest.param(name, marks=pytest.mark.soak) for name in ("statistic", "label"))]
)
def test_what_might_leave_and_what_has_left(channel: str, person: Person) -> None:
    person.types(TEXT)
    person.chooses(channel)
    person.slides("epsilon", 2)
    if channel == "embedding":
        person.slides("dim", 1)  # the sphere, which can be turned
    assert seen(person) == {}
    person.clicks("send", "Sent: ")
    assert seen(person) == {}


def test_what_is_refused(person: Person) -> None:
    person.types(TEXT)
    person.slides("epsilon", 20)
    person.clicks("send", "Refused: nothing left.")
    assert seen(person) == {}


def test_what_is_marked_as_old(person: Person) -> None:
    person.types(TEXT)
    person.settles()
    person.does(
        "for (const id of ['out', 'words', 'account']) document.getElementById(id).setAttribute('aria-busy', 'true')"
    )
    for theme, pixels in VIEWS:
        person.browser.theme(theme)
        person.browser.width(pixels)
        assert faults(person.browser) == []


@pytest.mark.parametrize(("theme", "colour"), [("light", "#999"), ("dark", "#555")])
def test_a_planted_fault_is_found(theme: str, colour: str, person: Person) -> None:
    person.browser.theme(theme)
    person.settles()
    person.does(
        "const button = document.createElement('button'), pale = document.createElement('p'); "
        f"pale.textContent = 'pale'; pale.style.color = '{colour}'; "
        "document.querySelector('main').append(button, pale)"
    )
    assert {"button-name", "color-contrast"} <= {rule for rule, *_ in faults(person.browser)}

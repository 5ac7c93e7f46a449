"""Draws the pictures of docs/how-to/explore.md, as a person sees the page: `python docs/explore_picture.py [NAME...]`.

Headless Chromium is needed. What leaves is drawn anew each time, so a picture differs a little from the last one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from sottovoce.explore.serve import explorer, serving  # noqa: E402
from tests.support.browser import CHROMIUM, Browser, chromium  # noqa: E402

FIGURES = ROOT / "docs" / "figures"
SENTENCE = "The soup was wonderful, but the waiter was rude to my mother."
#: Colours that are kept: text and dots need no more. Pixels of the first picture's height.
COLOURS, HEIGHT = 128, 1060
_CHANGE = """(() => {
  const element = document.getElementById(PLACE);
  element.value = VALUE;
  element.dispatchEvent(new Event(element.tagName === "SELECT" ? "change" : "input"));
})()"""


class Person:
    """What is done at the page, step by step."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    def changes(self, place: str, value: object) -> None:
        self.browser.evaluate(_CHANGE.replace("PLACE", json.dumps(place)).replace("VALUE", json.dumps(value)))

    def chooses(self, channel: str) -> None:
        self.browser.evaluate(f"document.querySelector('input[value={channel}]').click()")

    def clicks(self, button: str, then: str) -> None:
        self.settles()
        self.browser.evaluate(f"document.getElementById('{button}').click()")
        self.browser.wait(f"document.body.innerText.includes({json.dumps(then)})")

    def settles(self) -> None:
        """Until all figures are there."""
        self.browser.wait("performance.getEntriesByName('whole').length > 0")
        self.browser.wait("document.querySelectorAll('[aria-busy]').length === 0")


def sphere(person: Person) -> None:
    """A point on a sphere has left."""
    person.changes("s-dim", 1)
    person.changes("s-epsilon", 4)
    person.browser.wait("document.querySelector('#out svg')?.getAttribute('aria-label').startsWith('A sphere')")
    person.clicks("send", "Sent: ")


def words(person: Person) -> None:
    """A text has left, word by word."""
    person.chooses("text")
    person.changes("s-epsilon", 10)
    person.clicks("send", "Sent: ")
    person.browser.wait("document.getElementById('inferred').innerText.includes('of the first guesses')")


def refused(person: Person) -> None:
    """A question that the policy refuses."""
    person.changes("s-epsilon", 20)
    person.clicks("send", "Refused: nothing left.")


#: By name: what is done, how wide the window is, what of the page is kept (CSS), and the theme.
PICTURES: dict[str, tuple[Callable[[Person], None], int, str, str]] = {
    "explore": (sphere, 1280, ".three", "light"),
    "explore-words": (words, 1280, ".three", "dark"),
    "explore-refused": (refused, 360, "#leaves, #ledger", "light"),
}


def picture(name: str, browser: Browser, folder: Path) -> Path:
    """One of PICTURES, of a page that has just been opened, as a PNG."""
    done, width, kept, theme = PICTURES[name]
    browser.theme(theme)
    browser.width(width)
    person = Person(browser)
    person.changes("sentence", SENTENCE)
    done(person)
    person.settles()
    seen = Image.open(BytesIO(browser.picture())).convert("RGB")
    boxes = browser.evaluate(
        f"[...document.querySelectorAll({json.dumps(kept)})].map(one => {{ const b = one.getBoundingClientRect(); "
        "return [b.top + scrollY, b.bottom + scrollY]; })"
    )
    parts = [seen.crop((0, max(0, int(top) - 8), seen.width, int(bottom) + 8)) for top, bottom in boxes]
    if name == "explore":  # with the head of the page
        parts = [seen.crop((0, 0, seen.width, min(HEIGHT, int(boxes[0][1]) + 8)))]
    whole = Image.new("RGB", (seen.width, sum(part.height for part in parts)))
    at = 0
    for part in parts:
        whole.paste(part, (0, at))
        at += part.height
    place = folder / f"{name}.png"
    few = whole.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(place, "PNG", optimize=True)
    return place


def draw(names: list[str], folder: Path) -> list[Path]:
    """Pictures by their names, each of a page and a ledger of its own."""
    drawn = []
    for name in names:
        with explorer() as shown, tempfile.TemporaryDirectory() as profile, serving(shown) as address:
            shown.loading.world()
            with chromium(Path(profile)) as browser:
                browser.open(address)
                browser.wait("performance.getEntriesByName('ready').length > 0")
                drawn.append(picture(name, browser, folder))
    return drawn


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.exit("chromium is not installed (Debian's package of that name)")
    chosen = sys.argv[1:] or list(PICTURES)
    if unknown := [name for name in chosen if name not in PICTURES]:
        sys.exit(f"{unknown[0]}: no such picture; there are {', '.join(PICTURES)}")
    for place in draw(chosen, FIGURES):
        print(place)

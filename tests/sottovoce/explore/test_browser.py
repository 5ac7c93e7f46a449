"""A person at the page, in headless Chromium: types, slides, sends, is refused; and nothing leaves or complains."""

from __future__ import annotations

import base64
import time
from itertools import pairwise

import pytest

from sottovoce.explore.settings import MECHANISMS
from tests.sottovoce.explore.conftest import Person
from tests.support.browser import CHROMIUM
from tests.support.exploring import TEXT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian's package of that name)"),
]
SCRIPT = '<script>document.title = "run"</script><img src="x" onerror="document.title = \'run\'"><b>film</b>'


def test_a_sentence_is_typed_sent_sent_again_and_refused(person: Person) -> None:
    person.types(TEXT)
    person.browser.wait("document.querySelectorAll('#out svg .truth').length > 0")
    assert "Nothing has left yet" in person.reads("out") and "Nothing has left" in person.reads("inferred")
    person.clicks("send", "Sent: 32 bytes")
    assert "The bytes themselves: 32" in person.reads("out")
    assert "the theorem's limit" in person.reads("inferred")
    person.clicks("send", "Sent again: the same bytes, at no cost.")
    person.clicks("again", "Round 2")
    person.browser.wait("document.getElementById('account').innerText.includes('explore-2')")
    assert "37.7 of 800 is spent, without what is declared public, in 2 of 50" in person.reads("account")
    person.clicks("again", "Refused: nothing left.")
    assert "what is left of the policy's budget does not cover the request" in person.reads("out")
    assert "in 2 of 50" in person.reads("account")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("channel", "there"), [("text", "your word"), ("statistic", "One vector left"), ("label", "leaves with")]
)
def test_every_channel_is_shown(channel: str, there: str, person: Person) -> None:
    person.types(TEXT)
    person.chooses(channel)
    person.slides("epsilon", 2)
    person.clicks("send", "Sent: ")
    person.browser.wait(f"document.getElementById('out').innerText.toLowerCase().includes('{there.lower()}')")


@pytest.mark.soak
@pytest.mark.parametrize(("place", "drawn"), [(0, "A circle with 200"), (1, "A sphere with 200"), (2, "4 coordinates")])
def test_few_coordinates_are_drawn_as_what_they_are(place: int, drawn: str, person: Person) -> None:
    person.types(TEXT)
    person.slides("dim", place)
    person.browser.wait(f"document.querySelector('#out svg')?.getAttribute('aria-label').startsWith('{drawn}')")


@pytest.mark.soak
def test_all_is_done_without_a_mouse(person: Person) -> None:
    """Tab reaches every control in its order, keys type, slide and send; a term is explained when it has the focus."""
    person.browser.press("Tab", "Tab")
    assert person.browser.evaluate("document.activeElement.id") == "sentence"
    person.browser.write("the film was good")
    seen = []
    while person.browser.evaluate("document.activeElement.id") != "s-epsilon":
        person.browser.press("Tab")
        seen.append(person.browser.evaluate("document.activeElement.className || document.activeElement.name"))
        assert len(seen) < 12
    assert "label" in seen and "channel" in seen and "term" in seen
    person.browser.press("ArrowRight")
    assert person.browser.evaluate("document.getElementById('s-epsilon').value") == "6.5"
    person.does("document.querySelector('.term').focus()")
    assert person.browser.evaluate("getComputedStyle(document.querySelector('.term .tip')).display") == "block"
    person.does("document.getElementById('sentence').focus()")
    person.browser.press("Enter")
    person.browser.wait("document.getElementById('status').innerText.startsWith('Sent: ')")


@pytest.mark.soak
def test_who_hears_the_page_hears_all_of_it(person: Person) -> None:
    """Every control and every picture has a name, and headings go down one level at a time."""
    person.types(TEXT)
    person.clicks("send", "Sent: ")
    nodes = person.browser.ask("Accessibility.getFullAXTree")["nodes"]
    said = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")]
    named = {"button", "textbox", "slider", "radio", "checkbox", "combobox", "spinbutton", "link", "image", "region"}
    controls = [(role, name) for role, name in said if role in named]
    assert len(controls) > 20 and [role for role, name in controls if not name.strip()] == []
    levels = person.browser.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(head => Number(head.tagName[1]))")
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.soak
def test_it_prints(person: Person) -> None:
    person.types(TEXT)
    person.clicks("send", "Sent: ")
    printed = base64.b64decode(person.browser.ask("Page.printToPDF")["data"])
    assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") <= 8


@pytest.mark.soak
@pytest.mark.parametrize("channel", MECHANISMS)
def test_each_slide_is_answered_and_measured(channel: str, person: Person) -> None:
    """Twelve, each of an ε that was not asked for before, until it is seen. That it takes a tenth of a second on two
    quiet cores `benchmarks.explore --slides` shows."""
    person.types(TEXT)
    person.chooses(channel)
    person.slides("epsilon", 0.5)
    person.does("performance.clearMeasures()")
    for number in range(12):
        person.slides("epsilon", 1 + number / 2)
    times = sorted(person.browser.evaluate("performance.getEntriesByName('slide').map(one => one.duration)"))
    assert len(times) >= 12 and times[0] > 0


#: Answers that take longer than a slide come later still: the question, and what it says of ε.
SLOWLY = """
const real = window.fetch;
window.fetch = async (where, how) => {
  const slow = ["loss", "ledger"].some(name => String(where).endsWith(name));
  if (slow) await new Promise(done => setTimeout(done, 300));
  return real(where, how);
};
"""


@pytest.mark.soak
def test_no_number_of_another_epsilon_stands_there_unmarked(person: Person) -> None:
    """While answers are on their way: what was there is marked as old, and answers of another ε are not taken."""
    marked = "[...document.querySelectorAll('[aria-busy]')].map(one => one.id)"
    person.types(TEXT)
    person.slides("epsilon", 2)
    settled = f"{marked}.length === 0 && !document.getElementById('words').innerText.includes('…')"
    person.browser.wait(settled)
    person.does(SLOWLY)
    before = person.reads("words")
    assert "Worst case: ε = 6.283" in before and "Nearly always: ε = " in before
    person.slides("epsilon", 4)
    assert "account" in person.browser.evaluate(marked)
    assert "Worst case: ε = 12.57" in person.reads("words") and "small δ: ε = …" in person.reads("words")
    assert "…" in person.does("return getComputedStyle(document.getElementById('account'), '::after').content")
    person.browser.wait(settled)
    # asked at 3, answered when 5 is chosen already
    person.slides("epsilon", 3)
    time.sleep(0.4)
    person.slides("epsilon", 5)
    person.browser.wait(settled)
    assert "Worst case: ε = 15.71" in person.reads("words")
    alone = person.reads("words")
    person.opens()
    person.types(TEXT)
    person.slides("epsilon", 5)
    person.browser.wait(settled)
    assert person.reads("words") == alone


def test_a_script_in_a_sentence_is_shown_and_not_run(person: Person) -> None:
    person.types(SCRIPT)
    person.clicks("send", "Sent: ")
    assert person.browser.evaluate("document.title").startswith("What leaves")
    person.chooses("text")
    person.slides("epsilon", 2)
    person.clicks("send", "Sent: ")
    assert person.browser.evaluate("document.querySelectorAll('#leaves b, main img, main script').length") == 0


@pytest.mark.soak
@pytest.mark.parametrize("pixels", [360, 768, 1920])
def test_no_page_is_wider_than_its_screen(pixels: int, person: Person) -> None:
    person.browser.width(pixels)
    person.types("averylongwordwithoutanyspace" * 20)
    person.clicks("send", "Sent: ")
    assert person.browser.evaluate("innerWidth") == pixels
    assert person.browser.evaluate("document.documentElement.scrollWidth") <= pixels

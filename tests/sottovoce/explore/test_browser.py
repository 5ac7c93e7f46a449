"""A person at the page, in headless Chromium: types, slides, sends, is refused; and nothing leaves or complains."""

from __future__ import annotations

import time

import pytest

from tests.sottovoce.explore.conftest import TEXT, Person
from tests.support.axe import faults, needs_axe
from tests.support.browser import CHROMIUM

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
@needs_axe
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_core_finds_no_serious_fault(theme: str, person: Person) -> None:
    """On the page of a sentence that was sent, unfolded, narrow and wide."""
    person.browser.theme(theme)
    person.types(TEXT)
    person.clicks("send", "Sent: ")
    person.browser.wait("document.querySelectorAll('[aria-busy]').length === 0")
    person.does('for (const part of document.querySelectorAll("details")) part.open = true;')
    for pixels in (360, 1920):
        person.browser.width(pixels)
        assert faults(person.browser) == []
        assert person.browser.evaluate("document.documentElement.scrollWidth") <= pixels

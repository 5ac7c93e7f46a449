"""A person at the page, in headless Chromium: types, slides, sends, is refused; and nothing leaves or complains."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sottovoce.explore.service import explorer, serving
from sottovoce.explore.world import World
from tests.sottovoce.explore.conftest import TEXT
from tests.support.browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian's package of that name)"),
]
SCRIPT = '<script>document.title = "run"</script><img src="x" onerror="document.title = \'run\'"><b>film</b>'


@pytest.fixture
def page(browser: Browser, world: World) -> Iterator[Browser]:
    """The open page."""
    browser.complaints.clear()
    browser.requested.clear()
    with explorer(world) as shown, serving(shown) as address:
        browser.open(address)
        browser.wait("performance.getEntriesByName('ready').length > 0")
        yield browser
        asked, complaints = list(browser.requested), list(browser.complaints)
        browser.open("about:blank")  # or what it still asks would be the next one's
    assert all(where.startswith(address) for where in asked) and not complaints, (asked, complaints)


def change(page: Browser, place: str, value: str | float) -> None:
    element = f"document.getElementById('{place}')"
    page.evaluate(f"(() => {{ {element}.value = {json.dumps(value)}; {element}.dispatchEvent(new Event('input')) }})()")


def click(page: Browser, button: str, then: str) -> None:
    page.wait(f"!document.getElementById('{button}').disabled")
    page.evaluate(f"document.getElementById('{button}').click()")
    page.wait(f"document.body.innerText.includes({json.dumps(then)})")


def text_of(page: Browser, place: str) -> str:
    return str(page.evaluate(f"document.getElementById('{place}').innerText"))


def test_a_sentence_is_typed_sent_sent_again_and_refused(page: Browser) -> None:
    change(page, "sentence", TEXT)
    page.wait("document.querySelectorAll('#out svg .truth').length > 0")
    assert "Nothing has left yet" in text_of(page, "out") and "Nothing has left" in text_of(page, "inferred")
    click(page, "send", "Sent: 32 bytes")
    assert "The bytes themselves: 32" in text_of(page, "out") and "the theorem's limit" in text_of(page, "inferred")
    click(page, "send", "Sent again: the same bytes, at no cost.")
    click(page, "again", "Round 2")
    page.wait("document.getElementById('account').innerText.includes('explore-2')")
    spent = "37.7 of 800 is spent, without what is declared public, in 2 of 50"
    assert spent in text_of(page, "account")
    click(page, "again", "Refused: nothing left.")
    assert "what is left of the policy's budget does not cover the request" in text_of(page, "out")
    assert spent in text_of(page, "account")


def test_a_script_in_a_sentence_is_shown_and_not_run(page: Browser) -> None:
    change(page, "sentence", SCRIPT)
    for channel in ("embedding", "text"):
        page.evaluate(f"document.querySelector('input[value={channel}]').click()")
        change(page, "s-epsilon", 2)
        click(page, "send", "Sent: ")
    assert page.evaluate("document.title").startswith("What leaves")
    assert page.evaluate("document.querySelectorAll('#leaves b, main img, main script').length") == 0

"""The report in a browser: nothing leaves, nothing complains, tables sort, and no page is wider than its screen."""

from __future__ import annotations

import base64
from itertools import product
from pathlib import Path

import pytest

from sottovoce.report.write import report
from tests.sottovoce.report.test_report import attacked, folder, results
from tests.support.axe import faults, needs_axe
from tests.support.browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian's package of that name)"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two runs, with attacks, and with an arm whose name is one long word."""
    place = tmp_path_factory.mktemp("report")
    long = results("b")
    long["arms"][2]["name"] = "averylongnamewithoutanyspace" * 2
    runs = [folder(place / "a", results(), attacked("Purkayastha, ε = 10")), folder(place / "b", long)]
    return report(runs, place / "report.html")[0]


def test_no_request_leaves_and_nothing_complains(browser: Browser, page: Path) -> None:
    browser.complaints.clear()
    browser.requested.clear()
    browser.open(page)
    assert browser.requested == [page.as_uri()] and not browser.complaints
    assert browser.evaluate("document.compatMode") == "CSS1Compat"


def test_what_leaves_or_complains_is_seen(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text('<!DOCTYPE html><img src="http://example.invalid/a.png"><script>nothing()</script>')
    browser.open(bad)
    assert "http://example.invalid/a.png" in browser.requested
    assert any("nothing is not defined" in said for said in browser.complaints)


@pytest.mark.parametrize("pixels", [360, 1024, 1920])
def test_no_page_is_wider_than_its_screen(pixels: int, browser: Browser, page: Path) -> None:
    browser.width(pixels)
    browser.open(page)
    assert browser.evaluate("innerWidth") == pixels
    assert browser.evaluate("document.documentElement.scrollWidth") <= pixels


def test_a_wider_page_is_seen(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "wide.html"
    bad.write_text('<!DOCTYPE html><meta name="viewport" content="width=device-width"><p style="width: 500px">wide')
    browser.width(360)
    browser.open(bad)
    assert browser.evaluate("document.documentElement.scrollWidth") > 360


def test_tables_sort_by_number_and_by_name(browser: Browser, page: Path) -> None:
    browser.open(page)
    table = '[...document.querySelectorAll("table.sorts")].find(t => t.caption.textContent.startsWith("Accuracy"))'
    click = "{}.tHead.rows[0].cells[{}].querySelector('button').click()"
    column = "[...{}.tBodies[0].rows].map(row => row.cells[{}].textContent)"
    browser.evaluate(click.format(table, 2))
    rising = browser.evaluate(column.format(table, 2))
    assert rising == sorted(rising, key=lambda cell: float(cell.split()[0])) and len(rising) == 6
    browser.evaluate(click.format(table, 2))
    falling = browser.evaluate(column.format(table, 2))
    assert [cell.split()[0] for cell in falling] == [cell.split()[0] for cell in reversed(rising)]
    assert browser.evaluate(f"{table}.tHead.rows[0].cells[2].getAttribute('aria-sort')") == "descending"
    priced = table.replace("Accuracy", "All arms")
    browser.evaluate(click.format(priced, 2))  # ε: what has no number, since nothing is promised, stands last
    assert browser.evaluate(column.format(priced, 2))[-1].startswith("none: something leaves")


def test_values_stand_under_the_pointer(browser: Browser, page: Path) -> None:
    browser.width(1024)
    browser.open(page)
    at = browser.evaluate(
        "(() => { const g = document.querySelector('g[id*=told-]'); g.scrollIntoView({block: 'center'}); "
        "const b = g.getBoundingClientRect(); "
        "const hit = document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2); "
        "return hit.closest('g[id*=told-]').querySelector('title').textContent })()"
    )
    assert ": 0.310 (0.200 to 0.400), the theorem allows 0.800" in at


@needs_axe
def test_axe_core_finds_no_fault(browser: Browser, page: Path, tmp_path: Path) -> None:
    for theme, pixels in product(("light", "dark"), (360, 1920)):
        browser.theme(theme)
        browser.width(pixels)
        browser.open(page)
        assert faults(browser, all_of_them=True) == [], (theme, pixels)
    bad = tmp_path / "bad.html"
    bad.write_text('<!DOCTYPE html><title>a</title><p style="color: #ccc">pale</p><img src="data:image/png;base64,">')
    browser.theme("light")
    browser.open(bad)
    assert {"html-has-lang", "color-contrast", "image-alt"} <= {rule for rule, *_ in faults(browser)}


def test_prints_to_a_pdf(browser: Browser, page: Path) -> None:
    browser.open(page)
    printed = base64.b64decode(browser.ask("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") <= 30

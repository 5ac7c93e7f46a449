"""The report in a browser: nothing leaves, nothing complains, and tables sort."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.report.write import report
from tests.sottovoce.report.test_report import ONE, attacked, folder, results
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
    runs = [folder(place / "a", results(), attacked(ONE)), folder(place / "b", long)]
    return report(runs, place / "report.html")[0]


def test_no_request_leaves_and_tables_sort_by_number_and_by_name(browser: Browser, page: Path) -> None:
    browser.complaints.clear()
    browser.requested.clear()
    browser.open(page)
    assert browser.requested == [page.as_uri()] and not browser.complaints
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

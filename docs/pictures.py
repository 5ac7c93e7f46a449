"""Draw the pictures of the explore page and of a report: `python docs/pictures.py explore`, or `... report RUN...`.

Headless Chromium is needed. A picture shows the top of the page. What leaves is drawn anew each time.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from sottovoce.explore.service import explorer, serving  # noqa: E402
from sottovoce.explore.world import builtin_world  # noqa: E402
from sottovoce.report.write import report  # noqa: E402
from tests.support.browser import CHROMIUM, Browser, chromium  # noqa: E402

SENTENCE = "The soup was wonderful, but the waiter was rude to my mother."
#: Colours that are kept: text and dots need no more.
COLOURS = 128
_SET = """(() => {
  const element = document.getElementById(PLACE);
  element.value = VALUE;
  element.dispatchEvent(new Event(element.tagName === "SELECT" ? "change" : "input"));
})()"""


def keep(browser: Browser, name: str, height: int) -> None:
    """Write the top of the open page as a PNG."""
    size = browser.ask("Page.getLayoutMetrics")["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    data = browser.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
    picture = Image.open(BytesIO(base64.b64decode(data))).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(height, picture.height)))
    picture = picture.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    picture.save(ROOT / "docs" / "figures" / f"{name}.png", "PNG", optimize=True)


def widen(browser: Browser, width: int) -> None:
    """Give the window the width of a screen, which prefers light pages."""
    browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])


def explore() -> None:
    """Draw the explore page after a point on a sphere has left."""
    with (
        explorer(builtin_world()) as page,
        tempfile.TemporaryDirectory() as profile,
        serving(page) as address,
        chromium(Path(profile)) as browser,
    ):
        widen(browser, 1280)
        browser.open(address)
        browser.wait("performance.getEntriesByName('ready').length > 0")
        for place, value in (("sentence", SENTENCE), ("s-dim", 1), ("s-epsilon", 4)):
            browser.evaluate(_SET.replace("PLACE", json.dumps(place)).replace("VALUE", json.dumps(value)))
        browser.wait("document.querySelector('#out svg')?.getAttribute('aria-label').startsWith('A sphere')")
        browser.wait("!document.querySelector('[aria-busy]')")
        browser.evaluate("document.getElementById('send').click()")
        browser.wait("document.body.innerText.includes('Sent: ')")
        keep(browser, "explore", 1060)


def reports(runs: list[str]) -> None:
    """Draw the report of finished runs or sweeps."""
    with tempfile.TemporaryDirectory() as place, chromium(Path(place) / "profile") as browser:
        widen(browser, 1024)
        browser.open(report(runs, Path(place) / "report.html")[0])
        keep(browser, "report-1024", 1300)


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.exit("chromium is not installed (Debian's package of that name)")
    match sys.argv[1:]:
        case ["explore"]:
            explore()
        case ["report", *runs] if runs:
            reports(runs)
        case _:
            sys.exit("name explore, or report and the folders of finished runs or sweeps")

"""Draw a picture of the pages: `python docs/pictures.py explore`, `... papers`, or `... report RUN...`.

Headless Chromium is needed for explore and report. Their picture shows the top of a page; what leaves is drawn anew
each time. The picture of papers shows the numbers of the table in docs/papers.md.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from simulations.output.figures import COLOURS as LINES  # noqa: E402
from simulations.output.figures import MARKERS, new_figure, save  # noqa: E402
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


def papers() -> None:
    """Draw the numbers of the papers and ours, a point for each, by the paper."""
    points: dict[str, list[tuple[float, float]]] = {}
    for line in (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 6 or not re.search(r"\d", cells[2]):
            continue
        theirs, ours = (
            [float(number.replace("−", "-")) for number in re.findall(r"−?\.\d+", cell)] for cell in cells[2:4]
        )
        name = re.search(r".*? (?:et al. )?\d{4}", cells[0])
        paper = name.group() if name else next(reversed(points))
        points.setdefault(paper, []).extend(zip(theirs, ours, strict=True))
    figure, axes = new_figure(5, 4.2)
    axes.plot([0, 1], [0, 1], color="#666666", linewidth=0.8, label="equal")
    for (paper, pairs), colour, marker in zip(points.items(), LINES, MARKERS, strict=False):
        axes.plot(*zip(*pairs, strict=True), marker, color=colour, markersize=4, label=paper)
    axes.set(xlabel="number of the paper", ylabel="ours", xlim=(0, 1), ylim=(-0.05, 1), aspect="equal")
    axes.legend(frameon=False, fontsize="small")
    save(figure, ROOT / "docs" / "figures" / "papers.png")


if __name__ == "__main__":
    if CHROMIUM is None and sys.argv[1:] != ["papers"]:
        sys.exit("chromium is not installed (Debian's package of that name)")
    match sys.argv[1:]:
        case ["papers"]:
            papers()
        case ["explore"]:
            explore()
        case ["report", *runs] if runs:
            reports(runs)
        case _:
            sys.exit("name explore, papers, or report and the folders of finished runs or sweeps")

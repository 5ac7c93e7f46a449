"""Draws how a report looks on screens of three widths and printed: `python docs/report_pictures.py RUN_OR_STUDY...`.

What it shows is the top of the page, of runs that are there; headless Chromium is needed. Printed is as on A4.
"""

from __future__ import annotations

import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from sottovoce.report.write import report  # noqa: E402
from tests.support.browser import CHROMIUM, chromium  # noqa: E402

FIGURES = ROOT / "docs" / "figures"
#: CSS pixels of each width that are kept from the top, and colours: text and lines need no more.
HEIGHTS, COLOURS = {360: 1600, 1024: 1300, 1920: 1200}, 64
#: What is between the margins of A4.
A4 = 688, 1002


def pictures(runs: list[str]) -> list[Path]:
    """A PNG for each width, and one of the first sheet of paper; their paths."""
    made = []
    with tempfile.TemporaryDirectory() as place:
        page = report(runs, Path(place) / "report.html")[0]
        with chromium(Path(place) / "profile") as browser:
            for width, height in {**HEIGHTS, A4[0]: A4[1]}.items():
                printed = width == A4[0]
                browser.ask("Emulation.setEmulatedMedia", media="print" if printed else "screen")
                browser.width(width)
                browser.open(page)
                seen = Image.open(BytesIO(browser.picture())).convert("RGB")
                seen = seen.crop((0, 0, seen.width, min(height, seen.height)))
                path = FIGURES / f"report-{'printed' if printed else width}.png"
                few = seen.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
                few.save(path, "PNG", optimize=True)
                made.append(path)
    return made


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.exit("chromium is not installed (Debian's package of that name)")
    if len(sys.argv) < 2:
        sys.exit("name the folders of finished runs or studies")
    print(*pictures(sys.argv[1:]), sep="\n")

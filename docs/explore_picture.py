"""Draws the picture of docs/explore.md, as a person sees the page: `python docs/explore_picture.py [FILE.png]`.

Headless Chromium is needed. What leaves is drawn anew each time, so the picture differs a little from the last one.
"""

from __future__ import annotations

import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from simulations.explore.serve import explorer, serving  # noqa: E402
from tests.support.browser import CHROMIUM, chromium  # noqa: E402

PICTURE = ROOT / "docs" / "figures" / "explore.png"
#: CSS pixels, and colours that are kept: text and dots need no more.
WIDTH, HEIGHT, COLOURS = 1280, 1010, 128
_TYPE = """
const change = (place, value) => {
  const element = document.getElementById(place);
  element.value = value;
  element.dispatchEvent(new Event("input"));
};
change("sentence", "The soup was wonderful, but the waiter was rude to my mother.");
change("s-dim", 1);
change("s-epsilon", 4);
"""


def picture(path: Path) -> None:
    """The page with a sentence that has left as a point on a sphere, as a PNG."""
    with explorer() as shown, tempfile.TemporaryDirectory() as profile, serving(shown) as address:
        shown.loading.world()
        with chromium(Path(profile)) as browser:
            browser.width(WIDTH)
            browser.open(address)
            browser.wait("performance.getEntriesByName('ready').length > 0")
            browser.evaluate(f"(() => {{ {_TYPE} }})()")
            browser.wait("document.querySelector('#out svg')?.getAttribute('aria-label').startsWith('A sphere')")
            browser.wait("document.querySelectorAll('#chart svg').length > 0")
            browser.evaluate("document.getElementById('send').click()")
            browser.wait("document.getElementById('account').innerText.includes('explore-1')")
            browser.wait("document.getElementById('crowd').innerText.includes('Hidden among')")
            seen = Image.open(BytesIO(browser.picture())).convert("RGB")
    seen = seen.crop((0, 0, seen.width, min(HEIGHT, seen.height)))
    seen.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.exit("chromium is not installed (Debian's package of that name)")
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    picture(chosen)
    print(chosen)

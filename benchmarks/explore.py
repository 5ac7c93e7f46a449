"""Milliseconds until the page of `sottovoce explore` has answered a slide: `python -m benchmarks.explore`.

It runs in headless Chromium on the built-in reviews, for each mechanism. The time is from the slider's event to the
changed picture, each at a new ε. *Slide* is the time of twenty events, one as soon as the last is answered. *Drag* is
sixty events a second for a second; the time is from the last event to its answer. *Rest* is the time of five events
until all figures of the page are there. Other load on the machine counts,
so the least time is given beside the median. --slides measures slides only.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.run import processor
from sottovoce.explore.serve import explorer, serving
from sottovoce.explore.settings import MECHANISMS
from tests.support.browser import CHROMIUM, Browser, chromium

SLIDES, RESTS = 20, 5
TEXT = "The soup was wonderful, but the waiter was rude to my mother."
SLIDER = """
window.slide = place => {
  const e = document.getElementById("s-epsilon");
  e.value = place;
  e.dispatchEvent(new Event("input"));
};
window.drag = (from, step, count) => new Promise(done => {
  let i = 0;
  const next = () => {
    window.slide(from + step * i);
    i += 1;
    if (i < count) requestAnimationFrame(next);
    else done();
  };
  next();
});
"""
ANSWERED = "performance.getEntriesByName('slide')"


def begin(browser: Browser, channel: str, mechanism: str) -> None:
    """Choose a channel and a mechanism on the page."""
    browser.evaluate(f"document.querySelector('input[value={channel}]').click()")
    if len(MECHANISMS[channel]) > 1:
        browser.evaluate(
            f"(() => {{ const e = document.getElementById('mechanism'); e.value = '{mechanism}'; "
            "e.dispatchEvent(new Event('change')); })()"
        )
    rest(browser)


def rest(browser: Browser) -> None:
    """Wait until all answers have arrived."""
    browser.wait("performance.getEntriesByName('whole').length > 0")
    browser.evaluate("performance.clearMarks('whole')")


def after(browser: Browser, script: str) -> float:
    """Return the time of the last slide of a script, in milliseconds."""
    browser.evaluate("performance.clearMeasures()")
    browser.evaluate(script)
    browser.wait(f"{ANSWERED}.length > 0 && !document.getElementById('words').ariaBusy")
    return float(browser.evaluate(f"{ANSWERED}.at(-1).duration"))


def line(name: str, times: list[float]) -> str:
    """Return times as one line."""
    return f"{name} {min(times):4.0f} least {statistics.median(times):4.0f} median {max(times):4.0f} most"


def measure(browser: Browser, name: str, *, slides_alone: bool) -> str:
    """Return the figures of a mechanism as one line."""
    most = float(browser.evaluate("document.getElementById('s-epsilon').max"))
    browser.evaluate("document.getElementById('s-epsilon').step = 'any'")
    places = [most * (0.21 + 0.023 * i) for i in range(SLIDES)]
    said = [line(f"{name:20} slide", [after(browser, f"slide({place})") for place in places])]
    if slides_alone:
        return said[0]
    rest(browser)
    drags = []
    for number in range(RESTS):
        asked = f"drag({most * (0.2 + 0.11 * number)}, {most / 1300}, 60)"
        drags.append(after(browser, f"{asked}.then(() => performance.clearMeasures())"))
    said.append(line("drag", drags))
    rest(browser)
    whole = []
    for number in range(RESTS):
        start = browser.evaluate(f"(() => {{ slide({most * (0.217 + 0.13 * number)}); return performance.now(); }})()")
        browser.wait("performance.getEntriesByName('whole').length > 0")
        whole.append(browser.evaluate("performance.getEntriesByName('whole').at(-1).startTime") - start)
        browser.evaluate("performance.clearMarks('whole')")
    said.append(line("rest", whole))
    return "   ".join(said)


def main() -> None:
    """Print the figures."""
    if CHROMIUM is None:
        print("skipped: chromium is not installed (Debian's package of that name)")
        return
    words = len(TEXT.split())
    print(f"{os.cpu_count()} cores, {processor()}; load {os.getloadavg()[0]:.1f}; a sentence of {words} words")
    with explorer() as shown, tempfile.TemporaryDirectory() as profile, serving(shown) as address:
        shown.loading.world()
        with chromium(Path(profile)) as browser:
            browser.width(1280)
            browser.open(address)
            browser.wait("performance.getEntriesByName('ready').length > 0")
            browser.evaluate(SLIDER + f"document.getElementById('sentence').value = '{TEXT}'; undefined")
            for channel, names in MECHANISMS.items():
                for name in names:
                    begin(browser, channel, name)
                    print(measure(browser, name, slides_alone="--slides" in sys.argv), flush=True)


if __name__ == "__main__":
    main()

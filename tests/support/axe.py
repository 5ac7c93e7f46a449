"""What axe-core says of a page in the browser: faults that keep people out. A package of `dev` has its source."""

from __future__ import annotations

import json
from importlib.resources import files
from importlib.util import find_spec

import pytest

from tests.support.browser import Browser

needs_axe = pytest.mark.skipif(
    find_spec("axe_core_python") is None, reason="axe-core-python is not installed: pip install -e '.[dev]'"
)
#: Its rules that are broken, each with how bad that is and the first places.
_RUN = """
axe.run({resultTypes: ["violations"]}).then(found => JSON.stringify(
  found.violations.map(one => [one.id, one.impact, one.nodes.slice(0, 3).map(n => n.html.slice(0, 200)).join(" ")])))
"""


def faults(browser: Browser, *, all_of_them: bool = False) -> list[list[str]]:
    """[rule, impact, where] of what is serious or critical (or of any weight) on the page that is open."""
    if not browser.evaluate("'axe' in window"):
        source = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
        browser.evaluate(f"{source}; undefined")
    answer = browser.ask("Runtime.evaluate", expression=_RUN, awaitPromise=True, returnByValue=True)
    assert "exceptionDetails" not in answer, answer
    found: list[list[str]] = json.loads(answer["result"]["value"])
    return [one for one in found if all_of_them or one[1] in ("serious", "critical")]

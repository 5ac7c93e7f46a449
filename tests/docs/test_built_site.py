"""The site opens from a file with the network off: nothing is asked of elsewhere, and its search finds terms."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.browser import CHROMIUM, chromium
from tests.support.paths import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.skipif(find_spec("material") is None, reason="MkDocs is not installed: make docs"),
]

_SEARCH = """
document.querySelector("label[for=__search]").click();
const field = document.querySelector("input[name=query]");
field.focus(); field.value = %r; field.dispatchEvent(new Event("keyup", {bubbles: true})); undefined
"""
_FOUND = "[...document.querySelectorAll('.md-search-result__link')].map(each => each.getAttribute('href')).join(' ')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "-d", str(place)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    return place


def test_it_works_from_a_file_and_its_search_finds_three_terms(site: Path, tmp_path: Path) -> None:
    terms = {"PrivUnit": "one-vector", "enrolment": "deploy", "exposure": "mechanisms"}
    with chromium(tmp_path / "profile") as browser:
        none = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        browser.ask("Network.emulateNetworkConditions", offline=True, **none)
        for term, page in terms.items():
            browser.open(site / "index.html")
            browser.evaluate(_SEARCH % term)
            until = time.monotonic() + 60
            while page not in (result := str(browser.evaluate(_FOUND))) and time.monotonic() < until:
                time.sleep(0.2)
            assert page in result, (term, result)
        assert not [url for url in browser.requested if not url.startswith(("file:", "data:", "about:"))]

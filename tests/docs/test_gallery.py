"""The gallery: its page has the violated rows of its manifest, and an adapter runs on its recorded claim."""

from __future__ import annotations

import json
import re
import sys
from types import ModuleType

import pytest

from sottovoce.cli.main import main
from tests.support.paths import ROOT
from tests.support.programs import program

ADAPTERS = ROOT / "audits" / "adapters"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    return program("make", "audits")


def test_the_page_has_the_rows_that_fell_and_every_row_has_an_adapter(make: ModuleType) -> None:
    given = make.manifest()
    page = (ROOT / "docs" / "results" / "gallery.md").read_text(encoding="utf-8")
    fell = {row["adapter"] for row in given["row"] if "fell" in row}
    assert set(re.findall(r"\| `(of_[^`]+)` \|", page)) == fell and f"{len(fell)} claims fell" in page
    assert f"{len(given['row'])} claims of {len({row['software'] for row in given['row']})} packages" in page
    for row in given["row"]:
        assert row["environment"] in given["environment"] and (ADAPTERS / row["adapter"].split()[0]).is_file()
        assert "fell" not in row or (row["source"].strip() and row["untested"].strip())
    for name, requirements in given["environment"].items():
        assert "==" in requirements[0] or name == "papers"


def test_adapters_answer_and_what_fell_falls_again(make: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Two workers' words with one stream, and a mechanism that holds, on this interpreter, which has NumPy."""
    adapter = f"{sys.executable} {ADAPTERS / 'of_papers.py'}"
    for name, code in (("santext-workers", 1), ("custext", 0)):
        assert main(["audit", "--command", f"{adapter} {name}", "--draws", "16000", "--json"]) == code
        assert bool(json.loads(capsys.readouterr().out)["violated"]) == bool(code)

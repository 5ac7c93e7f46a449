"""The gallery: its page is what its command writes, and no claim falls without a certificate."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sottovoce.adversary.audit.external.certificate import load
from sottovoce.adversary.audit.external.outputs import Part
from sottovoce.cli.main import main
from tests.support.paths import ROOT
from tests.support.programs import program

ADAPTERS = ROOT / "audits" / "adapters"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    return program("make", "audits")


@pytest.fixture(scope="module")
def done(make: ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(make.JSON.read_text(encoding="utf-8"))
    return found


def test_the_page_is_what_the_command_writes(make: ModuleType, done: dict[str, Any]) -> None:
    rows = make.manifest()["row"]
    assert make.PAGE.read_text(encoding="utf-8") == make.page(rows, done)
    assert [row["name"] for row in rows if row["name"] in done] == list(done), "rows that are no more"


def test_there_are_ten_packages_and_more_each_pinned_and_with_an_adapter(
    make: ModuleType, done: dict[str, Any]
) -> None:
    given = make.manifest()
    shown = [row for row in given["row"] if row["name"] in done]
    assert len({row["environment"] for row in shown}) >= 10 and len({row["name"] for row in shown}) == len(shown)
    for row in given["row"]:
        assert row["environment"] in given["environment"] and (ADAPTERS / row["adapter"].split()[0]).is_file()
    for name, requirements in given["environment"].items():
        assert "==" in requirements[0] or name == "papers"


def test_what_is_violated_has_a_certificate_was_confirmed_and_is_described(
    make: ModuleType, done: dict[str, Any]
) -> None:
    rows = {row["name"]: row for row in make.manifest()["row"]}
    violated = {name for name, result in done.items() if result["violated"]}
    assert {path.stem for path in make.CERTIFICATES.glob("*.json")} == violated and violated
    for name, result in done.items():
        assert result["confirmed"] is (True if name in violated else None)
        for entry in result["entries"]:
            assert entry["verdict"] == "violated" or entry["measured_at_delta"] <= float(entry["claimed_at_delta"])
    for name in violated:
        written = load(make.CERTIFICATES / f"{name}.json")
        assert all(rows[name][key].strip() for key in ("fell", "source", "untested"))
        assert written["command"] == done[name]["command"] and "/work" not in json.dumps(written)
        measured = written["measured"]
        if done[name].get("sequential"):
            assert measured["log10_wealth"] >= 3 and rows[name]["fix"] and Part.of(written["bet"]["test"])
        else:
            assert measured["delta"] > written["claimed"]["delta"] and Part.of(written["event"]["test"])


def test_an_adapter_of_the_gallery_answers_and_its_certificate_is_confirmed(
    make: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two workers' words with one stream, on this interpreter, which has NumPy."""
    adapter = f"{sys.executable} {ADAPTERS / 'of_papers.py'}"
    kept = make.CERTIFICATES / "santext-workers.json"
    assert main(["audit", "--verify", str(kept), "--command", f"{adapter} santext-workers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["confirmed"] is True
    assert main(["audit", "--command", f"{adapter} custext", "--draws", "16000", "--json"]) == 0


def test_two_at_once_are_refused_in_one_line(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make, "ENVIRONMENTS", tmp_path / "envs")
    monkeypatch.setattr(make, "PAGE", tmp_path / "page.md")
    with make.lock():
        assert make.main(["--page"]) == 2 and not make.PAGE.exists()
        assert capsys.readouterr().err == "another audits/make.py is at work here: wait until it has ended\n"
    assert make.main(["--page"]) == 0 and make.PAGE.exists()


def test_a_row_that_is_not_there_is_said(make: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make.main(["--only", "nothing"])
    assert "no row nothing; --list has the names" in capsys.readouterr().err
    assert make.main(["--list"]) == 0 and "opendp-laplace" in capsys.readouterr().out

"""A mechanism of one's own in the audit.

Statistical, at the audit's own rate: false alarms of all figures of one audit have probability 1e-3 together, on a
fixed seed; the planted fault draws at twice the ε that is claimed.
"""

import json
import re
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from mechanisms import catalogue
from mechanisms.catalogue import CATALOGUE
from mechanisms.spherical import PlanarLaplace
from sottovoce.cli.main import main
from tests.support.own_package import write_package
from tests.support.paths import ROOT


@dataclass(frozen=True)
class Direction(PlanarLaplace):
    """An embedding mechanism of one's own."""

    name: ClassVar[str] = "my-own"


@dataclass(frozen=True)
class Lone(Direction):
    """An embedding in clear if it is the only one of its batch."""

    def sample(self, x, *, rng):
        return x if len(x) == 1 else super().sample(x, rng=rng)


@dataclass(frozen=True)
class Leaking(Direction):
    """An embedding in clear at every 499th place of a batch."""

    def sample(self, x, *, rng):
        y = super().sample(x, rng=rng)
        y[498::499] = x[498::499]
        return y


@pytest.mark.parametrize(("kind", "count"), [(Lone, 16), (Leaking, 1)])
def test_rows_that_differ_in_small_batches_are_a_violation(kind, count, monkeypatch, capsys):
    """Without a false alarm: rows of a mechanism have streams of their own, and repeat to the last bit."""
    monkeypatch.setitem(CATALOGUE, "my-own", kind)
    assert main(["audit", "--mechanism", "my-own", "--draws", "20000", "--json"]) == 1
    results = json.loads(capsys.readouterr().out)
    assert all(f"; {count} rows differ in small batches" in entry["pair"] for entry in results["entries"])


@dataclass(frozen=True)
class Demanding(Direction):
    strength: float = field(kw_only=True)


def test_a_mechanism_whose_worst_pair_nobody_knows_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(CATALOGUE, "my-own", Demanding)
    for asked in (["--mechanism", "my-own"], []):  # a whole audit passes over nothing
        assert main(["audit", *asked]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "my-own: nobody knows what to try as strength; give defaults, or declare them in `facts`" in line


OF_A_PACKAGE = {
    "quiet-coin": "no violation found",
    "quiet.noise:Words": "no violation found",
    "quiet.noise:LoudOpen": "violated",
    "quiet.noise:Comforting": "violated",
    "quiet.noise:Forgetful": "violated",
}


@pytest.mark.parametrize(("name", "verdict"), OF_A_PACKAGE.items())
def test_a_mechanism_of_somebody_elses_package_is_audited_and_what_is_wrong_with_it_found(
    name, verdict, tmp_path, monkeypatch, capsys
):
    """With `log_prob` and from draws alone; where what it says of itself would hide the fault; in a coordinate that the
    usual pair does not differ in."""
    monkeypatch.setattr(catalogue, "_ADMITTED", {})
    monkeypatch.syspath_prepend(str(write_package(tmp_path)))
    assert main(["audit", "--mechanism", name, "--draws", "40000", "--json"]) == int(verdict == "violated")
    results = json.loads(capsys.readouterr().out)
    assert {entry["name"] for entry in results["entries"]} == {name}
    assert (verdict in {entry["verdict"] for entry in results["entries"]}) and results["false_alarm_rate"] == 1e-3


def test_the_examples_of_the_page_hold(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "_ADMITTED", {})
    page = (ROOT / "docs/how-to/own-mechanism.md").read_text("utf-8")
    (tmp_path / "of_the_page.py").write_text("".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("Coin", "Near"):
        assert main(["audit", "--mechanism", f"of_the_page:{name}", "--draws", "20000"]) == 0
        assert "no violation found" in capsys.readouterr().out


def test_what_is_no_mechanism_is_one_line_and_nothing_is_written(tmp_path, capsys):
    for name in ("nowhere:Coin", "os:system"):
        assert main(["audit", "--mechanism", name, "--out", str(tmp_path / "out")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert name in line and not (tmp_path / "out").exists()

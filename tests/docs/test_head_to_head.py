"""Auditors head to head: the page has the table of the JSON, and the command's claims are what they say."""

from __future__ import annotations

import json
from types import ModuleType

import numpy as np
import pytest

from tests.support.paths import ROOT
from tests.support.programs import program


@pytest.fixture(scope="module")
def compared() -> ModuleType:
    program("make", "audits")
    return program("head_to_head", "audits")


def test_the_page_has_the_table_that_the_command_prints(compared: ModuleType) -> None:
    done = json.loads(compared.JSON.read_text(encoding="utf-8"))
    assert list(done) == list(compared.AUDITORS)
    assert compared.table(done) in (ROOT / "docs" / "how-to" / "sequential-audits.md").read_text(encoding="utf-8")


def test_claims_that_are_called_violated_are_and_the_others_hold(compared: ModuleType) -> None:
    """On 10^5 draws each; a ratio of e^1 at a share of .27 or more has a standard error below .02."""
    for draws, violated, _ in compared.CLAIMS.values():
        rng = np.random.default_rng(1)
        there, absent = ((draws(x, 100_000, rng) >= 1).mean() for x in (1, 0))
        assert (np.log(there / absent) > 1.1) == violated


def test_an_auditor_stops_at_a_violation(compared: ModuleType) -> None:
    draws, _, releases = compared.CLAIMS["coin of ε = 2"]
    (found,) = compared.sequential(draws, releases, 1)
    assert found is not None and found < 4000

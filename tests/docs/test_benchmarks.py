"""Every benchmark can be imported; what it measures is no test's."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.support.paths import ROOT

#: pfl-research has an environment of its own.
NAMES = {file.stem for file in (ROOT / "benchmarks").glob("[a-z]*.py")} - {"pfl_peer"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_it_is_imported(name: str) -> None:
    import_module(f"benchmarks.{name}")

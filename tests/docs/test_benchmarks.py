"""Every benchmark can be imported; what it measures is no test's."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.support.paths import ROOT


@pytest.mark.parametrize("name", sorted(file.stem for file in (ROOT / "benchmarks").glob("*.py")))
def test_it_is_imported(name: str) -> None:
    import_module(f"benchmarks.{name}" if name != "__init__" else "benchmarks")

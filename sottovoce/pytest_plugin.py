"""Plugin of pytest: `pytest --sottovoce package.module:Class` runs the contracts of mechanisms on your own mechanism.

A run without the option imports only this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_CONTRACTS = Path(__file__).parent / "contracts" / "test_mechanism.py"


def pytest_addoption(parser: Any) -> None:
    """Add the option --sottovoce."""
    group = parser.getgroup("sottovoce", "mechanisms of Sottovoce")
    group.addoption(
        "--sottovoce",
        action="append",
        metavar="MECHANISM",
        help="test the contracts of this mechanism: package.module:Class, or what an installed package calls it",
    )


def pytest_configure(config: Any) -> None:
    """Add the contracts to the run if --sottovoce names a mechanism.

    Raises:
        UsageError: It names no mechanism.
    """
    names = config.getoption("sottovoce")
    if not names:
        return
    import pytest

    from mechanisms.catalogue import admit
    from sottovoce.contracts.cases import instances

    try:
        for name in names:
            list(instances(admit(name)))
    except ValueError as error:
        raise pytest.UsageError(f"--sottovoce {error}") from None
    contracts = str(_CONTRACTS)
    by_arguments = config.args_source is config.ArgsSource.ARGS  # of other tests, only named files run
    config.args[:] = [*(config.args if by_arguments else ()), contracts]

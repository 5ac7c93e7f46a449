"""The programs beside the pages of docs/, and others that are in no package."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.support.paths import ROOT


def program(name: str, folder: str = "docs") -> ModuleType:
    """The program docs/NAME.py as a module, found by that name from now on: its dataclasses ask for it."""
    place = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    assert place is not None and place.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module

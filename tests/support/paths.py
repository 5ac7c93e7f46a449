"""Where the tests find things that are not theirs."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

#: Of the repository.
ROOT = Path(__file__).parents[2]
#: Real data, which are never committed; a test that needs them skips, saying so, where they are missing.
DATA = ROOT.parent / "shared" / "data"


def program(name: str) -> ModuleType:
    """The program docs/NAME.py as a module, found by that name from now on: its dataclasses ask for it."""
    place = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert place is not None and place.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module

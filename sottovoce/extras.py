"""Optional dependencies: the extra of the installed package that brings a missing module."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

#: Modules whose distribution has another name.
_DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn"}
#: Extras that no command needs.
_DEVELOPERS = ("dev", "docs")


def install_command(module: str | None) -> str | None:
    """Return the command that installs a missing module; None if no extra of Sottovoce brings it.

    Args:
        module: Name of the module as imported, for example "torch" or "starlette.routing".
    """
    top = (module or "").partition(".")[0]
    name = _DISTRIBUTIONS.get(top, top).replace("_", "-").lower()
    try:
        lines = requires("sottovoce") or []
    except PackageNotFoundError:  # a folder of sources that is not installed
        lines = []
    for line in lines:
        result = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if result and result[1].replace("_", "-").lower() == name and result[2] not in _DEVELOPERS:
            return f"pip install 'sottovoce[{result[2]}]'"
    return None

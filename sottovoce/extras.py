"""Optional dependencies: which extra of the installed package brings a module that is missing."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

#: Modules whose distribution has another name.
_DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn"}
#: Extras that no command needs.
_DEVELOPERS = ("dev", "docs")


def install_command(module: str | None) -> str | None:
    """Return the command that installs a missing module, None where no extra of Sottovoce brings it.

    Args:
        module: name of the module as imported, for example "torch" or "starlette.routing".
    """
    top = (module or "").partition(".")[0]
    name = _DISTRIBUTIONS.get(top, top).replace("_", "-").lower()
    try:
        lines = requires("sottovoce") or []
    except PackageNotFoundError:  # a folder of sources that nobody installed
        lines = []
    for line in lines:
        found = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if found and found[1].replace("_", "-").lower() == name and found[2] not in _DEVELOPERS:
            return f"pip install 'sottovoce[{found[2]}]'"
    return None

"""Public names of Sottovoce, each loaded at its first use.

    from sottovoce import Purkayastha, Rewriter, Sanitizer, Ledger, Policy, ladder, plan, simulate, audit

`import sottovoce` alone loads only Python's standard library; a name loads what it needs. `__init__.pyi` beside this
file is the only list of names and their modules, and type checkers and editors read it too. docs/reference/api.md has
an example of each. None of the four packages imports this one.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

#: Module of each public name.
_HOMES: dict[str, str] = {
    alias.name: str(statement.module)
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("sottovoce")
    elif name in _HOMES:
        try:
            value = getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            from sottovoce.extras import install_command

            command = install_command(error.name) or "pip install 'sottovoce[simulation]'"
            error.add_note(f"sottovoce.{name} needs more than a device has: {command}")
            raise
    else:
        raise AttributeError(f"module 'sottovoce' has no attribute {name!r}", name=name, obj=import_module(__name__))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "__version__"})

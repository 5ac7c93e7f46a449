"""Runs the notebooks of docs/notebooks and keeps what they print: `python docs/notebooks.py [FILE]`.

No Jupyter is needed. Each notebook runs in one namespace and in an empty folder of its own, cell after cell; what a
cell prints, and the value of its last expression, become its output, as text.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parent / "notebooks"


def run(notebook: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Each code cell, and what it has said once it has run, in the folder and the module path of whoever calls."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        stdout = io.StringIO()
        with contextlib.redirect_stdout(stdout):
            exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
                if value is not None:
                    print(value if isinstance(value, str) else repr(value))
        yield cell, stdout.getvalue()


def load(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def output(cell: dict[str, Any]) -> str:
    """What a cell said when it was last run."""
    return "".join(line for entry in cell["outputs"] for line in entry["text"])


def page(path: Path) -> Iterator[str]:
    """A notebook as a page in Markdown."""
    for cell in load(path)["cells"]:
        source = "".join(cell["source"])
        yield f"{source}\n" if cell["cell_type"] == "markdown" else f"```python\n{source}\n```\n"
        if cell["cell_type"] == "code" and output(cell):
            yield f"```text\n{output(cell).rstrip()}\n```\n"


@contextlib.contextmanager
def empty_folder() -> Iterator[None]:
    """A new folder to work in, whose modules can be imported."""
    cwd = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)
            os.chdir(cwd)


def main(files: list[str]) -> None:
    for path in [Path(file).resolve() for file in files] or sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = load(path)
        with empty_folder():
            for number, (cell, stdout) in enumerate(run(notebook), 1):
                text = stdout.splitlines(keepends=True)
                cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
                cell["execution_count"] = number
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])

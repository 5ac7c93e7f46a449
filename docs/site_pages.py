"""Makes the documentation a site that opens from a file, without a network: `make docs`, which writes site/index.html.

MkDocs reads the pages of docs/ as they are. What it cannot know is added here: README.md is the first page and leads
through `docs/`, CONTRIBUTING.md, CHANGELOG.md and the notebooks are pages, the bundled experiments are one page, the
reference has every public name with its docstring, from `sottovoce/__init__.pyi`, and the keys of an experiment file
are there as a JSON Schema that editors read. A link that leads nowhere fails the build.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
#: Pages that lie beside docs/, and what they are called on the site.
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
EXPERIMENTS = "experiments.md"
#: Where else a page's links lead, as they are written there.
ELSEWHERE = {
    "../simulations/experiments": EXPERIMENTS, "CITATION.cff": "changelog.md", "docs/notebooks": "first-study.md"
}  # fmt: skip
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what docs/ has not."""
    from mkdocs.structure.files import File

    from simulations.experiment.schema import schema

    made = {to: (ROOT / name).read_text(encoding="utf-8") for name, to in OUTSIDE.items()}
    made[EXPERIMENTS] = "\n".join(experiments())
    sys.path.insert(0, str(ROOT / "docs"))
    from notebooks import NOTEBOOKS, page

    made |= {f"{path.stem}.md": "\n".join(page(path)) for path in NOTEBOOKS.glob("*.ipynb")}
    made["reference.md"] = "\n".join(reference())
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    keys = json.dumps(schema(), indent=1, ensure_ascii=False)
    files.append(File.generated(config, "experiment.schema.json", content=keys))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links between pages as the site has them: those of the repository work where the repository is read."""
    return _LINK.sub(lambda found: found[1] + moved(found[2]) + found[3], markdown)


def moved(link: str) -> str:
    """Where a link of a page leads on the site, whose pages all lie in one folder."""
    if "://" in link or link.startswith("#"):
        return link
    file, mark, place = link.partition("#")
    file = ELSEWHERE.get(file, file)
    file = file.removeprefix("../").removeprefix("docs/").removeprefix("notebooks/").replace(".ipynb", ".md")
    return OUTSIDE.get(file, file) + mark + place


def experiments() -> Iterator[str]:
    yield "# Experiments that come with Sottovoce\n"
    yield "Run one by its name, `sottovoce simulate NAME`; [the experiment file](experiment.md) explains keys.\n"
    for path in sorted((ROOT / "simulations" / "experiments").glob("*.toml")):
        yield f"## {path.stem}\n\n```toml\n{path.read_text(encoding='utf-8').rstrip()}\n```\n"


def reference() -> Iterator[str]:
    """Every public name, under the module that it lives in."""
    stub = ast.parse((ROOT / "sottovoce" / "__init__.pyi").read_text(encoding="utf-8"))
    yield "# Reference\n"
    yield "Every public name with its signature and docstring; [the public names](api.md) has an example of each.\n"
    home = ""
    for statement in stub.body:
        if not isinstance(statement, ast.ImportFrom):
            continue
        if statement.module != home:
            home = str(statement.module)
            yield f"## `{home}`\n"
        for alias in statement.names:
            yield f"::: {home}.{alias.name}\n"

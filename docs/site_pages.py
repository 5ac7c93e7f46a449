"""Makes the documentation a site that opens from a file, without a network: `make docs`, which writes site/index.html.

MkDocs reads the pages of docs/ as they are. What it cannot know is added here: README.md is the first page and leads
through `docs/`; CONTRIBUTING.md, SECURITY.md, CHANGELOG.md, the report's glossary and the notebooks are pages; the
bundled experiments are one page. The reference has every public name with its docstring, from `sottovoce/__init__.pyi`,
every command, every key of an experiment file, and its JSON Schema, which editors read. A link that leads nowhere fails
the build.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
#: Pages that lie beside docs/, and what they are called on the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "sottovoce/report/templates/glossary.md": "reference/glossary.md",
}
EXPERIMENTS, COMMANDS, REFERENCE = "experiments.md", "reference/commands.md", "reference/python.md"
KEYS = "reference/experiment.md"
#: Other places of the repository to which pages lead, and the page of the site that shows them.
ELSEWHERE = {
    "simulations/experiments": EXPERIMENTS,
    "simulations/experiment/sections.py": KEYS,
    "CITATION.cff": "changelog.md",
    "docs/notebooks": "first-study.md",
}
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what docs/ has not."""
    from mkdocs.structure.files import File

    from simulations.experiment.schema import schema

    pages = {target: (ROOT / name).read_text(encoding="utf-8") for name, target in OUTSIDE.items()}
    pages[EXPERIMENTS] = "\n".join(experiments())
    sys.path.insert(0, str(ROOT / "docs"))
    from notebooks import NOTEBOOKS, page

    pages |= {f"{path.stem}.md": "\n".join(page(path)) for path in NOTEBOOKS.glob("*.ipynb")}
    pages[REFERENCE] = "\n".join(reference())
    pages[KEYS] = "\n".join(keys())
    pages[COMMANDS] = "\n".join(commands())
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    content = json.dumps(schema(), indent=1, ensure_ascii=False)
    files.append(File.generated(config, "experiment.schema.json", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Links between pages as the site has them: those of the repository work where the repository is read."""
    return _LINK.sub(lambda match: match[1] + moved(match[2], page.file.src_uri) + match[3], markdown)


def moved(link: str, page: str) -> str:
    """Return where a link of a page of the site leads.

    Args:
        link: The link, as the repository has it.
        page: Path of the page on the site.
    """
    if "://" in link or link.startswith("#"):
        return link
    file, mark, place = link.partition("#")
    source = next((name for name, destination in OUTSIDE.items() if destination == page), f"docs/{page}")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
    target = ELSEWHERE.get(target, OUTSIDE.get(target, target)).removeprefix("docs/")
    if target.startswith("notebooks/"):
        target = target.removeprefix("notebooks/").replace(".ipynb", ".md")
    return posixpath.relpath(target, posixpath.dirname(page) or ".") + mark + place


def experiments() -> Iterator[str]:
    yield "# Experiments that come with Sottovoce\n"
    yield "Run one by its name, `sottovoce simulate NAME`; [the file](reference/experiment.md) explains keys.\n"
    for path in sorted((ROOT / "simulations" / "experiments").glob("*.toml")):
        yield f"## {path.stem}\n\n```toml\n{path.read_text(encoding='utf-8').rstrip()}\n```\n"


def keys() -> Iterator[str]:
    """Every key of an experiment's file, each table under its summary."""
    from simulations.experiment.schema import TABLES, about
    from simulations.experiment.schema import keys as rows_of

    yield "# Experiment file\n"
    yield "Every key of the TOML file of an experiment, generated from the code. Editors that know JSON Schema complete"
    yield "and check keys:\n"
    yield "    sottovoce check --schema > experiment.schema.json\n"
    yield "Then write `#:schema experiment.schema.json` in the first line. Contradictory keys are rejected with a"
    yield "one-line error. –: none, or derived from other keys. A table `[sweep]` describes a grid of runs"
    yield "([run experiments](../how-to/experiments.md#sweep-over-a-grid)).\n"
    places: dict[str, list[str]] = {"": []} | {section.place: [] for section in TABLES}
    for name, words, default, text in rows_of():
        places[name.rpartition(".")[0]].append(f"| `{name}` | {words} | {default} | {text} |")
    sections = {section.place: section for section in TABLES}
    for place, rows in places.items():
        if place:
            yield f"\n## {'[[arm]]' if place == 'arm' else f'[{place}]'}\n"
            yield from (*about(sections[place]), "")
        yield from ("| key | values | default | description |", "| --- | --- | --- | --- |", *rows)


def reference() -> Iterator[str]:
    """Every public name, under the module that it lives in."""
    stub = ast.parse((ROOT / "sottovoce" / "__init__.pyi").read_text(encoding="utf-8"))
    yield "# Python reference\n"
    yield "Every public name with its signature and docstring. [Python](api.md) has an example of each.\n"
    for statement in stub.body:
        if not isinstance(statement, ast.ImportFrom):
            continue
        home = str(statement.module)
        for alias in statement.names:
            yield f"## {alias.name}\n\n::: {home}.{alias.name}\n    options:\n      show_root_heading: false\n"


def commands() -> Iterator[str]:
    """Every command with its options, from its help."""
    import typer

    from sottovoce.cli.main import app

    yield "# Commands\n"
    yield "Generated from the commands themselves; `sottovoce COMMAND -h` prints the same.\n"
    yield from _command(typer.main.get_command(app), "sottovoce")


def _command(command: Any, name: str) -> Iterator[str]:
    inner = {key: entry for key, entry in getattr(command, "commands", {}).items() if not entry.hidden}
    if not inner:
        yield f"## {name}\n\n{command.help or ''}\n"
        yield "| option | meaning |\n| --- | --- |"
        for entry in command.params:
            names = ", ".join(f"`{text}`" for text in entry.opts) if entry.param_type_name == "option" else None
            meaning = " ".join((getattr(entry, "help", None) or "").split()).replace("|", "\\|")
            yield f"| {names or f'`{entry.make_metavar(click.Context(command))}`'} | {meaning} |"
        yield ""
    for key, entry in inner.items():
        yield from _command(entry, f"{name} {key}")

"""Every command that a page shows is there, with every option that it is given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from simulations.experiment.toml import BUNDLED
from sottovoce.cli import main as cli
from tests.support.paths import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
#: A line of an indented or fenced block, or words in backquotes, that begin with the command.
_LINE = re.compile(
    r"^ *(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?sottovoce (?P<line>(?:[^\n]*\\\n)*[^\n]+)$", re.MULTILINE
)
_QUOTED = re.compile(r"`sottovoce ([a-z][^`]*)`")
#: A page may leave out what follows, and name what people put in.
_LEFT_OUT = ("...", "…")


def commands(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for result in _LINE.finditer(text):
        yield result["line"].replace("\\\n", " ").partition("  #")[0]
    for result in _QUOTED.finditer(text):
        yield " ".join(result[1].split())


def fault(line: str, root: Any) -> str | None:
    """What is wrong with a command line: a name or an option that is not there."""
    words = shlex.split(line, comments=True)
    command, at = root, 0
    while hasattr(command, "commands"):
        if at == len(words) or words[at].startswith("-") or not re.fullmatch(r"[a-z][a-z-]*", words[at]):
            break
        result = command.commands.get(words[at])
        if result is None:
            return f"no command {words[at]!r}"
        command, at = result, at + 1
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h"}
    for word in words[at:]:
        if word == "--":  # what stands behind it is another command's
            break
        if word.startswith("--") and word.partition("=")[0] not in known and word not in _LEFT_OUT:
            return f"no option {word}"
        if word in ("|", "<", ">", "&&", ";"):
            break
    study = words[at] if command.name == "simulate" and at < len(words) else ""
    if re.fullmatch(r"[a-z][a-z0-9-]+", study) and not (BUNDLED / f"{study}.toml").is_file():
        return f"no bundled study {study!r}"
    return None


def test_every_command_of_the_pages_is_there() -> None:
    root = typer.main.get_command(cli.app)
    shown = [(page.name, line) for page in PAGES for line in commands(page)]
    assert len(shown) > 80, "commands are not found any more; look at the patterns"
    assert not [(page, line, why) for page, line in shown if (why := fault(line, root)) is not None]


def test_help_ends_with_an_example() -> None:
    def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", {})
        for key, one in inner.items():
            yield from leaves(one, f"{name} {key}")
        if not inner:
            yield name, command

    root = typer.main.get_command(cli.app)
    for name, command in leaves(root, "sottovoce"):
        example = (command.epilog or "").removeprefix("Example: ")
        assert example.startswith(name), name
        assert fault(example.removeprefix("sottovoce "), root) is None, example

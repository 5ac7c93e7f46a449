"""What pip installs: Sottovoce's wheel in an environment of its own, and beside it a package of somebody else's, whose
entry point puts a mechanism into every command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import tomli_w

from tests.support.own_package import INSTALLED, MODULE, POINTS
from tests.support.paths import ROOT
from tests.support.tiny_models import tiny_bert

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.xdist_group("ray")]

#: A small simulation of it.
STUDY = {
    "name": "theirs",
    "data": {"public-size": 80, "test-size": 40},
    "population": {"users": 24},
    "encoder": {"model": "bert", "max-length": 32},
    "shuffle": {"minimum-users": 5},
    "policy": {"embedding": 13.0, "label": 3.0},
    "arm": [
        {
            "name": "theirs",
            "embedding": {"mechanism": "quiet.noise:Direction", "epsilon": 12.0, "dim": 16},
            "label": {"mechanism": "quiet-coin", "epsilon": 3.0},
        }
    ],
}
NAME, WHERE = POINTS.splitlines()[1].split(" = ")
PROJECT = f"""[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "quiet-noise"
version = "1.0"
dependencies = ["sottovoce"]
[project.entry-points."sottovoce.mechanisms"]
{NAME} = "{WHERE}"
"""


def done(*command: object, place: Path) -> subprocess.CompletedProcess[str]:
    """Away from the repository, so that what runs is what was installed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    ran = subprocess.run(
        [str(part) for part in command],
        cwd=place,
        env=environment | {"XDG_CACHE_HOME": str(place / "cache")},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


def test_both_packages_are_installed_and_simulate(tmp_path: Path) -> None:
    """In the environment `env`; what they need is as it is here."""
    place = tmp_path
    (place / "theirs" / "quiet").mkdir(parents=True)
    (place / "theirs" / "pyproject.toml").write_text(PROJECT)
    (place / "theirs" / "quiet" / "__init__.py").write_text("")
    (place / "theirs" / "quiet" / "noise.py").write_text(MODULE + INSTALLED)
    source = place / "source"  # a copy: building leaves folders behind
    done("git", "clone", "-q", ROOT, source, place=place)
    done(sys.executable, "-m", "venv", "--without-pip", place / "env", place=place)
    packages = next((place / "env" / "lib").glob("python*/site-packages"))
    python = place / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    (packages / "needed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    for project in (source, place / "theirs"):
        done(*pip, "--no-build-isolation", project, place=place)
    # what is installed here comes behind, and its editable finder not at all
    where = done(python, "-c", "import mechanisms; print(mechanisms.__file__)", place=place).stdout
    assert Path(where.strip()).is_relative_to(packages)
    tiny_bert(place / "bert")
    (place / "study.toml").write_text(tomli_w.dumps(STUDY))
    done(place / "env" / "bin" / "sottovoce", "simulate", "study.toml", "--out", "out", place=place)
    (arm,) = json.loads((place / "out" / "results.json").read_text())["arms"]
    assert arm["users"] == 24 and arm["accuracy"] is not None
    assert {rung["rung"]: rung["epsilon"] for rung in arm["ladder"]}["label"] == 3.0

"""The door: it loads nothing by itself, and of a name no more than that needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import sottovoce
from tests.support.clients import without
from tests.support.devices import BLOCKED, PROGRAM, PUBLISHER, make_bundle
from tests.support.paths import ROOT

#: What one of these packages begins to load, before anything of it is used.
HEAVY = {"torch", "transformers", "ray", "matplotlib", "flwr", "onnxruntime", "dp_accounting"}
#: Modules of Python's own that the door may load. (`benchmarks.door` has the seconds.)
FEW = 12


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter loads for the statement."""
    program = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
    )
    return set(done.stdout.split())


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_the_door_alone_loads_a_few_modules_of_python_itself() -> None:
    loaded = loaded_by("import sottovoce, sottovoce as door; dir(door); door.__all__")
    assert packages(loaded) <= set(sys.stdlib_module_names) | {"sottovoce"}
    assert len(loaded) <= FEW, sorted(loaded)


@pytest.mark.parametrize(
    ("names", "without_"),
    [
        ("Purkayastha, RandomizedResponse, Guarantee, ladder", HEAVY | {"client", "server", "simulations"}),
        ("Sanitizer, Rewriter, Shard", HEAVY - {"onnxruntime"} | {"server", "simulations"}),
        ("Experiment, load, simulate, resume, UserError", HEAVY),
    ],
)
def test_a_name_loads_what_it_needs_and_no_more(names: str, without_: set[str]) -> None:
    loaded = packages(loaded_by(f"from sottovoce import {names}"))
    assert "numpy" in loaded and not loaded & without_


def test_on_a_device_everything_but_studies_loads_and_those_say_what_is_missing() -> None:
    program = (
        without(BLOCKED)
        + """
import sottovoce

for name in sottovoce.__all__:
    try:
        getattr(sottovoce, name)
    except ModuleNotFoundError as error:
        print(name, error.__notes__)
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    lines = done.stdout.splitlines()
    studies = {"attack", "audit", "resume", "simulate", "verify"}
    assert {line.partition(" ")[0] for line in lines} <= studies
    assert all("pip install 'sottovoce[simulation]'" in line for line in lines)


def test_a_name_that_is_not_there_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ImportError, match="Purkayasta"):
        exec("from sottovoce import Purkayasta")
    with pytest.raises(AttributeError) as caught:
        _ = sottovoce.Purkayasta  # type: ignore[attr-defined]
    assert caught.value.name == "Purkayasta" and caught.value.obj is sottovoce  # by which Python finds the nearest
    assert {"Purkayastha", "__version__", "__all__"} <= set(dir(sottovoce))


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sottovoce.__version__ == version("sottovoce")
    assert f"\n## [{project['version']}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()


def test_a_wheel_has_all_that_a_device_needs_and_runs_its_commands_without_torch(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    ours = ("client", "server", "mechanisms", "simulations", "sottovoce")
    for name in ours:
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], check=True, capture_output=True, cwd=project)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert {"sottovoce/__init__.py", "sottovoce/__init__.pyi", "simulations/experiments/demo.toml"} <= held
    assert {f"{name}/py.typed" for name in ours} <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)

    venv.create(tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_paths()["purelib"])  # what the wheel needs, behind it
    options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *options, wheel], check=True)
    bundle, device = make_bundle(tmp_path / "made"), tmp_path / "device"
    (tmp_path / "sign.pub").write_text(PUBLISHER.hex())
    (tmp_path / "reviews.tsv").write_text("sentence\tlabel\nthe film was good\tgood\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in (
        ["install", "--bundle", bundle.folder, "--device", device, "--publisher", tmp_path / "sign.pub"],
        ["add", device, "--file", tmp_path / "reviews.tsv", "--text", "sentence", "--label", "label"],
        ["ledger", device],
    ):
        program = [python, "-c", PROGRAM, packages, "device", *command]
        done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

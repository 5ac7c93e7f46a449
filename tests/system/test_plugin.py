"""A package with an entry point, on the path and not in the catalogue: its mechanism runs through Flower on Ray, where
clients are processes that know nothing but their folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from tests.support.own_package import STUDY, write_package
from tests.support.paths import ROOT
from tests.support.tiny_models import tiny_bert

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.xdist_group("ray")]


def test_it_simulates(tmp_path: Path) -> None:
    tiny_bert(tmp_path / "bert")
    (tmp_path / "study.toml").write_text(tomli_w.dumps(STUDY))
    path = os.pathsep.join((str(ROOT), str(write_package(tmp_path / "installed"))))
    ran = subprocess.run(
        [sys.executable, "-m", "sottovoce.cli.main", "simulate", "study.toml", "--out", "out", "--json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr
    (arm,) = json.loads((tmp_path / "out" / "results.json").read_text())["arms"]
    assert arm["users"] == 24 and arm["accuracy"] is not None
    assert {rung["rung"]: rung["epsilon"] for rung in arm["ladder"]}["label"] == 3.0

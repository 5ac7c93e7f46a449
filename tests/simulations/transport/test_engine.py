"""Flower is told to phone nobody also where it was imported before anybody could tell it so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

#: As from a notebook: the door's names import Flower. What Flower sends, and whether our code has been asked to run it.
PROGRAM = """
import contextlib, sys, urllib.request
from pathlib import Path

import flwr.simulation
from flwr.supercore import telemetry
from simulations.transport import engine

sent = []
urllib.request.urlopen = lambda request, *_, **__: sent.append(request.full_url)
assert telemetry.FLWR_TELEMETRY_ENABLED == "1"

def started(*_, **__):
    telemetry.event(telemetry.EventType.PYTHON_API_RUN_SIMULATION_ENTER).exception(30)

flwr.simulation.run_simulation = started
engine._ray = lambda *_: contextlib.nullcontext()
if sys.argv[2] == "ours":
    try:
        engine.run_on_flower(lambda grid: None, nodes=1, folder=Path(sys.argv[1]))
    except RuntimeError as error:
        assert "before the server had finished" in str(error)
else:
    started()
print(*sent)
"""


@pytest.mark.parametrize("whose", ["ours", "flower's"])
def test_a_simulation_from_python_phones_nobody(whose: str, tmp_path: Path) -> None:
    told = {key: value for key, value in os.environ.items() if not key.startswith("FLWR")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), whose], capture_output=True, text=True, check=False,
        env=told | {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "FLWR_HOME": str(tmp_path / "flwr")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ("telemetry" in done.stdout) is (whose == "flower's")

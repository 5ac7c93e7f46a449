"""Flower phones nobody, wherever it was imported first, and logs no colours; Ray has room for its sockets."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray

from simulations.errors import UserError
from simulations.transport import engine
from simulations.transport.quiet import QUIET, hush_flower
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
        [sys.executable, "-c", PROGRAM, str(tmp_path), whose],
        capture_output=True,
        text=True,
        check=False,
        env=told | {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "FLWR_HOME": str(tmp_path / "flwr")},
    )
    assert done.returncode == 0, done.stderr
    assert ("telemetry" in done.stdout) is (whose == "flower's")


def test_a_folder_for_temporary_files_may_have_a_long_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's sockets lie in it, and their names have 107 bytes. A name of 40 bytes is too long with any of Ray's."""
    started: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        started.append(options)
        assert len(options.get("_temp_dir", os.environ["TMPDIR"])) <= 36
        assert os.path.isdir(options.get("_temp_dir", tmp_path))

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(engine, "_SHORT", str(short := Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    try:
        for length in (36, 37, 50):
            monkeypatch.setenv("TMPDIR", "/tmp/" + "x" * (length - 5))
            with engine._ray({}, None, None):
                assert len(list(short.iterdir())) == (length > 36)
        assert ["_temp_dir" in options for options in started] == [False, True, True] and not list(short.iterdir())
    finally:
        short.rmdir()
    words = r"^TMPDIR: /tmp/x+ is too long for Ray's .* of at most 36 bytes$"
    with pytest.raises(UserError, match=words), engine._ray({}, None, None):
        raise AssertionError
    assert len(started) == 3


@pytest.mark.parametrize(
    ("terminal", "no_color", "coloured"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_flower_colours_no_file(terminal: bool, no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.common.logger import console_handler

    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    logger = logging.getLogger("flwr")
    before = logger.level, console_handler.colored
    try:
        hush_flower(logging.ERROR)
        record = logger.makeRecord("flwr", logging.ERROR, "", 0, "a fault", (), None)
        assert ("\x1b[" in console_handler.format(record)) == coloured
        assert not logger.isEnabledFor(logging.WARNING) and QUIET["RAY_COLOR_PREFIX"] == "0"
    finally:
        logger.setLevel(before[0])
        console_handler.colored = before[1]

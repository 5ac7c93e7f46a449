"""A supervisor for tests: starts what a unit says, as systemd would, and again when that fails, but without waiting."""

from __future__ import annotations

import shlex
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path


def supervised(unit: Path, started: Callable[[subprocess.Popen[bytes]], object]) -> threading.Thread:
    """A thread that lasts until the party ends without a failure. started: is given each process."""
    lines = unit.read_text().splitlines()
    told = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("Environment"))
    assert told["Restart"] == "on-failure"
    command = shlex.split(told["ExecStart"].replace("%%", "%").replace("$$", "$"))

    def loop() -> None:
        while True:
            process = subprocess.Popen(command, cwd=told["WorkingDirectory"], stderr=subprocess.DEVNULL)
            started(process)
            if process.wait() == 0:
                return

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    return thread

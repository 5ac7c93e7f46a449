"""A supervisor for tests: starts a party again when it fails, as systemd would (`Restart=on-failure`), but at once."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path


def supervised(
    command: Sequence[str], place: Path, started: Callable[[subprocess.Popen[bytes]], object]
) -> threading.Thread:
    """A thread that lasts until the party ends without a failure. started: is given each process."""

    def loop() -> None:
        while True:
            process = subprocess.Popen(command, cwd=place, stderr=subprocess.DEVNULL)
            started(process)
            if process.wait() == 0:
                return

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    return thread

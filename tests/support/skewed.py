"""A command of Sottovoce on a machine whose clock a test turns: `python -m tests.support.skewed FILE ARGUMENT...`.

FILE holds by how many seconds the clock is ahead, and may be rewritten at any time. Everything that this process signs
or writes down has that time; what TLS makes of certificates has the machine's.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from client.device import fleet
from sottovoce.cli import main as cli


def turned(file: Path) -> None:
    """Has this process's clock go by the file."""
    real = time.time

    def now() -> float:
        return real() + float(file.read_text() or 0)

    time.time = now
    fleet._now = lambda: datetime.fromtimestamp(now(), UTC)


if __name__ == "__main__":
    turned(Path(sys.argv[1]))
    sys.exit(cli.main(sys.argv[2:]))

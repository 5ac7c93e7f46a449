"""Progress lines of long commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

# Nothing here may import NumPy or the mechanisms: commands import it before they know that they will run.

#: Is given a line that says how far something is.
Progress = Callable[[str], None]


def progress_lines() -> Progress:
    """Return a function that prints lines on stderr, each after the seconds since this call."""
    start = time.monotonic()

    def progress(line: str) -> None:
        print(f"{time.monotonic() - start:7.1f} s  {line}", file=sys.stderr, flush=True)

    return progress

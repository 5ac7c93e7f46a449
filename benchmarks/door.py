"""Seconds that a fresh interpreter takes for an import: `python -m benchmarks.door`.

`import sottovoce` alone may take 50 ms more than NumPy; a name takes what it needs. Figures are medians of repeated
runs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

REPEATS = 11
STATEMENTS = (
    "pass",
    "import numpy",
    "import sottovoce",
    "from sottovoce import Guarantee",
    "from sottovoce import Purkayastha, ladder, plan",
    "from sottovoce import Ledger, Policy, Rewriter, Sanitizer",
    "from sottovoce import load, simulate",
    "from sottovoce import attack, audit",
)


def milliseconds(statement: str) -> float:
    """Return the median over REPEATS interpreters, after one that warms the disk's caches."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[1:])


def main() -> None:
    """Print the figures."""
    nothing = milliseconds(STATEMENTS[0])
    print(f"{'an interpreter that does nothing':<62}{nothing:>8,.0f} ms")
    for statement in STATEMENTS[1:]:
        print(f"{statement:<62}{milliseconds(statement) - nothing:>8,.0f} ms more")


if __name__ == "__main__":
    main()

"""Seconds of work, processors and random streams, for all benchmarks."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mechanisms.mechanism import Uniforms
from mechanisms.streams import SimulationStreams

REPEATS = 5


def seconds(work: Callable[[], object], *, clock: Callable[[], float] = time.process_time) -> float:
    """Return the median seconds of REPEATS runs, after one that warms caches.

    Args:
        work: Function that does the work.
        clock: Clock; by default CPU seconds of this process, so that other load does not count.
    """
    times = []
    for _ in range(REPEATS + 1):
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.median(times[1:])


def streams(n: int, channel: str = "text") -> Uniforms:
    """Return random streams of n users with one row each."""
    return SimulationStreams(1).rows(np.arange(n), np.zeros(n, np.int64), stage="bench", channel=channel)


def processor() -> str:
    """Return the processor's name, as the system reports it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())

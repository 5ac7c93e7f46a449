"""The benchmark of a round measures what it says: memory that is there, known exponents, all users."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.figure import growth as figure
from benchmarks.round import Memory, exponent, flower_per_user_rate, growth, run

pytestmark = pytest.mark.xdist_group("ray")  # Ray takes all cores: one of these at a time


def test_an_exponent_is_the_slope_on_a_log_log_plot() -> None:
    users = np.array([1e4, 1e5, 1e6])
    for power in (0.8, 1.0, 1.3):
        assert exponent(users, 3e-5 * users**power) == pytest.approx(power)


def test_growth_is_counted_between_the_two_largest() -> None:
    rounds = [{"users": n, "memory": {"peak": 1000 + 150 * n}} for n in (100, 1000)]
    assert growth([*rounds, {"users": 10, "memory": {"peak": 0}}]) == 150


def test_the_figure_shows_every_size() -> None:
    rounds = [{"users": n, "seconds": {"round": n / 1e4}} for n in (1000, 10_000)]
    (axes,) = figure({"rounds": rounds}).axes
    assert [bar.get_width() for bar in axes.patches] == [0.1, 1.0]
    assert [text.get_text() for text in axes.texts] == ["0.1 s, 10,000 users/s", "1 s, 10,000 users/s"]


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_memory_counts_what_this_process_and_its_children_hold_and_no_others() -> None:
    held = 64 << 20
    program = f"import time; data = bytearray(b'x') * {held}; print(flush=True); time.sleep(60)"
    with Memory() as sampled, subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        there = sampled.now()
        own = np.frombuffer(mmap.mmap(-1, held), np.uint8)  # the allocator may have some left
        own[:] = 1
        both = sampled.now()
        child.kill()
    assert there - sampled.before > 0.9 * held and both - there > 0.9 * held
    assert sampled.peak >= sampled.before and own.all()
    assert Memory().now() < both - 0.9 * held  # the child is gone


@pytest.mark.slow
def test_a_round_delivers_everybody(tmp_path: Path) -> None:
    found = run(3000, nodes=3, seed=1, folder=tmp_path)
    assert (found["users"], found["nodes"], found["delivered"]) == (3000, 3, 3000)
    assert found["bytes_per_user"] == 16 + 2 * 16 + 2
    assert 0 < found["memory"]["before"] <= found["memory"]["peak"]
    assert found["users_per_second"] == pytest.approx(3000 / found["seconds"]["round"])


@pytest.mark.slow
@pytest.mark.soak
def test_a_round_of_one_vector_each(tmp_path: Path) -> None:
    found = run(300, nodes=3, seed=1, folder=tmp_path, statistic=True)
    assert found["delivered"] == 300 and found["bytes_per_user"] == 16 + 2 * 64


@pytest.mark.slow
@pytest.mark.soak
def test_flower_without_work_answers_for_every_node(tmp_path: Path) -> None:
    assert flower_per_user_rate(20, folder=tmp_path) > 0

"""A hostile server, a program of its own, tries what it can on an installed device, and gets constant texts alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mechanisms.messages.refusals import REFUSALS
from tests.support import hostile_server
from tests.support.hostile_server import attempts
from tests.support.paths import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pathspec.*")


@pytest.mark.slow
def test_a_hostile_server_gets_constant_texts_and_what_the_user_has_agreed_to(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.hostile_server", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    tried = {line["tried"]: line["answered"] for line in lines if "tried" in line}
    assert tried.pop("the question that is listed") is True  # and the device still answers it
    assert len(tried) >= 28 and set(tried.values()) <= {text for _, text in REFUSALS.values()}
    assert len(set(tried.values())) >= 7  # refused for what each of them is
    told = {key: value for line in lines if "tried" not in line for key, value in line.items()}
    assert told["charged"] == 2 and told["of other questions"] == 0
    assert not told["the log says what a text says"] and not told["a traceback"]


def test_the_attempts_differ_from_what_is_listed(tmp_path: Path) -> None:
    """None of them is what the user has agreed to, so that a release is always a finding; but for the app's code."""
    _, honest = hostile_server.installed(tmp_path)
    good = hostile_server.request_to_record(honest)
    names = [one.name for one in attempts(honest)]
    assert len(set(names)) == len(names)
    assert all(one.content != good for one in attempts(honest) if one.app is None)

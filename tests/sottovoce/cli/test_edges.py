"""Commands under a shell's faults: streams that are full, closed or not in UTF-8, a folder that is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

ASCII = {"PYTHONIOENCODING": "ascii"}
C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SANITIZE = "sanitize --words w.txt --mechanism santext:epsilon=5"


class Case(NamedTuple):
    """A command, the shell's words behind it, its exit code, the one line on stderr, and how its output begins."""

    line: str
    shell: str = ""
    code: int = 0
    complaint: str = ""
    begins: str = ""
    environment: Mapping[str, str] | None = None


CASES = [
    Case("check --schema", "> /dev/full", 2, "standard output: No space left on device"),
    Case("check --schema", ">&-", 2, "standard output is closed; redirect it to a file, or to /dev/null"),
    Case("check --schema", "2>&-", begins="{\n"),
    Case("check --no-such-option", "2> /dev/full", 2),
    Case("check --schema", "<&-", begins="{\n"),
    Case(SANITIZE, "<&-", 2, "standard input is closed; name a file with --in"),
    Case("check --schema", "| true", 1),  # as click ends, without a word
    Case("check --schema", begins="{\n", environment=ASCII),
    Case("check --schema", begins="{\n", environment=C),
    Case("check --schema", code=2, complaint="the working folder is gone; change to one that is there"),
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "w.txt").write_text("the 0 1\nfilm 1 0\ngood 1 1\nbad 1 -1\n")
    (tmp_path / "in.txt").write_text("the film was good\n")
    return tmp_path


def test_one_line_whatever_the_streams_are(place: Path) -> None:
    """All at once: each start of a process takes a second. What an encoding lacks is a "?" in a text, and escaped in
    JSON."""
    begun = []
    for number, case in enumerate(CASES):
        gone = place / f"gone-{number}"
        gone.mkdir()
        where = f"cd {gone}; rmdir {gone}; " if "working folder" in case.complaint else ""
        line = f"set -o pipefail; {where}'{sys.executable}' -m sottovoce {case.line} {case.shell}"
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | (case.environment or {})
        environment.pop("SOTTOVOCE_DEBUG", None)
        begun.append(
            subprocess.Popen(
                ["bash", "-c", line], cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    for case, process in zip(CASES, begun, strict=True):
        out, said = (stream.decode() for stream in process.communicate(timeout=300))
        assert process.returncode == case.code, (case, said)
        assert "Traceback" not in said and "Exception" not in said, (case, said)
        last = said.splitlines()[-1:]
        assert last == ([f"sottovoce: {case.complaint}"] if case.complaint else []), (case, said)
        assert out.startswith(case.begins), case
        if case.environment:
            assert out.isascii()
            assert "ε" in json.dumps(json.loads(out), ensure_ascii=False) if out[0] == "{" else "?" not in out

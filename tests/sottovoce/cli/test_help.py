"""Help is grouped and fits one screen; a mechanism and its parameters are one word."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mechanisms.mechanism_text import read_mechanism


def test_help_fits_one_screen_and_each_command_has_one_line() -> None:
    def shown(*words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "sottovoce.cli.main", *words, "-h"],
            capture_output=True,
            text=True,
            check=True,
            env={"COLUMNS": "80", "PYTHONIOENCODING": "utf-8", "PATH": ""},
        )
        return done.stdout.splitlines()

    first = shown()
    assert len(first) <= 40 and any("sottovoce demo" in line for line in first)
    assert not [line for line in first if line.startswith("│      ")], "a command takes two lines"


def test_a_mechanism_and_its_parameters_are_one_word() -> None:
    assert read_mechanism("package.module:Class:epsilon=3,values=[1,2]") == {
        "mechanism": "package.module:Class",
        "epsilon": 3,
        "values": [1, 2],
    }
    assert read_mechanism("santext:stop-words=keep,length=.5") == {
        "mechanism": "santext",
        "stop_words": "keep",
        "length": 0.5,
    }
    for wrong in (":epsilon=1", "a:b=1,b=2", "a:b="):
        with pytest.raises(ValueError, match="--mechanism"):
            read_mechanism(wrong)

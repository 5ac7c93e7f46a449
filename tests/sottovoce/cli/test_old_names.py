"""Old names of commands and options work for one version, with a warning; help is grouped and fits one screen."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from mechanisms.mechanism_text import read_mechanism
from sottovoce.cli import main as cli
from sottovoce.cli.old_names import COMMANDS, PARAMETERS, translate

SANTEXT = ["sanitize", "--mechanism", "santext", "--epsilon", "5", "--set", "stop_words=keep", "--in", "a"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (SANTEXT, ["text", "sanitize", "--mechanism=santext:epsilon=5,stop_words=keep", "--in", "a"]),
        (["budget", "report", "x.toml"], ["report", "x.toml"]),
        (
            ["budget", "ladder", "--mechanism=privunit", "--epsilon=3", "--dim=32"],
            ["budget", "ladder", "--mechanism=privunit:epsilon=3,dim=32"],
        ),
        (
            ["budget", "plan", "--epsilon", "1", "--dim", "8"],
            ["budget", "plan", "--epsilon", "1", "--mechanism=purkayastha:dim=8"],
        ),
        (["deploy", "keys", "all"], ["deploy", "keys", "make", "all"]),
        (["device", "install", "--node", "me"], ["device", "install", "--device", "me"]),
    ],
)
def test_an_old_line_becomes_a_new_one_with_a_warning(old: list[str], new: list[str]) -> None:
    words, warnings = translate(old)
    assert words == new and warnings and all("next version" in line for line in warnings)
    assert translate(new) == (new, [])


def test_every_new_name_is_a_command() -> None:
    root = typer.main.get_command(cli.app)
    for words in (*COMMANDS.values(), *PARAMETERS):
        command = root
        for word in words:
            command = command.commands[word]


def test_an_old_command_runs_and_warns_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["budget", "ladder", "--mechanism", "randomized-response", "--epsilon", "2"]) == 0
    captured = capsys.readouterr()
    assert (
        "epsilon = 2" in captured.out
        and captured.err.count("\n") == 1
        and "randomized-response:epsilon=2" in captured.err
    )


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

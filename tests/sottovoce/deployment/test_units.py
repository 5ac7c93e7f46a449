"""Parties as services: what systemd and Compose are told, and that a party which dies is started again by it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.errors import UserError
from sottovoce.cli import main as cli
from sottovoce.deployment.units import write_units
from tests.support.units import supervised

STRANGE = ["/usr/bin/env", "a b", "100%", "$HOME", 'a "quoted" word', "back\\slash", "it's", "ε"]


def test_what_systemd_is_told(tmp_path: Path) -> None:
    unit, _ = write_units(tmp_path / "units", "node-1", STRANGE, tmp_path)
    lines = unit.read_text().splitlines()
    assert unit.name == "sottovoce-node-1.service"
    for line in (
        "Restart=on-failure",
        "RestartSec=5",
        "StartLimitIntervalSec=0",
        f"WorkingDirectory={tmp_path}",
        "UMask=0077",
        "Environment=FLWR_TELEMETRY_ENABLED=0",
        "WantedBy=multi-user.target",
    ):
        assert line in lines
    (command,) = (line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart="))
    assert shlex.split(command.replace("%%", "%").replace("$$", "$")) == STRANGE
    assert "%" not in command.replace("%%", "") and "$" not in command.replace("$$", "")


def test_what_compose_is_told(tmp_path: Path) -> None:
    _, file = write_units(tmp_path / "units", "shuffler", STRANGE, tmp_path)
    assert file.name == "compose-shuffler.yaml"
    service = json.loads(file.read_text())["services"]["shuffler"]
    assert [word.replace("$$", "$") for word in service["command"]] == STRANGE
    assert (service["restart"], service["working_dir"]) == ("on-failure", str(tmp_path))
    assert service["volumes"] == [{"type": "bind", "source": str(tmp_path), "target": str(tmp_path)}]


@pytest.mark.parametrize(
    ("party", "command", "words"),
    [
        ("No", ["a"], "must be of small letters"),
        ("../x", ["a"], "must be of small"),
        ("a", [], "names no command"),
        ("a", ["b\nExecStart=c"], "no line ends"),
    ],
)
def test_what_is_no_service_is_one_line(tmp_path: Path, party: str, command: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        write_units(tmp_path / "units", party, command, tmp_path)
    assert "\n" not in str(caught.value) and not (tmp_path / "units").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "units"
    party = ["sh", "-c", "exit 3", "--port", "1"]
    assert cli.main(["deploy", "units", str(out), "--party", "model", "--in", str(tmp_path), "--", *party]) == 0
    assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "model, started again when it fails"
    ] * 2
    assert '"-c" "exit 3" "--port" "1"' in (out / "sottovoce-model.service").read_text()


def test_a_party_that_dies_is_started_again_until_it_ends_by_itself(tmp_path: Path) -> None:
    """Killed, ended by an error, and then done: three lives."""
    program = (
        "import os, pathlib, signal, sys\n"
        "lives = pathlib.Path('lives'); n = len(lives.read_text()) if lives.exists() else 0\n"
        "lives.write_text('x' * (n + 1))\n"
        "os.kill(os.getpid(), signal.SIGKILL) if n == 0 else sys.exit(2 if n == 1 else 0)\n"
    )
    (tmp_path / "party.py").write_text(program)
    unit, _ = write_units(tmp_path / "units", "party", [sys.executable, "party.py"], tmp_path)
    ended: list[subprocess.Popen[bytes]] = []
    supervised(unit, ended.append).join(30)
    assert (tmp_path / "lives").read_text() == "xxx" and [p.returncode for p in ended] == [-9, 2, 0]

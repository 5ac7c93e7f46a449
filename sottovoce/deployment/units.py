"""Service files that restart a party of a deployment after a crash: systemd's unit, and Docker Compose's file.

Every party continues its work after a restart: a shuffler and a device store what they acknowledge, and a model has no
state. So the same command line recovers from any end other than a requested stop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from simulations.errors import UserError
from simulations.output.atomic import whole
from simulations.transport.quiet import QUIET

#: Seconds before a restart: the party's SuperLink may be starting too.
AGAIN = 5
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}", re.ASCII)
_TOLD = {key: value for key, value in QUIET.items() if key.startswith("FLWR")}


def write_units(out: Path, party: str, command: Sequence[str], place: Path) -> list[Path]:
    """Write sottovoce-PARTY.service and compose-PARTY.yaml, each whole, into a folder.

    Args:
        out: Folder for the files.
        party: Name of the party, of small letters, digits and "-".
        command: Command line that starts it, its program first.
        place: Working folder, to which it may write.

    Raises:
        UserError: The party or the command is invalid.
    """
    if not _NAME.fullmatch(party):
        raise UserError(f"--party {party}: must be of small letters, digits and -, as shuffler or node-1")
    if not command or not command[0]:
        raise UserError("deploy units: names no command; give it behind --, as in commands.txt")
    if any(ord(letter) < 32 for word in (*command, str(place)) for letter in word):
        raise UserError("deploy units: a command has no line ends or other control characters")
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for name, text in (
        (f"sottovoce-{party}.service", unit(party, command, place)),
        (f"compose-{party}.yaml", compose(party, command, place)),
    ):
        with whole(out / name) as file:
            file.write(text.encode())
        made.append(out / name)
    return made


def unit(party: str, command: Sequence[str], place: Path) -> str:
    """Return systemd's unit (systemd.service(5)).

    It retries for ever, because a machine may be without a network for longer than systemd's default limit.

    Args:
        party: Name of the party.
        command: Command line that starts it.
        place: Working folder.
    """
    environment = "".join(f"Environment={key}={value}\n" for key, value in _TOLD.items())
    return (
        f"[Unit]\nDescription=Sottovoce: {party}\nWants=network-online.target\nAfter=network-online.target\n"
        "StartLimitIntervalSec=0\n\n"
        f"[Service]\nType=exec\nWorkingDirectory={str(place.absolute()).replace('%', '%%')}\n{environment}"
        f"ExecStart={' '.join(map(_word, command))}\n"
        f"Restart=on-failure\nRestartSec={AGAIN}\n"
        "UMask=0077\nNoNewPrivileges=yes\nPrivateTmp=yes\nProtectSystem=full\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def compose(party: str, command: Sequence[str], place: Path) -> str:
    """Return Docker Compose's file: JSON is valid YAML, and Compose reads two dollars as one.

    Args:
        party: Name of the party.
        command: Command line that starts it.
        place: Working folder.
    """
    folder = str(place.absolute())
    service = {
        "image": "${SOTTOVOCE_IMAGE:?an image that has sottovoce installed}",
        "command": [_plain(word) for word in command],
        "working_dir": _plain(folder),
        "environment": _TOLD,
        "volumes": [{"type": "bind", "source": _plain(folder), "target": _plain(folder)}],
        "network_mode": "host",
        "restart": "on-failure",
        "init": True,
        "security_opt": ["no-new-privileges:true"],
    }
    return json.dumps({"services": {party: service}}, indent=2) + "\n"


def _word(word: str) -> str:
    """Return a word quoted for systemd: no variable, no specifier, no own quote."""
    for letter, instead in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(letter, instead)
    return f'"{word}"'


def _plain(word: str) -> str:
    return word.replace("$", "$$")

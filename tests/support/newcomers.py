"""Somebody who has just come, at a prompt in a folder of their own."""

from __future__ import annotations

import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from hashlib import sha256
from io import StringIO
from pathlib import Path

from sottovoce.cli import main as cli

_PROGRESS = re.compile(r" +[0-9.]+ s  ")


class Newcomer:
    """Types commands in the working folder `home`. commands: those that did what was wanted; mistakes: the others."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.commands: list[str] = []
        self.mistakes: list[str] = []

    def types(self, line: str) -> str:
        """What a command that is right prints."""
        code, said, complaint = self._run(line)
        assert code == 0, f"{line}: {complaint}"
        self.commands.append(line)
        return said

    def finds(self, line: str) -> str:
        """What a command that is right prints, whose news are bad: exit code 1."""
        code, said, complaint = self._run(line)
        assert code == 1, f"{line}: {complaint}"
        self.commands.append(line)
        return said

    def errs(self, line: str, complaint: str, *, makes: str = "") -> None:
        """A command that is wrong gets this line, this alone but for progress, and exit code 2; every file stays as it
        was. makes: one that comes into being all the same, and holds nothing."""
        before = self._files()
        code, said, found = self._run(line)
        found = "".join(each for each in found.splitlines(keepends=True) if _PROGRESS.match(each) is None)
        assert (code, said, found) == (2, "", f"sottovoce: {complaint}\n"), f"{line}: {code} {said!r} {found!r}"
        changed = {path for path, _ in before.items() ^ self._files().items()} - {self.home / makes}
        assert not changed, f"{line}: not as they were: {changed}"
        self.mistakes.append(line)

    def _run(self, line: str) -> tuple[int, str, str]:
        out, complaints = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(complaints):
            code = cli.main(shlex.split(line))
        return code, out.getvalue(), complaints.getvalue()

    def _files(self) -> dict[Path, str]:
        """Every folder under the home, and every file by what it holds; without Python's bytecode."""
        return {
            path: sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            for path in self.home.rglob("*")
            if "__pycache__" not in path.parts
        }

"""Sources of an external mechanism's draws: a function, or a program that speaks JSON lines.

A program's first line is its claim, an object of the fields of `adversary.audit.external.claim.Claim`. It then answers
each line {"input": x, "draws": n, "seed": s} that it receives with one line, {"draws": [n draws]}. The seed differs
each time, for programs that use one. A program may answer {"error": "why"}. It ends when its standard input ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from simulations.errors import UserError
from sottovoce.adversary.audit.external.claim import Claim, key_of

#: Draws of one request.
BATCH = 10_000


class Source(Protocol):
    """Claim about a mechanism, and its draws. `command` is the command of the program, if it is one."""

    claim: Claim
    command: str | None

    def draws(self, x: Any, n: int, seed: int) -> Any:
        """Return n independent draws at an input, in their order."""


class Function:
    """Source that is a function of an input and a number of draws, in this process. It ignores seeds.

    Args:
        function: Function of an input and a number of draws.
        claim: Claim about it.
    """

    command: str | None = None

    def __init__(self, function: Callable[[Any, int], Any], claim: Claim) -> None:
        self.function, self.claim = function, claim

    def draws(self, x: Any, n: int, seed: int) -> Any:
        """Return n independent draws at an input."""
        try:
            return self.function(x, n)
        except Exception as error:
            raise UserError(
                f"{self.claim.name}: raised {type(error).__name__} at the input {shown(x)}: {error}"
            ) from error


#: Longest wait for an answer, in seconds.
LONGEST_WAIT = 1e6


class Program:
    """Source that is a running program, in its own session; `close` ends it with all its children.

    Args:
        command: Command line of the program.
        timeout: Seconds to wait for an answer.

    Raises:
        UserError: The program does not start, or states no claim.
    """

    def __init__(self, command: str, timeout: float) -> None:
        if not 0 < timeout <= LONGEST_WAIT:
            raise UserError(f"--timeout {timeout:g}: must be seconds above 0, at most {LONGEST_WAIT:,.0f}")
        self.command: str | None = command
        self.timeout = timeout
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program
        try:
            words = shlex.split(command)
            if not words:
                raise ValueError("is empty")
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
            )
        except (OSError, ValueError) as error:
            self._errors.close()
            raise UserError(f"--command {command}: does not start: {error}") from error
        try:
            self.claim = Claim.of(self._answer("a claim, on its first line"), f"--command {command}")
        except BaseException:
            self.close()
            raise

    def draws(self, x: Any, n: int, seed: int) -> Any:
        """Return n independent draws at an input."""
        request = f"{n:,} draws at the input {shown(x)}"
        answer = self._answer(request, (key_of({"input": x, "draws": n, "seed": seed}) + "\n").encode())
        if not isinstance(answer, dict):
            raise UserError(f"--command {self.command}: answers {request} with something else than a JSON object")
        if "error" in answer:
            raise UserError(f"--command {self.command}: says of {request}: {answer['error']}")
        draws = answer.get("draws")
        if not isinstance(draws, list) or len(draws) != n:
            count = f"{len(draws):,}" if isinstance(draws, list) else "none"
            raise UserError(f"--command {self.command}: was asked for {n:,} draws and answered {count}")
        return draws

    def _answer(self, what: str, request: bytes = b"") -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self._kill()

        timer = threading.Timer(self.timeout, end)
        timer.start()
        line = b""
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(request)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        timer.cancel()
        if late.is_set():
            raise UserError(
                f"--command {self.command}: {what}: no answer in {self.timeout:g} s; give it longer with --timeout"
            )
        if not line.endswith(b"\n"):
            raise UserError(f"--command {self.command}: {what}: it ended {self._ending()}")
        try:
            return json.loads(line, parse_constant=_refused)
        except ValueError as error:
            start = line[:40].decode(errors="replace").strip()
            raise UserError(
                f"--command {self.command}: {what}: it wrote a line that is no JSON, {start!r}; what it says to people "
                "belongs on standard error"
            ) from error

    def _ending(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._errors.seek(0)
        lines = self._errors.read()[-4000:].decode(errors="replace").strip().splitlines()
        code = self._process.returncode
        return f"with code {code}" + (f": {lines[-1]}" if lines else "")

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the program."""
        self._kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError, ValueError):
                if pipe is not None:
                    pipe.close()


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")


@contextlib.contextmanager
def program(command: str, timeout: float) -> Iterator[Program]:
    """Run a program for the duration of a context.

    Raises:
        UserError: The program does not start, or states no claim.
    """
    process = Program(command, timeout)
    try:
        yield process
    finally:
        process.close()


def shown(x: Any, length: int = 60) -> str:
    """Return an input as text of at most `length` characters."""
    text = json.dumps(json.loads(key_of(x)), ensure_ascii=False)
    return text if len(text) <= length else text[: length - 1] + "…"

"""Standard input, output and error, in the state that the shell left them in."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, BinaryIO

from simulations.errors import UserError

#: Name of standard output in errors, in place of a file name.
STDOUT = "standard output"


class _Output(io.FileIO):
    """Standard output, whose errors name it.

    Nothing is written to it after an error: the rest of a buffer would fail again when the process ends.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _nowhere(self.fileno(), os.O_WRONLY)
            raise OSError(error.errno, error.strerror, STDOUT) from None


class _Complaints(io.FileIO):
    """Standard error, whose own errors cannot be reported to anybody."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare() -> None:
    """Make the standard streams of the process fit for a command, unless somebody has replaced them.

    Characters that their encoding lacks are written as escapes. A closed stream is opened to the null device: the next
    file that is opened would otherwise get its number.

    Raises:
        UserError: Standard output is closed, or the working folder is gone.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            _nowhere(number, flags)
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115 - for as long as the process runs
    elif sys.stderr is sys.__stderr__:
        sys.stderr = _over(_Complaints(2, "w", closefd=False), sys.stderr)
    if sys.stdout is None:
        raise UserError("standard output is closed; redirect it to a file, or to /dev/null")
    if sys.stdout is sys.__stdout__:
        sys.stdout = _over(_Output(1, "w", closefd=False), sys.stdout)
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the working folder is gone; change to one that is there") from None


def standard_input(instead: str) -> BinaryIO:
    """Return the bytes of standard input.

    Args:
        instead: What to give in its place; part of the error message.

    Raises:
        UserError: Standard input is closed.
    """
    if sys.stdin is None:
        raise UserError(f"standard input is closed; {instead}")
    return sys.stdin.buffer


def in_unicode() -> bool:
    """Return True if standard output shows every character."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")


def _over(raw: io.FileIO, before: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding,
        errors="backslashreplace",
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )


def _nowhere(number: int, flags: int) -> None:
    """Redirect this stream to the null device."""
    opened = os.open(os.devnull, flags)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    os.set_inheritable(number, True)

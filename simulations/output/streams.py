"""Standard input, output and error, whatever the shell has made of them."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, BinaryIO

from simulations.errors import UserError

#: How errors name standard output, in the place of a file.
STDOUT = "standard output"


class _Output(io.FileIO):
    """Standard output, whose errors name it. Nothing is written to it after an error: what is left in a buffer would
    fail once more when the process ends."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _nowhere(self.fileno(), os.O_WRONLY)
            raise OSError(error.errno, error.strerror, STDOUT) from None


class _Complaints(io.FileIO):
    """Standard error, whose errors nobody could be told of."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare() -> None:
    """Make the process' standard streams fit for a command, where nobody has replaced them.

    What their encoding lacks is shown as "?". A stream that is closed is opened to nothing: its number would go to the
    next file that is opened.

    Raises:
        UserError: Standard output is closed, or the working folder is gone.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            _nowhere(number, flags)
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="replace", closefd=False)  # noqa: SIM115 - for as long as the process runs
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
    """The bytes of standard input. Raises UserError, which says what to give `instead`, where it is closed."""
    if sys.stdin is None:
        raise UserError(f"standard input is closed; {instead}")
    return sys.stdin.buffer


def in_unicode() -> bool:
    """Whether standard output shows every character."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")


def _over(raw: io.FileIO, before: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=before.encoding, errors="replace", line_buffering=before.line_buffering,
        write_through=before.write_through,
    )  # fmt: skip


def _nowhere(number: int, flags: int) -> None:
    """Let what is written to this stream vanish, and what is read from it be nothing."""
    opened = os.open(os.devnull, flags)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    os.set_inheritable(number, True)

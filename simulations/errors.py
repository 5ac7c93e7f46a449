"""Mistakes that a user can correct, and requested interruptions."""

from __future__ import annotations

import re
import signal
from pathlib import Path

#: Exit codes of a command that was ended by Ctrl-C or SIGTERM: as a shell counts them, 128 and the signal's number.
INTERRUPTED, TERMINATED = (128 + number for number in (signal.SIGINT, signal.SIGTERM))

#: How text begins that is not UTF-8, and what it is then.
_MARKS = ((b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))


#: What a URL has before its host: a name and a password. Keys of object stores contain "/", so it ends at the last "@".
_CREDENTIALS = re.compile(r"(?<=://)\S*@")


def masked(text: str) -> str:
    """Return a text with "***" in place of names and passwords in its URLs."""
    return _CREDENTIALS.sub("***@", text)


def in_short(error: BaseException) -> str:
    """Return the message of a library's error in one line of at most 200 characters, or the error's type."""
    return " ".join(masked(f"{error}").split())[:200] or type(error).__name__


class UserError(ValueError):
    """Error of one line: what is wrong, where, and what to do. The command prints it and exits with 2."""

    def __init__(self, line: str) -> None:
        super().__init__(masked(line))


def no_file(path: Path) -> UserError:
    """Return the error for a path that should be a file, and is none."""
    if path.is_dir():
        return UserError(f"{path}: is a folder; name a file in it")
    if path.exists():
        return UserError(f"{path}: is a pipe or a device, which can be read only once; save what it gives in a file")
    return UserError(f"{path}: there is no such file")


def can_be_read(path: Path) -> bool:
    """Return True if the path can be read at least once: a file, a pipe such as a shell's <(...), or a device."""
    return path.exists() and not path.is_dir()


def other_encoding(data: bytes) -> str | None:
    """Return the encoding of text that starts with these bytes, if it is recognizably not UTF-8; None otherwise.

    A byte order mark shows it, or zeros beside the letters.
    """
    for mark, name in _MARKS:
        if data.startswith(mark):
            return name
    pairs = data[: len(data) // 2 * 2][:1000]
    return "UTF-16" if {any(pairs[::2]), any(pairs[1::2])} == {True, False} and len(pairs) > 2 else None


#: What a program does wrong whenever it comes to the same place: errors of libraries and the system are others.
_BUGS = (
    AssertionError,
    TypeError,
    AttributeError,
    LookupError,
    NameError,
    ArithmeticError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
)


def comes_again(error: BaseException) -> bool:
    """Return True if the same work would raise this error again: a fault of the program, or a mistake of its user."""
    return isinstance(error, (*_BUGS, ValueError))


class Terminated(SystemExit):
    """Exit for SIGTERM, as KeyboardInterrupt is for Ctrl-C. If nobody catches it, the process ends with 143."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


class Interrupted(Exception):
    """Interruption by Ctrl-C or SIGTERM after partial work that is kept.

    Args:
        line: One line that says how to continue.
        by: The exception of the interruption. It decides `code`, with which a command ends.
    """

    def __init__(self, line: str, *, by: BaseException | None = None) -> None:
        super().__init__(line)
        self.code = TERMINATED if isinstance(by, Terminated) else INTERRUPTED

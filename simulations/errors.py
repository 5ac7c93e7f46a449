"""Mistakes that a user can make and mend, and ends that somebody asked for."""

from __future__ import annotations

import signal
from pathlib import Path

#: Exit codes of a command that was ended by Ctrl-C or SIGTERM: as a shell counts them, 128 and the signal's number.
INTERRUPTED, TERMINATED = (128 + number for number in (signal.SIGINT, signal.SIGTERM))


class UserError(ValueError):
    """One line that says what is wrong, where, and what to do. The command prints it and exits with 2."""


def no_file(path: Path) -> UserError:
    """What to say of a path at which a file was looked for, and is none."""
    return UserError(f"{path}: {'is a folder; name a file in it' if path.is_dir() else 'there is no such file'}")


#: What a program does wrong whenever it comes to the same place: errors of libraries and the system are others.
_BUGS = (
    AssertionError, TypeError, AttributeError, LookupError, NameError, ArithmeticError, NotImplementedError,
    RecursionError, SyntaxError,
)  # fmt: skip


def comes_again(error: BaseException) -> bool:
    """Whether the same work would meet this error again: a fault of the program, or a mistake of its user's."""
    return isinstance(error, (*_BUGS, ValueError))


class Terminated(SystemExit):
    """SIGTERM, as KeyboardInterrupt is Ctrl-C: where nobody catches it, the process ends with 143."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


class Interrupted(Exception):
    """Ctrl-C or SIGTERM, after something has been done that is kept: one line that says how to go on.

    by: which of the two it was. code: with which a command ends.
    """

    def __init__(self, line: str, *, by: BaseException | None = None) -> None:
        super().__init__(line)
        self.code = TERMINATED if isinstance(by, Terminated) else INTERRUPTED

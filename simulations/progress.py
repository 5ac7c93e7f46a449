"""Progress lines of long commands: a logging handler that commands install."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from simulations.errors import masked

# Nothing here may import NumPy or the mechanisms: commands import it before they know that they will run.

_PACKAGES = ("benchmarks", "client", "mechanisms", "server", "simulations", "sottovoce")
#: Prefix of the lines of a context; None for a silent context.
_PREFIX: ContextVar[str | None] = ContextVar("prefix", default="")


class _Handler(logging.Handler):
    """Handler that passes lines to a function: progress with the prefix of its context, and warnings as they are."""

    def __init__(self, show: Callable[[str], None], clock: Callable[[], str], thread: int | None) -> None:
        super().__init__()
        self._show, self._clock, self._thread = show, clock, thread

    def emit(self, record: logging.LogRecord) -> None:
        """Show a line."""
        if self._thread not in (None, record.thread):
            return
        if record.levelno > logging.INFO:
            self._show(masked(record.getMessage()))
        elif (prefix := _PREFIX.get()) is not None:
            self._show(f"{self._clock()}{prefix}{masked(record.getMessage())}")


@contextmanager
def lines_to(
    show: Callable[[str], None], *, clock: Callable[[], str] = str, thread: int | None = None
) -> Iterator[None]:
    """Pass progress lines of our packages to a function for the duration of a context.

    Args:
        show: Function that receives each line.
        clock: Function that returns the beginning of a line.
        thread: Thread whose lines are passed; None for all.
    """
    handler = _Handler(show, clock, thread)
    loggers = [logging.getLogger(name) for name in _PACKAGES]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            if not any(isinstance(other, _Handler) for other in logger.handlers):
                logger.setLevel(logging.NOTSET)


@contextmanager
def progress_lines(*, clock: bool = True) -> Iterator[None]:
    """Print progress lines on stderr for the duration of a context.

    Args:
        clock: Whether each line begins with the seconds since this call.
    """
    start = time.monotonic()
    with lines_to(
        lambda line: print(line, file=sys.stderr, flush=True),
        clock=lambda: f"{time.monotonic() - start:7.1f} s  " if clock else "",
    ):
        yield


@contextmanager
def prefixed(prefix: str | None) -> Iterator[None]:
    """Put a prefix before the progress lines of a context, after the prefix of its surroundings; None silences them."""
    outer = _PREFIX.get()
    token = _PREFIX.set(None if outer is None or prefix is None else outer + prefix)
    try:
        yield
    finally:
        _PREFIX.reset(token)

"""Temporary replacement of signal handlers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def handling(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Install signal handlers for the duration of the block, and restore the former ones afterwards.

    A former handler that was not set from Python cannot be restored; the system's default replaces it. In a thread
    other than the main one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

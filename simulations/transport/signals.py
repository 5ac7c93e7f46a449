"""Signals, taken over for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def handling(handlers: Mapping[int, Any]) -> Iterator[None]:
    """While the block runs, these handle their signals; what did before does so again afterwards, or the system where
    that was no Python code's, which cannot be put back. In another thread than the main one nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

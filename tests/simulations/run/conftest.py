"""What tests that fork need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """These tests fork, and a child would wait for ever for the threads of OpenMP that it did not inherit."""
    import torch  # seconds, which the others need not wait for

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

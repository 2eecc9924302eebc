"""How long a test waits before it says that a thing hangs: no measure of how much a machine gets done in that time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 600
"""Seconds. A process that has to import PyTorch may take minutes on a busy machine."""


def until(holds: Callable[[], object]) -> None:
    """Wait for something to be true."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)

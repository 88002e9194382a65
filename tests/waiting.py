"""Waiting for another thread or process, and keeping the processor busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 120.0
"""Seconds to wait for what takes a moment on an idle machine."""


def wait_until(condition: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Wait until a condition is true, and return its value; an AssertionError if that takes too long."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {seconds:.0f} s"
        time.sleep(0.02)
    return value


def burn(seconds: float) -> None:
    """Use up processor time in this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

"""Processes that end with their test."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from tests.swarm.finding.processes import Process


@pytest.fixture
def running() -> Iterator[Callable[[Process], None]]:
    """Takes started processes and kills them after the test."""
    started: list[Process] = []
    yield started.append
    for process in started:
        process.stop(signal.SIGKILL)
